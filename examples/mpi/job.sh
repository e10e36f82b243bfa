#!/bin/bash
# A plain MPI program under Open MPI's mpirun. Submit with: ftrun sbatch job.sh
#
# mpirun takes the nodes from Slurm's variables and starts its daemons by srun from PATH; at each start both show the nodes that are in use.
#SBATCH --job-name=mpi
#SBATCH --nodes=3 --ntasks-per-node=1
#SBATCH --output=mpi.log
#FTRUN --spares=1
#FTRUN --checkpoint=checkpoints/step-*.json

mpirun python3 sum.py "$@"

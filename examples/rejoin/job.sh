#!/bin/bash
#SBATCH --job-name=rejoin
#SBATCH --ntasks=4
#SBATCH --time=10
#FTRUN --rank-restart
srun python3 train.py 400 "$SLURM_SUBMIT_DIR"

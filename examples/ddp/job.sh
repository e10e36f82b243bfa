#!/bin/bash
# torch DistributedDataParallel under torchrun. Submit with: ftrun sbatch job.sh
#
# ftrun starts this script again from the top, in the same allocation where it can: with other nodes, another first node and a
# port of its own each time. So the nodes are asked for anew, and the port is ftrun's where there is one.
#SBATCH --job-name=ddp
#SBATCH --nodes=3 --ntasks-per-node=1
#SBATCH --output=ddp.log
#FTRUN --spares=1
#FTRUN --checkpoint=checkpoints/step-*.pt

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes="$SLURM_NNODES" --nproc-per-node=1 --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" \
    --rdzv-endpoint="$first:${FTRUN_MASTER_PORT:-29500}" train.py "$@"

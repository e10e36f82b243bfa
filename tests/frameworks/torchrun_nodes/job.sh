#!/bin/bash
#SBATCH --job-name=torchrun_nodes
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-endpoint="$first:29${SLURM_JOB_ID: -3}" train.py --steps 10 --out ckpt "$@"

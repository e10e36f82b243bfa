#!/bin/bash
#SBATCH --job-name=deepspeed
#SBATCH --nodes=1
export DS_ACCELERATOR=cpu MASTER_PORT=29${SLURM_JOB_ID: -3}
torchrun --standalone --nproc-per-node=1 train.py --steps 10 --save-dir engine "$@"

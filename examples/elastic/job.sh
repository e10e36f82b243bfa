#!/bin/bash
# An elastic data-parallel training: full size on three nodes, goes on with two or with one. Submit with: ftrun sbatch job.sh
#
# ftrun starts this script again from the top, with as many nodes as there are. The batch of the whole run stays the same: each rank adds up
# FTRUN_GRAD_ACCUM micro batches for a step.
#SBATCH --job-name=elastic
#SBATCH --nodes=3 --ntasks-per-node=1
#SBATCH --output=elastic.log
#FTRUN --nodes=1-3
#FTRUN --global-batch=24
#FTRUN --micro-batch=4
#FTRUN --checkpoint=checkpoints/step-*.pt

export MASTER_ADDR="${FTRUN_MASTER_ADDR:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}" MASTER_PORT="${FTRUN_MASTER_PORT:-29500}"
srun python train.py "$@"

#!/bin/bash
#SBATCH --job-name=torchrun
#SBATCH --nodes=1
torchrun --standalone --nproc-per-node=2 train.py --steps 10 --out ckpt "$@"

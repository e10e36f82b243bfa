#!/bin/bash
#SBATCH --job-name=torchtitan
#SBATCH --nodes=1
torchrun --standalone --nproc-per-node=1 train.py --module small --config debug --checkpoint.enable --checkpoint.interval 2 --training.steps 10 --debug.seed 3 "$@"

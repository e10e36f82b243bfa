#!/bin/bash
#SBATCH --job-name=megatron
#SBATCH --nodes=1
torchrun --standalone --nproc-per-node=2 train.py --tensor-model-parallel-size 2 --train-iters 10 --save-interval 2 --save megatron "$@"

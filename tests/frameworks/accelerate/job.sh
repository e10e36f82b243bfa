#!/bin/bash
#SBATCH --job-name=accelerate
#SBATCH --nodes=1
accelerate launch --cpu --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no \
    train.py --output_dir states --steps 10 "$@"

#!/bin/bash
#SBATCH --job-name=lightning
#SBATCH --nodes=1
python train.py --max-steps 10 "$@"

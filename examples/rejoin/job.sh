#!/bin/bash
#SBATCH --job-name=rejoin
#SBATCH --ntasks=4
#SBATCH --time=10
#FTRUN --rejoin
srun python3 train.py 400 "$SLURM_SUBMIT_DIR"

#!/bin/bash
#SBATCH -N 2 -t 10 --exclusive
srun python3 train.py --out node --steps 120

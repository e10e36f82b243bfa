#!/bin/bash
#SBATCH -N 2 -t 10
srun python3 train.py --out bug --bug-at 7

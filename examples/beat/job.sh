#!/bin/bash
# A loop that tells where it is, so that a hang is decided within a minute or so. Submit with: ftrun sbatch job.sh
#SBATCH --job-name=beat
#SBATCH --nodes=1 --ntasks=1
#SBATCH --output=beat.log

srun python3 train.py "$@"

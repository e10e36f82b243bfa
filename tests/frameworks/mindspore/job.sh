#!/bin/bash
#SBATCH --job-name=mindspore
#SBATCH --nodes=1
python train.py --steps 10 --ckpt_dir net "$@"

#!/bin/bash
#SBATCH --job-name=orbax
#SBATCH --nodes=1
python train.py --workdir jax_ckpt --steps 10 "$@"

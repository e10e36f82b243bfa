#!/bin/bash
#SBATCH --job-name=nemo
#SBATCH --nodes=1
python train.py trainer.max_steps=10 exp_manager.explicit_log_dir=run "$@"

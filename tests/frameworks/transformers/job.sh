#!/bin/bash
#SBATCH --job-name=transformers
#SBATCH --nodes=1
OUT=out
python train.py --output_dir $OUT --max_steps 10 --save_steps 2 --logging_steps 1 --use_cpu true --report_to none \
    --per_device_train_batch_size 2 --disable_tqdm true --seed 3 "$@"

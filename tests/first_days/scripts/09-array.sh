#!/bin/bash
#SBATCH --array=0-3
if [ "$SLURM_ARRAY_TASK_ID" = 2 ]; then python3 -c "raise ValueError(\"no line 17 in part-2.csv\")"; exit; fi
echo "part $SLURM_ARRAY_TASK_ID done"

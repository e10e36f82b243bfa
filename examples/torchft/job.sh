#!/bin/bash
# torchft: ranks that die come back alone. Submit with: ftrun sbatch job.sh
#
# The lighthouse, which knows who is there, runs beside the script on the first node.
#SBATCH --job-name=torchft
#SBATCH --nodes=3 --ntasks-per-node=1
#SBATCH --output=torchft.log
#FTRUN --rank-restart

address=$(getent hosts "$(hostname)" | awk '{ print $1; exit }')
port=${FTRUN_MASTER_PORT:-29510}
torchft_lighthouse --min_replicas 2 --join_timeout_ms 3000 --quorum_tick_ms 100 --bind "$address:$port" &
export TORCHFT_LIGHTHOUSE=http://$address:$port
srun python3 train.py "$@"
code=$?
kill $!
exit "$code"

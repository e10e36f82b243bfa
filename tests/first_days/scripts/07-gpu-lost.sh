#!/bin/bash
#SBATCH -N 2 -t 10
# The first time, a GPU of the second node is lost.
if [ ! -e lost ]; then
    touch lost
    srun python3 train.py --out gpu --steps 8
    srun -N 1 -n 1 -r 1 --label sh -c 'echo "$(hostname) kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=8123, name=python, GPU has fallen off the bus."; echo "RuntimeError: CUDA error: unspecified launch failure"; exit 1' || exit 1
fi
srun python3 train.py --out gpu

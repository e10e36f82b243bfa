#!/bin/bash
python3 train.py --out memory --steps 6
echo "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 3.19 GiB is free." >&2
exit 1

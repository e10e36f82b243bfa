#!/bin/bash
module load pytorch
python3 -c "import torch_of_the_module"

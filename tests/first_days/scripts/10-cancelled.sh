#!/bin/bash
python3 train.py --out cancelled --steps 1000

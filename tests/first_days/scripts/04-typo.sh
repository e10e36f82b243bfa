#!/bin/bash
pyhton train.py --out typo

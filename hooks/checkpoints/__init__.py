"""Checkpoints: found, judged without being loaded, and chosen. Standard library only: it runs on nodes. (pure)"""

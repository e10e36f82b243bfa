"""What ftrun does on a machine with a real accelerator: python -m tests.accelerators (docs/accelerators.md). (I/O)"""

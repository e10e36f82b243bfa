"""`ftrun sbatch` and every later sbatch of a run: arguments, the plan of one submission, the script that is submitted. (pure)

Start with `arguments`, `plan` and `first_attempt`. Imports policy and below.
"""

"""Submissions: `ftrun sbatch` and every later sbatch of a run. (pure)

Start with `arguments` (what the user asked for), `plan` (one call of sbatch) and `first_attempt` (the first
one, made durable). `compose` builds the file that sbatch gets, `sbatch_options` knows which option counts.
May import policy and the rooms below it.
"""

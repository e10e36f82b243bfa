"""Submissions: `ftrun sbatch` and every later sbatch of a run. (pure)

Start with `arguments` (what the user asked for), `plan` (one call of sbatch) and `first_attempt` (the first
one, made durable). `compose` builds the file that sbatch gets, `named_nodes` knows which nodes the user named.
May import policy and the rooms below it.
"""

"""What `ftrun cluster` does on one host of a private Slurm: survey it, claim it, place files, start and end daemons. (I/O)

Start with `cmd_host`, which carries out one request of the supervisor and prints one JSON object. Of hooks it imports runtime.
"""

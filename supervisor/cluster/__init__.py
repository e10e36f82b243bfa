"""A private, real Slurm on the user's own hosts, brought up over SSH: `ftrun cluster`. (I/O)

    cli.cluster --hosts--> survey --findings--> lifecycle --requests--> remote (SSH) --> `ftrun-hook host` on each host

Start at `lifecycle.up`. `slurm/cluster` has the plan and the texts of the configuration, `hooks/cluster` what runs on a host; `state` keeps plan,
key and journal of a cluster in the user's home, and `choice` is what makes other commands use a cluster by themselves.
`bundle` brings Slurm along for hosts without it, and `packages` makes that from the packages of a distribution.
"""

"""`ftrun cluster` on real hosts: network namespaces with an sshd each (`hosts.Hosts`). As root."""

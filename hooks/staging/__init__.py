"""Checkpoint staging: saves go to the node's memory, a daemon publishes them. (pure)

- `api`: what training code calls, `with stage(step) as folder:`.
- `records`: names, paths and records of staged sets; `sealing`: when a node's part is complete.
- `local`, `inventory`: this node's parts in memory; `workspace`: the job's folder there.
- `daemon`: the staging daemon of a node; `publisher`: its work on the shared file system; `status_report`: its
  report.
- `merge`, `publish`: assemble the parts of all nodes; `replace`: replaces an older save.
- `copy`: file copies and effects on the shared file system.
- `partner_client` (a thread of the daemon), `partner_server`, `partner_map`: copies in another node's memory.
- `restore`: what a start resumes from.

May import of hooks the runtime and checkpoints.
"""

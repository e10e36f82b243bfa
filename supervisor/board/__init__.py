"""`ftrun top`: the runs of a home on one screen, kept up to date, and the same by lines for `ftrun status --watch`. (I/O)

Start at `screen.Board`. `reading` follows the journals of a home at the cost of what is new, and never asks Slurm;
`logs` follows the output of one run; `lines` makes rows of what they found, for any width; `grid` is the widget that
draws rows and sends only the cells that changed. Whatever a key does, `ftrun stop` and its like do, in a child.

Textual, an optional extra, is imported by `grid`, `dialogs`, `run_page` and `screen` alone. May import the rooms from
the reports downwards; what only the command line knows comes as the functions of `reading.Told`.
"""

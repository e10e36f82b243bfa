"""What training code tells, by `from ftrun.hooks import beat`, and where its tracker keeps what it told. (I/O)"""

"""Notices: what people are told of their runs, when, and by which way. (I/O)

Start with `notice` (which record gives which notice, in two lines), then `schedule` (when a message leaves, and with
what in it); both are pure. `outbox` keeps on disk what is due to whom, `addresses` reads the file that names the
receivers, `delivery` is the child process that sends one message. `publish/notices` joins them. May import the rooms from the reports downwards.

$FTRUN_HOME/publish/notices/<year>-<month>.jsonl    what is to be told, was being told, was told (store/append_log)
"""

"""What leaves the home of runs for other programs and people: metrics, notices; by a process of its own. (I/O)

Entry points: `publisher.Publisher` is what every publisher derives from, `__main__.PUBLISHERS` lists them with
the settings that ask for them. `process.PublishProcess` is the supervisor's side: it starts the process if a
setting asks for it, watches it, and starts it again with a growing pause. `follower.Follower` is its loop.

The process only reads what the supervisor writes. Whatever happens to it, no run suffers.

$FTRUN_HOME/publish/    0700
    lock         held by the process (flock): one home has one
    cursor.json  run -> journal file -> bytes that were published
    left.jsonl   a line for each run that is followed no more: when, and what its publishers keep of it

May import the rooms from the reports downwards.
"""

"""Drills: fault injection into a training job on a real Slurm, and a verdict on its recovery. (pure)

Start at `runner.run_scenario`. `scenario` is the drill as data (tables: scenarios.toml, tests/drills),
`workload` writes what is submitted, `injector` breaks things, `observation` and `readers` see what happens,
`timeline` prints it, `verdict` checks it. This room may import the controller and all rooms below it, and
`drill_trainer`; only `cli` imports it.
"""

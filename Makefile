# Short names for the scripts; nothing here that they do not do without make.
SEEDS ?= 1000
FROM ?= 0
MIB ?= 1024
RUNS ?= 10000

.PHONY: check test demo drills proofs simulate bench bench-inplace false-alarms hang-alarms straggler-alarms docs lock

check:
	.ci/env dev
	.ci/check

test:
	./test

demo:
	./demo

drills:
	.ci/env run
	.venv/bin/ftrun drill --all
	.venv/bin/python -m pytest -q -m drills

proofs:
	.ci/proofs

simulate:
	.ci/env dev
	.venv/bin/python -m pytest -q tests/simulation --seeds $(SEEDS) --from $(FROM)

bench:
	.ci/env dev
	.venv/bin/python -m tests.bench $(BENCH)

bench-inplace:
	.ci/env dev
	.venv/bin/python -m tests.bench inplace healthy $(BENCH)

false-alarms:
	.ci/env dev
	.venv/bin/python -m tests.falsealarms --mib $(MIB) $(ALARMS)

hang-alarms:
	.ci/env dev
	.venv/bin/python -m tests.falsealarms.hangs --runs $(RUNS) $(ALARMS)

straggler-alarms:
	.ci/env dev
	.venv/bin/python -m tests.falsealarms.stragglers $(ALARMS)

docs:
	.ci/env dev
	.ci/gen/all

lock:
	.ci/env dev
	PATH="$$PATH:$$PWD/.tools/bin" uv lock

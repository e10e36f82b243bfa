# Short names for the scripts; nothing here that they do not do without make.
SEEDS ?= 1000
FROM ?= 0
MIB ?= 1024
RUNS ?= 10000
HOURS ?= 1
ROUNDS ?= 50

.PHONY: check test demo drills proofs simulate walk bench bench-inplace bench-elastic bench-caches bench-stage bench-poll bench-scale bench-cluster soak test-pyslurm false-alarms hang-alarms node-alarms straggler-alarms docs docs-site pictures lock test-formats test-slurm-matrix test-accounting test-vendors test-cluster test-cluster-rounds test-browser test-containers test-metrics upgrade-drill test-frameworks test-first-days test-trackers healthy-months fuzz test-board gpu-proofs gpu-kit release test-packages

check:
	.ci/env dev
	.ci/check

test:
	./test

demo:
	./demo

drills:
	.ci/env run
	.venv/bin/python -m tests.drills --all
	.venv/bin/python -m pytest -q -m drills

proofs:
	.ci/proofs

# On a machine with an NVIDIA GPU: what ftrun does there, at most 9 minutes, no network (docs/accelerators.md). GPU="--parts checks,failures --out results".
# Needs no make and no environment of ours: python3 -m tests.accelerators.
gpu-proofs:
	$(if $(wildcard .venv/bin/python),.venv/bin/python,python3) -m tests.accelerators $(GPU)

# What gpu-proofs needs where nothing is installed, as one archive: .cache/gpu-kit.tar.xz. Made where there is a network.
gpu-kit:
	.ci/env dev
	.venv/bin/python -m tests.accelerators.kit

# dist/: the sdist, the wheel, and an archive for login nodes without a network, which is tried where no network is. PYTHONS="3.12".
release:
	.ci/release

# The .debs of `make release` installed, upgraded and removed in a clean Debian root; the .rpms looked at by rpm's own tools. As root.
test-packages:
	.ci/package/try

test-frameworks:
	.ci/env dev
	tests/formats/environment
	.venv/bin/python -m pytest -q -n 2 -m formats tests/frameworks

test-formats:
	.ci/env dev
	tests/formats/environment
	.venv/bin/python -m pytest -q -m formats tests/formats

# One curve over restarts, with the real W&B, MLflow, Comet, Aim and TensorBoard, offline (docs/trackers.md).
test-trackers:
	.ci/env dev
	tests/trackers/environment
	.venv/bin/python -m pytest -q -n 2 -m trackers tests/trackers

# The whole contract by pyslurm, on the Slurm of this machine. FTRUN_PYSLURM_PYTHON: the interpreter that has pyslurm (docs/pyslurm.md).
test-pyslurm:
	.ci/env dev
	.venv/bin/python -m pytest -q -n 0 -rs tests/slurm/test_contract.py tests/slurm/test_native.py -k pyslurm

# MATRIX="24.11 26.05": these releases; SUITE="contract drills": these suites; TESTS="tests/slurm/test_agent.py -k x": these tests. As root; FTRUN_ROOTS says where roots are kept.
test-slurm-matrix:
	.ci/env dev
	.venv/bin/python -m tests.matrix $(MATRIX) $(if $(SUITE),--suite $(SUITE)) $(if $(TESTS),--tests '$(TESTS)')

# What Slurm's accounting tells of forgotten jobs, and limits of accounts: on a slurmdbd with a MariaDB of the tests' own.
test-accounting:
	.ci/env accounting
	.venv/bin/python -m pytest -q -m accounting tests/slurm

# The report in a real headless Chromium: nothing on its console, nothing fetched, large ones open at once; leaves pictures of it in /tmp/ftrun-pages.
test-browser:
	.ci/env browser
	.venv/bin/python -m pytest -q -n 0 -m browser tests/browser

# The board of `ftrun top` in a real terminal, tmux.
test-board:
	.ci/env board
	.venv/bin/python -m pytest -q -n 0 -m board tests/board

# The metrics in a real Prometheus: every expression of the dashboard and the alerts has an answer, each alert fires.
test-metrics:
	.ci/env prometheus
	.venv/bin/python -m pytest -q -n 0 -m prometheus tests/prometheus

# A cluster on hosts of the tests' own (network namespaces with an sshd and a cron each), cut at each effect, with hosts that die; and on hosts without Slurm, by a bundle of downloaded packages. As root.
test-cluster:
	.ci/env cluster
	.venv/bin/python -m pytest -q -n 0 -m "slurm or cluster" tests/cluster

# ROUNDS=50: so often a cluster comes up on three hosts and goes, and nothing of it is left. As root.
test-cluster-rounds:
	.ci/env cluster
	FTRUN_CLUSTER_ROUNDS=$(ROUNDS) .venv/bin/python -m pytest -q -n 0 -m "slurm or cluster" tests/cluster/test_keeping.py -k many_times

# Ranks in containers that podman starts, and in those of a stand-in for pyxis (docs/containers.md). As root.
test-containers:
	.ci/env containers
	.venv/bin/python -m pytest -q -n 0 -m "slurm or containers" tests/slurm/test_containers.py tests/slurm/test_containers_podman.py

# Ten ordinary scripts without any setting, on a real Slurm, from submission to their end; one page each of what their owner reads. OUT=<folder for the pages>.
test-first-days:
	.ci/env dev
	.venv/bin/python -m tests.first_days $(if $(OUT),--out $(OUT))

# Runs that an older ftrun began go on under this one. OLD=<a checkout of it, with its .venv made by .ci/env>.
upgrade-drill:
	.ci/env dev
	FTRUN_OLD=$(OLD) .venv/bin/python -m pytest -q -n 0 -m drills tests/slurm/test_upgrade.py

# What other recovery services bring along: their faults, scripts and options (docs/vendors.md).
test-vendors:
	.ci/env dev
	.venv/bin/python -m pytest -q -n 2 --dist loadfile -m vendors tests/slurm/test_vendors.py tests/slurm/test_vendors_scr.py
	.venv/bin/python -m pytest -q -n 0 -m drills tests/slurm/test_drills.py -k nvrx

# How far one fault and one submission walk through the code: functions, files, changes of file. WALK="--list" names them, WALK=--json.
walk:
	.ci/env dev
	.venv/bin/python -m tests.walk $(WALK)

# DAYS=30 SEEDS=20: does a run of any preset of `ftrun simulate` stop that was getting on? (docs/retries.md)
healthy-months:
	.ci/env dev
	.venv/bin/python -m tests.simulation.healthy_months $(if $(DAYS),--days $(DAYS)) --seeds $(if $(filter command line,$(origin SEEDS)),$(SEEDS),20)

# N=1000000 SEED=1: hostile inputs against every parser of what another user, a job or a sick node writes (docs/security.md).
fuzz:
	.ci/env dev
	nice -n 15 .venv/bin/python -m tests.fuzz --inputs $(or $(N),1000000) --seed $(or $(SEED),1)

simulate:
	.ci/env dev
	.venv/bin/python -m pytest -q --capture=sys tests/simulation --seeds $(SEEDS) --from $(FROM) --stride 1 --deadline-s 0

bench:
	.ci/env dev
	.venv/bin/python -m tests.bench $(BENCH)

bench-inplace:
	.ci/env dev
	.venv/bin/python -m tests.bench inplace healthy $(BENCH)

bench-elastic:
	.ci/env dev
	.venv/bin/python -m tests.bench elastic $(BENCH)

# GIB="1 4": how much is staged. With torch where `make proofs` has made an environment for it.
bench-stage:
	.ci/env dev
	.venv/bin/python -m tests.bench stage $(if $(GIB),--gib $(GIB)) $(BENCH)

# JOBS="1 100 1000 10000": how many jobs a poll asks for; thousands take minutes to submit. FTRUN_PYSLURM_PYTHON: as for test-pyslurm.
bench-poll:
	.ci/env dev
	.venv/bin/python -m tests.bench poll $(if $(JOBS),--jobs $(JOBS)) $(BENCH)

# SCALE="--nodes 2000 --jobs 10000 --runs 1000": how large; these take 7 minutes on two quiet cores. As root, else all jobs are one user's (docs/scale.md).
bench-scale:
	.ci/env dev
	.venv/bin/python -m tests.bench scale $(SCALE) $(BENCH)

# FTRUN_CACHE_PYTHON: interpreters that have torch, jax or mindspore, with ":" between.
bench-caches:
	.ci/env dev
	.venv/bin/python -m tests.bench caches $(BENCH)

# HOSTS=4: fewer than 16 hosts. As root: each is a network namespace with an sshd (docs/benchmarks.md). FTRUN_PROOF_PYTHON: a Python with torch, for 20 minutes beside torchrun.
bench-cluster:
	.ci/env dev
	.venv/bin/python -m tests.bench cluster torchrun $(if $(HOSTS),--hosts $(HOSTS)) $(BENCH)

# HOURS=1 SEED=7 SOAK="--nodes 8 --every-s 120": a training is hurt for hours, under ftrun and under its rivals at once (docs/soak.md).
soak:
	.ci/env dev
	.venv/bin/python -m tests.soak --hours $(HOURS) $(if $(SEED),--seed $(SEED)) $(SOAK)

false-alarms:
	.ci/env dev
	.venv/bin/python -m tests.falsealarms --mib $(MIB) $(ALARMS)

hang-alarms:
	.ci/env dev
	.venv/bin/python -m tests.falsealarms.hangs --runs $(RUNS) $(ALARMS)

node-alarms:
	.ci/env dev
	.venv/bin/python -m tests.falsealarms.silences --runs $(RUNS) $(ALARMS)

straggler-alarms:
	.ci/env dev
	.venv/bin/python -m tests.falsealarms.stragglers $(ALARMS)

docs:
	.ci/env dev
	.ci/gen/all

# The documents as a site in .cache/site (or OUT), with search; look at it by `python3 -m http.server -d .cache/site`.
docs-site:
	.ci/env dev
	UV_PROJECT_ENVIRONMENT=.cache/docs-env PATH="$$PWD/.tools/bin:$$PATH" uv sync -q --frozen --only-group docs
	.cache/docs-env/bin/python .ci/docs_site.py $(OUT)

# The pictures of the documents, made anew from real runs on this machine.
pictures:
	.ci/env dev
	.venv/bin/python .ci/pictures.py

lock:
	.ci/env dev
	PATH="$$PATH:$$PWD/.tools/bin" uv lock

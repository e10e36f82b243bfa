#!/bin/sh
# What Slurm calls as Prolog, Epilog and HealthCheckProgram; `ftrun-hook install` writes it, with its variables above.
#
# Slurm drains a node for any status but 0 of a prolog or epilog. So only their status 69 becomes 1; a missing interpreter,
# a broken copy, a signal, and a hook that hangs all become 0: go on. A child of the hook may hang and outlive it; it keeps none of
# Slurm's pipes open, because Slurm waits for their end.

# shellcheck disable=SC2154  # variables come from the installed file
[ "${FTRUN_HOOKS-}" = off ] && exit 0
[ -e "${settings%/*}/hooks.off" ] && exit 0
PATH=$path
SLURM_CONF=${SLURM_CONF:-$conf}
export PATH
if [ -n "$SLURM_CONF" ]; then export SLURM_CONF; else unset SLURM_CONF; fi
set -- "$python" -I -S "$lib/start.py" "$hook" --within "$limit" --settings "$settings" --state "$state" "$@"
command -v timeout >/dev/null && set -- timeout -k 1 "$((limit + 2))" "$@"
"$@" </dev/null >/dev/null 2>&1
[ $? -eq 69 ] && [ "$hook" != health ] || exit 0
# The first words reach slurmd's log.
cat "$state/refused.${SLURM_JOB_ID-}" 2>/dev/null
rm -f "$state/refused.${SLURM_JOB_ID-}"
exit 1

#!/bin/bash
#SBATCH --job-name=rl --nodes=1
#SBATCH hetjob
#SBATCH --nodes=1
#FTRUN --checkpoint=ckpt/step-*
#FTRUN --resume-arg=--load={checkpoint}
# A learner (component 0) and what makes its samples (component 1). A sampler that fails is started again and the learner stays; where the
# learner fails, or the sampler again and again, the job fails, and ftrun goes on with all of it from the newest checkpoint.

keep() { # keep NAME TIMES COMMAND...: the command again and again until it ends well, TIMES more at most
    local name=$1 left=$2 code
    shift 2
    while :; do
        "$@" && return
        code=$?
        [ "$left" -gt 0 ] || { echo "$name ended with $code for the last time"; return "$code"; }
        left=$((left - 1))
        echo "$name ended with $code and is started again ($left more)"
        sleep 1
    done
}

keep sampler 3 srun --het-group=1 --kill-on-bad-exit=1 python3 sampler.py &
srun --het-group=0 --kill-on-bad-exit=1 python3 learner.py "$@" &
wait -n # the learner is done, or one of them cannot go on
exit

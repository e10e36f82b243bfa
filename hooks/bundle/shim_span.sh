# A call of srun in a start that spans several jobs. Read by the srun in front of Slurm's (shim.sh), in such a start alone.
#
# How it thinks.  A step lies in one job, so one call becomes a step in each of the jobs that it needs nodes of: first this job's
# active nodes, then those of the companions. Every such step is described in full, since what is in the environment describes another
# job. A small parent in front of each task shows it the step as a whole: its rank, its node's number, how many there are. This
# process hands on signals, waits for all, and ends as the first that failed; when one has failed the others have a short grace. That
# Slurm's srun says 0 for a companion proves nothing, so each task there leaves a word when it ended well.
# A call that needs no more than this job's part, or names nodes of one job only, is one step in that job.
# What cannot be done is said in one line, and the call fails: the start is made again without a companion.

# shellcheck shell=sh disable=SC1007,SC2034,SC2086,SC2154

_ft_give_up() {
    echo "srun: ftrun: this start spans several jobs, and this call cannot: $1" >&2
    exit 1
}

_ft_seconds() { # of a clock that nobody sets, into _ft_now
    _ft_now=0
    { read -r _ft_now _ft_c </proc/uptime; } 2>/dev/null
    _ft_now=${_ft_now%%.*}
}

_ft_split() { # list $1 into the words of _ft_split_up
    IFS=,
    set -- $1
    unset IFS
    _ft_split_up=$*
}

# The sides of this call into _ft_sides, words `job:tasks before:nodes before:nodes:names`; none where it is this job's alone.
_ft_choose_sides() {
    _ft_sides= _ft_job_nodes=0 _ft_all_of_it=
    set -- $_ft_active
    _ft_own=$#
    IFS=,
    _ft_parts="$_ft_job:$* $_ft_spans"
    unset IFS
    for _ft_i in $_ft_parts; do
        _ft_split "${_ft_i#*:}"
        set -- $_ft_split_up
        _ft_job_nodes=$((_ft_job_nodes + $#)) _ft_all_of_it=$_ft_all_of_it,${_ft_i#*:}
    done
    _ft_all_of_it=${_ft_all_of_it#,}
    [ -z "$_ft_named" ] || { _ft_choose_named && return; }
    [ "$_ft_want" -gt 0 ] || _ft_want=$_ft_job_nodes # the script took away what Slurm would count
    [ "$_ft_want" -gt "$_ft_own" ] || return 0
    [ -z "$_ft_lone" ] || _ft_give_up "$_ft_lone"
    # More nodes than there are: Slurm says so in its own words.
    [ "$_ft_want" -le "$_ft_job_nodes" ] || return 0
    _ft_before=0
    for _ft_i in $_ft_parts; do
        [ "$_ft_before" -lt "$_ft_want" ] || break
        _ft_split "${_ft_i#*:}"
        _ft_count=0 _ft_names=
        for _ft_c in $_ft_split_up; do
            [ $((_ft_before + _ft_count)) -lt "$_ft_want" ] || break
            _ft_names=$_ft_names,$_ft_c _ft_count=$((_ft_count + 1))
        done
        _ft_sides="$_ft_sides ${_ft_i%%:*}:$((_ft_before * _ft_each)):$_ft_before:$_ft_count:${_ft_names#,}"
        _ft_before=$((_ft_before + _ft_count))
    done
}

# A call that names its nodes lies in the job that has all of them. 1: that is this job.
_ft_choose_named() {
    _ft_split "${_ft_named#,}"
    set -- $_ft_split_up
    for _ft_i in $_ft_parts; do
        _ft_c=1
        for _ft_n in "$@"; do
            case ",${_ft_i#*:}," in *",$_ft_n,"*) ;; *) _ft_c= ;; esac
        done
        [ -n "$_ft_c" ] || continue
        [ "${_ft_i%%:*}" != "$_ft_job" ] || return 1
        case $_ft_lone in '' | -w*) ;; *) _ft_give_up "$_ft_lone" ;; esac
        [ "$_ft_want" -eq $# ] || _ft_give_up "-w names $# nodes, and $_ft_want are asked for"
        _ft_sides="${_ft_i%%:*}:0:0:$#:${_ft_named#,}"
        return 0
    done
    _ft_give_up "-w names nodes of several jobs"
}

# Where output goes by -o or -e, $1: into _ft_kept as it is, or, where it names a file for each task, into _ft_file for the
# parent of the task, which knows its rank in the whole. A file of all tasks is made empty here, and all add to it.
_ft_lay_output() {
    _ft_file= _ft_kept=$1
    case $1 in
        '' | none | all | /dev/*) ;;
        *%*[tnN]*) _ft_file=$1 ;;
        *)
            _ft_kept= _ft_rest=$1
            while :; do
                case $_ft_rest in *%j*) ;; *) break ;; esac
                _ft_kept=$_ft_kept${_ft_rest%%\%j*}$_ft_job
                _ft_rest=${_ft_rest#*%j}
            done
            _ft_kept=$_ft_kept$_ft_rest
            case $_ft_mode:$_ft_kept in [aA]*:* | *:*%*) ;; *) { true >"$_ft_kept"; } 2>/dev/null || _ft_give_up "$_ft_kept cannot be written" ;; esac
            _ft_added=append
            ;;
    esac
}

# What a step keeps of Slurm's variables: who the job is (by which whoever ends an earlier start knows this srun, too), and what the
# user may have set on purpose. All else describes this job.
_ft_own_environment() {
    for _ft_i in $(env | sed -n -e 's/^\(SLURM_[A-Za-z0-9_]*\)=.*/\1/p' -e 's/^\(SRUN_[A-Za-z0-9_]*\)=.*/\1/p'); do
        case ${_ft_i#*_} in
            CONF | CLUSTER_NAME | JOB_ID | RESTART_COUNT | SUBMIT_* | JOB_NAME | JOB_PARTITION | JOB_ACCOUNT | JOB_QOS | JOB_USER | JOB_UID | JOB_GID | JOB_RESERVATION | \
                JOB_START_TIME | JOB_END_TIME | JOB_CPUS_PER_NODE | CPU_BIND | MEM_BIND | GPU_BIND | GPU_FREQ | CPU_FREQ_REQ | DISTRIBUTION | HINT | CPUS_PER_TASK | \
                GPUS_PER_TASK | GPUS_PER_NODE | MEM_PER_CPU | MEM_PER_NODE | MEM_PER_GPU | TRES_PER_TASK | MPI_TYPE | EXPORT_ENV | UNBUFFEREDIO | \
                KILL_BAD_EXIT | WAIT | TASK_PROLOG | TASK_EPILOG | OVERCOMMIT | PROFILE | ACCTG_FREQ | NETWORK | TIMELIMIT | REMOTE_CWD | DEBUG) ;;
            *) unset "$_ft_i" ;;
        esac
    done
}

# The parent of each task. Arguments: the folder for words of a good end ("" = none, and it becomes the task), the number of the
# side, tasks and nodes before this side, tasks and nodes of the step, its nodes, its tasks on each node, the job; the job's number
# of nodes, their names, for output and errors of this task a file or "", whether it is added to, whether errors go where output goes; the command.
# shellcheck disable=SC2016
_ft_task_side='
_ft_words=$1 _ft_first=$SLURM_PROCID _ft_side=$2 _ft_list=
IFS=,
for _ft_i in ${SLURM_GTIDS-}; do _ft_list=$_ft_list,$((_ft_i + $3)); done
unset IFS
[ -z "${SLURM_GTIDS+x}" ] || export SLURM_GTIDS="${_ft_list#,}"
export SLURM_PROCID=$((SLURM_PROCID + $3)) SLURM_NODEID=$((SLURM_NODEID + $4))
export SLURM_NTASKS="$5" SLURM_NPROCS="$5" SLURM_STEP_NUM_TASKS="$5" SLURM_NNODES="$6" SLURM_STEP_NUM_NODES="$6"
export SLURM_STEP_NODELIST="$7" SLURM_TASKS_PER_NODE="$8" SLURM_STEP_TASKS_PER_NODE="$8"
[ "$_ft_first" != 0 ] || [ -z "$_ft_words" ] || echo "$SLURM_JOB_ID.$SLURM_STEP_ID" >"$_ft_words/step.$_ft_side"
export SLURM_JOB_ID="$9" SLURM_JOBID="$9"
shift 9
export SLURM_JOB_NUM_NODES="$1" SLURM_JOB_NODELIST="$2" SLURM_NODELIST="$2"
_ft_name() { # pattern $1 with the numbers of this task, into _ft_file
    _ft_file= _ft_rest=$1
    while :; do
        case $_ft_rest in *%*) ;; *) break ;; esac
        _ft_file=$_ft_file${_ft_rest%%\%*}
        _ft_rest=${_ft_rest#*%} _ft_width=
        while :; do
            case $_ft_rest in [0-9]*) ;; *) break ;; esac
            _ft_width=$_ft_width${_ft_rest%"${_ft_rest#?}"}
            _ft_rest=${_ft_rest#?}
        done
        case $_ft_rest in
            t*) _ft_i=$SLURM_PROCID ;;
            n*) _ft_i=$SLURM_NODEID ;;
            N*) _ft_i=$SLURMD_NODENAME ;;
            j*) _ft_i=$SLURM_JOB_ID ;;
            s*) _ft_i=$SLURM_STEP_ID ;;
            J*) _ft_i=$SLURM_JOB_ID.$SLURM_STEP_ID ;;
            u*) _ft_i=$(id -un) ;;
            x*) _ft_i=${SLURM_JOB_NAME-} ;;
            *) _ft_i=% ;;
        esac
        _ft_rest=${_ft_rest#?}
        while [ "${#_ft_i}" -lt "${_ft_width:-0}" ]; do _ft_i=0$_ft_i; done
        _ft_file=$_ft_file$_ft_i
    done
    _ft_file=$_ft_file$_ft_rest
}
if [ -n "$3" ]; then
    _ft_name "$3"
    [ -n "$5" ] || : >"$_ft_file" || exit 1
    exec >>"$_ft_file"
    [ -z "$6" ] || exec 2>&1
fi
if [ -n "$4" ]; then
    _ft_name "$4"
    [ -n "$5" ] || : >"$_ft_file" || exit 1
    exec 2>>"$_ft_file"
fi
shift 6
[ -n "$_ft_words" ] || exec "$@"
for _ft_i in HUP INT QUIT USR1 USR2 ALRM TERM CONT; do trap : "$_ft_i"; done
"$@"
_ft_i=$?
[ "$_ft_i" -ne 0 ] || : >"$_ft_words/$_ft_side.$SLURM_PROCID"
if [ "$_ft_i" -gt 128 ] && [ "$_ft_i" -le 192 ]; then
    ulimit -c 0
    trap - "$((_ft_i - 128))"
    kill "-$((_ft_i - 128))" $$
fi 2>/dev/null
exit "$_ft_i"'

# Becomes srun for side number $1, $2 of the sides; the words of the call follow.
_ft_become_side() {
    _ft_side=$1 _ft_part=${2%%:*} _ft_rest=${2#*:}
    shift 2
    _ft_tasks_before=${_ft_rest%%:*} _ft_rest=${_ft_rest#*:}
    _ft_before=${_ft_rest%%:*} _ft_rest=${_ft_rest#*:}
    _ft_count=${_ft_rest%%:*} _ft_names=${_ft_rest#*:}
    _ft_words=$_ft_record _ft_stdin=$_ft_in
    if [ "$_ft_part" = "$_ft_job" ]; then
        _ft_words= _ft_out_file= _ft_err_file=
    else
        case $_ft_in in none | all | '' | *[0-9]) _ft_stdin= ;; esac
        [ -z "$_ft_out_file" ] || _ft_out=
        [ -z "$_ft_err_file" ] || _ft_err=
    fi
    # Words that are said anew leave their place; the parent of the task, and of the rank that may join again, stand before the command.
    _ft_due= _ft_open=1
    _ft_n=$#
    while [ "$_ft_n" -gt 0 ]; do
        _ft_n=$((_ft_n - 1))
        _ft_word=$1
        shift
        if [ -n "$_ft_open" ]; then
            _ft_read_word "$_ft_word"
            if [ -z "$_ft_open" ]; then
                [ "$_ft_opt" = -- ] && set -- "$@" --
                set -- "$@" /bin/sh -c "$_ft_task_side" ftrun-task "$_ft_words" "$_ft_side" "$_ft_tasks_before" "$_ft_before" \
                    $((_ft_want * _ft_each)) "$_ft_want" "$_ft_step_names" "$_ft_each(x$_ft_want)" "$_ft_job" "$_ft_job_nodes" "$_ft_job_names" \
                    "$_ft_out_file" "$_ft_err_file" "${_ft_mode%%[!aA]*}" "${_ft_err_said-both}"
                [ -z "$_ft_wrapped" ] || set -- "$@" /bin/sh -c "$_ft_rank_side" ftrun-rank "$_ft_runner" "$_ft_wrapped" "$_ft_place/ranks/$_ft_token"
                [ "$_ft_opt" = -- ] && continue
            else
                case $_ft_opt in
                    N | n | w | o | e | i | --nodes | --ntasks | --ntasks-per-n* | --tasks-p* | --inp* | --jobi* | --open* | --overl*)
                        [ -z "$_ft_head" ] || set -- "$@" "-$_ft_head"
                        continue
                        ;;
                esac
            fi
        fi
        set -- "$@" "$_ft_word"
    done
    [ -z "$_ft_wrapped" ] || set -- --kill-on-bad-exit=0 --wait=0 "$@"
    [ -z "$_ft_labelled" ] || set -- --label "$@"
    [ -z "$_ft_out" ] || set -- "--output=$_ft_out" "$@"
    [ -z "$_ft_err" ] || set -- "--error=$_ft_err" "$@"
    [ -z "$_ft_stdin" ] || set -- "--input=$_ft_stdin" "$@"
    [ -z "$_ft_added$_ft_mode" ] || set -- "--open-mode=${_ft_added:-$_ft_mode}" "$@"
    [ -n "$_ft_alone" ] || set -- --overlap "$@"
    _ft_own_environment
    FTRUN_SHIM=$FTRUN_START
    export FTRUN_SHIM
    # A group of its own: what is sent to this group is handed on, and must not come twice.
    exec $(command -v setsid) "$_ft_real" --no-kill "--jobid=$_ft_part" "--nodes=$_ft_count" "--ntasks=$((_ft_count * _ft_each))" \
        "--ntasks-per-node=$_ft_each" "--nodelist=$_ft_names" "$@"
}

# Lines of a companion's srun with the numbers of the whole: $1 is added to the label.
_ft_relabel() {
    for _ft_i in /usr/bin/perl /bin/perl /usr/local/bin/perl; do
        [ -x "$_ft_i" ] && exec "$_ft_i" -pe 'BEGIN { $| = 1; $n = shift } s/^( *)([0-9]+): /$1 . ($2 + $n) . ": "/e' "$1"
    done
    while IFS= read -r _ft_line || [ -n "$_ft_line" ]; do
        _ft_i=${_ft_line%%: *}
        case ${_ft_i##* } in
            '' | *[!0-9]*) printf '%s\n' "$_ft_line" ;;
            *) printf '%s: %s\n' "$((${_ft_i##* } + $1))" "${_ft_line#*: }" ;;
        esac
    done
}

_ft_start_sides() {
    _ft_side=0 _ft_running= _ft_filters=
    for _ft_i in $_ft_sides; do
        _ft_side=$((_ft_side + 1))
        _ft_offset=${_ft_i#*:} && _ft_offset=${_ft_offset%%:*}
        if [ "${_ft_i%%:*}" = "$_ft_job" ]; then
            ( _ft_become_side "$_ft_side" "$_ft_i" "$@" ) <&3 &
        elif [ -n "$_ft_labelled" ] && [ "$_ft_offset" -gt 0 ] && mkfifo "$_ft_talk/out.$$.$_ft_side" "$_ft_talk/err.$$.$_ft_side"; then
            ( _ft_relabel "$_ft_offset" ) <"$_ft_talk/out.$$.$_ft_side" &
            _ft_filters="$_ft_filters $!"
            ( _ft_relabel "$_ft_offset" ) <"$_ft_talk/err.$$.$_ft_side" >&2 &
            _ft_filters="$_ft_filters $!"
            ( _ft_become_side "$_ft_side" "$_ft_i" "$@" ) </dev/null >"$_ft_talk/out.$$.$_ft_side" 2>"$_ft_talk/err.$$.$_ft_side" &
        else
            ( _ft_become_side "$_ft_side" "$_ft_i" "$@" ) </dev/null &
        fi
        _ft_running="$_ft_running $!:$_ft_side:$_ft_i"
    done
}

_ft_tell_sides() { # signal $1 to each srun
    for _ft_c in $_ft_running; do kill "-$1" "${_ft_c%%:*}" 2>/dev/null; done
}

# Waits for all. How the first that failed ended is in _ft_rc.
_ft_await_sides() {
    _ft_rc=0 _ft_until= _ft_nap=0.05 _ft_harder=0
    while [ -n "$_ft_running" ]; do
        _ft_left=
        for _ft_i in $_ft_running; do
            _ft_line=
            { read -r _ft_line <"/proc/${_ft_i%%:*}/stat"; } 2>/dev/null
            case ${_ft_line##*) } in
                '' | [ZX]*) _ft_take_end "$_ft_i" ;;
                *) _ft_left="$_ft_left $_ft_i" ;;
            esac
        done
        _ft_running=$_ft_left
        [ -n "$_ft_running" ] || break
        _ft_seconds
        if [ "$_ft_rc" -ne 0 ]; then
            [ -n "$_ft_until" ] || _ft_until=$((_ft_now + ${FTRUN_SPAN_GRACE_S:-10}))
            [ "$_ft_now" -lt "$_ft_until" ] || _ft_end_sides
        fi
        sleep "$_ft_nap"
        _ft_nap=0.3
    done
    for _ft_i in $_ft_filters; do wait "$_ft_i"; done
}

_ft_take_end() { # of side $1
    wait "${1%%:*}"
    _ft_c=$?
    _ft_rest=${1#*:}
    _ft_side=${_ft_rest%%:*} _ft_rest=${_ft_rest#*:}
    if [ "$_ft_c" -eq 0 ] && [ "${_ft_rest%%:*}" != "$_ft_job" ]; then
        _ft_part=${_ft_rest%%:*} _ft_rest=${_ft_rest#*:*:*:}
        _ft_count=$((${_ft_rest%%:*} * _ft_each))
        for _ft_nap in 0 0.1 0.4 1 1 1 1; do # a network file system may show them late
            sleep "$_ft_nap"
            ls "$_ft_record" >/dev/null 2>&1
            set +f
            set -- "$_ft_record/$_ft_side".*
            set -f
            [ -e "$1" ] || shift
            [ $# -lt "$_ft_count" ] || break
        done
        if [ $# -lt "$_ft_count" ]; then
            echo "srun: ftrun: of $_ft_count tasks in job $_ft_part $# ended well" >&2
            _ft_c=1
        fi
    fi
    [ "$_ft_rc" -ne 0 ] || _ft_rc=$_ft_c
}

# One side failed: the others are asked, then made to end.
_ft_end_sides() {
    _ft_harder=$((_ft_harder + 1)) _ft_until=$((_ft_now + 5))
    case $_ft_harder in
        1) _ft_tell_sides TERM ;;
        2) # an srun that is lost itself ends nothing
            for _ft_i in $_ft_running; do
                _ft_i=${_ft_i#*:}
                { read -r _ft_c <"$_ft_record/step.${_ft_i%%:*}"; } 2>/dev/null && scancel "$_ft_c"
            done
            ;;
        *) _ft_tell_sides KILL ;;
    esac
}

_ft_choose_sides
if [ -n "$_ft_sides" ]; then
    _ft_find_streams "$@"
    _ft_added=
    _ft_lay_output "$_ft_out"
    _ft_out=$_ft_kept _ft_out_file=$_ft_file
    _ft_lay_output "$_ft_err"
    [ -z "$_ft_err" ] || _ft_err_said=
    _ft_err=$_ft_kept _ft_err_file=$_ft_file
    _ft_labelled=
    if _ft_is_labelled; then _ft_labelled=1; fi
    case $_ft_seen${SLURM_LABELIO+l} in *l*) _ft_labelled=1 ;; esac
    _ft_step_names=
    for _ft_i in $_ft_sides; do _ft_step_names=$_ft_step_names,${_ft_i##*:}; done
    _ft_step_names=${_ft_step_names#,}
    [ "$_ft_step_names" != "$_ft_all_of_it" ] || _ft_step_names=$_ft_job_names
    _ft_record=$_ft_place/spans/$_ft_token.$$
    mkdir "$_ft_place/spans" 2>/dev/null
    mkdir "$_ft_record" 2>/dev/null || _ft_give_up "$_ft_record cannot be made"
    for _ft_i in HUP INT QUIT USR1 USR2 ALRM TERM CONT; do
        # shellcheck disable=SC2064
        trap "_ft_tell_sides $_ft_i" "$_ft_i"
    done
    exec 3<&0
    _ft_start_sides "$@"
    _ft_await_sides
    set +f
    rm -rf "$_ft_record" "$_ft_talk/out.$$".* "$_ft_talk/err.$$".*
    exit "$_ft_rc"
fi
# This job's part is enough.
_ft_front="--nodes=$_ft_want --ntasks=$((_ft_want * _ft_each)) $_ft_front"

#!/bin/sh
# Stands in front of Slurm's srun on the PATH of a script that ftrun may start again inside its job.
#
# How it thinks.  It becomes the real srun with the words it was called with, and adds in front what this start of the script
# needs: the nodes that are spare or set aside are excluded (so -N, -n and -w mean what they always mean), a later start shares
# nodes with what an earlier one left, and lines are labelled.  What the user typed stands behind and wins.  Node names that stand
# in the script itself are replaced by the nodes that took their place.  A script of an earlier start gets no step any more.
# Calls about another job, and all that it does not understand, are handed through as they are.

# shellcheck disable=SC1007,SC1090,SC2119,SC2120,SC3013  # -ef: dash, bash and busybox have it

unset -f printf read date readlink scontrol sleep timeout grep sort command exec 2>/dev/null
_ft_talk=${0%/bin/srun}

_ft_nl='
'
_ft_tab='	'
# Slurm's own, by the PATH without this one and its like.
_ft_real=
IFS=:
set -f
for _ft_i in $PATH; do
    case ${_ft_i%/} in */ftrun.*/agent/bin) continue ;; esac
    if [ -f "$_ft_i/srun" ] && [ -x "$_ft_i/srun" ]; then
        _ft_real=$_ft_i/srun
        break
    fi
done
unset IFS
if [ -z "$_ft_real" ]; then
    echo "srun: command not found" >&2
    exit 127
fi

# One word of the call: _ft_opt is the option that it or its value belongs to, _ft_val the value, _ft_head what stands in front of
# it in the same word, _ft_due an option whose value is the next word, _ft_open is empty from the command on.
_ft_read_word() {
    _ft_opt= _ft_val= _ft_head=
    if [ -n "$_ft_due" ]; then
        _ft_opt=$_ft_due _ft_val=$1 _ft_due=
        return
    fi
    case $1 in
        --) _ft_open= _ft_opt=-- ;;
        --*=*) _ft_long "${1%%=*}" && _ft_val=${1#*=} ;;
        --*)
            _ft_long "$1"
            case $1 in
                # Those that take no value, or one behind = only; the others are as many again.
                --async | --bcast | --compress | --consol* | --contig* | --debugger-test | --disable-status | --exact | --exclusive | --external | --get-user-env | --help | \
                    --hold | --imm* | --interactive | --kill-* | --lab* | --multi* | --nice | --no-* | --oom* | --overc* | --overl* | --overs* | --pars* | --preserve* | --propagate | \
                    --pty | --quie* | --quit* | --reboot | --resv-* | --send* | --share | --spread* | --stepmgr | --test* | --unb* | --usa* | --use-* | --verb* | \
                    --vers* | --wait-for* | --whole | --x11) ;;
                # So do these of a container plug-in that many sites have.
                --container-mount-home | --container-remap-root | --container-writable | --container-readonly | --container-entrypoint*) ;;
                --accel* | --acco* | --acct* | --bb* | --bcast-* | --beg* | --auto* | --chd* | --clus* | --comm* | --const* | --container | --container-[eimnstuw]* | --context | --core* | --cpu* | \
                    --dead* | --delay* | --dep* | --dist* | --epi* | --err* | --exclude | --export* | --extra* | --gid | --gpu* | --gres* | --het* | --hint | \
                    --ign* | --inp* | --job* | --lic* | --mail* | --mcs* | --mem* | --minc* | --mins* | --mint* | --mpi | --msg* | --netw* | --node* | --nt* | \
                    --open* | --out* | --pack* | --part* | --power* | --pref* | --prio* | --prof* | --prol* | --qos | --rela* | --rese* | --reso* | --seg* | --sig* | \
                    --slurmd* | --sock* | --swi* | --task* | --thre* | --time* | --tmp | --tree* | --tres* | --uid | --wait | --wck*) _ft_due=$_ft_opt ;;
                # An option of a plug-in: nobody knows whether the next word is its value or the command.
                *) _ft_open= _ft_opt= _ft_unsure=1 ;;
            esac
            ;;
        -?*) _ft_short "${1#-}" ;;
        *) _ft_open= ;;
    esac
}

_ft_long() { # the short name of long option $1, where it has one that matters here, else the long one
    case $1 in
        --nodel*) _ft_opt=w ;;
        --exclude) _ft_opt=x ;;
        --rela*) _ft_opt=r ;;
        --lab*) _ft_opt=l ;;
        --unb*) _ft_opt=u ;;
        --ou*) _ft_opt=o ;;
        --err*) _ft_opt=e ;;
        --help | --usa*) _ft_opt=h ;;
        --vers*) _ft_opt=V ;;
        *) _ft_opt=$1 ;;
    esac
}

_ft_short() { # letters $1; those before the last one that matters go into _ft_head
    _ft_rest=$1
    while [ -n "$_ft_rest" ]; do
        _ft_tail=${_ft_rest#?}
        _ft_c=${_ft_rest%"$_ft_tail"}
        _ft_rest=$_ft_tail
        case $_ft_c in
            [lhuV]) _ft_seen=$_ft_seen$_ft_c ;;
            [EHOQsvXZ]) ;;
            [IkK]) return ;;
            *)
                _ft_opt=$_ft_c
                if [ -n "$_ft_rest" ]; then _ft_val=$_ft_rest; else _ft_due=$_ft_c; fi
                return
                ;;
        esac
        _ft_head=$_ft_head$_ft_c
    done
}

# The names of list $1 into _ft_names, each replaced by the node that took its place; a file of names is left alone.
_ft_now_of() {
    case $1 in
        */*) _ft_names= && return 1 ;;
        *'['*) _ft_names=$("${_ft_real%/*}/scontrol" show hostnames "$1" 2>/dev/null) || return 1 ;;
        *)
            IFS=,
            # shellcheck disable=SC2086
            set -- $1
            unset IFS
            _ft_names=$*
            ;;
    esac
    _ft_list=
    for _ft_i in $_ft_names; do
        for _ft_c in $_ft_moved; do
            [ "${_ft_c%%=*}" = "$_ft_i" ] && _ft_i=${_ft_c#*=} && break
        done
        _ft_list=$_ft_list,$_ft_i
    done
    _ft_names=${_ft_list#,}
}

# What the call is, by its words: _ft_through is set where it is handed through.
_ft_look() {
    _ft_due= _ft_open=1 _ft_seen= _ft_through= _ft_named= _ft_dealt=${SLURM_DISTRIBUTION-} _ft_cached_own_x= _ft_skipped= _ft_alone= _ft_unsure= _ft_wrapped=$_ft_pyz
    _ft_boxed=${PYXIS_CONTAINER_IMAGE-}${PYXIS_CONTAINER_NAME-} _ft_mounts=
    _ft_lone= _ft_fed=1 _ft_nodes_said= _ft_tasks_said= _ft_each_said= _ft_mpi_said=${SLURM_MPI_TYPE-}
    for _ft_word in "$@"; do
        _ft_read_word "$_ft_word"
        [ -n "$_ft_open" ] || break
        [ -n "$_ft_due" ] || _ft_weigh_word
        case $_ft_opt in
            [hloeuV]) _ft_seen=$_ft_seen$_ft_opt ;;
            w) [ -z "$_ft_due" ] && _ft_now_of "$_ft_val" && _ft_named=$_ft_named,$_ft_names ;;
            x) [ -z "$_ft_due" ] && _ft_cached_own_x=$_ft_cached_own_x,$_ft_val ;;
            r) [ -z "$_ft_due" ] && _ft_skipped=$_ft_val ;;
            --exclusive | --exact) _ft_alone=1 ;;
            --jobi*) [ -n "$_ft_due" ] || [ "${_ft_val%%.*}" = "$SLURM_JOB_ID" ] || _ft_through=1 ;;
            --het-g* | --hetg* | --pack-g*) _ft_through=1 ;;
            --pty) _ft_wrapped= _ft_seen=${_ft_seen}p ;;
            --multi*) _ft_wrapped= _ft_cached_own= ;;
            --container-mounts) [ -n "$_ft_due" ] || _ft_mounts=$_ft_val ;;
            --container-image | --container-name) _ft_boxed=1 ;;
            --container | --container-id) _ft_wrapped= _ft_cached_own= ;; # an OCI bundle has its own list of mounts
            --bcast*) _ft_cached_own= ;;
        esac
    done
    case $_ft_seen in *[hV]*) _ft_through=1 ;; esac
    [ -z "$_ft_boxed" ] || _ft_cached_own=
    # Nobody's rank: what starts the ranks of its node.
    case ${_ft_word##*/} in orted | prted | hydra_pmi_proxy) _ft_wrapped= ;; esac
    [ -z "$_ft_open$_ft_unsure" ] || _ft_wrapped= _ft_cached_own=
    _ft_weigh
}

# Leaves _ft_cached_own empty where the tasks are told of no caches: where a shell cannot stand before the command, or nobody would see that there is none.
_ft_weigh_own() {
    [ -n "$_ft_cached_own" ] || return 0
    _ft_c=$_ft_word
    case $_ft_c in */*) ;; *) _ft_c=$(command -v "$_ft_c") ;; esac
    case $_ft_c in */*) [ -z "${SLURM_BCAST-}${SLURM_CONTAINER-}" ] && [ -f "$_ft_c" ] && [ -x "$_ft_c" ] && return ;; esac
    _ft_cached_own=
}

# What the word that was read means for a start that spans several jobs: the numbers of the call, and into _ft_lone why it cannot.
_ft_weigh_word() {
    case $_ft_opt in
        N | --nodes) _ft_nodes_said=$_ft_val ;;
        n | --ntasks) _ft_tasks_said=$_ft_val ;;
        --ntasks-per-n* | --tasks-p*) _ft_each_said=$_ft_val ;;
        --mpi) _ft_mpi_said=$_ft_val ;;
        m | --dist*) _ft_dealt=$_ft_val && case $_ft_val in arb* | plane*) _ft_lone="--distribution=$_ft_val counts the nodes of one job" ;; esac ;;
        w | x | r) _ft_lone=${_ft_lone:-"-$_ft_opt names nodes of one job"} ;;
        G | --gpus | --ntasks-per-*) _ft_lone="$_ft_opt counts what one job has" ;;
        i | --inp*) _ft_fed= && _ft_weigh_file "$_ft_val" ;;
        o | e) _ft_weigh_file "$_ft_val" ;;
        --multi* | --pty | --nodef* | --resv-p*) _ft_lone="$_ft_opt is for one job" ;;
    esac
}

_ft_weigh_file() { # what a stream goes to or comes from, as -i, -o or -e say it
    case $_ft_opt:$1 in
        [!oe]*:*%* | *:*%[sJ]*) _ft_lone="$1 would be another file in each job" ;;
        *:*[!0-9]* | *:) ;;
        *) _ft_lone="task $1 is in one job" ;;
    esac
}

_ft_weigh_stdin() { # a script is fed nothing; what it feeds its tasks itself would be read in one job, and the others would end well without it
    [ -n "${SLURM_STDINMODE-}" ] || [ ! -e /proc/self/fd/0 ] || [ /proc/self/fd/0 -ef /dev/null ] ||
        _ft_lone="what it is fed on stdin goes to one job (-i none: nobody reads it)"
}

# $1 into _ft_c where it is a number that the shell can reckon with: 08, as seq -w writes it, would be an octal one and the end of this script.
_ft_plain() {
    _ft_c=$1
    while :; do
        case $_ft_c in 0?*) _ft_c=${_ft_c#0} ;; *) break ;; esac
    done
    case $_ft_c in '' | *[!0-9]* | ??????????*) return 1 ;; esac
}

# How many nodes the call asks for into _ft_want (0: nobody knows), and tasks on each of them into _ft_each.
_ft_weigh() {
    case $_ft_mpi_said in
        none | openmpi) ;;
        '') { read -r _ft_c <"$_ft_talk/mpi"; } 2>/dev/null && _ft_lone="srun prepares MPI ($_ft_c) where nobody chose: --mpi=none says that this is no MPI program" ;;
        *) _ft_lone="--mpi=$_ft_mpi_said makes one world in one job" ;;
    esac
    case ${SLURM_DISTRIBUTION-} in arb* | plane*) _ft_lone="SLURM_DISTRIBUTION=$SLURM_DISTRIBUTION counts the nodes of one job" ;; esac
    [ -z "${SLURM_HOSTFILE-}${SLURM_NTASKS_PER_GPU-}" ] || _ft_lone="SLURM_HOSTFILE or SLURM_NTASKS_PER_GPU counts what one job has"
    [ -z "$_ft_fed" ] || _ft_weigh_stdin
    _ft_opt=i && _ft_weigh_file "${SLURM_STDINMODE-}"
    _ft_opt=o && _ft_weigh_file "${SLURM_STDOUTMODE-}" && _ft_weigh_file "${SLURM_STDERRMODE-}"
    case ${_ft_word##*/} in orted | prted | hydra_pmi_proxy | mpispawn) _ft_lone="mpirun makes one world in one job (${_ft_word##*/})" ;; esac
    [ -z "$_ft_open$_ft_unsure" ] || _ft_lone="nobody knows what $_ft_word means"
    _ft_want=${_ft_nodes_said:-${SLURM_JOB_NUM_NODES:-${SLURM_NNODES:-0}}} _ft_each=1
    [ "${_ft_want%%-*}" != "${_ft_want#*-}" ] || _ft_want=${_ft_want%%-*}
    if ! _ft_plain "$_ft_want"; then
        _ft_lone="-N $_ft_want is no plain number"
        _ft_plain "${_ft_want#*-}" || _ft_c=0
        _ft_want=$_ft_c
        return
    fi
    _ft_want=$_ft_c
    [ "$_ft_want" -gt 0 ] || return 0
    if _ft_plain "${_ft_each_said:-${SLURM_NTASKS_PER_NODE:-1}}"; then _ft_each=$_ft_c; fi
    _ft_tasks=${_ft_tasks_said:-${SLURM_NTASKS:-${SLURM_NPROCS:-$((_ft_want * _ft_each))}}}
    if _ft_plain "$_ft_tasks"; then _ft_tasks=$_ft_c; else _ft_tasks=$_ft_want; fi
    [ "$_ft_tasks" -ge "$_ft_want" ] || _ft_want=$_ft_tasks
    [ "$_ft_want" -gt 0 ] || return 0
    _ft_each=$((_ft_tasks / _ft_want))
    [ $((_ft_each * _ft_want)) -eq "$_ft_tasks" ] || _ft_lone="$_ft_tasks tasks do not fill $_ft_want nodes evenly"
}

# The nodes that this call may not use, into _ft_not: a script that counts from the first node on counts active ones, and whoever
# names a node gets it.
_ft_exclude() {
    case $_ft_skipped in
        '' | *[!0-9]*) _ft_skipped=0 ;;
    esac
    for _ft_i in $_ft_active; do
        [ "$_ft_skipped" -gt 0 ] || break
        _ft_not=$_ft_not,$_ft_i
        _ft_skipped=$((_ft_skipped - 1))
    done
    _ft_list=
    IFS=,
    for _ft_i in $_ft_not; do
        case "$_ft_named," in *",$_ft_i,"*) ;; *) _ft_list=$_ft_list,$_ft_i ;; esac
    done
    unset IFS
    _ft_not=$_ft_list$_ft_cached_own_x
    _ft_not=${_ft_not#,}
}

#ftrun-containers#

# shellcheck disable=SC2016
#ftrun-runner#
_ft_rank_side='
c=$1 h=$2 f=$3
shift 3
[ -r "$h" ] && for p in /usr/bin/python3 python3; do
    "$p" -IS -c "$c" "$h" 2>/dev/null && exec "$p" -IS "$h" rank --folder "$f" -- "$@"
done
exec "$@"'

# Arguments of the record of this start: job, token, attempt, nodes not to use, active ones, who took whose place, options, whether
# lines are labelled, the job's log, the node side of ftrun; where it spans several jobs, the others' nodes, and all names.
_ft_take_brief() {
    . "$_ft_talk/shim.$FTRUN_START"
    _ft_job=$1 _ft_token=$2 _ft_place=$3 _ft_not=$4 _ft_active=$5 _ft_moved=$6 _ft_front=$7 _ft_label=$8
    shift 8
    _ft_log=$1 _ft_pyz=$2 _ft_spans=${3-} _ft_job_names=${4-}
    _ft_cached_own=
    [ ! -r "$_ft_talk/caches.$FTRUN_START" ] || . "$_ft_talk/caches.$FTRUN_START"
}

# Unbuffered, each piece that a task writes would become a line of its own; and where lines go by SLURM_STDOUTMODE they are not the log's.
_ft_is_labelled() {
    case $_ft_label:$_ft_seen$_ft_unsure${SLURM_STDOUTMODE+o}${SLURM_STDERRMODE+e}${SLURM_UNBUFFEREDIO+u} in
        1:*[loeup1]*) return 1 ;;
        1:*) [ /proc/self/fd/1 -ef "$_ft_log" ] ;;
        *) return 1 ;;
    esac
}

# Where the streams go by the words $@, or by srun's variables: into _ft_out, _ft_err, _ft_in, how files are opened into _ft_mode, and
# the folder of the tasks into _ft_dir.
_ft_find_streams() {
    _ft_out=${SLURM_STDOUTMODE-} _ft_err=${SLURM_STDERRMODE-} _ft_in=${SLURM_STDINMODE-} _ft_mode=${SLURM_OPEN_MODE-}
    _ft_dir=${SLURM_REMOTE_CWD:-${SLURM_WORKING_DIR:-$PWD}}
    _ft_due= _ft_open=1
    for _ft_word in "$@"; do
        _ft_read_word "$_ft_word"
        [ -n "$_ft_open" ] || break
        [ -z "$_ft_due" ] || continue
        case $_ft_opt in
            o) _ft_out=$_ft_val ;;
            e) _ft_err=$_ft_val ;;
            i | --inp*) _ft_in=$_ft_val ;;
            D | --chd*) _ft_dir=$_ft_val ;;
            --open*) _ft_mode=$_ft_val ;;
        esac
    done
}

# The absolute form of what -o or -e names, $1, into _ft_text: srun opens the file of all tasks itself, a task's own is its node's.
_ft_place_output() {
    case $1 in
        '' | none | all | /*) _ft_text=$1 ;;
        *[!0-9]*) case $1 in *%*[tnN]*) _ft_text=$_ft_dir/$1 ;; *) _ft_text=$PWD/$1 ;; esac ;;
        *) _ft_text= ;; # the output of one task goes where srun's own goes
    esac
    case $_ft_text in none | all | /dev/*) _ft_text= ;; esac
}

# What stream $1 of this process goes to, into _ft_text: a file that is not the job's log.
_ft_find_own() {
    _ft_text=
    [ "/proc/$$/fd/$1" -ef "$_ft_log" ] || [ ! -f "/proc/$$/fd/$1" ] || _ft_text=$(readlink "/proc/$$/fd/$1")
}

# Notes where this call's output goes if not into the job's log, for all who read logs: see supervisor/telemetry/step_logs.py. What
# the files hold by now is older than this call; srun adds to it or empties them.
_ft_note_output() {
    _ft_find_streams "$@"
    _ft_base=${PET_LOG_DIR-} _ft_c=
    for _ft_i in "$@"; do # torchrun's folder
        [ -z "$_ft_c" ] || _ft_base=$_ft_i
        _ft_c=
        case $_ft_i in --log[-_]dir=*) _ft_base=${_ft_i#*=} ;; --log[-_]dir) _ft_c=1 ;; esac
    done
    case $_ft_base in '' | /*) ;; *) _ft_base=$_ft_dir/$_ft_base ;; esac
    _ft_own= _ft_own_err=
    if [ -z "$_ft_out" ]; then _ft_find_own 1 && _ft_own=$_ft_text; fi
    if [ -z "$_ft_out$_ft_err" ]; then _ft_find_own 2 && _ft_own_err=$_ft_text; fi
    _ft_place_output "$_ft_out" && _ft_out=$_ft_text
    _ft_place_output "$_ft_err" && _ft_err=$_ft_text
    [ -n "$_ft_out$_ft_err$_ft_own$_ft_own_err$_ft_base" ] || return 0
    _ft_spread=$_ft_each
    case $_ft_dealt:${SLURM_JOB_CPUS_PER_NODE-} in arb* | plane*) _ft_spread= ;; :*,* | [!b:]* | b*:*,*) [ "$_ft_spread" = 1 ] || _ft_spread= ;; esac
    [ $((_ft_want * ${_ft_spread:-0})) -eq "${_ft_tasks:-0}" ] || _ft_spread=
    set -- "$(date +%s)" "$$" "$_ft_job" "${SLURM_JOB_NAME-}" "$_ft_want" "${_ft_named#,}" "$_ft_spread" "$_ft_out" "$_ft_err" "$_ft_own" "$_ft_own_err" "$_ft_base"
    _ft_list_sizes
    IFS=$_ft_tab
    _ft_line="$*$_ft_text"
    unset IFS
    case $_ft_line in *"$_ft_nl"*) return 0 ;; esac
    if [ "${#_ft_line}" -gt 4000 ]; then # not one write any more: what stands in the files goes to one of this call's own
        printf '%s\n' "${_ft_text#"$_ft_tab"}" >"$_ft_place/outputs.$_ft_token.$$"
        _ft_line=${_ft_line%"$_ft_text"}
    fi
    printf '%s\n' "$_ft_line" >>"$_ft_place/outputs.$_ft_token"
} 2>/dev/null

# Into _ft_text, words TAB SIZE PATH: what is in the files already.
_ft_list_sizes() {
    set --
    for _ft_c in "$_ft_out" "$_ft_err"; do
        case $_ft_mode in [aA]*) ;; *) continue ;; esac
        _ft_text= _ft_rest=$_ft_c
        while :; do
            case $_ft_rest in *%*) ;; *) break ;; esac
            _ft_text=$_ft_text${_ft_rest%%\%*}* _ft_rest=${_ft_rest#*%}
            while :; do
                case $_ft_rest in [0-9]*) _ft_rest=${_ft_rest#?} ;; *) break ;; esac
            done
            _ft_rest=${_ft_rest#?}
        done
        IFS=
        set +f
        # shellcheck disable=SC2086
        set -- "$@" $_ft_text$_ft_rest
        set -f
        unset IFS
    done
    for _ft_i in "$_ft_own" "$_ft_own_err"; do [ -z "$_ft_i" ] || set -- "$@" "$_ft_i"; done
    _ft_text=
    [ $# -eq 0 ] || _ft_text=$_ft_tab$(stat -L -c '%s %n' -- "$@" | tr '\n' '\t')
}

# A slurmctld that was killed within seconds of a step's end comes back with that step running: what a later srun asks for is never
# free. Such a ghost is a step whose srun was one of this start's and is gone, and of which no node has a process any more. Only --overlap
# goes through then, for this call and all later ones. Asks Slurm only where an earlier srun of this start is over.
_ft_pass_ghosts() {
    [ "$FTRUN_START" = 1 ] && [ -z "$_ft_spans$_ft_alone" ] || return 0
    if [ ! -e "$_ft_talk/ghost" ]; then
        _ft_over=
        { while read -r _ft_c _ft_i _ft_rest; do [ -d "/proc/$_ft_i" ] || _ft_over="$_ft_over $_ft_i"; done <"$_ft_talk/calls.1"; } 2>/dev/null
        [ -n "$_ft_over" ] && _ft_list_ghosts && _ft_prove_ghosts || return 0
        echo "srun: ftrun: Slurm shows step$_ft_ghosts as running, which is over on all its nodes; this step shares its resources (--overlap)" >&2
        { true >"$_ft_talk/ghost"; } 2>/dev/null
    fi
    _ft_front="--overlap $_ft_front"
}

_ft_bounded() { # the other words, for $1 seconds at most
    if command -v timeout >/dev/null; then timeout "$@"; else shift && "$@"; fi
}

# The steps of the job that Slurm shows as running for longer than a step takes to end, and whose srun was one of $_ft_over: their ids into
# _ft_ghosts, their nodes into _ft_names. 1: none.
_ft_list_ghosts() {
    for _ft_n in 1 2 3 4 5 6 7 8 9 10 11; do
        [ "$_ft_n" -eq 1 ] || sleep 0.5
        _ft_ghosts= _ft_names=
        _ft_list=$(_ft_bounded 10 "${_ft_real%/*}/scontrol" -o show step "$SLURM_JOB_ID" 2>/dev/null) || return 1
        IFS=$_ft_nl
        for _ft_c in $_ft_list; do
            case $_ft_c in *" State=RUNNING "*" NodeList="*" SrunHost:Pid="*) ;; *) continue ;; esac
            _ft_i=${_ft_c##*:} _ft_rest=${_ft_c#*StepId=}
            case "$_ft_over " in *" ${_ft_i%% *} "*) ;; *) continue ;; esac
            _ft_ghosts="$_ft_ghosts ${_ft_rest%% *}" _ft_rest=${_ft_c#* NodeList=}
            _ft_names=$_ft_names,${_ft_rest%% *}
        done
        unset IFS
        [ -n "$_ft_ghosts" ] || return 1
    done
    _ft_names=${_ft_names#,}
}

# 0: each node of these steps says that it has neither their slurmstepd nor a process of theirs.
_ft_prove_ghosts() {
    _ft_list=$("${_ft_real%/*}/scontrol" show hostnames "$_ft_names" 2>/dev/null | sort -u) && [ -n "$_ft_list" ] || return 1
    _ft_n=$(printf '%s\n' "$_ft_list" | grep -c .)
    # shellcheck disable=SC2086
    _ft_list=$(_ft_bounded 60 "$_ft_real" --jobid="$SLURM_JOB_ID" --job-name=ftrun --overlap --nodelist="$_ft_names" --nodes="$_ft_n" --ntasks="$_ft_n" --ntasks-per-node=1 \
        --mem=0 --cpu-bind=none --mpi=none --input=none --export=NONE --kill-on-bad-exit=0 --wait=0 --quiet --immediate=20 /bin/sh -c "$_ft_ghost_side" ftrun-ghost $_ft_ghosts 2>/dev/null)
    [ "$(printf '%s\n' "$_ft_list" | grep -c '^none$')" -eq "$_ft_n" ]
}
# shellcheck disable=SC2016
_ft_ghost_side='
for s; do
    j=${s%%.*} s=${s#*.}
    grep -qsz "^slurmstepd: \[$j\.$s[].]" /proc/[0-9]*/cmdline && exit
    for p in $(grep -lsz "^SLURM_JOB_ID=$j\$" /proc/[0-9]*/environ); do grep -qsz "^SLURM_STEP_ID=$s\$" "$p" && exit; done
done
echo none'

case ${FTRUN_START-} in '' | *[!0-9]*) exec "$_ft_real" "$@" ;; esac
[ -r "$_ft_talk/shim.$FTRUN_START" ] || exec "$_ft_real" "$@"
_ft_take_brief
[ "${SLURM_JOB_ID-}" = "$_ft_job" ] || exec "$_ft_real" "$@"

if [ -n "${FTRUN_START_TOKEN-}" ]; then
    _ft_i=$(readlink "$_ft_place/current" 2>/dev/null)
    if [ -n "$_ft_i" ] && [ "$_ft_i" != "$FTRUN_START_TOKEN" ]; then
        echo "srun: ftrun: start $FTRUN_START_TOKEN of this script is over (now: $_ft_i); no step for it" >&2
        exit 1
    fi
fi

_ft_look "$@"
[ -z "$_ft_through" ] || exec "$_ft_real" "$@"
_ft_weigh_own

_ft_pass_ghosts
{ printf '%s %s %s\n' "$(date +%s)" "$$" "$*" >>"$_ft_talk/calls.$FTRUN_START"; } 2>/dev/null
# Who asks for a companion must know whether every call can do with one; one node is always in one job.
[ -z "$_ft_lone" ] || [ "$_ft_want" = 1 ] || { printf '%s\n' "$_ft_lone" >>"$_ft_talk/nospan.$FTRUN_START"; } 2>/dev/null
[ -n "$_ft_lone$_ft_mpi_said" ] || [ "$_ft_want" = 1 ] || { true >>"$_ft_talk/unchosen.$FTRUN_START"; } 2>/dev/null
( umask 077; _ft_note_output "$@" )

if [ -n "$_ft_boxed" ]; then
    _ft_open_container
    # The mounts of this call become those; behind the options each word says what it means inside.
    _ft_due= _ft_open=1
    _ft_n=$#
    while [ "$_ft_n" -gt 0 ]; do
        _ft_n=$((_ft_n - 1))
        _ft_word=$1
        shift
        if [ -n "$_ft_open" ]; then
            _ft_read_word "$_ft_word"
            [ "$_ft_opt" != --container-mounts ] || continue
        fi
        [ -n "$_ft_open" ] || { _ft_reword "$_ft_word" && _ft_word=$_ft_text; }
        set -- "$@" "$_ft_word"
    done
    [ -z "$_ft_mounts" ] || set -- "--container-mounts=$_ft_mounts" "$@"
fi

[ -z "$_ft_spans" ] || . "$_ft_talk/span.sh"

if [ -n "$_ft_not" ]; then
    _ft_exclude
    # Words that mean something else now leave their place; the command and all else stay.
    _ft_due= _ft_open=1
    _ft_n=$#
    while [ "$_ft_n" -gt 0 ]; do
        _ft_n=$((_ft_n - 1))
        _ft_word=$1
        shift
        if [ -n "$_ft_open" ]; then
            _ft_read_word "$_ft_word"
            [ -z "$_ft_open" ] && _ft_opt=
            case $_ft_opt in
                w | x | r)
                    [ -z "$_ft_head" ] || set -- "$@" "-$_ft_head"
                    [ -z "$_ft_due" ] || continue
                    [ "$_ft_opt" = w ] || continue
                    _ft_now_of "$_ft_val" || _ft_names=$_ft_val
                    set -- "$@" "--nodelist=$_ft_names"
                    continue
                    ;;
            esac
        fi
        set -- "$@" "$_ft_word"
    done
    [ -z "$_ft_not" ] || set -- "--exclude=$_ft_not" "$@"
fi

if [ -n "$_ft_wrapped$_ft_cached_own" ]; then
    # What looks at the caches, and the parent of a rank that may join again, stand between the options and the command.
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
                if [ -n "$_ft_cached_own" ]; then
                    set -- "$@" /bin/sh -c "$_ft_cache_side" ftrun-caches
                    IFS=$_ft_nl
                    for _ft_c in $_ft_cached_own; do set -- "$@" "$_ft_c"; done
                    unset IFS
                    set -- "$@" --
                fi
                [ -z "$_ft_wrapped" ] || set -- "$@" /bin/sh -c "$_ft_rank_side" ftrun-rank "$_ft_runner" "$_ft_wrapped" "$_ft_place/ranks/$_ft_token"
                [ "$_ft_opt" = -- ] && continue
            fi
        fi
        set -- "$@" "$_ft_word"
    done
    [ -z "$_ft_wrapped" ] || set -- --kill-on-bad-exit=0 --wait=0 "$@"
fi

if [ -n "$_ft_alone" ]; then
    unset SLURM_OVERLAP
    case $_ft_front in *--overlap*) _ft_front=${_ft_front%%--overlap*} ;; esac
fi
if _ft_is_labelled; then set -- --label "$@"; fi
FTRUN_SHIM=$FTRUN_START
export FTRUN_SHIM
# shellcheck disable=SC2086
exec "$_ft_real" $_ft_front "$@"

# The starts of the script inside one launch: the nodes that each uses, what it is told, and the agent that is asked for the next.
# A part of batch.sh, which stands around it in every submitted file.
#
# How it thinks.  A job may be wider than its script: the script uses the active nodes, the others are spares, and what Slurm told
# the job about its shape is told anew about the active ones.  An agent beside the script, a sibling of it, is asked at each end
# with an error what comes next.  It may be absent, die or fall silent: then the job ends as the script ended.  Files between the
# two are in a folder of this node, so nothing here waits for a shared file system.  What a job without agent and spares does of
# all this is to tell its script a few more variables.

# shellcheck shell=sh disable=SC1007,SC2006,SC2015,SC2030,SC2031,SC2034,SC2154

_ft_look_inside() { # whether anything of this concerns this job, into _ft_inside
    _ft_inside= _ft_scattered= _ft_all= _ft_active= _ft_moved= _ft_spans= _ft_far= _ft_counter=
    case $_ft_spares in '' | *[!0-9]*) _ft_spares=0 ;; esac
    [ -n "$_ft_agent" ] || [ "$_ft_spares" -gt 0 ] || return 0
    [ -n "${SLURM_JOB_ID-}" ] && [ -z "${SLURM_HET_SIZE-}" ] && [ "$_ft_place" = "$_ft_whole" ] && _ft_inside=1
    return 0
}

# The folder that this shell, the agent and the srun in front of Slurm's share.
_ft_open_talk() {
    [ -n "$_ft_inside" ] || return 0
    _ft_talk=$_ft_tmp/agent
    case $_ft_talk in /*) ;; *) _ft_talk=$PWD/$_ft_talk ;; esac
    mkdir -m 700 "$_ft_talk" "$_ft_talk/bin" 2>/dev/null || { _ft_talk= && return 0; }
    [ -n "$_ft_path_set" ] && printf '%s' "$_ft_shim" >"$_ft_talk/bin/srun" && chmod 700 "$_ft_talk/bin/srun"
    [ "$_ft_spares" -eq 0 ] || _ft_activate_first
} 2>/dev/null

_ft_activate_first() { # those of the job that no spare is needed for
    _ft_look_at_job
    _ft_width=$_ft_active_n
    # shellcheck disable=SC2086
    set -- $_ft_all
    case $_ft_width in '' | *[!0-9]*) _ft_width=$(($# - _ft_spares)) ;; esac
    [ "$_ft_width" -ge 1 ] && [ "$_ft_width" -lt $# ] || return 0
    if [ -n "$_ft_segment" ] && _ft_pick_segments; then
        _ft_active=$_ft_picked
        return 0
    fi
    _ft_picked=
    for _ft_i in "$@"; do
        [ "$_ft_width" -gt 0 ] && _ft_picked="$_ft_picked $_ft_i"
        _ft_width=$((_ft_width - 1))
    done
    _ft_active=$_ft_picked
}

# Those of _ft_all that make whole segments, _ft_segment nodes each below one leaf switch or in one block, _ft_width in all, into
# _ft_picked. Fails where there are too few.
_ft_pick_segments() {
    _ft_leaf= _ft_taken=' ' _ft_left=$_ft_width
    _ft_ask_topology
    for _ft_word in $_ft_text; do
        case $_ft_word in
            SwitchName=* | AggregatedBlock=*) _ft_leaf= ;;
            BlockName=* | Level=0) _ft_leaf=1 ;;
            Nodes=*) [ -z "$_ft_leaf" ] || _ft_take_segments "${_ft_word#Nodes=}" ;;
        esac
    done
    if [ "$_ft_left" -gt 0 ]; then
        _ft_scattered="unit: too few nodes of the job share a switch or block in segments of $_ft_segment: the first $_ft_width are used"
        return 1
    fi
    _ft_picked=
    for _ft_i in $_ft_all; do
        case $_ft_taken in *" $_ft_i "*) _ft_picked="$_ft_picked $_ft_i" ;; esac
    done
}

_ft_ask_topology() { # Slurm's words into _ft_text; "" where it does not answer in time
    ( trap - EXIT; _ft_find_clients; exec "${_ft_bin:+$_ft_bin/}scontrol" show topology ) </dev/null >"$_ft_talk/topology" 2>/dev/null &
    _ft_asker=$!
    _ft_within 10 "$_ft_asker"
    _ft_text=
    if [ "$_ft_status" -eq 124 ]; then
        kill -9 "$_ft_asker" && _ft_within 2 "$_ft_asker"
    else
        _ft_text=`cat "$_ft_talk/topology"`
    fi
} 2>/dev/null

_ft_take_segments() { # as many nodes of list $1 as make whole segments of the job, onto _ft_taken
    _ft_hosts "$1"
    _ft_near= _ft_n=0
    for _ft_i in $_ft_text; do
        case " $_ft_all " in *" $_ft_i "*) _ft_near="$_ft_near $_ft_i" _ft_n=$((_ft_n + 1)) ;; esac
    done
    _ft_n=$((_ft_n - _ft_n % _ft_segment))
    [ "$_ft_n" -le "$_ft_left" ] || _ft_n=$_ft_left
    _ft_left=$((_ft_left - _ft_n))
    for _ft_i in $_ft_near; do
        [ "$_ft_n" -gt 0 ] && _ft_taken="$_ft_taken$_ft_i " && _ft_n=$((_ft_n - 1))
    done
    return 0
}

_ft_look_at_job() { # all its nodes into _ft_all, in Slurm's order; empty where they cannot be told
    [ -z "$_ft_all" ] || return 0
    _ft_hosts "${SLURM_JOB_NODELIST-}"
    _ft_all=$_ft_text
}

_ft_hosts() { # the nodes of list $1 as words, into _ft_text
    _ft_text=
    case $1 in
        '' | *[!][A-Za-z0-9._,-]*) return 0 ;;
        *'['*) _ft_text=`_ft_slurm scontrol show hostnames "$1" 2>/dev/null` ;;
        *)
            IFS=,
            # shellcheck disable=SC2086
            set -- $1
            unset IFS
            _ft_text=$*
            ;;
    esac
    # shellcheck disable=SC2086
    set -- $_ft_text
    _ft_text=$*
}

_ft_first_host() { # the first node of list $1 into _ft_text
    _ft_text= _ft_rest=$1
    while :; do
        case $_ft_rest in
            *'['*)
                _ft_a=${_ft_rest%%'['*}
                case $_ft_a in *,*) _ft_text=$_ft_text${_ft_a%%,*} && return ;; esac
                _ft_b=${_ft_rest#*'['}
                _ft_c=${_ft_b%%']'*}
                _ft_text=$_ft_text$_ft_a${_ft_c%%[,-]*}
                _ft_rest=${_ft_b#*']'}
                ;;
            *)
                _ft_text=$_ft_text${_ft_rest%%,*}
                return
                ;;
        esac
    done
}

_ft_unfold() { # Slurm's counts $1, as 2(x3),1, into _ft_text as words
    _ft_text=
    IFS=,
    # shellcheck disable=SC2086
    set -- $1
    unset IFS
    for _ft_i in "$@"; do
        _ft_times=1
        case $_ft_i in *'(x'*) _ft_times=${_ft_i##*'(x'} && _ft_times=${_ft_times%')'} ;; esac
        case $_ft_times in '' | *[!0-9]*) _ft_times=1 ;; esac
        while [ "$_ft_times" -gt 0 ]; do
            _ft_text="$_ft_text ${_ft_i%%'('*}"
            _ft_times=$((_ft_times - 1))
        done
    done
}

_ft_fold() { # the counts $@ as Slurm writes them, into _ft_text
    _ft_text= _ft_last= _ft_times=0
    for _ft_i in "$@" ''; do
        if [ "$_ft_i" = "$_ft_last" ]; then
            _ft_times=$((_ft_times + 1))
            continue
        fi
        case $_ft_times in
            0) ;;
            1) _ft_text=$_ft_text,$_ft_last ;;
            *) _ft_text="$_ft_text,$_ft_last(x$_ft_times)" ;;
        esac
        _ft_last=$_ft_i _ft_times=1
    done
    _ft_text=${_ft_text#,}
}

# Of the counts $1, one for each node of the job, those of the active ones into _ft_picked.
_ft_pick() {
    _ft_unfold "$1"
    _ft_picked=
    # shellcheck disable=SC2086
    set -- $_ft_text
    for _ft_i in $_ft_all; do
        case " $_ft_active " in *" $_ft_i "*) _ft_picked="$_ft_picked ${1-}" ;; esac
        [ $# -eq 0 ] || shift
    done
}

_ft_share() { # tasks $1 over nodes $2, as Slurm deals them out, into _ft_picked
    _ft_picked= _ft_i=0
    while [ "$_ft_i" -lt "$2" ]; do
        _ft_picked="$_ft_picked $(($1 / $2 + (_ft_i < $1 % $2)))"
        _ft_i=$((_ft_i + 1))
    done
}

_ft_share_gpus() { # GPUs of the nodes that were asked for, $1 as TYPE:4,2, for those of this start, into _ft_text
    _ft_text=
    IFS=,
    # shellcheck disable=SC2086
    set -- $1
    unset IFS
    for _ft_i in "$@"; do
        _ft_times=${_ft_i##*:}
        case $_ft_times in '' | *[!0-9]*) ;; *) _ft_i=${_ft_i%"$_ft_times"}$((_ft_times * _ft_width / _ft_active_n)) ;; esac
        _ft_text=$_ft_text,$_ft_i
    done
    _ft_text=${_ft_text#,}
}

# What tells the script that the job is its active nodes: NAME=VALUE, one a line, into _ft_shape; a NAME alone is unset. Slurm numbers the nodes of a step
# in the order of the job, whatever the order they are asked for; so that order is kept.
_ft_shape_start() {
    _ft_shape= _ft_width=${SLURM_JOB_NUM_NODES-} _ft_names_active=${SLURM_JOB_NODELIST-}
    for _ft_i in $_ft_hidden; do _ft_shape="$_ft_shape$_ft_i$_ft_nl"; done
    _ft_count_anew
    [ -n "$_ft_active" ] || return 0
    # shellcheck disable=SC2086
    set -- $_ft_active
    IFS=,
    _ft_text=$*
    unset IFS
    _ft_names_active=`_ft_slurm scontrol show hostlist "$_ft_text" 2>/dev/null`
    _ft_names_active=${_ft_names_active:-$_ft_text}
    _ft_name_far
    # shellcheck disable=SC2086
    set -- $_ft_active $_ft_far
    _ft_width=$#
    case $_ft_active_n in '' | *[!0-9]* | 0) _ft_active_n=$_ft_width ;; esac
    _ft_share_gpus "$_ft_active_gpus"
    [ -z "$_ft_text" ] || _ft_tell SLURM_GPUS "$_ft_text"
    for _ft_i in SLURM_JOB_NODELIST SLURM_NODELIST; do _ft_tell "$_ft_i" "$_ft_names_active"; done
    for _ft_i in SLURM_JOB_NUM_NODES SLURM_NNODES; do _ft_tell "$_ft_i" "$_ft_width"; done
    if [ -n "${SLURM_JOB_CPUS_PER_NODE-}" ]; then
        _ft_pick "$SLURM_JOB_CPUS_PER_NODE"
        _ft_pick_far
        # shellcheck disable=SC2086
        _ft_fold $_ft_picked
        _ft_tell SLURM_JOB_CPUS_PER_NODE "$_ft_text"
    fi
    case $_ft_active_tasks in
        '' | *[!0-9]*) _ft_pick "${SLURM_TASKS_PER_NODE-}" && _ft_pick_far ;;
        *) _ft_share $((_ft_active_tasks * _ft_width / _ft_active_n)) "$_ft_width" ;;
    esac
    _ft_sum=0
    for _ft_i in $_ft_picked; do
        case $_ft_i in *[!0-9]*) ;; *) _ft_sum=$((_ft_sum + _ft_i)) ;; esac
    done
    # shellcheck disable=SC2086
    _ft_fold $_ft_picked
    [ -n "${SLURM_TASKS_PER_NODE-}" ] && _ft_tell SLURM_TASKS_PER_NODE "$_ft_text"
    [ -n "${SLURM_NTASKS-}" ] && _ft_tell SLURM_NTASKS "$_ft_sum"
    [ -n "${SLURM_NPROCS-}" ] && _ft_tell SLURM_NPROCS "$_ft_sum"
    return 0
}

# A job that was made smaller in the queue: Slurm 22.05 counted its tasks when it was submitted, and a plain srun would start that many.
_ft_count_anew() {
    [ -n "$_ft_sized" ] && [ "$((${_ft_sized%% *} + ${_ft_spares:-0}))" != "${SLURM_JOB_NUM_NODES-}" ] || return 0
    _ft_unfold "${SLURM_TASKS_PER_NODE-}"
    _ft_sum=0
    for _ft_i in $_ft_text; do
        case $_ft_i in *[!0-9]*) return 0 ;; esac
        _ft_sum=$((_ft_sum + _ft_i))
    done
    [ "$_ft_sum" -gt 0 ] || return 0
    for _ft_i in SLURM_NTASKS SLURM_NPROCS; do
        eval "[ -n \"\${$_ft_i-}\" ]" || continue
        eval "$_ft_i=\$_ft_sum"
        [ -n "$_ft_active" ] || _ft_tell "$_ft_i" "$_ft_sum"
    done
}

# What the number of nodes of this start means for the batch: the full size over it, in lowest terms, into _ft_scale, and the micro steps that each
# replica adds up into _ft_accum. Five numbers are told: see compose.
_ft_count_batch() {
    _ft_scale=1 _ft_accum=
    # shellcheck disable=SC2086
    set -- $_ft_sized
    [ $# -eq 5 ] && [ "${_ft_width:-0}" -gt 0 ] || return 0
    _ft_i=$2 _ft_times=$_ft_width
    while [ "$_ft_times" -gt 0 ]; do
        _ft_last=$((_ft_i % _ft_times))
        _ft_i=$_ft_times _ft_times=$_ft_last
    done
    _ft_scale=$(($2 / _ft_i))
    [ "$_ft_width" = "$_ft_i" ] || _ft_scale=$_ft_scale/$((_ft_width / _ft_i))
    _ft_times=$(($4 * (_ft_width / $3)))
    [ "$_ft_times" -eq 0 ] || [ $(($5 % _ft_times)) -ne 0 ] || _ft_accum=$(($5 / _ft_times))
}

# How many tasks a plain srun of this start makes, into _ft_world: what Slurm was told of tasks, else one for each node.
_ft_count_world() {
    _ft_count_batch
    _ft_world=$_ft_width
    case ${SLURM_NTASKS_PER_NODE-} in '' | *[!0-9]*) ;; *) _ft_world=$((_ft_width * SLURM_NTASKS_PER_NODE)) ;; esac
    [ -n "${SLURM_NTASKS-}" ] || return 0
    _ft_world=$SLURM_NTASKS
    [ -z "$_ft_active" ] || _ft_world=$_ft_sum
}

_ft_tell() { _ft_shape="$_ft_shape$1=$2$_ft_nl"; }

# Where the processes of this start may meet: the first active node, and a port that differs from job to job and from start to start.
# A later start looks whether it is in use here; the first does not, for reading that table takes 20 ms.
_ft_choose_meeting() {
    _ft_first_host "$_ft_names_active"
    _ft_meet=$_ft_text
    [ "$_ft_width" = 1 ] && _ft_meet=127.0.0.1
    _ft_n=${SLURM_JOB_ID:-0}
    case $_ft_n in *[!0-9]*) _ft_n=0 ;; esac
    _ft_meet_port=$((21000 + (_ft_n % 8000 * 13 + _ft_launch * 7 + _ft_no * 101) % 8000))
    [ "$_ft_no" -gt 1 ] || return 0
    for _ft_i in 1 2 3 4 5 6 7 8 9; do
        _ft_in_hex "$_ft_meet_port"
        grep -qs ":$_ft_text " /proc/net/tcp /proc/net/tcp6 || break
        _ft_meet_port=$((_ft_meet_port + _ft_i))
    done
}

_ft_in_hex() { # number $1 into _ft_text
    _ft_n=$1 _ft_text=
    while [ "$_ft_n" -gt 0 ]; do
        set -- 0 1 2 3 4 5 6 7 8 9 A B C D E F
        shift $((_ft_n % 16))
        _ft_text=$1$_ft_text
        _ft_n=$((_ft_n / 16))
    done
}

# Variables for libraries, lines NAME[,ALIAS...]=VALUE in $1, into _ft_told_now where the user set nothing of it under any of the names;
# which these are into _ft_exported. {stacks} in front is the folder of this start's stacks, {task} the task of an array.
_ft_export_unset() {
    IFS=$_ft_nl
    for _ft_i in $1; do
        _ft_free=1 _ft_text=${_ft_i#*=}
        IFS=,
        for _ft_c in ${_ft_i%%=*}; do
            eval "[ -z \"\${$_ft_c+1}\" ]" || _ft_free=
        done
        [ -n "$_ft_free" ] || continue
        _ft_c=${_ft_i%%[=,]*}
        case $_ft_text in
            '{stacks}'*) _ft_text=$_ft_place/stacks/$_ft_launch.$_ft_no${_ft_text#'{stacks}'} ;;
            *'{task}'*) _ft_text=${_ft_text%'{task}'*}${SLURM_ARRAY_TASK_ID:+x$SLURM_ARRAY_TASK_ID}${_ft_text##*'{task}'} ;;
        esac
        _ft_told_now=$_ft_told_now$_ft_c=$_ft_text$_ft_nl
        _ft_exported=$_ft_exported${_ft_exported:+,}$_ft_c
    done
    unset IFS
}

# What the srun in front of Slurm's has to know of this start.
_ft_brief_shim() {
    [ -n "$_ft_talk" ] || return 0
    _ft_not=
    if [ -n "$_ft_active" ]; then
        for _ft_i in $_ft_all; do
            case " $_ft_active $_ft_far " in *" $_ft_i "*) ;; *) _ft_not=$_ft_not,$_ft_i ;; esac
        done
    fi
    _ft_front=
    [ -n "$_ft_not" ] || [ "$_ft_no" -gt 1 ] && _ft_front=--no-kill
    [ "$_ft_no" -gt 1 ] && _ft_front="$_ft_front --overlap"
    _ft_label=
    [ "$_ft_labels" = auto ] && [ "$_ft_width" -gt 1 ] && _ft_label=1
    _ft_again_side=
    [ "$_ft_rejoin" = 1 ] && _ft_find_hook && _ft_again_side=$_ft_hook
    set -- "$SLURM_JOB_ID" "$_ft_launch.$_ft_no" "$_ft_whole" "${_ft_not#,}" "$_ft_active" "$_ft_moved" "$_ft_front" "$_ft_label" "$_ft_out" "$_ft_again_side"
    [ -z "$_ft_spans" ] || set -- "$@" "$_ft_spans" "$_ft_names_active"
    _ft_quote "$@"
    _ft_text=
    IFS=$_ft_nl
    set -f
    for _ft_i in $_ft_renv; do _ft_text="$_ft_text ${_ft_i%%=*}"; done
    set +f
    unset IFS
    printf "_ft_shows=%s _ft_resumed_by='%s'; set -- %s\n" "$_ft_shows" "$_ft_text" "$_ft_quoted" >"$_ft_talk/shim.$_ft_no"
} 2>/dev/null

# Makes this start the present one of the attempt, for whoever holds the token of another. 1: the attempt is closed.
# 2: cannot be done; then nobody is told a token that nobody could check.
_ft_make_current() {
    [ "$_ft_no" -le 1 ] || case `readlink "$_ft_place/current"` in closed) return 1 ;; esac
    if [ -L "$_ft_place/current" ] || ! ln -s "$_ft_launch.$_ft_no" "$_ft_place/current"; then
        ln -s "$_ft_launch.$_ft_no" "$_ft_place/current.$$"
        mv -f "$_ft_place/current.$$" "$_ft_place/current" || { rm -f "$_ft_place/current.$$" && return 2; }
    fi
    [ -z "$_ft_timeouts" ] || mkdir -m 700 "$_ft_place/stacks" "$_ft_place/stacks/$_ft_launch.$_ft_no"
    # Who closes an attempt closes the next claim first: whatever the order of these two, one of them sees the other.
    _ft_name_of $((_ft_launch + 1)) "$_ft_place"
    [ -L "$_ft_claim" ] || return 0
    case `readlink "$_ft_claim" 2>/dev/null` in closed.*) ;; *) return 0 ;; esac
    ln -s closed "$_ft_place/current.$$" && mv -f "$_ft_place/current.$$" "$_ft_place/current"
    return 1
} 2>/dev/null

_ft_set_token() { # by the status of the above
    _ft_present=$_ft_launch.$_ft_no
    [ "$1" -eq 0 ] || _ft_present=
}

# The start that was just made, for the agent at once, and for all others in the attempt's folder.
_ft_record_start() {
    [ -n "$_ft_talk" ] || return 0
    (
        trap - EXIT
        _ft_lines "start=$_ft_no" "pid=$_ft_child" "nodes=$_ft_names_active" "nnodes=$_ft_width" "token=$_ft_launch.$_ft_no" "exported=$_ft_exported" "spans=${_ft_spans# }" >"$_ft_talk/started.$$"
        mv -f "$_ft_talk/started.$$" "$_ft_talk/started.$_ft_no"
        [ -d "$_ft_place" ] || exit
        [ "$_ft_no" -eq 1 ] || _ft_record_pick # that of the first is with the launch's own record
        _ft_write "$_ft_place/begun.$_ft_launch.$_ft_no" <"$_ft_talk/started.$_ft_no"
    ) </dev/null >/dev/null 2>&1 4<&- 5<&- 6<&- 7<&- 8>&- 9<&- &
}

# The agent lives beside the script in a session of its own, so that no signal to the script's group reaches it.
_ft_post_agent() {
    [ -n "$_ft_agent" ] && [ -n "$_ft_talk" ] && [ -z "$_ft_agent_pid" ] || return 0
    (
        trap - EXIT
        umask 077
        command exec 2>"$_ft_place/agent.$_ft_launch.log" || command exec 2>/dev/null
        _ft_find_clients
        PATH=${_ft_bin:+$_ft_bin:}$PATH:$_ft_path
        export FTRUN_PARENT_PID="$$"
        # shellcheck disable=SC2046
        exec $(command -v setsid) "$_ft_agent" -P -m ftrun.supervisor.agent --run-dir "$_ft_dir" --attempt "$_ft_attempt" --launch "$_ft_launch" \
            --job "$SLURM_JOB_ID" --cluster "$_ft_cluster" --talk "$_ft_talk" --place "$_ft_place"
    ) </dev/null >/dev/null 2>&1 4<&- 5<&- 6<&- 7<&- 8>&- 9<&- &
    _ft_agent_pid=$!
}

_ft_dismiss_agent() {
    [ -n "$_ft_agent_pid" ] || return 0
    kill -9 "$_ft_agent_pid" 2>/dev/null
    _ft_within 2 "$_ft_agent_pid" # a file system that hangs may hold even a killed process
    _ft_agent_pid=
}

# The step that ends, on every node, what is left of earlier starts; after the delay of the watch it is the watch too.
_ft_post_guard() {
    (
        trap - EXIT
        _ft_i=
        trap 'kill "$_ft_i"; exit 0' USR2
        _ft_left=${_ft_watch#* }
        _ft_left=${_ft_left%%.*}
        _ft_left=${_ft_left:-30}
        _ft_n=0
        # Wait until the watch is due, or the script has called srun; not at all where checkpoints are staged. Then look for the tools
        # once a second for two minutes: a supervisor that starts with the job may install them later.
        while [ "$_ft_n" -le $((_ft_left + 120)) ]; do
            if [ -n "$_ft_keep" ] || [ "$_ft_n" -ge "$_ft_left" ] || { [ "$_ft_n" -ge 5 ] && [ -e "$_ft_talk/calls.1" ]; }; then
                _ft_find_hook && break
            fi
            sleep 1 &
            _ft_i=$!
            wait "$_ft_i"
            _ft_n=$((_ft_n + 1))
        done
        [ "$_ft_n" -lt "$_ft_left" ] || _ft_n=$_ft_left # the watch is due
        _ft_note_mpi
        set -- guard --attempt-folder "$_ft_place" --launch "$_ft_launch" ${_ft_keep:+--keep "$_ft_keep"}
        [ -n "$_ft_watch" ] || _ft_on_nodes "$@" --watch-after 1000000000 --
        _ft_on_nodes "$@" --watch-after $((_ft_left - _ft_n)) -- \
            --period "${_ft_watch% *}" --settings "$_ft_checks" ${FTRUN_WATCH_ROOT:+--root "$FTRUN_WATCH_ROOT"}
    ) </dev/null >/dev/null 2>&1 4<&- 5<&- 6<&- 7<&- 8>&- 9<&- &
    _ft_watcher=$!
}

_ft_uptime() { # whole seconds of a clock that nobody sets, into _ft_seconds
    _ft_seconds=0
    { read -r _ft_seconds _ft_i </proc/uptime; } 2>/dev/null
    _ft_seconds=${_ft_seconds%%.*}
}

# What comes next when the script is over: 0 = start it again in this allocation, 1 = the job ends. Whatever breaks down in here,
# the job ends as the script ended.
_ft_next() {
    trap _ft_leave EXIT
    _ft_ended=`date +%s 2>/dev/null`
    _ft_end_stage
    [ -n "$_ft_agent_pid" ] || return 1
    printf 'code=%s\nsignal=%s\nended_s=%s\n' "$_ft_rc" "$_ft_sig" "$_ft_ended" >"$_ft_talk/over.$$"
    mv -f "$_ft_talk/over.$$" "$_ft_talk/over.$_ft_no"
    # A script that the agent ended may say that all is well.
    [ "$_ft_rc" -ne 0 ] || [ -e "$_ft_talk/ending.$_ft_no" ] || return 1
    _ft_hear_agent && _ft_take_answer && return 0
    _ft_dismiss_agent # one that wakes up later must not act in a job that ends
    return 1
}

# Waits for the answer as long as the agent is there and its pulse goes on: 20 s without one, 600 s in all.
_ft_hear_agent() {
    _ft_uptime
    _ft_asked=$_ft_seconds _ft_beaten=$_ft_seconds _ft_pulse= _ft_nap=0.02
    until [ -e "$_ft_talk/next.$_ft_no" ]; do
        _ft_is_ended_by_others && return 1
        if _ft_is_over "$_ft_agent_pid"; then
            _ft_agent_pid=
            [ -e "$_ft_talk/next.$_ft_no" ]
            return
        fi
        _ft_uptime
        _ft_beat=
        { read -r _ft_beat <"$_ft_talk/pulse"; } 2>/dev/null
        [ "$_ft_beat" = "$_ft_pulse" ] || _ft_beaten=$_ft_seconds
        _ft_pulse=$_ft_beat
        [ $((_ft_seconds - _ft_beaten)) -lt 20 ] && [ $((_ft_seconds - _ft_asked)) -lt 600 ] || return 1
        sleep "$_ft_nap"
        [ $((_ft_seconds - _ft_asked)) -lt 2 ] || _ft_nap=0.1
    done
}

_ft_take_answer() {
    _ft_text= _ft_wanted= _ft_class= _ft_why= _ft_added= _ft_joined= _ft_diverged= _ft_view= _ft_stands= _ft_reached=
    {
        read -r _ft_text
        while IFS= read -r _ft_line; do
            case $_ft_line in
                nodes=*) _ft_wanted=${_ft_line#*=} ;;
                span=*) _ft_joined="$_ft_joined ${_ft_line#*=}" ;;
                fault=*) _ft_class=${_ft_line#*=} ;;
                why=*) _ft_why=${_ft_line#*=} ;; # the fault in words
                skip=*) _ft_added=$_ft_added$_ft_nl${_ft_line#*=} ;;
                poison=*) _ft_diverged=$_ft_diverged${_ft_line#*=}$_ft_nl ;;
                had=1) _ft_had=1 ;; # the run has had a checkpoint
                fresh=1) _ft_fresh=1 ;; # it may begin from nothing
                view=*) _ft_view=${_ft_line#*=} ;; # it lies in the nodes' memory
                from=*) _ft_stands=${_ft_line#*=} ;;
                step=*) _ft_reached=${_ft_line#*=} ;;
                checked=1) _ft_after= ;; # the nodes have been checked after this start
            esac
        done
    } <"$_ft_talk/next.$_ft_no"
    [ "$_ft_text" = again ] && _ft_activate "$_ft_wanted" "$_ft_joined" || return 1
    _ft_post_counter
    _ft_skip=$_ft_added # all that is set aside now: what was written anew since is good again
    _ft_poison=$_ft_diverged
    _ft_fault=$_ft_class
    _ft_no=$((_ft_no + 1)) _ft_ended=
    # What the script left behind in its own group.
    [ "$_ft_own" ] && kill -9 "-$_ft_child" 2>/dev/null
    if [ -n "$_ft_view" ]; then
        _ft_use=$_ft_view _ft_from=$_ft_stands _ft_best=$_ft_reached _ft_root=${_ft_view%/*} _ft_stuck= _ft_passed=
        printf '%s\n' "from=$_ft_from" "why=it is the newest, and in the memory of the nodes" "step=$_ft_best" "use=$_ft_use" "root=$_ft_root" end=1 >"$_ft_tmp/pick"
    else
        _ft_choose
        { _ft_ask_hook; } 2>&8
    fi
    [ -z "$_ft_stuck" ] || return 1 # the supervisor tells why
    ( trap - EXIT; _ft_make_current ) &
    _ft_within "$_ft_patience" $!
    case $_ft_status in 0 | 2) ;; *) return 1 ;; esac # closed, or nobody can tell: never one run twice
    _ft_set_token "$_ft_status"
    # As at the first start: a file that the script was given to read begins anew.
    command exec 9<"/proc/$$/fd/9"
    _ft_await_stage 10
    eval "_ft_compose $_ft_argv"
    # A signal that nobody was there to get is nobody's; one that ends the job still does.
    _ft_is_ended_by_others && return 1
    _ft_got=
    _ft_look_at_clock
    _ft_tell_begin
    _ft_measure_logs 8
    return 0
}

# One line into the job's log about a start that is not the run's first: when, after what, from which checkpoint, on which nodes.
# The text of the start begins behind it: a step in the name of a checkpoint is none that was made.
_ft_tell_begin() {
    _ft_text="attempt $_ft_attempt"
    [ "$_ft_launch" -eq 0 ] || _ft_text="$_ft_text, launch $_ft_launch"
    [ "$_ft_no" -le 1 ] || _ft_text="$_ft_text, start $_ft_no in the same job"
    [ -z "$_ft_why$_ft_fault" ] || _ft_text="$_ft_text, after ${_ft_why:-$_ft_fault}"
    if [ -n "$_ft_from" ]; then
        _ft_text="$_ft_text; from $_ft_from"
    elif [ -n "$_ft_glob" ]; then
        _ft_text="$_ft_text; from no checkpoint: none that may be loaded matches ${_ft_glob%%"$_ft_nl"*}"
    else
        _ft_text="$_ft_text; from no checkpoint that ftrun knows: --ft-checkpoint is not set"
    fi
    _ft_c=${_ft_names_active:-${SLURM_JOB_NODELIST-}}
    _ft_text="$_ft_text${_ft_c:+; on $_ft_c}"
    printf 'ftrun: %s: %s begins: %s\n' "$_ft_clock" "$_ft_run" "$_ft_text" 2>/dev/null
}

# The nodes of list $1 become the active ones; those of the companions $2, words `job:nodes`, are among them: one that this job had
# and lost may be back there. 1: they are not all of these jobs, or none is of this one. Who took whose place is kept for node names that stand in the script itself.
_ft_activate() {
    _ft_look_at_job
    _ft_before_it="${_ft_active:-$_ft_all} $_ft_far"
    _ft_take_spans "$2" || return 1
    _ft_hosts "$1"
    [ -n "$_ft_all" ] && [ -n "$_ft_text" ] || return 1
    _ft_picked= _ft_gone= _ft_come=
    for _ft_i in $_ft_text; do
        case " $_ft_all $_ft_far " in *" $_ft_i "*) ;; *) return 1 ;; esac
    done
    for _ft_i in $_ft_all; do
        case " $_ft_far " in *" $_ft_i "*) continue ;; esac
        case " $_ft_text " in *" $_ft_i "*) _ft_picked="$_ft_picked $_ft_i" ;; esac
    done
    [ -n "$_ft_picked" ] || return 1
    _ft_active=$_ft_picked
    for _ft_i in $_ft_active $_ft_far; do
        case " $_ft_before_it " in *" $_ft_i "*) ;; *) _ft_come="$_ft_come $_ft_i" ;; esac
    done
    for _ft_i in $_ft_before_it; do
        case " $_ft_active $_ft_far " in *" $_ft_i "*) ;; *) _ft_gone="$_ft_gone $_ft_i" ;; esac
    done
    # shellcheck disable=SC2086
    set -- $_ft_come
    for _ft_i in $_ft_gone; do
        [ $# -gt 0 ] || break
        _ft_replace "$_ft_i" "$1"
        shift
    done
}

_ft_replace() { # node $1 by $2, also where $1 stands for another
    _ft_text=
    for _ft_word in $_ft_moved; do
        case $_ft_word in
            "$1="*) ;;
            *"=$1") [ "${_ft_word%%=*}" = "$2" ] || _ft_text="$_ft_text ${_ft_word%%=*}=$2" ;;
            "$2="*) ;;
            *) _ft_text="$_ft_text $_ft_word" ;;
        esac
    done
    _ft_moved="$_ft_text $1=$2"
}

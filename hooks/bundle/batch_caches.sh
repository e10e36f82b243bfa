# Compile caches that stay warm from start to start: where they are, and who is told. A part of batch.sh, which stands around it.
#
# How it thinks.  Code out of these folders is run, so on each node each start sees that they are this user's alone before it is told of them: a
# folder of the user, and in it one of the run, the same in all its starts.  On this node that is done here.  On the others a later launch has each
# fill its own, and between the starts of one launch the agent's sweep does the same.  Before the first start nobody has been there, and a step of
# ours would take the number 0 from the script's own: so the srun in front of Slurm's lets each task look at its node and be told.  So it is at each
# launch for which the run has collected nothing, if the agent swept every node that a launch before it used (`unswept.*`): the step costs half a
# second.  What cannot be had in time, or not from every node, is not told to the script, which then compiles as it does without us.
#
# shellcheck shell=sh disable=SC2154,SC2015,SC3067

# Makes folder $1 and the one it lies in, or sees that they are ours: then what is named behind it, up to --, is exported where the task has nothing
# of that name. Becomes the command behind --; without one, 0 where they are ours.
# shellcheck disable=SC2016
_ft_cache_side='
d=$1 u=${1%/*} o=1
b=${u%/*}
shift
# Who may write into the folder that the first of them lies in, and take others out of it, could put another in its place.
[ -k "${b:=/}" ] || [ -z "`find "$b" -prune \( -perm -0002 -o -perm -0020 ! -user "\`id -u\`" \) 2>&1`" ] || o=
for i in "$u" "$d"; do
    [ -n "$o" ] || break
    [ -d "$i" ] || mkdir -m 700 "$i" 2>/dev/null || [ -d "$i" ] || o=
    [ -d "$i" ] && [ ! -L "$i" ] && [ -O "$i" ] && chmod 700 "$i" 2>/dev/null || o=
done
[ -n "$o" ] || [ "${SLURM_LOCALID:-0}" != 0 ] || echo "ftrun: ${SLURMD_NODENAME:-`uname -n`}: $d is not this user'"'"'s alone: compiling without caches" >&2
while [ "$1" != -- ]; do
    [ -z "$o" ] || eval "[ -n \"\${${1%%=*}+1}\" ]" || export "${1?}"
    shift
done
shift
[ $# -eq 0 ] || exec "$@"
[ -n "$o" ]'

_ft_open_caches() { # whether the script is told of them, into _ft_cached: 1, or tasks where only those of its steps are
    _ft_cached=
    [ -n "$_ft_caches" ] && [ -n "${SLURM_JOB_ID-}" ] && [ -z "${SLURM_HET_SIZE-}" ] && [ "$_ft_place" = "$_ft_whole" ] && [ "$_ft_patience" -gt 0 ] || return 0
    _ft_warm=${_ft_caches#* }
    case $_ft_warm in *'{uid}'*) _ft_warm=${_ft_warm%%'{uid}'*}`id -u`${_ft_warm#*'{uid}'} ;; esac
    _ft_caches="${_ft_caches%% *} $_ft_warm"
    /bin/sh -c "$_ft_cache_side" ftrun-caches "$_ft_warm" -- || return 0
    ( trap - EXIT; _ft_note_caches ) 2>/dev/null &
    _ft_within "$_ft_patience" $!
    # CANN wants its folder to be there, on every node.
    case $_ft_status in
        0) [ -e /dev/davinci_manager ] || { _ft_leave_caches && return 0; } ;;
        3) ;;
        *) return 0 ;;
    esac
    _ft_fill_caches
}

_ft_leave_caches() { # to the nodes of the first start
    if [ "${SLURM_JOB_NUM_NODES:-1}" = 1 ]; then
        _ft_cached=1
    elif [ -x "$_ft_talk/bin/srun" ]; then
        _ft_cached=tasks
    fi
}

# For whatever fills and merges on the nodes. 0: they have nothing to fill, and nothing that an earlier launch left. 3: they may have.
_ft_note_caches() {
    [ -d "$_ft_dir" ] && [ ! -e "$_ft_dir/caches/refused" ] || exit 1
    [ -d "$_ft_dir/caches" ] || mkdir -m 700 "$_ft_dir/caches" || [ -d "$_ft_dir/caches" ] || exit 1
    # It is the same in all starts of a run; who reads half a line reads nothing.
    { read -r _ft_line <"$_ft_dir/caches/where"; } && [ "$_ft_line" = "$_ft_caches" ] || ( umask 077; printf '%s\n' "$_ft_caches" >"$_ft_dir/caches/where" )
    _ft_c=0
    for _ft_i in "$_ft_dir"/caches/unswept.* "$_ft_dir/caches/epoch" "$_ft_dir"/caches/*/*.pack; do
        [ ! -e "$_ft_i" ] || { _ft_c=3 && break; }
    done
    ( umask 077; : >"$_ft_dir/caches/unswept.$_ft_attempt.$_ft_launch" ) || exit 1
    exit "$_ft_c"
}

_ft_fill_caches() {
    if _ft_find_hook; then
        ( trap - EXIT TERM; _ft_on_nodes cache fill --seconds 20 ) </dev/null >/dev/null 2>&1 &
        _ft_watcher=$!
        _ft_within 30 "$_ft_watcher"
        [ "$_ft_status" -ne 124 ] || kill "$_ft_watcher" 2>/dev/null
        _ft_watcher=
        [ "$_ft_status" -ne 0 ] || _ft_cached=1
    else
        _ft_leave_caches
    fi
}

_ft_tell_caches() { # in _ft_told_now and _ft_names, what the user set nothing of
    [ -n "$_ft_cached" ] && [ ! -e "$_ft_dir/caches/refused" ] || return 0
    _ft_for_tasks=
    IFS=$_ft_nl
    for _ft_i in $_ft_cache_exports; do
        _ft_c=${_ft_i%%=*}
        case $_ft_c in ASCEND*) [ -e /dev/davinci_manager ] || continue ;; esac
        _ft_is_unset "$_ft_c" || continue
        case $_ft_c.$_ft_attempt.$_ft_launch.$_ft_no in MS_COMPILER_CACHE_ENABLE*.1.0.1) _ft_say "caches=all: MindSpore's cache of graphs is on. It has given wrong results: a step under mindspore.jit had a loss of 0 at its second start" ;; esac
        case $_ft_c in ASCEND*) mkdir -m 700 "$_ft_warm/ascend" 2>/dev/null ;; esac
        _ft_text=${_ft_i#*=}
        case $_ft_text in '{caches}'*) _ft_text=$_ft_warm${_ft_text#'{caches}'} ;; esac
        if [ "$_ft_cached.$_ft_no" = tasks.1 ]; then
            _ft_for_tasks=$_ft_for_tasks$_ft_nl${_ft_c%%,*}=$_ft_text
            continue
        fi
        _ft_told_now=$_ft_told_now${_ft_c%%,*}=$_ft_text$_ft_nl
        _ft_names=$_ft_names,${_ft_c%%,*}
    done
    unset IFS
    [ -n "$_ft_for_tasks" ] || return 0
    _ft_quote "$_ft_warm$_ft_for_tasks"
    _ft_c=${_ft_quoted# }
    _ft_quote "$_ft_cache_side"
    printf '_ft_cached_own=%s\n_ft_cache_side=%s\n' "$_ft_c" "${_ft_quoted# }" >"$_ft_talk/caches.$_ft_no"
}

_ft_is_unset() { # 0: the user set none of the names $1
    IFS=,
    for _ft_c in $1; do
        eval "[ -z \"\${$_ft_c+1}\" ]" || { IFS=$_ft_nl && return 1; }
    done
    IFS=$_ft_nl
    _ft_c=$1
}

# Behind the script: a failed one is started again somewhere, so what it compiled since it was merged last goes along; where the run is over
# this node keeps nothing. Not where somebody ends the job, nor after a script that failed at once.
_ft_close_caches() {
    [ -n "$_ft_cached" ] || return 0
    if [ "$_ft_rc" -eq 0 ]; then
        rm -rf "$_ft_warm" &
        _ft_within 2 $!
        return 0
    fi
    [ $((_ft_now - _ft_since)) -ge 5 ] 2>/dev/null && ! _ft_is_ended_by_others || return 0
    set -- "$_ft_warm"/*/*
    [ -e "$1" ] || return 0
    ( trap - EXIT; _ft_on_nodes cache merge --seconds 10 ) </dev/null >/dev/null 2>&1 4<&- 5<&- 6<&- 7<&- 8>&- 9<&- &
    _ft_watcher=$!
    _ft_sit_through 60
}

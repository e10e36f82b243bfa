#!/bin/sh
# Stands in front of Slurm's srun on the PATH of a script that ftrun may start again inside its job.
#
# How it thinks.  It becomes the real srun with the words it was called with, and adds in front what this start of the script
# needs: the nodes that are spare or set aside are excluded (so -N, -n and -w mean what they always mean), a later start shares
# nodes with what an earlier one left, and lines are labelled.  What the user typed stands behind and wins.  Node names that stand
# in the script itself are replaced by the nodes that took their place.  A script of an earlier start gets no step any more.
# Calls about another job, and all that it does not understand, are handed through as they are.

# shellcheck disable=SC1007,SC1090,SC2119,SC2120,SC3013  # -ef: dash, bash and busybox have it

unset -f printf read date readlink scontrol command exec 2>/dev/null
_ft_talk=${0%/bin/srun}

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
                --bcast | --compress | --contig* | --debugger-test | --disable-status | --exact | --exclusive | --external | --get-user-env | --help | \
                    --hold | --imm* | --interactive | --kill-* | --lab* | --multi* | --nice | --no-* | --overc* | --overl* | --overs* | --preserve* | --propagate | \
                    --pty | --quie* | --quit* | --reboot | --resv-* | --send* | --share | --spread* | --stepmgr | --test* | --unb* | --usa* | --use-* | --verb* | \
                    --vers* | --whole | --x11) ;;
                # So do these of a container plug-in that many sites have.
                --container-mount-home | --container-remap-root | --container-writable | --container-readonly | --container-entrypoint*) ;;
                --accel* | --acco* | --acct* | --bb* | --bcast-* | --beg* | --chd* | --clus* | --comm* | --cons* | --container | --container-[eimnws]* | --core* | --cpu* | \
                    --dead* | --delay* | --dep* | --dist* | --epi* | --err* | --exclude | --export* | --extra* | --gid | --gpu* | --gres* | --het* | --hint | \
                    --inp* | --job* | --lic* | --mail* | --mcs* | --mem* | --minc* | --mins* | --mint* | --mpi | --msg* | --netw* | --node* | --nt* | --oom* | \
                    --open* | --out* | --pack* | --part* | --power* | --pref* | --prio* | --prof* | --prol* | --qos | --rela* | --rese* | --seg* | --sig* | \
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
        *'['*) _ft_names=$(scontrol show hostnames "$1" 2>/dev/null) || return 1 ;;
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
    _ft_due= _ft_open=1 _ft_seen= _ft_through= _ft_named= _ft_own_x= _ft_skipped= _ft_alone= _ft_unsure= _ft_wrapped=$_ft_pyz
    for _ft_word in "$@"; do
        _ft_read_word "$_ft_word"
        [ -n "$_ft_open" ] || break
        case $_ft_opt in
            [hloeuV]) _ft_seen=$_ft_seen$_ft_opt ;;
            w) [ -z "$_ft_due" ] && _ft_now_of "$_ft_val" && _ft_named=$_ft_named,$_ft_names ;;
            x) [ -z "$_ft_due" ] && _ft_own_x=$_ft_own_x,$_ft_val ;;
            r) [ -z "$_ft_due" ] && _ft_skipped=$_ft_val ;;
            --exclusive | --exact) _ft_alone=1 ;;
            --jobi*) [ -n "$_ft_due" ] || [ "${_ft_val%%.*}" = "$SLURM_JOB_ID" ] || _ft_through=1 ;;
            --het-g* | --hetg* | --pack-g*) _ft_through=1 ;;
            --pty) _ft_wrapped= _ft_seen=${_ft_seen}p ;;
            --multi*) _ft_wrapped= ;;
        esac
    done
    case $_ft_seen in *[hV]*) _ft_through=1 ;; esac
    # Nobody's rank: what starts the ranks of its node.
    case ${_ft_word##*/} in orted | prted | hydra_pmi_proxy) _ft_wrapped= ;; esac
    [ -z "$_ft_open$_ft_unsure" ] || _ft_wrapped=
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
    _ft_not=$_ft_list$_ft_own_x
    _ft_not=${_ft_not#,}
}

# shellcheck disable=SC2016
_ft_rank_side='
h=$1 f=$2
shift 2
[ -r "$h" ] && for p in /usr/bin/python3 python3; do
    "$p" -IS -c "import sys; sys.exit(sys.version_info < (3, 9))" 2>/dev/null && exec "$p" -IS "$h" rank --folder "$f" -- "$@"
done
exec "$@"'

# Arguments of the record of this start: job, token, attempt, nodes not to use, active ones, who took whose place, options, whether
# lines are labelled, the job's log, the node side of ftrun.
_ft_take_brief() {
    . "$_ft_talk/shim.$FTRUN_START"
    _ft_job=$1 _ft_token=$2 _ft_place=$3 _ft_not=$4 _ft_active=$5 _ft_moved=$6 _ft_front=$7 _ft_label=$8
    shift 8
    _ft_log=$1 _ft_pyz=$2
}

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

{ printf '%s %s %s\n' "$(date +%s)" "$$" "$*" >>"$_ft_talk/calls.$FTRUN_START"; } 2>/dev/null

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

if [ -n "$_ft_wrapped" ]; then
    # The wrapper stands between the options and the command.
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
                set -- "$@" /bin/sh -c "$_ft_rank_side" ftrun-rank "$_ft_wrapped" "$_ft_place/ranks/$_ft_token"
                [ "$_ft_opt" = -- ] && continue
            fi
        fi
        set -- "$@" "$_ft_word"
    done
    set -- --kill-on-bad-exit=0 --wait=0 "$@"
fi

if [ -n "$_ft_alone" ]; then
    unset SLURM_OVERLAP
    case $_ft_front in *--overlap*) _ft_front=${_ft_front%%--overlap*} ;; esac
fi
# Unbuffered, each piece that a task writes would become a line of its own; and where lines go by SLURM_STDOUTMODE they are not the log's.
case $_ft_label:$_ft_seen$_ft_unsure${SLURM_STDOUTMODE+o}${SLURM_STDERRMODE+e}${SLURM_UNBUFFEREDIO+u} in
    1:*[loeup1]*) ;;
    1:*) [ /proc/self/fd/1 -ef "$_ft_log" ] && set -- --label "$@" ;;
esac
FTRUN_SHIM=$FTRUN_START
export FTRUN_SHIM
# shellcheck disable=SC2086
exec "$_ft_real" $_ft_front "$@"

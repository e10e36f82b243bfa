# Checkpoints that are staged in the memory of the nodes: what looks after them there, and what the script is told. A part of batch.sh.
#
# How it thinks.  A process on each node seals, publishes and clears up; it hangs on the step that guards the nodes, which begins before
# the script here.  Each start has a folder of its own, the same path on every node, and every node must have said that it is
# there.  Where one does not, or there is nobody to look after it, the script is told the folder on the shared file system instead: it
# saves as slowly as ever, and nothing else changes.
#
# shellcheck shell=sh disable=SC1007,SC2034,SC2154,SC2015

# Where checkpoints are published to, into _ft_stage_to, and the words for the staging daemons, one a line, into _ft_keep.
_ft_open_stage() {
    _ft_keep= _ft_staged= _ft_stage_to=
    [ -n "$_ft_stage" ] || return 0
    IFS=$_ft_nl
    set -f
    # shellcheck disable=SC2086
    set -- $_ft_stage
    set +f
    unset IFS
    # shellcheck disable=SC2088
    case $1 in
        /*) _ft_stage_to=$1 ;;
        '~/'*) _ft_stage_to=${HOME-}/${1#'~/'} ;;
        *) _ft_stage_to=$PWD/$1 ;;
    esac
    _ft_stage_wait=$7
    ( trap - EXIT; mkdir -p "$_ft_stage_to" && umask 077 && mkdir -p "$_ft_place/stage" ) >/dev/null 2>&1 &
    _ft_within "$_ft_patience" $!
    [ "$_ft_status" -eq 0 ] && [ -n "$_ft_agent" ] && [ -n "$_ft_talk" ] && [ -n "$_ft_present" ] || return 0
    _ft_stage_base=${2%/}/ftrun-$(id -u)/$_ft_run.$SLURM_JOB_ID
    set -- --attempt-folder "$_ft_place" --launch "$_ft_launch" --job "$SLURM_JOB_ID" --base "$_ft_stage_base" --to "$_ft_stage_to" \
        --limit "$3" --rate "$4" --keep "$5" --partner "$6" --wait "$7" --marker "$_ft_marker"
    for _ft_i in "$@"; do _ft_keep=$_ft_keep$_ft_i$_ft_nl; done
    _ft_write "$_ft_place/stage/words.$_ft_launch" printf '%s' "$_ft_keep" & # for companions
    _ft_within "$_ft_patience" $!
    _ft_post_guard
    _ft_await_stage 20
}

# Until each node of this start has its folder, $1 seconds at most; whether they all have, into _ft_staged.
_ft_await_stage() {
    _ft_staged=
    [ -n "$_ft_keep" ] || return 0
    _ft_look_at_job
    ( trap - EXIT TERM; _ft_look_at_stage $(($1 * 10)) ) >"$_ft_tmp/stage" 2>/dev/null &
    _ft_within $(($1 + 5)) $!
    [ "$_ft_status" -ne 0 ] || { _ft_staged=1 && return 0; }
    _ft_text=
    { IFS= read -r _ft_text; } <"$_ft_tmp/stage" 2>/dev/null
    _ft_text="checkpoints go straight to $_ft_stage_to: ${_ft_text:-no answer from the nodes}"
    if [ "$_ft_no" -gt 1 ]; then _ft_say "$_ft_text" 2>&8; else _ft_say "$_ft_text"; fi
}

_ft_look_at_stage() {
    ls "$_ft_dir" >/dev/null
    while :; do
        # shellcheck disable=SC2005,SC2012,SC2046
        set -- "$1" " $(echo $(ls "$_ft_place/stage")) " # one look for all nodes, and one that a network file system answers anew
        _ft_text=
        for _ft_i in ${_ft_active:-$_ft_all} $_ft_far; do
            for _ft_c in refused full; do
                case $2 in *" $_ft_c.$_ft_launch.$_ft_i "*) echo "$_ft_i: $(cat "$_ft_place/stage/$_ft_c.$_ft_launch.$_ft_i")" && exit 1 ;; esac
            done
            case $2 in *" ready.$_ft_launch.$_ft_i "*) ;; *) _ft_text=${_ft_text:-$_ft_i} ;; esac
        done
        [ -n "$_ft_text" ] || exit 0
        [ "$1" -gt 0 ] || { echo "$_ft_text did not answer" && exit 1; }
        set -- $(($1 - 1))
        sleep 0.1
    done
}

_ft_tell_stage() { # in _ft_told_now and _ft_names
    [ -n "$_ft_stage_to" ] || return 0
    _ft_text=$_ft_stage_to
    [ -z "$_ft_staged" ] || _ft_text=$_ft_stage_base/stage/$_ft_launch.$_ft_no
    _ft_told_now=${_ft_told_now}FTRUN_STAGE_DIR=$_ft_text${_ft_nl}FTRUN_STAGE_TO=$_ft_stage_to$_ft_nl
    _ft_names=$_ft_names,FTRUN_STAGE_DIR,FTRUN_STAGE_TO
}

_ft_end_stage() { # tells the nodes how this start ended
    [ -n "$_ft_staged" ] || return 0
    ( trap - EXIT; _ft_write "$_ft_place/stage/over.$_ft_launch.$_ft_no" printf 'code=%s\n' "$((_ft_rc + _ft_sig))" ) </dev/null >/dev/null 2>&1 &
}

# Waits until all that is staged is published, or cannot be; less long where somebody ends the job.
_ft_close_stage() {
    _ft_quarters=$((${_ft_stage_wait%%.*} * 4))
    if [ -n "$_ft_staged" ]; then
        ( trap - EXIT; _ft_await_flush "$_ft_quarters" ) </dev/null >/dev/null 2>&1 &
        _ft_counter=$!
        until _ft_is_over "$_ft_counter" || [ -z "$_ft_watcher" ] || _ft_is_over "$_ft_watcher" || [ "$_ft_quarters" -le 0 ]; do
            _ft_is_ended_by_others && [ "$_ft_quarters" -gt 60 ] && _ft_quarters=60
            _ft_quarters=$((_ft_quarters - 1))
            sleep 0.25
        done
        _ft_dismiss_counter
    fi
    _ft_dismiss_watch
}

_ft_await_flush() { # quarters of a second $1 at most
    until [ -e "$_ft_place/stage/flushed.$_ft_launch.$_ft_no.$_ft_host" ] || [ "$1" -le 0 ]; do
        ls "$_ft_place/stage"
        set -- $(($1 - 1))
        sleep 0.25
    done
}

# Until the memory of the nodes is given back. A node that is lost keeps the step alive, and is not waited for.
_ft_await_memory() {
    _ft_within 1 "$_ft_watcher"
    [ "$_ft_status" -eq 124 ] || return 0
    ( trap - EXIT; _ft_await_left ) </dev/null >/dev/null 2>&1 &
    _ft_counter=$!
    _ft_quarters=120
    until _ft_is_over "$_ft_watcher" || _ft_is_over "$_ft_counter" || [ "$_ft_quarters" -le 0 ]; do
        _ft_quarters=$((_ft_quarters - 1))
        sleep 0.25
    done
    _ft_dismiss_counter
}

_ft_await_left() { # all were told at the same moment: the others have 3 s more than this node needs
    until [ -e "$_ft_place/stage/left.$_ft_launch.$_ft_host" ]; do sleep 0.25; done
    for _ft_nap in 0.1 0.1 0.3 0.5 0.5 0.5 0.5 0.5; do
        set -- "$_ft_place/stage/ready.$_ft_launch."*
        _ft_i=$#
        set -- "$_ft_place/stage/left.$_ft_launch."*
        [ $# -lt "$_ft_i" ] || return 0
        sleep "$_ft_nap"
    done
}

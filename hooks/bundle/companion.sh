#!/bin/sh
# The script of a companion: a small job that holds nodes for a start of another job, the main one, of the same user.
#
# How it thinks.  It says in the attempt's folder that its nodes are there, looks after them as batch.sh does after its own, and
# otherwise only waits for its end: the steps on its nodes come from the main job's script.  Nobody else may be left to end it, so
# every few seconds it asks whether it is still wanted.  It is not where Slurm says that the main job does not run, or was
# started anew; where the attempt is closed or a later launch has begun; where it is told so by a file; and where neither the agent of the
# main job nor its script counts on, though Slurm answers.  The script's counter says which companions its start lies in.  One of these
# has ranks that may be well while nobody can write there, as on a node whose mount hangs: it also wants Slurm's word that the
# main job's batch node is lost, or far more time.
# What cannot be read, a controller that does not answer, and a job that is suspended say nothing.
#
# Runs on dash, bash and busybox.  The variables above this text come from companion_form.py.

# shellcheck disable=SC2154,SC1007,SC2015,SC2317

unset -f readlink mkdir mv rm sed cat ls date mktemp sleep env setsid command cd printf read kill wait trap '[' true squeue sinfo scancel srun 2>/dev/null

_ft_nl='
'
_ft_say() { printf '%s ftrun: %s\n' "$(date +%FT%T)" "$1"; }

#ftrun-nodes#

_ft_uptime() { # whole seconds of a clock that nobody sets, into _ft_seconds
    _ft_seconds=0
    { read -r _ft_seconds _ft_rest </proc/uptime; } 2>/dev/null
    _ft_seconds=${_ft_seconds%%.*}
}

# Tells the agent that the nodes are there.
_ft_announce() {
    mkdir -m 700 "$_ft_folder" 2>/dev/null # and never more: a run's folder that was removed stays removed
    ( umask 077; printf 'job=%s\nnodes=%s\nhost=%s\n' "$SLURM_JOB_ID" "${SLURM_JOB_NODELIST-}" "${SLURMD_NODENAME-}" >"$_ft_folder/$_ft_number.here.$$" ) &&
        mv -f "$_ft_folder/$_ft_number.here.$$" "$_ft_folder/$_ft_number.here"
}

# The part of a child: what the attempt's folder says. 1: it is told to end. 2: the attempt is closed, or of a later launch. 3: it says
# nothing. Else the counters are in the file `counted`.
_ft_read_folder() {
    ls "$_ft_folder" >/dev/null 2>&1 || exit 3 # which also makes a network file system ask anew
    [ ! -e "$_ft_folder/$_ft_number.over" ] || exit 1
    _ft_now=$(readlink "$_ft_place/current" 2>/dev/null)
    case $_ft_now in
        closed*) exit 2 ;;
        *.*)
            case ${_ft_now%%.*} in *[!0-9]*) ;; *) [ "${_ft_now%%.*}" -le "$_ft_launch" ] || exit 2 ;; esac
            ;;
    esac
    true >"$_ft_tmp/counting"
    for _ft_i in "$_ft_place/agent/pulse.$_ft_launch" "$_ft_folder/alive.$_ft_launch"; do
        [ ! -e "$_ft_i" ] || cat "$_ft_i" >>"$_ft_tmp/counting" 2>/dev/null || exit 3
    done
    mv -f "$_ft_tmp/counting" "$_ft_tmp/counted"
    exit 0
}

# A file system that hangs holds the child that reads it, and nobody else.
_ft_look_at_folder() {
    if [ -z "$_ft_reader" ]; then
        ( trap - EXIT TERM; _ft_read_folder ) </dev/null >/dev/null 2>&1 &
        _ft_reader=$!
    fi
    for _ft_nap in 0.02 0.05 0.1 0.3 0.5 1 1 1; do
        sleep "$_ft_nap"
        _ft_line=
        { read -r _ft_line <"/proc/$_ft_reader/stat"; } 2>/dev/null
        case ${_ft_line##*) } in
            '' | [ZX]*)
                wait "$_ft_reader" 2>/dev/null
                _ft_word=$?
                _ft_reader=
                return
                ;;
        esac
    done
    _ft_word=3
}

# What Slurm says of the main job. 1: it is not what this companion was made for. 3: it says nothing. 4: it does not know it.
_ft_ask_slurm() {
    if ! _ft_answer=$(export SLURM_TIME_FORMAT=%s; _ft_slurm squeue -h -a -t all -j "$_ft_main_job" -o '%T %S' 2>"$_ft_tmp/error"); then
        _ft_word=3
        while read -r _ft_line; do
            case $_ft_line in *'nvalid job id'*) _ft_word=4 ;; esac
        done <"$_ft_tmp/error"
        _ft_answer=unknown
        return
    fi
    _ft_word=1
    case $_ft_answer in
        "RUNNING "*[0-9]) ;;
        "SUSPENDED "* | "STOPPED "* | "SIGNALING "*) _ft_word=3 && return ;; # it may go on
        '') _ft_word=4 && return ;;
        *) return ;;
    esac
    _ft_apart=${_ft_answer#RUNNING }
    case $_ft_apart$_ft_main_started in *[!0-9]*) _ft_word=0 && return ;; esac
    _ft_apart=$((_ft_apart - ${_ft_main_started:-$_ft_apart}))
    [ "${_ft_apart#-}" -gt 2 ] || _ft_word=0
}

# What was counted, into _ft_text; whether the present start lies in this job, too, into _ft_used.
_ft_read_counters() {
    _ft_text= _ft_used=
    {
        while read -r _ft_line _ft_rest; do
            case " $_ft_rest " in
                '  ') ;;
                *" $SLURM_JOB_ID "*) _ft_used=1 ;;
                *) continue ;; # a start in other companions
            esac
            _ft_text=$_ft_text$_ft_line,
        done <"$_ft_tmp/counted"
    } 2>/dev/null
}

# 0: nobody can be left who wants this job, where nothing was counted for $1 seconds.
_ft_is_left() {
    [ "$1" -ge "$_ft_still" ] || return 1
    [ -n "$_ft_used" ] && [ -n "$_ft_main_host" ] && [ "$1" -lt "$_ft_longest" ] || return 0
    # Slurm has taken the node from the job, or does not hear it.
    _ft_text=$(_ft_slurm squeue -h -a -j "$_ft_main_job" -w "$_ft_main_host" -o %i 2>/dev/null) || return 1
    [ -n "$_ft_text" ] || return 0
    case $(_ft_slurm sinfo -h -a -N -n "$_ft_main_host" -o %T 2>/dev/null) in *'*'* | *down* | *unknown*) return 0 ;; esac
    return 1
}

# Returns with the reason when nobody wants this job any more.
_ft_attend() {
    _ft_counted= _ft_reader= _ft_missed=
    _ft_uptime
    _ft_moved=$_ft_seconds
    while :; do
        _ft_look_at_folder
        case $_ft_word in
            1) _ft_why="told to end" && return ;;
            2) _ft_why="the launch of job $_ft_main_job is over ($(readlink "$_ft_place/current"))" && return ;;
        esac
        _ft_seen=$_ft_word
        _ft_ask_slurm
        _ft_uptime
        case $_ft_word in # one answer that lacks it says nothing
            4) _ft_missed=${_ft_missed:-$_ft_seconds} && [ $((_ft_seconds - _ft_missed)) -lt "$_ft_absent" ] || _ft_word=1 ;;
            0 | 1) _ft_missed= ;;
        esac
        [ "$_ft_word" -ne 1 ] || { _ft_why="job $_ft_main_job is not what it was: ${_ft_answer:-gone}" && return; }
        _ft_read_counters
        # Where one of the two said nothing, the wait begins anew.
        [ "$_ft_word$_ft_seen" = 00 ] && [ "$_ft_text" = "$_ft_counted" ] || _ft_moved=$_ft_seconds
        _ft_counted=$_ft_text
        _ft_apart=$((_ft_seconds - _ft_moved))
        ! _ft_is_left "$_ft_apart" || { _ft_why="job $_ft_main_job has not counted for $_ft_apart s" && return; }
        sleep "$_ft_period" & # a signal is to end this at once
        wait $!
    done
}

# Ends what earlier starts left on these nodes, and watches them. The processes here belong to the main job.
_ft_post_guard() {
    [ -n "$_ft_watch" ] || set -- --watch-after 1000000000 --
    [ -z "$_ft_watch" ] || set -- --watch-after "${_ft_watch#* }" -- --period "${_ft_watch% *}" --settings "$_ft_checks" \
        ${FTRUN_WATCH_ROOT:+--root "$FTRUN_WATCH_ROOT"}
    (
        trap - EXIT TERM
        _ft_keep=$(cat "$_ft_place/stage/words.$_ft_launch" 2>/dev/null && echo .)
        _ft_keep=${_ft_keep%.} # the last word may be empty, and is one
        _ft_on_nodes guard --attempt-folder "$_ft_place" --job "$_ft_main_job" --launch "$_ft_launch" ${_ft_keep:+--keep "$_ft_keep"} "$@"
    ) </dev/null >/dev/null 2>&1 &
}

# The steps of this job; with the script's end Slurm ends whatever is left.
_ft_end_steps() {
    _ft_steps=$(_ft_slurm squeue -h -s -j "$SLURM_JOB_ID" -o %i 2>/dev/null)
    set --
    for _ft_i in $_ft_steps; do
        case $_ft_i in "$SLURM_JOB_ID".*[!0-9]*) ;; "$SLURM_JOB_ID".*) set -- "$@" "$_ft_i" ;; esac
    done
    [ $# -eq 0 ] || _ft_slurm scancel "$@" 2>/dev/null
}

set +e +u +x +v +f +C
unset IFS
_ft_path=${PATH-}
PATH=/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin:$_ft_path
_ft_bin=
_ft_find_clients
_ft_still=${FTRUN_COMPANION_STILL_S:-120}
_ft_longest=${FTRUN_COMPANION_LONGEST_S:-1800}
_ft_absent=${FTRUN_COMPANION_ABSENT_S:-20}
_ft_period=${FTRUN_COMPANION_PERIOD_S:-3}
# What shapes the answers of squeue and sinfo stays away from them.
for _ft_i in $(env | sed -n 's/^\(S[QI][UN][EF][UO]E*_[A-Za-z0-9_]*\)=.*/\1/p') SLURM_CLUSTERS; do unset "$_ft_i"; done
_ft_tmp=$(mktemp -d "${TMPDIR:-/tmp}/ftrun.XXXXXX" 2>/dev/null || mktemp -d /tmp/ftrun.XXXXXX) || exit 1
trap 'rm -rf "$_ft_tmp"' EXIT
trap 'exit 143' TERM
_ft_announce
_ft_post_guard
_ft_attend
_ft_say "$_ft_why"
_ft_end_steps
exit 0

# A start that spans several jobs: this one, and companions that hold nodes for it. A part of batch.sh.
#
# How it thinks.  The agent says which jobs take part and with which nodes. The script is shown one job: the active nodes of this
# one in their order, then those of each companion in theirs, each with as many tasks as a node of this job. Its srun
# makes a step in each of the jobs. As long as there is a companion a counter goes on in the attempt's folder, with the numbers of the companions that
# the start lies in: one that is not among them, and does not see the agent's own counter move, knows that nobody here wants it.

# shellcheck shell=sh disable=SC1007,SC2006,SC2031,SC2034,SC2154

# The lines `job:nodes` of the answer, $1, into _ft_spans, a word for each, and all their nodes into _ft_far. 1: one cannot be read.
_ft_take_spans() {
    _ft_spans= _ft_far=
    for _ft_i in $1; do
        _ft_hosts "${_ft_i#*:}"
        case ${_ft_i%%:*} in '' | *[!0-9]*) return 1 ;; esac
        [ -n "$_ft_text" ] || return 1
        _ft_far="$_ft_far $_ft_text"
        # shellcheck disable=SC2086
        set -- $_ft_text
        IFS=,
        _ft_text=$*
        unset IFS
        _ft_spans="$_ft_spans ${_ft_i%%:*}:$_ft_text"
    done
    [ -n "$_ft_spans" ] || return 0
    _ft_note_mpi
    [ -e "$_ft_talk/span.sh" ] || printf '%s' "$_ft_shim_span" >"$_ft_talk/span.sh"
}

# What srun does for MPI where nobody chooses, for the srun in front of it: one world of a program in each job would be two runs into
# one checkpoint. A call that was made before this was known is told of here.
_ft_note_mpi() {
    [ ! -e "$_ft_talk/mpi" ] || return 0
    # shellcheck disable=SC2030
    _ft_text=$(_ft_slurm scontrol show config 2>/dev/null | sed -n 's/^MpiDefault *= *//p')
    case $_ft_text in '' | '(null)' | none | openmpi) return 0 ;; esac # since 24.11 Slurm shows none as no value
    printf '%s\n' "$_ft_text" >"$_ft_talk/mpi.$$" && mv -f "$_ft_talk/mpi.$$" "$_ft_talk/mpi"
    [ ! -e "$_ft_talk/unchosen.$_ft_no" ] || printf '%s\n' "srun prepares MPI ($_ft_text) where nobody chose" >>"$_ft_talk/nospan.$_ft_no"
}

_ft_name_far() { # the companions' nodes behind those of this job, in _ft_names_active
    for _ft_i in $_ft_spans; do
        _ft_text=`_ft_slurm scontrol show hostlist "${_ft_i#*:}" 2>/dev/null`
        _ft_names_active=$_ft_names_active,${_ft_text:-${_ft_i#*:}}
    done
}

_ft_pick_far() { # the counts of _ft_picked with one more for each node of a companion: what the first node has
    # shellcheck disable=SC2086
    set -- $_ft_picked
    for _ft_i in $_ft_far; do _ft_picked="$_ft_picked ${1-}"; done
}

# The counter of this launch, of the companions that this start lies in; it dies with this shell. It is written in place: a quota that is used up does
# not stop it. Signals that are sent to this shell's group are the script's.
_ft_post_counter() {
    _ft_dismiss_counter
    _ft_text=
    for _ft_i in $_ft_spans; do _ft_text="$_ft_text ${_ft_i%%:*}"; done
    [ -n "$_ft_text" ] || [ -e "$_ft_talk/span.sh" ] || return 0
    (
        trap - EXIT
        trap '' HUP INT QUIT USR1 USR2 ALRM TERM
        mkdir -m 700 "$_ft_place/companions"
        umask 077
        _ft_i=0 _ft_n=0 _ft_c=$_ft_place/companions/alive.$_ft_launch
        while kill -0 $$; do
            case $_ft_i in
                0) printf '%020d%s\n' 1 "$_ft_text" >"$_ft_c" ;;
                *0) printf '%020d%s\n' $((_ft_i / 10 + 1)) "$_ft_text" 1<>"$_ft_c" ;;
            esac
            [ -n "$_ft_text" ] || break # said once
            _ft_i=$((_ft_i + 1))
            sleep 1
        done
    ) </dev/null >/dev/null 2>&1 4<&- 5<&- 6<&- 7<&- 8>&- 9<&- &
    _ft_counter=$!
}

_ft_dismiss_counter() {
    [ -n "$_ft_counter" ] || return 0
    kill -9 "$_ft_counter" 2>/dev/null
    _ft_within 2 "$_ft_counter"
    _ft_counter=
}

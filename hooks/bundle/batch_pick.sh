# Which checkpoint the script is told to load. A part of batch.sh, which stands around it in every submitted file.
#
# How it thinks.  The names alone say something, without any tool: that choice is made first and always stands by.  Where the node has
# Python, `ftrun-hook pick` looks into the checkpoints, and its answer replaces the choice if all of it is there within 10 s.  Where no
# checkpoints were told of, nothing in here does anything.

# shellcheck shell=sh disable=SC1007,SC2015,SC2034,SC2154,SC3013

# 0: checkpoint $1, of step _ft_n, is of a training that had diverged (lines NAME STEP SINCE UNTIL), and was not written anew since. Two files
# of the run bear the times.
_ft_is_poisoned() {
    [ -n "$_ft_poison" ] || return 1
    for _ft_line in $_ft_poison; do
        _ft_i=$_ft_dir/diverged/${_ft_line%% *}
        _ft_line=${_ft_line#* }
        [ -e "$_ft_i" ] && [ "$1" -nt "$_ft_i" ] && continue
        case $_ft_n.$_ft_line in
            .* | *.-*) [ -e "$_ft_i.since" ] && [ ! "$1" -nt "$_ft_i.since" ] && continue ;;
            *) [ "$_ft_n" -ge "${_ft_line%% *}" ] 2>/dev/null || continue ;;
        esac
        return 0
    done
    return 1
}

# The divergences that stand in the run's folder and were not told: a job that Slurm itself starts again has no newer word.
_ft_note_divergences() {
    [ "$_ft_patience" -gt 0 ] || return 0
    for _ft_i in "$_ft_dir"/diverged/*; do
        case $_ft_i in *.since | *.seen | */'*') continue ;; esac
        _ft_line=
        { IFS= read -r _ft_line <"$_ft_i"; } 2>/dev/null
        case $_ft_line in *' '*' '*' '*) ;; *) continue ;; esac
        case "$_ft_nl$_ft_poison$_ft_nl" in *"$_ft_nl$_ft_line$_ft_nl"*) continue ;; esac
        _ft_poison=${_ft_poison:+$_ft_poison$_ft_nl}$_ft_line
    done
}

# What follows from the choice by names: what to load, and the folder that leads to it; why the script must not begin from nothing.
_ft_settle_choice() {
    _ft_use=$_ft_from _ft_root= _ft_stuck= _ft_passed=
    case $_ft_from in
        '') ;;
        /*/*) _ft_root=${_ft_from%/*} ;;
        /*) _ft_root=/ ;;
        */*) _ft_root=${_ft_from%/*} ;;
        *) _ft_root=. ;;
    esac
    [ -n "$_ft_from" ] || [ -z "$_ft_lost" ] || [ -n "$_ft_fresh" ] ||
        _ft_stuck='each checkpoint was set aside, or was written when the training had diverged'
}

# Asks Python, once the script's folder is there; _ft_no is the start that it is for.
_ft_ask_hook() {
    [ -n "$_ft_glob" ] && [ "$_ft_verify" = structure ] && [ -n "$_ft_tmp" ] || return 0
    (
        trap - EXIT TERM
        _ft_find_hook || exit 1
        set -- pick --glob "$_ft_glob" --cwd "$PWD" --marker "$_ft_marker" --skip "$_ft_skip" --poison "$_ft_poison" \
            --run-dir "$_ft_dir" --view "$_ft_dir/views/$_ft_attempt${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}.$_ft_launch.$_ft_no"
        [ -z "$_ft_had" ] || set -- "$@" --had
        [ -z "$_ft_fresh" ] || set -- "$@" --fresh
        exec /bin/sh -c "$_ft_node_side" "${_ft_agent:-ftrun-hook}" "$_ft_runner" "$_ft_hook" "$@"
    ) </dev/null >"$_ft_tmp/pick" 2>/dev/null 4<&- 5<&- 6<&- 7<&- 8>&- 9<&- &
    _ft_k=$!
    _ft_within 10 "$_ft_k"
    if [ "$_ft_status" -eq 124 ]; then
        # A file system that hangs may hold even a killed process; bash tells the log of one that dies.
        { kill -9 "$_ft_k" && _ft_within 2 "$_ft_k"; } 2>/dev/null
        _ft_status=124
    fi
    [ "$_ft_status" -eq 0 ] && _ft_take_pick || rm -f "$_ft_tmp/pick"
}

_ft_take_pick() { # 1: the answer is not whole, and what the names say stands
    _ft_i= _ft_text= _ft_a= _ft_b= _ft_c= _ft_k= _ft_rest= _ft_last=
    {
        while IFS= read -r _ft_line; do
            case $_ft_line in
                from=*) _ft_text=${_ft_line#*=} ;;
                use=*) _ft_a=${_ft_line#*=} ;;
                step=*) _ft_b=${_ft_line#*=} ;;
                root=*) _ft_c=${_ft_line#*=} ;;
                stuck=*) _ft_k=${_ft_line#*=} ;;
                passed=*) _ft_rest=${_ft_rest:-${_ft_line#*=}} _ft_last=${_ft_last}x ;;
                end=1) _ft_i=1 ;;
            esac
        done <"$_ft_tmp/pick"
    } 2>/dev/null
    [ -n "$_ft_i" ] || return 1
    _ft_from=$_ft_text _ft_use=$_ft_a _ft_best=$_ft_b _ft_root=$_ft_c _ft_stuck=$_ft_k
    case $_ft_last in xx*) _ft_rest="$_ft_rest (and $((${#_ft_last} - 1)) more)" ;; esac
    _ft_passed=$_ft_rest
    [ -z "$_ft_passed" ] || [ -n "$_ft_stuck" ] || _ft_say "resuming from ${_ft_from:-nothing}; passed over $_ft_passed"
}

# The answer, for whoever wants to know why; what the names alone say is told only where nothing may be loaded.
_ft_record_pick() {
    [ -n "$_ft_glob" ] || return 0
    if [ -s "$_ft_tmp/pick" ]; then
        _ft_write "$_ft_place/pick.$_ft_launch.$_ft_no" <"$_ft_tmp/pick"
    elif [ -n "$_ft_stuck" ]; then
        _ft_write "$_ft_place/pick.$_ft_launch.$_ft_no" printf 'stuck=%s\nend=1\n' "$_ft_stuck"
    fi
}

# The first start.
_ft_pick_first() {
    [ -n "$_ft_glob" ] && [ "$_ft_verify" = structure ] && [ "$_ft_patience" -gt 0 ] || return 0
    _ft_unpack
    _ft_ask_hook
}

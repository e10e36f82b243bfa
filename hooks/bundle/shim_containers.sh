# A call of srun whose tasks run in a container by the site's plug-in (--container-image). A part of shim.sh, which stands around it.
#
# How it thinks.  Such a task sees what its image has, and what --container-mounts names at the place that it names.  What is ftrun's (the run's
# folder, the node side, staging, caches) is added to the mounts under its own path, so that a rank has the same names for it inside and
# outside.  The checkpoints are the user's, who mounts them where he saves them: where they have another path inside, the variables and words
# of this call say that one.  What this node does not have is never asked for, since a mount without a source ends the step.
#
# shellcheck shell=sh disable=SC2086,SC2154,SC2015

# Path $1 as the container shows it, into _ft_text; 1: none of the mounts shows it. A mount under the same path goes before a longer one.
_ft_look_inside() {
    _ft_text=$1 _ft_best=
    IFS=,
    for _ft_i in $_ft_mounts; do
        _ft_c=${_ft_i#*:}
        _ft_c=${_ft_c%%:*}
        _ft_c=${_ft_c%/} _ft_i=${_ft_i%%:*}
        _ft_i=${_ft_i%/}
        case $1/ in "$_ft_i"/*) ;; *) continue ;; esac
        [ "$_ft_c" != "$_ft_i" ] || { _ft_text=$1 _ft_best=same && break; }
        [ "${#_ft_i}" -lt "${#_ft_best}" ] || _ft_best=$_ft_i/ _ft_text=$_ft_c${1#"$_ft_i"}
    done
    unset IFS
    [ -n "$_ft_best" ]
}

_ft_translate() { # the same for a path of the user's, which may lead over a link or begin in the working folder
    _ft_look_inside "$1" || [ -z "$1" ] && return
    _ft_list=$(readlink -f "$1" 2>/dev/null) && _ft_look_inside "$_ft_list" || _ft_text=$1
}

_ft_show() { # adds $1 to the mounts; 1: it cannot be had under its own path
    case $1 in /*[,:]* | *"$_ft_nl"*) return 1 ;; /*) [ -e "$1" ] || return 1 ;; *) return 1 ;; esac
    if _ft_look_inside "$1"; then [ "$_ft_text" = "$1" ]; else _ft_mounts=$_ft_mounts${_ft_mounts:+,}$1:$1; fi
}

# Word $1 as it reads inside, into _ft_text: the checkpoint, or else the folder that leads to it, where one of them stands in it as a whole.
_ft_reword() {
    _ft_list=$_ft_from _ft_c=$_ft_from_in
    case $1 in *"${_ft_from:-$_ft_nl}"*) ;; *) _ft_list=$_ft_root _ft_c=$_ft_root_in ;; esac
    _ft_text= _ft_rest=$1
    [ "$_ft_list" != "$_ft_c" ] || _ft_list=
    while [ -n "$_ft_list" ]; do
        case $_ft_rest in *"$_ft_list"*) ;; *) break ;; esac
        _ft_text=$_ft_text${_ft_rest%%"$_ft_list"*}
        _ft_rest=${_ft_rest#*"$_ft_list"}
        _ft_i=$_ft_c
        case $_ft_text in *[A-Za-z0-9_./-]) _ft_i=$_ft_list ;; esac
        case $_ft_rest in [A-Za-z0-9_.-]*) _ft_i=$_ft_list ;; esac
        _ft_text=$_ft_text$_ft_i
    done
    _ft_text=$_ft_text$_ft_rest
}

# The mounts of this call into _ft_mounts, and its variables changed to what they mean inside.
_ft_open_container() {
    _ft_mounts=${_ft_mounts:-${PYXIS_CONTAINER_MOUNTS-}}
    _ft_from=${FTRUN_RESUME_FROM-} _ft_root=${FTRUN_RESUME_ROOT-}
    _ft_translate "$_ft_from"
    _ft_from_in=$_ft_text
    _ft_translate "$_ft_root"
    _ft_root_in=$_ft_text
    for _ft_word in FTRUN_RESUME_FROM FTRUN_RESUME_ROOT ${_ft_resumed_by-}; do
        eval "_ft_val=\${$_ft_word-}"
        [ -z "$_ft_val" ] || { _ft_reword "$_ft_val" && export "$_ft_word=$_ft_text"; }
    done
    if [ -n "${FTRUN_STAGE_TO-}" ]; then
        _ft_translate "$FTRUN_STAGE_TO"
        [ "${FTRUN_STAGE_DIR-}" != "$FTRUN_STAGE_TO" ] || export "FTRUN_STAGE_DIR=$_ft_text"
        export "FTRUN_STAGE_TO=$_ft_text"
    fi
    if [ "${_ft_shows-}" = auto ] && _ft_show "${FTRUN_RUN_DIR-}"; then
        case ${FTRUN_STAGE_DIR-} in '' | /dev/shm/*) ;; *) _ft_show "${FTRUN_STAGE_DIR%/stage/*}" ;; esac
        _ft_show "${FTRUN_CACHE_DIR-}"
        _ft_show "${FTRUN_RUN_DIR%/runs/*}/tools" || _ft_wrapped=
    else
        _ft_wrapped= # the agent would not hear what it asks
    fi
}

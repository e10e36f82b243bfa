# A step of ours on every node of a job. A part of batch.sh and of companion.sh, which stand around it.
#
# shellcheck shell=sh disable=SC2154

# What runs the node side of ftrun where nobody else can have written it, and refuses it elsewhere: on each node, before each use.
#ftrun-runner#

# The node side of ftrun, into _ft_hook: what this file was submitted with, else the newest. 1: it is not there.
_ft_find_hook() {
    # The file itself, not the link to it: a newer one may come while it is read.
    _ft_hook=${_ft_dir%/runs/*}/tools/${_ft_pack-}
    [ -n "${_ft_pack-}" ] && [ -f "$_ft_hook" ] && return 0
    _ft_hook=`readlink -f "${_ft_dir%/runs/*}/tools/ftrun-hook.pyz" 2>/dev/null` && [ -f "$_ft_hook" ]
}

# The folder of the clients with whose sbatch this job was submitted, into _ft_bin, and their SLURM_CONF: a node may have another Slurm,
# of another release or cluster, in /usr/bin. Where that folder is not on this node, the first of the job's own PATH that has
# clients; "" where none is found. For subshells: the script is told of none of this.
_ft_find_clients() {
    [ -z "${_ft_bin-}" ] || return 0
    [ -n "${SLURM_CONF-}" ] || [ ! -r "${_ft_conf:-/none}" ] || export SLURM_CONF="$_ft_conf"
    set -f
    IFS=:
    for _ft_i in ${_ft_clients-} $_ft_path $PATH /opt/slurm/bin; do
        if [ -x "$_ft_i/scontrol" ] && [ -x "$_ft_i/srun" ]; then
            _ft_bin=$_ft_i
            break
        fi
    done
    unset IFS
    set +f
}

_ft_slurm() { # the Slurm client $1 with the other words; in a subshell
    _ft_find_clients
    _ft_c=$1
    shift
    "${_ft_bin:+$_ft_bin/}$_ft_c" "$@"
}

# Becomes srun with one task on every node, which shares everything and asks for nothing, so that the script's own steps
# find all of it free. Arguments are the words for ftrun-hook. srun hands on USR1 and USR2 and no more, and not before it
# is ready; until then an early USR2 must end nobody.
_ft_on_nodes() {
    _ft_find_hook || exit 0
    _ft_find_clients
    PATH=$PATH:$_ft_path
    eval "_ft_n=\${SLURM_JOB_NUM_NODES${_ft_part:+_HET_GROUP_$_ft_part}:-1}"
    # The shape of the job is not the shape of this step.
    for _ft_i in $(env | sed -n 's/^\(SLURM_[A-Za-z0-9_]*\)=.*/\1/p'); do
        case $_ft_i in SLURM_CONF* | SLURM_JWT | SLURM_SACK_* | SLURM_JOB_ID) ;; *) unset "$_ft_i" ;; esac
    done
    case $_ft_bin in *"'"*) _ft_c= ;; *) _ft_c=$_ft_bin ;; esac
    trap '' USR2
    # A group of its own: signals that are sent to the shell's group are for the script.
    # shellcheck disable=SC2046
    exec $(command -v setsid) "${_ft_bin:+$_ft_bin/}srun" --jobid="$SLURM_JOB_ID" ${_ft_part:+--het-group="$_ft_part"} --job-name=ftrun --overlap --nodes="$_ft_n" --ntasks="$_ft_n" --ntasks-per-node=1 \
        --mem=0 --cpu-bind=none --mpi=none --input=none --export=NONE --kill-on-bad-exit=0 --no-kill --wait=0 --quiet \
        /bin/sh -c "c='$_ft_c'$_ft_node_side" "${_ft_agent:-ftrun-hook}" "$_ft_runner" "$_ft_hook" "$@" --folder "$_ft_place/nodes" --launch "$_ft_launch"
}

# The same on the nodes of all components of the job, side by side; ends with the last of them.
_ft_on_all_nodes() {
    _ft_part=
    [ -n "${SLURM_HET_SIZE-}" ] || _ft_on_nodes "$@"
    _ft_part=0 _ft_parts=
    trap 'kill $_ft_parts 2>/dev/null' TERM
    while [ "$_ft_part" -lt "$SLURM_HET_SIZE" ]; do
        ( trap - TERM; _ft_on_nodes "$@" ) &
        _ft_parts="$_ft_parts $!"
        _ft_part=$((_ft_part + 1))
    done
    for _ft_i in $_ft_parts; do wait "$_ft_i"; done
    exit 0
}

_ft_count_nodes() { # those of all components of the job, into _ft_n
    _ft_n=${SLURM_JOB_NUM_NODES:-1}
    _ft_k=1
    while [ "$_ft_k" -lt "${SLURM_HET_SIZE:-1}" ]; do
        eval "_ft_n=\$((_ft_n + \${SLURM_JOB_NUM_NODES_HET_GROUP_$_ft_k:-0}))"
        _ft_k=$((_ft_k + 1))
    done
}
# shellcheck disable=SC2016
_ft_node_side='
trap "" USR1 USR2
PATH=/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin
[ -z "$c" ] || [ ! -x "$c/srun" ] || PATH=$c:$PATH
export PATH
for v in 9 10 11 12 13 14 15; do # told by its name, at no cost
    [ -x "/usr/bin/python3.$v" ] && [ /usr/bin/python3 -ef "/usr/bin/python3.$v" ] && exec /usr/bin/python3 -IS -c "$@"
done
for p in /usr/bin/python3 python3 "$0"; do
    "$p" -IS -c "import sys; sys.exit(sys.version_info < (3, 9))" 2>/dev/null && exec "$p" -IS -c "$@"
done'

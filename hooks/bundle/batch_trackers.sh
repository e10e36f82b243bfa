# One curve over all starts: what the experiment tracker of the script is told. A part of batch.sh, which stands around it in every
# submitted file.
#
# How it thinks.  W&B and Comet take an id of ours at the first start and go on with it at a later one.  MLflow makes its own ids: the first
# run gets a tag of ours, and a later start looks it up where MLflow keeps its runs, for 10 s at most.  What the user set stays; what an
# outer ftrun job set, from inside of which this one was submitted, is not the user's.  Without the setting `tracker` nothing in here does anything.

# shellcheck shell=sh disable=SC1007,SC2154,SC3013

_ft_tell_trackers() {
    [ -n "$_ft_trackers" ] || return 0
    for _ft_i in ${FTRUN_TRACKED-}; do
        case $_ft_i in *[!A-Z_]*) ;; WANDB_* | COMET_* | MLFLOW_*) unset "$_ft_i" ;; esac
    done
    _ft_before=$_ft_exported _ft_exported=
    _ft_export_unset "$_ft_trackers"
    case ,$_ft_exported, in *,MLFLOW_RUN_CONTEXT,*) _ft_find_mlflow ;; esac
    _ft_told_now=${_ft_told_now}FTRUN_TRACKED=
    IFS=,
    for _ft_i in $_ft_exported; do _ft_told_now="$_ft_told_now$_ft_i "; done
    unset IFS
    _ft_told_now=${_ft_told_now% }$_ft_nl
    _ft_exported=$_ft_before${_ft_before:+${_ft_exported:+,}}$_ft_exported
    _ft_names=$_ft_names,FTRUN_TRACKED
}

# MLFLOW_RUN_ID ends a script whose run is not there, so it is set only where that run was found. From the second start on; the first has none.
_ft_find_mlflow() {
    case $_ft_attempt.$_ft_launch.$_ft_no in 1.0.1) return 0 ;; esac
    [ -z "${MLFLOW_RUN_ID+1}" ] && [ -n "$_ft_tmp" ] || return 0
    [ -n "${MLFLOW_TRACKING_URI-}" ] || [ -e mlflow.db ] || [ -d mlruns ] || return 0
    (
        trap - EXIT TERM
        _ft_find_hook || exit 1
        exec /bin/sh -c "$_ft_node_side" "${_ft_agent:-ftrun-hook}" "$_ft_runner" "$_ft_hook" mlflow-run "$_ft_mlflow_tag${SLURM_ARRAY_TASK_ID:+x$SLURM_ARRAY_TASK_ID}"
    ) </dev/null >"$_ft_tmp/mlflow" 2>/dev/null 4<&- 5<&- 6<&- 7<&- 8>&- 9<&- &
    _ft_k=$!
    _ft_within 10 "$_ft_k"
    _ft_text=
    if [ "$_ft_status" -eq 0 ]; then
        { read -r _ft_text <"$_ft_tmp/mlflow"; } 2>/dev/null
    elif [ "$_ft_status" -eq 124 ]; then
        { kill -9 "$_ft_k" && _ft_within 2 "$_ft_k"; } 2>/dev/null
    fi
    rm -f "$_ft_tmp/mlflow"
    case $_ft_text in '' | *[!0-9a-f]*) return 0 ;; esac
    _ft_told_now=${_ft_told_now}MLFLOW_RUN_ID=$_ft_text$_ft_nl
    _ft_exported=$_ft_exported,MLFLOW_RUN_ID
}

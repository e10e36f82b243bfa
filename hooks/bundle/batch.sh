#!/bin/sh
# The opening of every attempt, and the parent of the user's script until that script is gone.
#
# How it thinks.  sbatch gets one file: the user's directives, variables named _ft_*, this text, and
# behind the last line the user's script byte for byte.  This text claims the attempt, picks the
# newest complete checkpoint, unpacks the script into a private folder, runs it as a child and ends
# as it ended.  It fails open: whatever goes wrong here, the script runs.  Only an attempt that
# belongs to somebody else is not started.
#
# Signals.  Slurm reaches a batch job in three ways: this shell alone (scancel -b, --signal=B:, and
# everything where Slurm tracks processes by cgroup), its process group (scancel -f), or every
# process below slurmstepd (scancel where Slurm tracks them by parenthood).  A shell cannot ask who
# else got a signal, so two witnesses sit beside the script, one in this process group and one in
# none.  They die of what they get; what they did not get, the script did not get either, and only
# then is it handed on.  The script leads a process group of its own, as it does under sbatch.
#
# The script may be started several times inside one launch: batch_starts.sh stands inside this text and has all of that.
#
# Runs on dash, bash and busybox.  Needs ln and sed; mkfifo, perl, stat and the rest make it exact.
# Every name begins with _ft_: nothing of it may reach the script.

# shellcheck disable=SC2154,SC2317  # variables come from the composed file, which also ends before the payload
# shellcheck disable=SC3013,SC3045  # -nt and ulimit -S: all three shells have them, and failing costs little
# shellcheck disable=SC1007,SC2006,SC2015,SC2044

# Functions exported by bash must not stand in for the tools below.
unset -f ln readlink mkdir mv rm sed chmod date stat mktemp mkfifo sleep perl env setsid id \
    command cd echo printf read kill wait jobs trap '[' true 2>/dev/null

_ft_nl='
'
_ft_say() { printf 'ftrun: %s\n' "$1" >&2; }

# What Slurm calls this launch and this start of it; an array's tasks share an attempt, so each has a folder in it.
_ft_identify() {
    _ft_cluster=${SLURM_CLUSTER_NAME:-$_ft_cluster}
    _ft_launch=${SLURM_RESTART_COUNT:-0}
    case $_ft_launch in *[!0-9]*) _ft_launch=0 ;; esac
    # What may begin from nothing was decided for one launch; Slurm makes others by itself.
    case $_ft_fresh:$_ft_launch in once:0) ;; once:*) _ft_fresh= ;; esac
    _ft_whole=$_ft_dir/attempts/$_ft_attempt
    _ft_place=$_ft_whole
    [ -n "${SLURM_ARRAY_TASK_ID-}" ] && _ft_place=$_ft_whole/tasks/$SLURM_ARRAY_TASK_ID
    _ft_mine=$_ft_cluster.${SLURM_JOB_ID-}.$_ft_launch.$_ft_token
    # No other process has this: boot, host, process and when the process began.
    _ft_boot= _ft_host= _ft_began=
    { read -r _ft_boot </proc/sys/kernel/random/boot_id; } 2>/dev/null
    { read -r _ft_host </proc/sys/kernel/hostname; } 2>/dev/null
    { read -r _ft_began <"/proc/$$/stat"; } 2>/dev/null
    # shellcheck disable=SC2086
    set -- ${_ft_began##*) }
    [ $# -lt 20 ] || shift 19
    _ft_host=${SLURMD_NODENAME:-$_ft_host}
    _ft_this=$_ft_host.$_ft_boot.$$.${1-}
}

_ft_make_place() { # never more than this: a run's folder that was removed stays removed
    [ "$_ft_place" = "$_ft_whole" ] && return
    [ -d "$_ft_place" ] && return
    mkdir -m 700 "$_ft_whole/tasks" 2>/dev/null
    mkdir -m 700 "$_ft_place" 2>/dev/null
}

_ft_name_of() { # the claim of launch $1 in folder $2
    if [ "$1" -eq 0 ]; then _ft_claim=$2/claim; else _ft_claim=$2/claim.$1; fi
}

# 0: somebody closed an earlier launch of this attempt, or an array as a whole.
_ft_is_closed() {
    if [ "$_ft_place" != "$_ft_whole" ]; then
        case $(readlink "$_ft_whole/claim" 2>/dev/null) in closed.*) return 0 ;; esac
    fi
    _ft_k=0
    while [ "$_ft_k" -lt "$_ft_launch" ]; do
        _ft_name_of "$_ft_k" "$_ft_place"
        case $(readlink "$_ft_claim" 2>/dev/null) in closed.*) return 0 ;; esac
        _ft_k=$((_ft_k + 1))
    done
    return 1
}

# 0: another job holds a launch of this attempt, whichever: sbatch made two jobs, and one was requeued before it could claim its first.
_ft_another_job_holds_it() {
    set +f
    for _ft_k in "$_ft_place/claim" "$_ft_place"/claim.*; do
        [ -L "$_ft_k" ] || continue # a process less for each
        _ft_theirs=$(readlink "$_ft_k" 2>/dev/null)
        case $_ft_theirs in
            '' | closed.* | "$_ft_cluster.${SLURM_JOB_ID-}".*) ;;
            *) return 0 ;;
        esac
    done
    return 1
}

# Makes link $1 with content $2.  0: it is there and says so (a network file system may report our own success as a
# failure).  1: it says something else.  2: cannot be read and cannot be made.
_ft_link() {
    ln -s "$2" "$1" 2>/dev/null && return 0
    _ft_theirs=$(readlink "$1" 2>/dev/null)
    [ "$_ft_theirs" = "$2" ] && return 0
    [ -n "$_ft_theirs" ] && return 1
    return 2
}

# 0: ours.  1: somebody else's, or closed.  2: cannot be read and cannot be made.  3: this launch was started before:
# a controller that lost its memory starts a job again under the same id and the same count.
_ft_try_claim() {
    _ft_make_place
    _ft_is_closed && return 1
    _ft_another_job_holds_it && return 1
    _ft_name_of "$_ft_launch" "$_ft_place"
    _ft_link "$_ft_claim" "$_ft_mine" || return
    # Of two that claim different launches at once neither may go on unseen, be the other one a job or who closes the attempt.
    _ft_another_job_holds_it && return 1
    _ft_is_closed && return 1
    _ft_link "$_ft_place/start.$_ft_launch" "$_ft_this"
    case $? in
        1) return 3 ;;
        2) return 2 ;;
    esac
    # Closed after our claim was taken: the start that took it is over, and so is the attempt.
    _ft_name_of $((_ft_launch + 1)) "$_ft_place"
    [ -L "$_ft_claim" ] || return 0
    case $(readlink "$_ft_claim" 2>/dev/null) in closed.*) return 1 ;; esac
    return 0
}

# Waits for process $2, $1 seconds at most: its status into _ft_status, 124 where it is still there.  A file system
# that hangs can hold a process for ever, so whatever touches the run's folder is done by a child.
_ft_within() {
    for _ft_nap in 0.002 0.003 0.005 0.01 0.02 0.05 0.1; do
        _ft_is_over "$2" && return
        sleep "$_ft_nap"
    done
    # What takes a second, as the checks do, is not to take another quarter.
    _ft_parts=$(($1 * 20)) _ft_soon=$(($1 * 20 - 40))
    while [ "$_ft_parts" -gt 0 ]; do
        _ft_is_over "$2" && return
        if [ "$_ft_parts" -gt "$_ft_soon" ]; then
            sleep 0.05
            _ft_parts=$((_ft_parts - 1))
        else
            sleep 0.25
            _ft_parts=$((_ft_parts - 5))
        fi
    done
    _ft_is_over "$2" || _ft_status=124
}

_ft_is_over() { # process $1; its status into _ft_status if so
    _ft_state "$1"
    case $_ft_s in '' | [ZX]) ;; *) return 1 ;; esac
    wait "$1" 2>/dev/null
    _ft_status=$?
    # In bash the end of any child, SIGCHLD, may cut the wait short, as often as children end, or for good: its list tells then.
    for _ft_c in 1 2 3 4; do
        [ "$_ft_status" -eq 145 ] || return 0
        wait "$1" 2>/dev/null
        _ft_c=$?
        [ "$_ft_c" -ne 127 ] || break
        _ft_status=$_ft_c
    done
    [ -n "${BASH_VERSION-}" ] && [ -e "$_ft_tmp/jobs" ] || return 0
    jobs -l >>"$_ft_tmp/jobs"
    [ "$_ft_status" -ne 145 ] || ! _ft_listed "$1" || _ft_status=$_ft_c
    return 0
}

# Returns when the script may run; leaves otherwise.
_ft_take() {
    _ft_patience=10
    _ft_waited=0
    _ft_wait=${_ft_wait%%.*}
    case $_ft_wait in '' | *[!0-9]*) _ft_wait=120 ;; esac
    while :; do
        ( trap - EXIT; _ft_try_claim; exit "$?" ) &
        _ft_claimer=$!
        [ -n "$_ft_tmp" ] || _ft_try_unpack # meanwhile
        _ft_within $((_ft_wait - _ft_waited)) "$_ft_claimer"
        case $_ft_status in
            0) return ;;
            1) _ft_refuse 0 "attempt $_ft_attempt of $_ft_run is closed; not started" ;;
            3)
                _ft_record_lost
                _ft_refuse 1 "launch $_ft_launch of attempt $_ft_attempt of $_ft_run was started before; not started again"
                ;;
        esac
        # Before the very first launch nothing else of this run can exist.
        if [ "$_ft_attempt" = 1 ] && [ "$_ft_launch" -eq 0 ]; then
            [ "$_ft_status" -eq 124 ] && _ft_patience=0
            return
        fi
        if [ "$_ft_status" -eq 124 ] || [ "$_ft_waited" -ge "$_ft_wait" ]; then
            _ft_refuse 1 "attempt $_ft_attempt of $_ft_run could not be claimed in $_ft_place within $_ft_wait s; not started"
        fi
        sleep 2
        _ft_waited=$((_ft_waited + 2))
    done
}

_ft_refuse() { # ends the job with code $1 and the words $2; the script does not run
    _ft_say "$2"
    trap - EXIT
    [ -z "$_ft_tmp" ] || rm -rf "$_ft_tmp"
    exit "$1"
}

# Writes stdin, or what the command behind $1 prints, to $1 so that a reader sees all of it or nothing.
_ft_write() {
    (
        umask 077
        _ft_a=$1
        shift
        [ $# -gt 0 ] || set -- cat
        "$@" >"$_ft_a.$$.tmp" && mv -f "$_ft_a.$$.tmp" "$_ft_a" || rm -f "$_ft_a.$$.tmp"
    ) 2>/dev/null
}

# Tells the supervisor that this end is not the script's: this start of the launch was not the first.
_ft_record_lost() {
    _ft_write "$_ft_place/lost.$_ft_launch" printf 'job=%s\nstart=%s\nfirst=%s\n' "${SLURM_JOB_ID-}" "$_ft_this" \
        "$(readlink "$_ft_place/start.$_ft_launch" 2>/dev/null)" &
    _ft_within 10 $!
}

_ft_name_logs() { # into _ft_out and _ft_err
    _ft_out=`readlink "/proc/$$/fd/1" 2>/dev/null`
    _ft_err=$_ft_out
    [ "$_ft_patience" -gt 0 ] && [ "/proc/$$/fd/1" -ef "/proc/$$/fd/2" ] || _ft_err=`readlink "/proc/$$/fd/2" 2>/dev/null`
}

_ft_measure_logs() { # two lines "device inode size" into _ft_stat; a log's size now is where this start's output begins. stderr is descriptor $1
    _ft_stat=
    [ "$_ft_patience" -gt 0 ] && _ft_stat=`stat -L -c '%d %i %s' "/proc/$$/fd/1" "/proc/$$/fd/$1" 2>/dev/null`
}

_ft_look_at_clock() { # Unix seconds into _ft_now, what people read into _ft_clock
    _ft_clock=`date '+%s %F %T %Z' 2>/dev/null`
    _ft_now=${_ft_clock%% *}
    _ft_clock=${_ft_clock#* }
}

_ft_record_launch() {
    [ -d "$_ft_place" ] || return
    _ft_record_pick # first: who sees the launch, sees why
    _ft_write "$_ft_place/launch.$_ft_launch" _ft_lines "nodes=${SLURM_JOB_NODELIST-}" "nnodes=${SLURM_JOB_NUM_NODES-}" "pid=$$"
}

_ft_lines() { # a record: the lines $@, and what is told of launches and of starts alike
    # shellcheck disable=SC2086
    set -- "job=${SLURM_JOB_ID-}" "restart=$_ft_launch" "cluster=$_ft_cluster" "host=$_ft_host" "started_s=$_ft_now" \
        "resume_from=$_ft_from" ${_ft_passed:+"passed=$_ft_passed"} "array_job=${SLURM_ARRAY_JOB_ID-}" "array_task=${SLURM_ARRAY_TASK_ID-}" "het_size=${SLURM_HET_SIZE-}" "$@" \
        "stdout=$_ft_out" "stderr=$_ft_err" $_ft_stat
    while [ $# -gt 0 ]; do
        case $1 in
            [0-9]*) break ;;
            *"$_ft_nl"*) printf '%s\n' "${1%%=*}=" ;;
            *) printf '%s\n' "$1" ;;
        esac
        shift
    done
    printf 'stdout_dev=%s\nstdout_ino=%s\nstdout_offset=%s\nstderr_dev=%s\nstderr_ino=%s\nstderr_offset=%s\n' \
        "${1-}" "${2-}" "${3-}" "${4-}" "${5-}" "${6-}"
}

# The step of checkpoint $1 into _ft_n: the number behind step, iter or epoch in its name, else the
# last number (of the name without its extension, so that ckpt_100.h5 is 100); empty if there is none.
_ft_step_of() {
    _ft_b=${1##*/}
    _ft_n=
    for _ft_word in '[Ss][Tt][Ee][Pp]' '[Ii][Tt][Ee][Rr]' '[Ee][Pp][Oo][Cc][Hh]'; do
        # shellcheck disable=SC2295
        case $_ft_b in
            *$_ft_word*[0-9]*)
                _ft_rest=${_ft_b##*$_ft_word}
                _ft_rest=${_ft_rest#"${_ft_rest%%[!a-zA-Z_=.-]*}"}
                _ft_n=${_ft_rest%%[!0-9]*}
                [ -n "$_ft_n" ] && break
                ;;
        esac
    done
    if [ -z "$_ft_n" ]; then
        case ${_ft_b##*.} in
            [a-zA-Z]*) case ${_ft_b%.*} in *[0-9]*) _ft_b=${_ft_b%.*} ;; esac ;;
        esac
        _ft_rest=${_ft_b%"${_ft_b##*[0-9]}"}
        _ft_n=${_ft_rest##*[!0-9]}
    fi
    [ -n "$_ft_n" ] || return
    _ft_n=${_ft_n#"${_ft_n%%[!0]*}"}
    while [ ${#_ft_n} -gt 18 ]; do _ft_n=${_ft_n#?}; done
    _ft_n=${_ft_n:-0}
}

_ft_is_complete() { # checkpoint $1
    case ${1##*/} in
        *.tmp | *.temp | *.partial | *.incomplete | *-tmp | *_tmp | *-tmp-* | tmp-* | tmp_* | .tmp* | *~) return 1 ;;
        *.ftrun-manifest.json | *.ftrun-complete) return 1 ;; # beside a checkpoint that is a file
    esac
    case "$_ft_nl$_ft_skip$_ft_nl" in
        *"$_ft_nl$1$_ft_nl"* | *"$_ft_nl$PWD/$1$_ft_nl"*) _ft_lost=1 && return 1 ;;
    esac
    if [ -d "$1" ]; then
        if [ -n "$_ft_marker" ]; then
            [ -e "$1/$_ft_marker" ] || [ -e "$1$_ft_marker" ]
            return
        fi
        for _ft_inside in "$1"/* "$1"/.[!.]*; do
            [ -e "$_ft_inside" ] && return 0
        done
        return 1
    fi
    [ -s "$1" ] || return 1
    if [ -n "$_ft_marker" ]; then
        case $1 in *"$_ft_marker") return 1 ;; esac
        [ -e "$1$_ft_marker" ] || return 1
    fi
    return 0
}

# The newest complete checkpoint into _ft_from: highest step, then youngest, then last by name.
_ft_choose() {
    _ft_from=
    _ft_best=
    _ft_lost=
    _ft_use=
    _ft_stuck=
    _ft_passed=
    [ -n "$_ft_glob" ] || return
    # shellcheck disable=SC2088
    case $_ft_glob in '~/'*) _ft_glob=${HOME-}/${_ft_glob#'~/'} ;; esac
    _ft_note_divergences
    IFS=$_ft_nl
    for _ft_c in $_ft_glob; do
        _ft_c=${_ft_c%/}
        _ft_is_complete "$_ft_c" || continue
        _ft_step_of "$_ft_c"
        ! _ft_is_poisoned "$_ft_c" || { _ft_lost=1 && continue; }
        if [ -z "$_ft_from" ]; then
            :
        elif [ -n "$_ft_n" ] && [ -z "$_ft_best" ]; then
            :
        elif [ -z "$_ft_n" ] && [ -n "$_ft_best" ]; then
            continue
        elif [ -n "$_ft_n" ] && [ "$_ft_n" -lt "$_ft_best" ]; then
            continue
        elif [ -n "$_ft_n" ] && [ "$_ft_n" -gt "$_ft_best" ]; then
            :
        elif [ "$_ft_from" -nt "$_ft_c" ]; then
            continue
        fi
        _ft_from=$_ft_c
        _ft_best=$_ft_n
    done
    unset IFS
    _ft_settle_choice
}

#ftrun-pick#

# Template $1 with {checkpoint}, {step} and {checkpoint_root} replaced, into _ft_text. 1: it wants a step, and none is known.
_ft_fill() {
    _ft_text=
    _ft_rest=$1
    case $_ft_rest in *'{step}'*) [ -n "$_ft_best" ] || return 1 ;; esac
    while :; do
        case $_ft_rest in *'{'*) ;; *) break ;; esac
        _ft_text=$_ft_text${_ft_rest%%'{'*}
        _ft_rest=${_ft_rest#*'{'}
        case $_ft_rest in
            'checkpoint}'*) _ft_text=$_ft_text$_ft_use ;;
            'step}'*) _ft_text=$_ft_text$_ft_best ;;
            'checkpoint_root}'*) _ft_text=$_ft_text$_ft_root ;;
            *)
                _ft_text="$_ft_text{"
                continue
                ;;
        esac
        _ft_rest=${_ft_rest#*'}'}
    done
    _ft_text=$_ft_text$_ft_rest
}

# 0: nobody else can put another folder in the place of one that we make in folder $1.
_ft_is_kept() {
    [ -k "$1" ] || [ -z "`find "$1/." -prune -perm -0002 2>/dev/null`" ]
}

# The user's script into a private folder of this node; the first place that takes it. 1: none does.
_ft_try_unpack() {
    for _ft_base in "${TMPDIR:-/tmp}" /tmp /dev/shm /var/tmp "$_ft_place" .; do
        [ -d "$_ft_base" ] && [ -w "$_ft_base" ] && _ft_is_kept "$_ft_base" || continue
        _ft_tmp=`mktemp -d "$_ft_base/ftrun.XXXXXX" 2>/dev/null`
        if [ -z "$_ft_tmp" ]; then
            _ft_tmp=$_ft_base/ftrun.${SLURM_JOB_ID-}.$$
            mkdir -m 700 "$_ft_tmp" 2>/dev/null || continue
        fi
        _ft_script=$_ft_tmp/slurm_script
        if ( umask 077; sed "1,/^$_ft_mark\$/d" "$_ft_self" >"$_ft_script" ) 2>/dev/null &&
            [ -s "$_ft_script" ]; then
            chmod 700 "$_ft_script" 2>/dev/null
            return 0
        fi
        rm -rf "$_ft_tmp"
    done
    _ft_tmp=
    return 1
}

_ft_unpack() {
    [ -z "$_ft_tmp" ] || return 0
    _ft_try_unpack && return
    _ft_say "the script could not be unpacked: no room in ${TMPDIR:-/tmp}, /tmp, /dev/shm, /var/tmp or the run's folder"
    _ft_finish 1
}

# A missing interpreter ends the job with the code that slurmstepd would give it.
_ft_check_interpreter() {
    _ft_code=0
    if [ -z "$_ft_interp" ]; then
        _ft_code=8 _ft_why='Exec format error'
    elif [ ! -e "$_ft_interp" ]; then
        _ft_code=2 _ft_why='No such file or directory'
    elif [ -d "$_ft_interp" ] || [ ! -x "$_ft_interp" ]; then
        _ft_code=13 _ft_why='Permission denied'
    fi
    [ "$_ft_code" -eq 0 ] && return
    _ft_say "error: execve(): bad interpreter($_ft_interp): $_ft_why"
    _ft_finish "$_ft_code"
}

# Starts $4 with default dispositions, a group of its own where $2 is 1, and the environment this
# shell was started with.  Perl, because no shell can do this: sh ignores INT and QUIT in a child
# in the background for good, dash drops exported bash functions, bash counts SHLVL up.
# Arguments: environment or '', own group, number of NAME=VALUE, these (a NAME alone is unset), file,
# interpreter, its argument or '', arguments.
# shellcheck disable=SC2016
_ft_starter='
my ($from, $own, $n) = splice @ARGV, 0, 3;
if ($from ne "" && open my $f, "<", $from) {
    local $/; my $all = <$f>;
    if (defined $all && $all ne "") {
        %ENV = ();
        for (split /\0/, $all) { my ($k, $v) = /^([^=]+)=(.*)$/s or next; $ENV{$k} = $v; }
    }
}
for (splice @ARGV, 0, $n) { my ($k, $v) = split /=/, $_, 2; if (defined $v) { $ENV{$k} = $v } else { delete $ENV{$k} } }
$SIG{INT} = $SIG{QUIT} = "DEFAULT";
setpgrp(0, 0) if $own;
my ($file, $interp, $arg) = splice @ARGV, 0, 3;
my @arg = $arg eq "" ? () : ($arg);
{ no warnings; exec { $file } $file, @ARGV; exec { $interp } $interp, @arg, $file, @ARGV if $interp ne ""; }
my $e = $! + 0; print STDERR "ftrun: error: execve(): $file: $!\n"; exit $e;
'

# Becomes the program; same arguments.
_ft_become() {
    if [ -n "$_ft_perl" ]; then
        unset PERL5OPT PERL5LIB PERL5DB PERLIO PERL_UNICODE
        PERL_BADLANG=0
        export PERL_BADLANG
        exec "$_ft_perl" -e "$_ft_starter" -- "$@"
    fi
    _ft_group=$2
    _ft_i=$3
    shift 3
    while [ "$_ft_i" -gt 0 ]; do
        case $1 in *=*) export "${1?}" ;; *) unset "$1" ;; esac
        shift
        _ft_i=$((_ft_i - 1))
    done
    if [ -n "$2" ]; then
        if [ -n "$3" ]; then
            _ft_a=$1 _ft_b=$2 _ft_c=$3
            shift 3
            set -- "$_ft_b" "$_ft_c" "$_ft_a" "$@"
        else
            _ft_a=$1 _ft_b=$2
            shift 3
            set -- "$_ft_b" "$_ft_a" "$@"
        fi
    else
        _ft_a=$1
        shift 3
        set -- "$_ft_a" "$@"
    fi
    if [ "$_ft_direct" ]; then
        :
    elif [ -z "${BASH_VERSION-}" ]; then
        env --default-signal=INT,QUIT true 2>/dev/null && set -- env --default-signal=INT,QUIT "$@"
        [ "$_ft_group" = 1 ] && command -v setsid >/dev/null && set -- setsid "$@"
    elif [ -n "${SHLVL-}" ]; then
        SHLVL=$((SHLVL - 1))
    fi
    _ft_tools=$(command -v "$1")
    if [ "$_ft_path_set" ]; then PATH=${_ft_path_told:-$_ft_path}; else unset PATH; fi
    _ft_a=${_ft_tools:-$1}
    shift
    exec "$_ft_a" "$@"
}

_ft_all_signals='1 2 3 4 5 6 7 8 10 11 12 13 14 15 16 18 20 21 22 23 24 25 26 27 28 29 30 31
34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64'

# A witness prints the number of every signal it gets, and `asked` for every line it reads.  Its
# pipe closes when this shell ($1) is gone.
# shellcheck disable=SC2016
_ft_witness='
for s in $2; do trap "echo $s" "$s"; done 2>/dev/null
while :; do
    if read -r x; then echo asked; else kill -0 "$1" 2>/dev/null || exit 0; fi
done'

# Witness $1: 1 in this process group, 2 in one of its own.
_ft_post() {
    {
        ulimit -S -c 0 2>/dev/null
        _ft_become '' $(($1 - 1)) 0 /bin/sh '' '' -c "$_ft_witness" ftrun-witness $$ "$_ft_all_signals"
    } <"$_ft_tmp/ask.$1" >>"$_ft_tmp/seen.$1" 2>/dev/null 4<&- 5<&- 6<&- 7<&- 8<&- 9<&- &
}

_ft_post_witnesses() {
    _ft_w1= _ft_w2= _ft_open=0 _ft_group_left=' ' _ft_tree_left=' '
    [ -p "$_ft_tmp/ask.2" ] || return
    _ft_post 1
    _ft_w1=$!
    if [ "$_ft_own" ]; then
        [ -n "${BASH_VERSION-}" ] && [ -z "$_ft_perl" ] && set -m
        _ft_post 2
        _ft_w2=$!
        set +m
    fi
}

_ft_dismiss() {
    for _ft_i in $_ft_w1 $_ft_w2; do
        kill -9 "$_ft_i" 2>/dev/null
        wait "$_ft_i" 2>/dev/null
    done
    _ft_w1= _ft_w2=
}

# The state letter of process $1 into _ft_s; empty when it is gone.
_ft_state() {
    _ft_s=
    { read -r _ft_s <"/proc/$1/stat"; } 2>/dev/null || return
    _ft_s=${_ft_s##*) }
    _ft_s=${_ft_s%% *}
}

_ft_note() { # one line of a witness, added to _ft_heard
    if [ "$1" = asked ]; then _ft_open=$((_ft_open - 1)); else _ft_heard="$_ft_heard$1 "; fi
}

# What both witnesses have seen since they were asked last, into _ft_group and _ft_tree.
_ft_ask() {
    _ft_group=$_ft_group_left
    _ft_tree=$_ft_tree_left
    [ -n "$_ft_w1" ] && echo >&6 && _ft_open=$((_ft_open + 1))
    [ -n "$_ft_w2" ] && echo >&7 && _ft_open=$((_ft_open + 1))
    _ft_tries=40
    while :; do
        _ft_heard=$_ft_group
        while read -r _ft_line <&4; do _ft_note "$_ft_line"; done
        _ft_group=$_ft_heard
        _ft_heard=$_ft_tree
        while read -r _ft_line <&5; do _ft_note "$_ft_line"; done
        _ft_tree=$_ft_heard
        [ "$_ft_open" -gt 0 ] && [ "$_ft_tries" -gt 0 ] || return
        _ft_tries=$((_ft_tries - 1))
        for _ft_i in $_ft_w1 $_ft_w2; do
            _ft_state "$_ft_i"
            case $_ft_s in '' | [ZX]) _ft_tries=0 ;; esac
        done
        sleep 0.05
    done
}

_ft_without() { # the numbers $1 that are not in _ft_sigs, into _ft_rest
    _ft_rest=' '
    for _ft_i in $1; do
        case "$_ft_sigs " in *" $_ft_i "*) ;; *) _ft_rest="$_ft_rest$_ft_i " ;; esac
    done
}

# Whether slurmstepd is at work: on a busy machine it has to wait between two processes that it signals.
_ft_is_sending() {
    for _ft_i in /proc/"$PPID"/task/*/stat; do
        { read -r _ft_s <"$_ft_i"; } 2>/dev/null || continue
        _ft_s=${_ft_s##*) }
        case $_ft_s in R*) return 0 ;; esac
    done
    return 1
}

# Hands on what reached this shell and not the script.
_ft_forward() {
    if [ "$_ft_rescued" ]; then
        for _ft_i in $_ft_got; do
            kill "-$_ft_i" "$_ft_child" 2>/dev/null
        done
        _ft_got=
        return
    fi
    _ft_sigs=
    # Signals to several processes leave Slurm one by one, at once if the node is idle; and they come
    # in pairs (CONT before the one meant).  Those are handed on together, in their order; the same one again is a
    # matter of its own.
    while [ -n "$_ft_got" ]; do
        for _ft_i in $_ft_got; do
            case "$_ft_sigs " in *" $_ft_i "*) break 2 ;; esac
        done
        _ft_sigs=$_ft_sigs$_ft_got
        _ft_got=
        sleep 0.1
        _ft_tries=10
        while [ "$_ft_tries" -gt 0 ] && _ft_is_sending; do
            _ft_tries=$((_ft_tries - 1))
            sleep 0.1
        done
    done
    _ft_told="$_ft_told $_ft_sigs"
    _ft_ask
    # What is heard of beyond these belongs to a signal that reaches this shell a moment later.
    _ft_without "$_ft_group"
    _ft_group_left=$_ft_rest
    _ft_without "$_ft_tree"
    _ft_tree_left=$_ft_rest
    _ft_done=' '
    for _ft_i in $_ft_sigs; do
        case $_ft_done in *" $_ft_i "*) continue ;; esac
        _ft_done="$_ft_done$_ft_i "
        _ft_to=$_ft_child
        case $_ft_group in
            *" $_ft_i "*) if [ "$_ft_own" ]; then _ft_to=-$_ft_child; else _ft_to=; fi ;;
        esac
        case $_ft_tree in *" $_ft_i "*) _ft_to= ;; esac
        [ -n "$_ft_to" ] && kill "-$_ft_i" "$_ft_to" 2>/dev/null
    done
    # A witness that went astray is replaced; what it saw went with it.
    if [ "$_ft_open" -gt 0 ]; then
        _ft_dismiss
        _ft_post_witnesses
    fi
}

_ft_listen() {
    _ft_got=
    for _ft_i in $_ft_all_signals; do
        # shellcheck disable=SC2064
        trap "_ft_got=\"\$_ft_got $_ft_i\"" "$_ft_i" 2>/dev/null
    done
    # Bash forgets how a child ended as soon as it has said so: keep the list of jobs at each end.
    # From here on this shell takes commands' output by backquotes: bash 5.2 reads $() anew each time, and where this trap comes in
    # between it takes both for one command without an end, and is gone (1 of 1,000 behind a child that has just ended).
    # shellcheck disable=SC2154
    [ -n "${BASH_VERSION-}" ] && trap 'jobs -l >>"$_ft_tmp/jobs"' CHLD
}

# Starts the user's script: arguments are NAME=VALUE ($1 of them), then its own.
_ft_start() {
    _ft_own=
    if [ -n "$_ft_perl" ]; then
        _ft_own=1
    elif [ -n "${BASH_VERSION-}" ]; then
        _ft_own=1
        set -m
    elif command -v setsid >/dev/null; then
        _ft_own=1
    fi
    _ft_become "/proc/$$/environ" 1 "$@" <&9 2>&8 4<&- 5<&- 6<&- 7<&- 8>&- 9<&- &
    _ft_child=$!
    set +m
}

# Waits until the script is really gone: its code into _ft_rc, its signal or 0 into _ft_sig.
_ft_await() {
    while :; do
        while [ -n "$_ft_got" ]; do _ft_forward; done
        wait "$_ft_child" 2>/dev/null
        _ft_rc=$?
        [ "$_ft_rc" -le 128 ] && break
        _ft_state "$_ft_child"
        [ -z "$_ft_s" ] && break
    done
    _ft_sig=0
    [ "$_ft_rc" -gt 128 ] || return
    # 139 is a script that said `exit 139` or one that died of signal 11: only the list of jobs,
    # "Done(139)" against the signal's name, tells.
    _ft_i=127
    if [ -z "${BASH_VERSION-}" ]; then
        # A signal may have cut the wait short in the moment of the end; these shells say it again, until it is listed below.
        wait "$_ft_child" 2>/dev/null
        _ft_c=$?
        [ "$_ft_c" -eq 127 ] || _ft_rc=$_ft_c
        [ "$_ft_rc" -gt 128 ] || return
    fi
    jobs -l >>"$_ft_tmp/jobs" 2>/dev/null
    if [ -n "${BASH_VERSION-}" ]; then
        # The first answers may have been "a child ended"; 127 is "no longer known", or the script's.
        for _ft_c in 1 2 3 4; do
            wait "$_ft_child" 2>/dev/null
            _ft_i=$?
            [ "$_ft_i" -eq 145 ] || break
        done
        [ "$_ft_i" -eq 127 ] || _ft_rc=$_ft_i
        [ "$_ft_rc" -gt 128 ] || return
    fi
    # No wait told of the script: the list has it, in words.
    [ "$_ft_rc" -ne 145 ] || ! _ft_listed "$_ft_child" || { _ft_rc=$_ft_c _ft_sig=$_ft_by && return; }
    while read -r _ft_line; do
        case $_ft_line in
            *" $_ft_child "*"($_ft_rc)"*) return ;;
            *" $_ft_child "*"($_ft_i)"*) _ft_rc=$_ft_i && return ;;
        esac
    done <"$_ft_tmp/jobs"
    _ft_sig=$((_ft_rc - 128))
    [ "$_ft_sig" -le 64 ] || _ft_sig=0
}

# What the list of jobs says of the end of child $1: its code into _ft_c, its signal or 0 into _ft_by; 1: nothing.
_ft_listed() {
    [ -e "$_ft_tmp/jobs" ] || return 1
    _ft_by=0
    while read -r _ft_line; do
        case $_ft_line in
            *" $1 "*"Done("[0-9]*) _ft_c=${_ft_line#*Done(} && _ft_c=${_ft_c%%)*} && return ;;
            *" $1 "*"Exit "[0-9]*) _ft_c=${_ft_line#*Exit } && _ft_c=${_ft_c%% *} && return ;;
            *" $1 "*Done*) _ft_c=0 && return ;;
            *" $1 Hangup"*) _ft_by=1 ;;
            *" $1 Interrupt"*) _ft_by=2 ;;
            *" $1 Quit"*) _ft_by=3 ;;
            *" $1 Aborted"*) _ft_by=6 ;;
            *" $1 Bus error"*) _ft_by=7 ;;
            *" $1 Killed"*) _ft_by=9 ;;
            *" $1 User defined signal 1"*) _ft_by=10 ;;
            *" $1 Segmentation fault"*) _ft_by=11 ;;
            *" $1 User defined signal 2"*) _ft_by=12 ;;
            *" $1 Terminated"*) _ft_by=15 ;;
        esac
        [ "$_ft_by" -eq 0 ] || { _ft_c=$((_ft_by + 128)) && return; }
    done <"$_ft_tmp/jobs"
    return 1
}

# Removes what killed jobs of this user left on this node: folders older than an hour whose parent is
# gone.  A pipe that nobody reads cannot be opened for writing, whatever container the reader is in.
_ft_sweep() {
    _ft_is_read "$_ft_tmp/ask.1" || return # no such dd here
    IFS=$_ft_nl
    _ft_text=`id -u`
    for _ft_i in `find "${_ft_tmp%/*}" -maxdepth 1 -name 'ftrun.??????' -user "$_ft_text" -mmin +60`; do
        [ -p "$_ft_i/ask.1" ] && ! _ft_is_read "$_ft_i/ask.1" && rm -rf "$_ft_i"
    done
    unset IFS
}

_ft_is_read() { dd if=/dev/null of="$1" oflag=nonblock conv=notrunc,nocreat 2>/dev/null; }

# What looks at the nodes of the job beside the script. It fails open: without srun, Python 3.9 or the node side of ftrun
# nothing looks.

#ftrun-nodes#

# Where it was asked for, the nodes are checked before the script starts, for 20 s at most. Where a minority of them is bad the job
# ends here, and the supervisor sends the next attempt elsewhere. Only one status says so; everything else starts the script.
_ft_look_before() {
    [ -n "$_ft_before" ] && [ "$_ft_patience" -gt 0 ] || return
    ( trap - EXIT TERM; _ft_on_all_nodes preflight --settings "$_ft_checks" ${FTRUN_WATCH_ROOT:+--root "$FTRUN_WATCH_ROOT"} ) </dev/null >/dev/null 2>&1 &
    _ft_watcher=$!
    _ft_within 20 "$_ft_watcher"
    [ "$_ft_status" -eq 124 ] && kill "$_ft_watcher" 2>/dev/null
    _ft_watcher=
    ( trap - EXIT TERM; _ft_sum_up ) </dev/null &
    _ft_watcher=$!
    _ft_within 10 "$_ft_watcher"
    # Its word comes too late: nobody is to read that the script was held.
    [ "$_ft_status" -eq 124 ] && kill -9 "$_ft_watcher" 2>/dev/null
    _ft_watcher=
    [ "$_ft_status" -eq 69 ] || return
    _ft_refuse 1 "attempt $_ft_attempt of $_ft_run ends here: a later one avoids these nodes"
}

# A line in the log where the node side of ftrun is there and may be somebody else's work; nobody waits for it.
_ft_doubt_hook() {
    _ft_find_hook && [ -x /usr/bin/python3 ] && exec /usr/bin/python3 -IS -c "$_ft_runner" "$_ft_hook"
} </dev/null >/dev/null

_ft_sum_up() {
    _ft_find_hook || exit 0
    [ "$_ft_before" = hold ] || set -- --report-only
    _ft_count_nodes
    exec /bin/sh -c "$_ft_node_side" ftrun-hook "$_ft_runner" "$_ft_hook" preflight --verdict --nodes "$_ft_n" --settings "$_ft_checks" \
        --history "${_ft_dir%/runs/*}/checks" --folder "$_ft_place/nodes" --launch "$_ft_launch" "$@"
}

# The watch begins late: most jobs have made their first step by then, and short ones never pay for it. In a job with an agent the
# same step ends processes of earlier starts, and begins as soon as the script has made its own first step, which is step 0 then.
_ft_post_watch() {
    [ -z "$_ft_watcher" ] && [ "$_ft_place" = "$_ft_whole" ] || return
    [ -n "$_ft_agent_pid" ] && { _ft_post_guard; return; }
    [ -n "$_ft_watch" ] || return
    (
        trap - EXIT
        _ft_i=
        trap 'kill "$_ft_i"; exit 0' USR2
        _ft_nap=${_ft_watch#* } _ft_k=0
        while [ "$_ft_k" -le 120 ]; do # a supervisor that starts with the job may install the tools later: look again each second
            sleep "$_ft_nap" &
            _ft_i=$!
            wait "$_ft_i"
            _ft_find_hook && break
            _ft_nap=1 _ft_k=$((_ft_k + 1))
        done
        _ft_on_nodes watch --period "${_ft_watch% *}" --settings "$_ft_checks" ${FTRUN_WATCH_ROOT:+--root "$FTRUN_WATCH_ROOT"}
    ) </dev/null >/dev/null 2>&1 4<&- 5<&- 6<&- 7<&- 8>&- 9<&- &
    _ft_watcher=$!
}

# A step that is killed would be what Slurm remembers of the job, so the watch is asked, again and again, to leave.
_ft_dismiss_watch() {
    [ -n "$_ft_watcher" ] || return
    for _ft_nap in 0.003 0.007 0.02 0.02 0.05 0.1 0.1 0.1 0.1 0.2 0.2 0.2 0.2 0.2 0.2 0.5 0.5 0.5; do
        _ft_is_over "$_ft_watcher" && break
        kill -USR2 "$_ft_watcher" 2>/dev/null
        sleep "$_ft_nap"
    done
    [ -z "$_ft_keep" ] || _ft_await_memory
    _ft_is_over "$_ft_watcher" || kill -9 "$_ft_watcher" 2>/dev/null
    _ft_watcher=
}

# The nodes of a script that failed are checked while they are still the job's: not where somebody ends the job, and not
# after a script that failed at once, which is a mistake in it.
_ft_look_after() {
    [ -n "$_ft_after" ] && [ "$_ft_rc" -ne 0 ] && [ "$_ft_place" = "$_ft_whole" ] || return
    _ft_i=`date +%s 2>/dev/null`
    [ $((_ft_i - _ft_since)) -ge 5 ] 2>/dev/null || return
    _ft_is_ended_by_others && return
    ( trap - EXIT; _ft_on_nodes post-failure-check --since "$_ft_since" --start "$_ft_no" --settings "$_ft_checks" ${FTRUN_WATCH_ROOT:+--root "$FTRUN_WATCH_ROOT"} ) </dev/null >/dev/null 2>&1 4<&- 5<&- 6<&- 7<&- 8>&- 9<&- &
    _ft_watcher=$!
    _ft_sit_through 72
}

_ft_sit_through() { # what runs on the nodes as $_ft_watcher, for $1 quarters of a second at most; whoever ends the job ends it too
    _ft_quarters=$1
    until _ft_is_over "$_ft_watcher"; do
        _ft_quarters=$((_ft_quarters - 1))
        if [ "$_ft_quarters" -le 0 ] || _ft_is_ended_by_others; then
            kill "$_ft_watcher" 2>/dev/null
            break
        fi
        sleep 0.25
    done
    _ft_watcher=
}

_ft_is_ended_by_others() { # INT, QUIT or TERM came
    case " $_ft_told $_ft_got " in *' 2 '* | *' 3 '* | *' 15 '*) return 0 ;; esac
    return 1
}

# Commands of the user's own around the script.  A failing one costs nothing, a hanging one its time limit; how it went stands in
# the run's folder.  Runs command $2, which is called $1, with the first $3 of the NAME=VALUE behind it.  A signal ends a command
# before the script at once, since it is the script's; one behind the script only where it asks for the job's end.
_ft_user_hook() {
    [ -n "$2" ] || return
    _ft_which=$1 _ft_command=$2 _ft_k=$3
    shift 3
    _ft_i=$#
    while [ "$_ft_i" -gt 0 ]; do
        _ft_a=$1
        shift
        [ "$_ft_k" -gt 0 ] && set -- "$@" "$_ft_a"
        _ft_k=$((_ft_k - 1))
        _ft_i=$((_ft_i - 1))
    done
    set -- "$@" "FTRUN_HOOK=$_ft_which" "FTRUN_NODES=${SLURM_JOB_NODELIST-}"
    if [ "$_ft_which" = post-hook ]; then
        set -- "$@" "FTRUN_EXIT_CODE=$_ft_rc" "FTRUN_EXIT_SIGNAL=$_ft_sig"
        _ft_got=
    fi
    [ -n "${BASH_VERSION-}" ] && [ -z "$_ft_perl" ] && set -m
    (
        trap - EXIT
        _ft_i=`umask`
        umask 077
        command exec >"$_ft_place/$_ft_which.$_ft_launch.log" 2>&1 || command exec >/dev/null 2>&1
        umask "$_ft_i"
        if [ "$_ft_which" = pre-hook ] && [ -n "$_ft_prehook_nodes" ]; then
            _ft_find_clients
            # The shape of the job is not the shape of this step.
            for _ft_c in `env | sed -n 's/^\(SLURM_[A-Za-z0-9_]*\)=.*/\1/p'`; do
                case $_ft_c in SLURM_CONF* | SLURM_JWT | SLURM_SACK_* | SLURM_JOB_ID | SLURM_ARRAY_* | SLURM_CLUSTER_NAME | SLURM_SUBMIT_* | SLURM_RESTART_COUNT) ;; *) set -- "$@" "$_ft_c" ;; esac
            done
            _ft_size_components
            _ft_become "/proc/$$/environ" 1 $# "$@" /bin/sh '' '' -c "$_ft_everywhere" ftrun-hook "${_ft_bin:+$_ft_bin/}srun" "$_ft_sizes" \
                "$_ft_on_each" "$_ft_command" "$_ft_place/nodes" "pre-hook.$_ft_launch" "${_ft_hook_limit%%.*}"
        fi
        _ft_become "/proc/$$/environ" 1 $# "$@" /bin/sh '' '' -c "$_ft_command"
    ) </dev/null 4<&- 5<&- 6<&- 7<&- 8>&- 9<&- &
    _ft_hook_pid=$!
    set +m
    _ft_hook_await
    _ft_code=$_ft_status _ft_held=
    # On all nodes each of them ends its own.
    case $_ft_which$_ft_prehook_nodes$_ft_code in pre-hookall124 | pre-hookall137) [ "$_ft_why" = signal ] || _ft_why=limit ;; esac
    if [ "$_ft_which" = pre-hook ] && [ -n "$_ft_prehook_holds" ] && [ "$_ft_code" -ne 0 ] && [ "$_ft_why" != signal ]; then
        _ft_held=1
        [ "$_ft_prehook_holds$_ft_prehook_nodes" != nodesall ] || { _ft_blame_nodes_of_hook & _ft_within 10 $!; }
    fi
    _ft_write "$_ft_place/$_ft_which.$_ft_launch" printf 'code=%s\nwhy=%s\n%s' "$_ft_code" "$_ft_why" "${_ft_held:+held=1$_ft_nl}" &
    _ft_within 10 $!
    [ -n "$_ft_held" ] || return 0
    _ft_say "attempt $_ft_attempt of $_ft_run ends here: pre-hook failed, and pre-hook-failed is hold; see $_ft_place/pre-hook.$_ft_launch.log" 2>&8
    [ -z "$_ft_keep" ] || _ft_close_stage
    _ft_rc=1 _ft_sig=0
    _ft_leave
}

# What runs a command on each node: $1 srun, $2 words "component:nodes", and what a node does with the rest. Status: the highest of all.
# shellcheck disable=SC2016
_ft_everywhere='
srun=$1 sizes=$2
shift 2
pids= code=0
for s in $sizes; do
    n=${s#*:} s=${s%%:*}
    "$srun" --jobid="$SLURM_JOB_ID" ${s:+--het-group="$s"} --job-name=ftrun --overlap --nodes="$n" --ntasks="$n" --ntasks-per-node=1 --mem=0 \
        --cpu-bind=none --mpi=none --input=none --export=ALL --kill-on-bad-exit=0 --no-kill --wait=0 --quiet --label \
        /bin/sh -c "$1" ftrun-hook "$2" "$3" "$4" "$5" &
    pids="$pids $!"
done
for p in $pids; do
    wait "$p"
    c=$?
    [ "$c" -le "$code" ] || code=$c
done
exit "$code"'

# What a node does: it runs command $1 for $4 seconds at most, since srun may leave what it started, and leaves in folder $2 a record $3
# of how that ended; one without a code is not over.
# shellcheck disable=SC2016
_ft_on_each='
umask=`umask`
umask 077
mkdir "$2" 2>/dev/null
to=$2/$3.${SLURMD_NODENAME:-`uname -n`}
echo code= >"$to"
umask "$umask"
if command -v timeout >/dev/null; then timeout -k 2 "$4" /bin/sh -c "$1"; else /bin/sh -c "$1"; fi
c=$?
umask 077
echo "code=$c" >"$to.tmp" && mv -f "$to.tmp" "$to"
exit "$c"'

_ft_size_components() { # words "component:nodes" into _ft_sizes; a job with but one component has no number
    _ft_sizes=:${SLURM_JOB_NUM_NODES:-1}
    [ -n "${SLURM_HET_SIZE-}" ] || return 0
    _ft_sizes= _ft_k=0
    while [ "$_ft_k" -lt "$SLURM_HET_SIZE" ]; do
        eval "_ft_sizes=\"\$_ft_sizes \$_ft_k:\${SLURM_JOB_NUM_NODES_HET_GROUP_$_ft_k:-1}\""
        _ft_k=$((_ft_k + 1))
    done
}

# Where the command failed, or was not over in time, on at most half of several nodes: the record by which the next attempt avoids them.
_ft_blame_nodes_of_hook() {
    _ft_count_nodes
    _ft_text= _ft_k=0 _ft_c=0
    for _ft_i in "$_ft_place/nodes/pre-hook.$_ft_launch".*; do
        case $_ft_i in *.tmp) continue ;; esac
        { read -r _ft_line <"$_ft_i"; } 2>/dev/null || continue
        _ft_c=$((_ft_c + 1))
        case $_ft_line in
            code=0) continue ;;
            code= | code=124 | code=137) _ft_line="not over within ${_ft_hook_limit%%.*} s" ;;
            *) _ft_line="ended with ${_ft_line#code=}" ;;
        esac
        _ft_k=$((_ft_k + 1))
        _ft_text="$_ft_text${_ft_text:+, }\"${_ft_i##*/pre-hook."$_ft_launch".}\": {\"check\": \"pre-hook\", \"fault\": \"node\", \"device\": \"\", \"message\": \"$_ft_line\"}"
    done
    [ "$_ft_k" -gt 0 ] && [ $((_ft_k * 2)) -le "$_ft_n" ] || return 0
    _ft_write "$_ft_place/preflight.$_ft_launch" printf '{"schema": 1, "launch": %s, "held": true, "nodes": %s, "answered": %s, "bad": {%s}, "site": []}\n' \
        "$_ft_launch" "$_ft_n" "$_ft_c" "$_ft_text"
}

_ft_begin_with_hook() { # once, however often the script is started
    [ -n "$_ft_prehook" ] || return
    eval "_ft_user_hook pre-hook \"\$_ft_prehook\" $_ft_list"
    _ft_prehook=
    _ft_now=`date +%s 2>/dev/null` # the script begins only now
}

_ft_hook_await() { # how the command ended into _ft_status, and into _ft_why what ended it: itself, limit or signal
    _ft_why=itself
    _ft_quarters=$((${_ft_hook_limit%%.*} * 4))
    [ "$_ft_which$_ft_prehook_nodes" != pre-hookall ] || _ft_quarters=$((_ft_quarters + 20))
    for _ft_nap in 0.01 0.02 0.05 0.1; do
        _ft_is_over "$_ft_hook_pid" && return
        sleep "$_ft_nap"
    done
    until _ft_is_over "$_ft_hook_pid"; do
        case "$_ft_which $_ft_got " in
            'pre-hook  ' | 'post-hook  ') ;;
            pre-hook* | *' 2 '* | *' 3 '* | *' 15 '*) _ft_why=signal ;;
        esac
        [ "$_ft_quarters" -gt 0 ] || _ft_why=limit
        if [ "$_ft_why" != itself ]; then
            kill -15 "-$_ft_hook_pid" 2>/dev/null || kill -15 "$_ft_hook_pid" 2>/dev/null
            _ft_within 2 "$_ft_hook_pid"
            kill -9 "-$_ft_hook_pid" 2>/dev/null || kill -9 "$_ft_hook_pid" 2>/dev/null
            _ft_within 2 "$_ft_hook_pid"
            return
        fi
        sleep 0.25
        _ft_quarters=$((_ft_quarters - 1))
    done
}

_ft_record_exit() {
    [ -d "$_ft_place" ] && _ft_write "$_ft_place/exit.$_ft_launch" printf 'code=%s\nsignal=%s\nended_s=%s\n' "$_ft_rc" "$_ft_sig" "$_ft_now"
}

# Ends the job as the script ended, with code $1 or signal $2.
_ft_finish() {
    _ft_rc=$1
    _ft_sig=${2:-0}
    trap _ft_leave EXIT
    _ft_since=$_ft_now
    _ft_now=${_ft_ended:-`date +%s 2>/dev/null`}
    ( trap - EXIT; _ft_record_exit ) &
    _ft_writer=$!
    _ft_dismiss_agent
    _ft_dismiss_counter
    if [ -n "$_ft_tmp" ]; then
        _ft_dismiss
        # Bash waits by its trap of SIGCHLD and that list. Both stay: bash 5.2 reads a null pointer where a child ends while the trap is
        # taken back (1 of 1,000), and with SIGSEGV trapped it did so for ever.
        [ -n "${BASH_VERSION-}" ] || rm -rf "$_ft_tmp"
    fi
    _ft_within 10 "$_ft_writer"
    [ -z "$_ft_keep" ] || _ft_close_stage
    [ -n "$_ft_child" ] && _ft_look_after # the supervisor knows by now that the script is over, and ends nothing
    [ -n "$_ft_child" ] && _ft_close_caches
    [ -n "$_ft_child" ] && [ -n "$_ft_posthook" ] && eval "_ft_user_hook post-hook \"\$_ft_posthook\" $_ft_list"
    _ft_leave
}

_ft_leave() {
    trap - EXIT
    [ -z "${BASH_VERSION-}" ] || trap : CHLD
    [ -z "$_ft_tmp" ] || rm -rf "$_ft_tmp"
    if [ "$_ft_sig" -gt 0 ]; then
        trap - "$_ft_sig" 2>/dev/null
        # The core, if there is one, is the script's.
        ulimit -S -c 0 2>/dev/null
        kill "-$_ft_sig" $$
        # Still here: bash keeps QUIT ignored.
        # shellcheck disable=SC2016
        [ -n "$_ft_perl" ] && exec "$_ft_perl" -MConfig -e \
            '$SIG{(split " ", $Config{sig_name})[$ARGV[0]]} = "DEFAULT"; kill $ARGV[0], $$; exit $ARGV[1]' \
            "$_ft_sig" "$_ft_rc"
    fi
    exit "$_ft_rc"
}

# Somebody ends the job before there is a script: nothing of it stays, and bash must not make this the script at its end.
_ft_end_early() {
    trap - EXIT "$1"
    [ -z "$_ft_tmp" ] || rm -rf "$_ft_tmp"
    kill "-$1" $$
}

# This shell is about to end by a mistake of its own (dash does so when it cannot fork).  Before the
# start it becomes the user's script; after it, it waits on, without starting anything.
_ft_rescue() {
    trap - EXIT
    if [ -n "$_ft_child" ]; then
        _ft_rescued=1
        _ft_await
        _ft_finish "$_ft_rc" "$_ft_sig"
    fi
    [ "$_ft_claimed" ] || { [ "$_ft_attempt" = 1 ] && [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; } || exit 1
    [ -s "$_ft_script" ] || { _ft_tmp= && _ft_unpack; }
    { true >&8; } 2>/dev/null && command exec 2>&8
    [ -n "$_ft_list" ] || _ft_list="0 '' '' '' $_ft_argv" # see _ft_become
    eval "set -- $_ft_list"
    if [ "$1" = 0 ]; then
        shift 4
        set -- 0 "$_ft_script" "$_ft_interp" "$_ft_iarg" "$@"
    fi
    _ft_direct=1
    _ft_become "/proc/$$/environ" 0 "$@"
}

# The words $@ as text for eval, into _ft_quoted.
_ft_quote() {
    _ft_quoted=
    for _ft_word in "$@"; do
        _ft_text=
        while :; do
            case $_ft_word in
                *\'*)
                    _ft_text="$_ft_text${_ft_word%%\'*}'\\''"
                    _ft_word=${_ft_word#*\'}
                    ;;
                *) break ;;
            esac
        done
        _ft_quoted="$_ft_quoted '$_ft_text$_ft_word'"
    done
}

# The names that srun must hand to the tasks when the user exports a list or nothing.
_ft_export_list() {
    _ft_exp=
    case ${SLURM_EXPORT_ENV-} in
        '' | [Aa][Ll][Ll] | [Aa][Ll][Ll],* | *,[Aa][Ll][Ll] | *,[Aa][Ll][Ll],*) return ;;
        [Nn][Oo][Nn][Ee] | [Nn][Ii][Ll]) _ft_exp=$1 ;;
        *) _ft_exp=$SLURM_EXPORT_ENV,$1 ;;
    esac
}

#ftrun-starts#

#ftrun-spans#

#ftrun-caches#

#ftrun-trackers#

#ftrun-stage#

# Starts beyond the first that earlier launches of this attempt made inside the allocation, into _ft_earlier: no two starts of a run have the same number.
_ft_count_earlier() {
    for _ft_i in "$_ft_place"/begun.*.*; do
        case ${_ft_i##*/begun.} in
            "$_ft_launch".* | *.1 | *[!0-9.]*) ;;
            *) _ft_earlier=$((_ft_earlier + 1)) ;;
        esac
    done
}

# What this start of the script is told and given, into _ft_list, as the arguments of _ft_start. Arguments: the user's own.
_ft_compose() {
    _ft_shape_start
    _ft_count_world
    _ft_choose_meeting
    _ft_brief_shim
    _ft_names=FTRUN_RUN_ID,FTRUN_ATTEMPT,FTRUN_RESTART,FTRUN_RESUME_FROM,FTRUN_LAST_FAULT,FTRUN_EXCLUDED,FTRUN_RUN_DIR,FTRUN_NNODES
    _ft_names=$_ft_names,FTRUN_JOB_ID,FTRUN_START,FTRUN_START_TOKEN,FTRUN_ATTEMPT_DIR,FTRUN_BEAT_DIR,FTRUN_MASTER_ADDR,FTRUN_MASTER_PORT,FTRUN_WORLD_SIZE,FTRUN_DP_SCALE
    [ -z "$_ft_accum" ] || _ft_names=$_ft_names,FTRUN_GRAD_ACCUM
    if [ -n "$_ft_from" ]; then
        IFS=$_ft_nl
        set -f
        for _ft_i in $_ft_rarg; do
            _ft_fill "$_ft_i" || continue
            set -- "$@" "$_ft_text"
        done
        set +f
        unset IFS
    fi
    set -- "FTRUN_RUN_ID=$_ft_run" "FTRUN_ATTEMPT=$_ft_attempt" "FTRUN_RESTART=$((${_ft_restart:-0} + _ft_launch + _ft_earlier + _ft_no - 1))" \
        "FTRUN_RESUME_FROM=$_ft_use" "FTRUN_LAST_FAULT=$_ft_fault" "FTRUN_EXCLUDED=$_ft_excluded" \
        "FTRUN_RUN_DIR=$_ft_dir" "FTRUN_NNODES=$_ft_width" "FTRUN_START=$_ft_no" "FTRUN_START_TOKEN=$_ft_present" \
        "FTRUN_ATTEMPT_DIR=$_ft_place" "FTRUN_BEAT_DIR=$_ft_place/beats/$_ft_launch.$_ft_no" \
        "FTRUN_MASTER_ADDR=$_ft_meet" "FTRUN_MASTER_PORT=$_ft_meet_port" "FTRUN_JOB_ID=${SLURM_JOB_ID-}" \
        "FTRUN_WORLD_SIZE=$_ft_world" "FTRUN_DP_SCALE=${_ft_scale:-1}" \
        "$_ft_script" "$_ft_interp" "$_ft_iarg" "$@"
    _ft_count=17
    _ft_told_now=$_ft_shape
    [ -z "$_ft_accum" ] || _ft_told_now=${_ft_told_now}FTRUN_GRAD_ACCUM=$_ft_accum$_ft_nl
    if [ -n "$_ft_glob" ]; then
        _ft_told_now=${_ft_told_now}FTRUN_RESUME_STEP=$_ft_best${_ft_nl}FTRUN_RESUME_ROOT=$_ft_root$_ft_nl
        _ft_names=$_ft_names,FTRUN_RESUME_STEP,FTRUN_RESUME_ROOT
    fi
    _ft_exported=
    [ -z "$_ft_talk" ] || _ft_export_unset "$_ft_timeouts"
    _ft_tell_trackers
    _ft_names=$_ft_names${_ft_exported:+,$_ft_exported}
    _ft_tell_caches
    _ft_tell_stage
    # A first start is what it is under sbatch: two trainings beside each other in one job choose a port each, and would not if they found one.
    if [ -n "$_ft_talk" ] && [ "$_ft_no" -gt 1 ]; then
        _ft_told_now=${_ft_told_now}SLURM_OVERLAP=1${_ft_nl}SLURM_NO_KILL=set$_ft_nl
        [ -n "${MASTER_ADDR-}" ] || { _ft_told_now=${_ft_told_now}MASTER_ADDR=$_ft_meet$_ft_nl && _ft_names=$_ft_names,MASTER_ADDR; }
        [ -n "${MASTER_PORT-}" ] || { _ft_told_now=${_ft_told_now}MASTER_PORT=$_ft_meet_port$_ft_nl && _ft_names=$_ft_names,MASTER_PORT; }
    fi
    IFS=$_ft_nl
    set -f
    for _ft_i in $_ft_told_now $_ft_array; do
        set -- "$_ft_i" "$@"
        _ft_count=$((_ft_count + 1))
    done
    if [ -n "$_ft_from" ]; then
        for _ft_i in $_ft_renv; do
            _ft_fill "$_ft_i" || continue
            set -- "$_ft_text" "$@"
            _ft_count=$((_ft_count + 1))
            _ft_names=$_ft_names,${_ft_i%%=*}
        done
    fi
    set +f
    unset IFS
    _ft_export_list "$_ft_names"
    if [ -n "$_ft_exp" ]; then
        set -- "SLURM_EXPORT_ENV=$_ft_exp" "$@"
        _ft_count=$((_ft_count + 1))
    fi
    if [ -n "$_ft_talk" ] && [ -x "$_ft_talk/bin/srun" ]; then
        _ft_path_told=$_ft_talk/bin:$_ft_path
        set -- "PATH=$_ft_path_told" "$@"
        _ft_count=$((_ft_count + 1))
    fi
    _ft_quote "$_ft_count" "$@"
    _ft_list=$_ft_quoted
}

_ft_main() {
    _ft_quote "$@"
    _ft_argv=$_ft_quoted
    for _ft_i in 1 2 10 12 14 15; do trap "_ft_end_early $_ft_i" "$_ft_i"; done
    trap _ft_rescue EXIT
    _ft_identify
    _ft_take
    _ft_claimed=1
    _ft_choose
    _ft_name_logs
    _ft_look_inside
    _ft_pick_first
    _ft_look_at_clock
    [ "$_ft_attempt" = 1 ] || _ft_tell_begin # a job that Slurm starts again by itself says what it says without us
    _ft_measure_logs 2
    ( trap - EXIT; _ft_record_launch; [ -z "$_ft_inside" ] || _ft_make_current ) &
    _ft_writer=$!
    _ft_unpack
    _ft_open_talk
    [ -z "$_ft_scattered" ] || _ft_say "$_ft_scattered"
    mkfifo -m 600 "$_ft_tmp/ask.1" "$_ft_tmp/ask.2" 2>/dev/null
    _ft_within "$_ft_patience" "$_ft_writer"
    [ "$_ft_status" -ne 1 ] || _ft_refuse 0 "attempt $_ft_attempt of $_ft_run is closed; not started"
    _ft_set_token "$_ft_status"
    [ "$_ft_status" -ne 0 ] || _ft_count_earlier
    [ -z "$_ft_stuck" ] || _ft_refuse 1 "attempt $_ft_attempt of $_ft_run ends here: $_ft_stuck"
    _ft_look_before
    _ft_open_caches
    _ft_check_interpreter
    _ft_open_stage
    _ft_compose "$@"
    { true; } >"$_ft_tmp/seen.1" 2>/dev/null
    { true; } >"$_ft_tmp/seen.2" 2>/dev/null
    { true; } >"$_ft_tmp/jobs" 2>/dev/null
    # A redirection that fails ends a POSIX shell, but not behind `command`.
    command exec 9<&0 || command exec 9</dev/null
    command exec 8>&2 || command exec 8>/dev/null
    # Shells report deaths on stderr; the log is the script's alone.
    command exec 2>/dev/null
    command exec 4<"$_ft_tmp/seen.1" 5<"$_ft_tmp/seen.2" || command exec 4</dev/null 5</dev/null
    command exec 6<>"$_ft_tmp/ask.1" 7<>"$_ft_tmp/ask.2" || rm -f "$_ft_tmp/ask.2"
    _ft_listen
    while :; do
        _ft_begin_with_hook
        eval "_ft_start $_ft_list"
        trap _ft_rescue EXIT
        [ "$_ft_no" -gt 1 ] || ( trap - EXIT; _ft_doubt_hook ) 2>&8 4<&- 5<&- 6<&- 7<&- 8>&- 9<&- &
        _ft_record_start
        _ft_post_agent
        _ft_post_witnesses
        _ft_post_watch
        _ft_sweep
        _ft_await
        _ft_dismiss
        _ft_next || break
    done
    [ -n "$_ft_keep" ] || _ft_dismiss_watch
    _ft_finish "$_ft_rc" "$_ft_sig"
}

set +e +u +x +v +f +C
unset IFS
_ft_self=$0
_ft_path_set=${PATH+1}
_ft_path=${PATH-}
PATH=/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin
_ft_tmp=
_ft_script=
_ft_child=
_ft_claimed=
_ft_cached=
_ft_keep=
_ft_staged=
_ft_stage_to=
_ft_list=
_ft_direct=
_ft_rescued=
_ft_w1=
_ft_w2=
_ft_watcher=
_ft_told=
_ft_talk=
_ft_path_told=
_ft_agent_pid=
_ft_counter=
_ft_bin=
_ft_ended=
_ft_no=1
_ft_names_active=
_ft_earlier=0
_ft_perl=
for _ft_i in /usr/bin/perl /bin/perl /usr/local/bin/perl; do
    if [ -x "$_ft_i" ]; then
        _ft_perl=$_ft_i
        break
    fi
done
_ft_main "$@"
exit "$?"

"""`ftrun completion SHELL`: the few lines of shell that ask `complete` for words. (I/O)

How it thinks. Each function hands what was typed to `ftrun __complete` and shows what comes back, a candidate a line with its help behind a tab, `:files` or `:dirs`
where the shell itself is to offer paths. Whatever fails is silent: a shell at its prompt is no place for our errors.
"""

from __future__ import annotations

from typing import Annotated

from ftrun.supervisor.cli.options import argument
from ftrun.supervisor.model.errors import UserError

BASH = r"""# For bash 4.4 and newer. In ~/.bashrc:  eval "$(ftrun completion bash)"
_ftrun() {
    local told word me=${COMP_WORDS[0]/#\~/$HOME}
    COMPREPLY=()
    told=$("$me" __complete bash "${COMP_LINE:0:$COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null </dev/null) || return 0
    while IFS= read -r word; do
        case $word in
            :files) compopt -o default 2>/dev/null ;;
            :dirs) compopt -o dirnames 2>/dev/null ;;
            ?*) COMPREPLY+=("${word%%$'\t'*}") ;;
        esac
    done <<<"$told"
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null
    return 0
}
complete -F _ftrun ftrun
"""

ZSH = r"""#compdef ftrun
# As the file _ftrun in a folder of $fpath, or behind compinit in ~/.zshrc:  eval "$(ftrun completion zsh)"
_ftrun() {
    local line paths=
    local -a told ends_told open_told ends open
    told=("${(@f)$("${(Q)words[1]}" __complete zsh "${(@Q)words[1,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null </dev/null)}")
    for line in "${told[@]}"; do
        case $line in
            '') ;;
            :files|:dirs) paths=$line ;;
            *=$'\t'*) open+=("${line%%$'\t'*}"); open_told+=("${line/$'\t'/  -- }") ;;
            *) ends+=("${line%%$'\t'*}"); ends_told+=("${line/$'\t'/  -- }") ;;
        esac
    done
    (( $#ends )) && compadd -l -d ends_told -a ends
    (( $#open )) && compadd -l -S '' -d open_told -a open
    if [[ -n $paths ]]; then
        compset -P '--*='
        [[ $paths == :dirs ]] && _files -/ || _files
    fi
}
if [[ $funcstack[1] == _ftrun ]]; then
    _ftrun "$@"
elif (( $+functions[compdef] )); then
    compdef _ftrun ftrun
fi
"""

FISH = r"""# In ~/.config/fish/completions/ftrun.fish
function __ftrun_words
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l me (string replace -r '^~' $HOME -- $words[1])
    for line in ($me __complete fish $words "$current" 2>/dev/null </dev/null)
        switch $line
            case ':files' ':dirs'
                set -l option (string match -r '^--[^=]*=' -- $current)
                set -l path (string replace -r '^--[^=]*=' '' -- $current)
                set -l found (__fish_complete_path "$path")
                test $line = ':dirs'; and set found (__fish_complete_directories "$path")
                for one in $found
                    echo "$option$one"
                end
            case '*'
                echo $line
        end
    end
end
complete -c ftrun -f -a '(__ftrun_words)'
"""

SHELLS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def completion(shell: Annotated[str, argument("bash|zsh|fish", "Your shell.")]) -> None:
    """Print the code that makes a shell complete commands, options, values, runs and files when TAB is pressed.

    bash: eval "$(ftrun completion bash)" in ~/.bashrc.  zsh: the same line for zsh in ~/.zshrc, behind compinit.
    fish: ftrun completion fish >~/.config/fish/completions/ftrun.fish.

    Slurm is never asked for a completion.
    """
    if shell not in SHELLS:
        raise UserError(f"completion: {' or '.join(SHELLS)} is wanted, not {shell!r}")
    print(SHELLS[shell], end="")

# Completion of msb for fish: `msb completion fish | source`.
function __msb_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l found (msb __complete --words $words[2..-1] "$current" 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path "$current"
    end
end
complete -c msb -f -a '(__msb_complete)'

# Completion of msb for bash: `source <(msb completion bash)`.
_msb() {
    local IFS=$'\n'
    COMPREPLY=($(msb __complete --line "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
    # `box:` and `--flag=` go on.
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[:=] ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
# Without a candidate of ours, bash completes files.
complete -o default -o bashdefault -F _msb msb

#compdef msb
# Completion of msb for zsh: `source <(msb completion zsh)`, or this as `_msb` in a directory of fpath.
_msb() {
    local value about
    local -a values shown open
    while IFS=$'\t' read -r value about; do
        # `box:` and `--flag=` go on, so no space follows.
        if [[ $value == *[:=] ]]; then
            open+=("$value")
        else
            values+=("$value")
            shown+=("$value${about:+  -- $about}")
        fi
    done < <(msb __complete --words "${(@Q)words[2,CURRENT]}" 2>/dev/null)
    if (( $#open + $#values == 0 )); then
        _files
        return
    fi
    (( $#open )) && compadd -S '' -a open
    (( $#values )) && compadd -l -d shown -a values
}
if [[ ${funcstack[1]} == _msb ]]; then
    _msb "$@"
else
    compdef _msb msb
fi

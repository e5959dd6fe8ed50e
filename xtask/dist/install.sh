#!/bin/sh
# Installs msb @VERSION@ for the user that runs this, without root.
#
# Nothing is written below the prefix before the archive is there and its checksum is right. Files are
# put beside their places first and renamed at the end.

set -eu

version='@VERSION@'
from=${MSB_INSTALL_FROM:-@REPOSITORY@/releases/download/v@VERSION@}
prefix=${MSB_INSTALL_PREFIX:-}

usage() {
    cat <<END
usage: install.sh [--from DIRECTORY|URL] [--prefix DIRECTORY]

Installs msb $version into PREFIX/bin, and its completions and licences below PREFIX/share.

  --from DIRECTORY|URL  where the files of the release are, or MSB_INSTALL_FROM
                        (default: $from)
  --prefix DIRECTORY    or MSB_INSTALL_PREFIX (default: \$HOME/.local)
  --help                this text
END
}

say() {
    printf '%s\n' "$*" >&2
}

fail() {
    say "error: $1"
    [ $# -lt 2 ] || say "hint: $2"
    exit 1
}

needs() {
    command -v "$1" >/dev/null 2>&1 || fail "program \`$1\` is not installed"
}

while [ $# -gt 0 ]; do
    case $1 in
    --from | --prefix)
        [ $# -ge 2 ] || fail "no value for \`$1\`"
        case $1 in
        --from) from=$2 ;;
        --prefix) prefix=$2 ;;
        esac
        shift 2
        ;;
    --from=*)
        from=${1#*=}
        shift
        ;;
    --prefix=*)
        prefix=${1#*=}
        shift
        ;;
    --help | -h)
        usage
        exit 0
        ;;
    *)
        usage >&2
        fail "no such option \`$1\`"
        ;;
    esac
done

if [ -z "$prefix" ]; then
    [ -n "${HOME:-}" ] || fail 'HOME is not set' '--prefix names a directory'
    prefix=$HOME/.local
fi
case $prefix in
/*) ;;
*) prefix=$PWD/$prefix ;;
esac
bin=$prefix/bin
share=$prefix/share

[ "$(uname -s)" = Linux ] || fail "msb runs on Linux, not on \`$(uname -s)\`"
stem=msb-$version-$(uname -m)-linux
archive=$stem.tar.gz

needs tar
needs gzip
needs sha256sum

work=$(mktemp -d)
# Names that end so are ours, and only of this run.
new=.new.$$

remove_files() {
    rm -rf "$work"
    rm -f "$bin/msb$new" \
        "$share/bash-completion/completions/msb$new" \
        "$share/zsh/site-functions/_msb$new" \
        "$share/fish/vendor_completions.d/msb.fish$new"
    for name in LICENSE NOTICE THIRD-PARTY-LICENSES.txt README.md; do
        rm -f "$share/doc/msb/$name$new"
    done
}
trap remove_files EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# Puts a file of the release into the working directory.
fetch() {
    case $from in
    https://* | http://*)
        if command -v curl >/dev/null 2>&1; then
            curl --fail --silent --show-error --location --output "$work/$1" "$from/$1" ||
                fail "cannot fetch \`$from/$1\`"
        elif command -v wget >/dev/null 2>&1; then
            wget -q -O "$work/$1" "$from/$1" || fail "cannot fetch \`$from/$1\`"
        else
            fail 'neither curl nor wget is installed' '--from names a directory with the files'
        fi
        ;;
    *)
        cp "$from/$1" "$work/$1" || fail "cannot read \`$from/$1\`"
        ;;
    esac
}

fetch SHA256SUMS
awk -v name="$archive" '$2 == name' "$work/SHA256SUMS" >"$work/sum"
[ -s "$work/sum" ] || fail "this release has no file \`$archive\`" \
    "it is for other machines, or \`$from\` holds another version than $version"
fetch "$archive"
(cd "$work" && sha256sum -c sum >/dev/null 2>&1) ||
    fail "the checksum of \`$archive\` is wrong" 'nothing was installed; fetch the file again'
tar -xzf "$work/$archive" -C "$work" || fail "cannot unpack \`$archive\`"

# Puts a file beside its place: SOURCE TARGET MODE.
put() {
    mkdir -p "${2%/*}" || fail "cannot make the directory \`${2%/*}\`"
    cp "$work/$stem/$1" "$2$new" || fail "cannot write \`$2\`"
    chmod "$3" "$2$new"
}

# Runs a command for every file but the executable, with its source and its target.
each_file() {
    "$1" completions/msb.bash "$share/bash-completion/completions/msb" 644
    "$1" completions/_msb "$share/zsh/site-functions/_msb" 644
    "$1" completions/msb.fish "$share/fish/vendor_completions.d/msb.fish" 644
    for name in LICENSE NOTICE THIRD-PARTY-LICENSES.txt README.md; do
        "$1" "$name" "$share/doc/msb/$name" 644
    done
}

rename() {
    mv -f "$2$new" "$2"
}

put msb "$bin/msb" 755
said=$("$bin/msb$new" --version) || fail 'the executable of this release does not run here'
[ "$said" = "msb $version" ] || fail "the executable says it is \`$said\`, not \`msb $version\`"
each_file put
each_file rename
rename msb "$bin/msb"

say "installed msb $version as $bin/msb"
case :${PATH:-}: in
*:"$bin":*)
    found=$(command -v msb || true)
    [ "$found" = "$bin/msb" ] || say "note: another msb comes first on PATH: $found"
    ;;
*)
    say "note: $bin is not on PATH; add it to your shell's profile:"
    say "  export PATH=\"$bin:\$PATH\""
    ;;
esac
say 'next: msb doctor'

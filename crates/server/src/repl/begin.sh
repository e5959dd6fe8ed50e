command -v "$1" >/dev/null 2>&1 || exit 127
d=$(mktemp -d) && mkfifo "$d/o" "$d/e" || exit 126
exec "$1" -e "$2" "$d" 3<&0 4>&1 0</dev/null 1<>"$d/o" 2<>"$d/e"

# Begins the script of a page. It is PID 1 of namespaces of its own: pid, mount and network. What it
# leaves running ends with it, and its ports are no other page's.
#
# Given in the environment:
#   PAGE_FILES  a directory for files of the page
#   FIXTURES    a directory with images as OCI layouts, and with root filesystems
#   MSB_HOME    the state directory; no other page's, since names of cgroups hold the hash of its path

set -euo pipefail
exec </dev/null

ip link set lo up
mkdir -p "$PAGE_FILES/user/project"
# The home directory of this user by name, since ssh does not ask for HOME.
mount --bind "$PAGE_FILES/user" "$HOME"
ln -s "$MSB_HOME" "$HOME/.msb"
# Names of registries that the pages use.
printf '127.0.0.1 localhost %s registry.local ghcr.io\n' "$(hostname)" >"$PAGE_FILES/hosts"
mount --bind "$PAGE_FILES/hosts" /etc/hosts
cd "$HOME/project"

finish() {
    local code=$?
    unset MSB_REMOTE
    for name in $(msb ls --quiet); do
        msb rm -f "$name" || true
    done
    exit "$code"
}
trap finish EXIT

# Says which command comes next, and when; the last one that is said is the one that failed.
announce() { printf '\n[%d s] $ %s\n' "$SECONDS" "$1"; }

# `set -e` ignores a failure on the left side of `&&`.
check() { [ "$1" = 0 ] || { echo "exit code $1"; exit 1; }; }

# A command that goes on by itself: it must still run after a while, or have succeeded. It has a
# stdin that stays open; its whole process group is ended.
follow() {
    local code=0 pid tries=20
    # Monitor mode gives it a process group of its own.
    set -m
    bash -euo pipefail -c "$1" < <(exec sleep infinity) &
    pid=$!
    set +m
    while [ "$tries" -gt 0 ] && kill -0 "$pid" 2>/dev/null; do
        sleep 0.1
        tries=$((tries - 1))
    done
    kill -TERM -- "-$pid" 2>/dev/null || true
    wait "$pid" || code=$?
    # 143 is the exit code after SIGTERM.
    [ "$code" = 0 ] || [ "$code" = 143 ]
}

# A command at a terminal, where its questions are answered with `y`.
terminal() { python3 "$PAGE_FILES/terminal.py" "$1"; }

# Makes images available by name, as if they had been pulled: `images python alpine`.
images() {
    local name
    for name in "$@"; do
        msb load -q -i "$FIXTURES/$name" -t "$name" >/dev/null
    done
}

# Starts a registry at registry.local:5000 that is the mirror of docker.io and ghcr.io, with images
# of FIXTURES: `registry library/alpine=alpine`.
registry() {
    local entry
    serve_registry 5000 registry
    for entry in "$@"; do
        skopeo copy -q --dest-tls-verify=false "oci:$FIXTURES/${entry#*=}" \
            "docker://127.0.0.1:5000/${entry%=*}"
    done
    cat >>~/.msb/config.toml <<TOML
[registries."registry.local:5000"]
insecure = true
[registries."docker.io"]
mirrors = ["http://127.0.0.1:5000"]
[registries."ghcr.io"]
insecure = true
mirrors = ["http://127.0.0.1:5000"]
TOML
}

# Starts a registry at ghcr.io, in plain http, that lets a user in; writes the password to a file.
registry_with_password() {
    # bcrypt of `correct horse`.
    local hash='$2y$05$TQcfTNt6x7T0RnGijKWHOuuoPjQ0L5Q1.0Jm2seHIbOSpzSwalxKa'
    printf '%s:%s\n' "$1" "$hash" >"$PAGE_FILES/passwords"
    printf 'correct horse' >"$2"
    serve_registry 80 private "auth: { htpasswd: { realm: docs, path: $PAGE_FILES/passwords } }"
}

# Starts a registry on a port, with a name for its files and a line for its settings, and waits.
serve_registry() {
    local settings="$PAGE_FILES/$2.yml"
    cat >"$settings" <<YAML
version: 0.1
log: { level: error }
storage: { filesystem: { rootdirectory: "$PAGE_FILES/$2" } }
http: { addr: "127.0.0.1:$1" }
${3:-}
YAML
    docker-registry serve "$settings" >"$PAGE_FILES/$2.log" 2>&1 &
    until curl -s -o /dev/null "http://127.0.0.1:$1/v2/"; do sleep 0.05; done
}

# A root filesystem with a static busybox.
rootfs() { cp -a "$FIXTURES/rootfs" "$1"; }

# A root filesystem with s6 as /init.
s6_image() { cp -a "$FIXTURES/s6" "$1"; }

# A program that does nothing, for the names of programs that only readers have.
program() {
    printf '#!/bin/sh\n%s\n' "${2:-true}" >"$1"
    chmod +x "$1"
}

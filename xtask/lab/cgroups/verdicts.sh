# Sourced by every test. xtask counts the LAB lines; all else on the console is for people.

# Said and done: the lab has no microVM tier.
export MSB_ISOLATION=process MSB_NET=none

# verdict NAME OUTPUT: passes if the command before it succeeded, else shows OUTPUT, a file.
verdict() {
    if [ $? -eq 0 ]; then
        echo "LAB PASS $1"
    else
        echo "output of $1:"
        cat "$2"
        echo "LAB FAIL $1: see the output above"
    fi
}

# expect NAME WANTED GOT: shows $out, the output of the command, if they differ.
expect() {
    if [ "$2" = "$3" ]; then
        echo "LAB PASS $1"
    else
        echo "output of $1:"
        cat "$out"
        echo "LAB FAIL $1: wanted '$2', got '$3'"
    fi
}

# plan_says FILE LIMIT KIND: the Plan in FILE calls this limit hard, watched or refused.
plan_says() {
    grep -i "$2" "$1" | grep -qiw "$3"
}

# The last bytes of an endless file: grows to 256 MiB and never ends by itself.
EATER='tail -c 268435456 /dev/zero'

# A loop that wants 50 processes at once.
SPAWNER='i=0; while [ $i -lt 50 ]; do sleep 5 & i=$((i + 1)); done; echo spawned all'

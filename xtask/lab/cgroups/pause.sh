. /lab/verdicts.sh

out=/tmp/pause.out
COUNTER='trap "echo woken >> /woken" CONT; n=0; while :; do n=$((n + 1)); echo $n > /n; done'

# The directory of the sandbox that can be frozen, by what it says of itself.
frozen() {
    find /sys/fs/cgroup -name cgroup.events -exec grep -l '^frozen 1$' {} + | head -n 1
}

counting() {
    msb create --name box /lab/rootfs && msb exec -d box -- sh -c "$COUNTER" && sleep 2
}

counting >$out 2>&1 && msb pause box >>$out 2>&1 && test -n "$(frozen)"
verdict pause_freezes_the_cgroup $out

msb cp box:/n /tmp/before >$out 2>&1 && sleep 2 && msb cp box:/n /tmp/after >>$out 2>&1 && cmp /tmp/before /tmp/after
verdict nothing_counts_while_paused $out

# The file is empty for a moment each time that it is written.
COUNTS='for look in 1 2 3 4 5; do n=$(cat /n); sleep 1; test "$(cat /n)" != "$n" && exit 0; done; exit 1'
msb resume box >$out 2>&1 && test -z "$(frozen)" && msb exec box -- sh -c "$COUNTS" >>$out 2>&1
verdict resume_thaws $out
! msb exec box -- test -e /woken >$out 2>&1
verdict nobody_inside_saw_a_signal $out

msb pause box >$out 2>&1 && timeout 40 msb stop -t 5s box >>$out 2>&1 && test -z "$(frozen)"
verdict what_is_paused_can_be_stopped $out

msb start box >$out 2>&1 && msb pause box >>$out 2>&1 && timeout 40 msb rm --force box >>$out 2>&1
verdict what_is_paused_can_be_removed $out

counting >$out 2>&1 && msb pause box >>$out 2>&1
worker=$(msb inspect box | sed -n 's/^ *"pid": \([0-9]*\),*$/\1/p' | head -n 1)
kill -9 "$worker" && sleep 1 && msb ls >>$out 2>&1 && grep -q 'cleaned up after sandbox' $out && test -z "$(frozen)"
verdict what_a_killed_worker_left_paused_is_cleaned_up $out
msb start box >$out 2>&1 && msb rm --force box >>$out 2>&1
verdict and_can_be_started_again $out

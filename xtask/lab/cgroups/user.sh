. /lab/verdicts.sh

out=/tmp/user.out

# What a login session with `Delegate=yes` gives its user: a cgroup of its own to divide.
delegated=/sys/fs/cgroup/delegated
mkdir -p $delegated/session
for dir in $delegated $delegated/session; do
    chown lab:lab $dir $dir/cgroup.procs $dir/cgroup.threads $dir/cgroup.subtree_control
done

as_user() {
    su lab -c "$1"
}

as_delegated_user() {
    (
        # 0 is the process that writes it.
        echo 0 >$delegated/session/cgroup.procs
        su lab -c "$1"
    )
}

as_user 'msb run --memory 64M --dry-run /lab/rootfs -- true' >$out 2>&1
plan_says $out memory watched
verdict memory_limit_is_watched_for_a_user $out

as_user "timeout 40 msb run --memory 64M /lab/rootfs -- $EATER" >$out 2>&1
expect memory_eater_of_a_user_ends_with_137 137 $?

as_user "timeout 40 msb run --pids 20 /lab/rootfs -- sh -c '$SPAWNER'" >$out 2>&1
grep -q "can't fork" $out && ! grep -q 'spawned all' $out
verdict pids_limit_of_a_user_stops_forks $out

as_delegated_user 'msb create --name still /lab/rootfs && msb pause still && msb cp still:/etc/passwd /tmp/of-user' \
    >$out 2>&1
verdict delegated_user_can_pause $out
as_delegated_user 'msb resume still && msb exec still -- true && msb rm --force still' >$out 2>&1
verdict delegated_user_can_resume $out

as_delegated_user 'msb run --memory 64M --dry-run /lab/rootfs -- true' >$out 2>&1
plan_says $out memory hard
verdict memory_limit_is_hard_with_delegation $out

as_delegated_user "timeout 40 msb run --memory 64M /lab/rootfs -- $EATER" >$out 2>&1
expect memory_eater_with_delegation_ends_with_137 137 $?

. /lab/verdicts.sh

out=/tmp/pids.out

msb run --pids 20 --dry-run /lab/rootfs -- true >$out 2>&1
plan_says $out pids hard
verdict pids_limit_is_hard_for_root $out

timeout 40 msb run --pids 20 /lab/rootfs -- sh -c "$SPAWNER" >$out 2>&1
grep -q "can't fork" $out && ! grep -q 'spawned all' $out
verdict pids_limit_stops_forks $out

timeout 40 msb run --pids 100 /lab/rootfs -- sh -c "$SPAWNER" >$out 2>&1
grep -q 'spawned all' $out
verdict pids_within_the_limit_are_left_alone $out

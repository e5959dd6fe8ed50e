. /lab/verdicts.sh

out=/tmp/memory.out

msb run --memory 64M --dry-run /lab/rootfs -- true >$out 2>&1
plan_says $out memory hard
verdict memory_limit_is_hard_for_root $out

timeout 40 msb run --memory 64M /lab/rootfs -- $EATER >$out 2>&1
expect memory_eater_ends_with_137 137 $?
grep -qi 'memory limit' $out
verdict memory_limit_is_named_on_stderr $out

timeout 40 msb run --memory 64M /lab/rootfs -- echo fits >$out 2>&1
expect memory_within_the_limit_is_left_alone fits "$(cat $out)"

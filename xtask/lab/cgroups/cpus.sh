. /lab/verdicts.sh

out=/tmp/cpus.out

# Looked up by its value: where sandboxes keep their cgroups is their own affair.
limited_cgroup() {
    find /sys/fs/cgroup -name cpu.max -exec grep -l '^50000 100000$' {} + | head -n 1 | xargs -r dirname
}

msb run --cpus 0.5 --dry-run /lab/rootfs -- true >$out 2>&1
plan_says $out cpus hard
verdict cpus_limit_is_hard_for_root $out

msb create --name half --cpus 0.5 /lab/rootfs >$out 2>&1
verdict cpus_sandbox_is_created $out

cgroup=$(limited_cgroup)
# Its processes are in a directory below, which can be frozen without the guest.
test -n "$cgroup" && grep -q . "$cgroup"/*/cgroup.procs
verdict cpus_limit_is_set_on_a_cgroup_with_processes $out

msb modify half --cpus 0.25 >$out 2>&1 && grep -q '^25000 100000$' "$cgroup/cpu.max"
verdict cpus_limit_changes_at_once $out

msb rm --force half >$out 2>&1
verdict cpus_sandbox_is_removed $out
test -n "$cgroup" && ! test -e "$cgroup"
verdict cgroup_is_gone_after_rm $out

timeout 40 msb run --cpus 0.5 /lab/rootfs -- true >$out 2>&1 && test -z "$(limited_cgroup)"
verdict cgroup_is_gone_after_run $out

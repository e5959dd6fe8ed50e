#!/bin/sh
# PID 1 of the lab: what an init system would set up, then the tests, then off.

export PATH=/usr/bin:/bin HOME=/root

# The disk carries the ids of whoever built it.
chown -R 0:0 /
chown -R lab:lab /home/lab
chmod 700 /root /home/lab
chmod 1777 /tmp

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo '+cpu +cpuset +io +memory +pids' >/sys/fs/cgroup/cgroup.subtree_control
ip link set lo up
hostname lab
for module in /lab/modules/*.ko; do
    insmod "$module"
done

for test in /lab/tests/*.sh; do
    # A hung test must not take the time of the others.
    timeout 60 sh "$test" </dev/null
    code=$?
    if [ $code -ne 0 ]; then
        echo "LAB FAIL $(basename "$test" .sh): the script ended with $code"
    fi
done

echo 'the last words of the kernel:'
dmesg | tail -n 40
echo 'LAB DONE'
poweroff -f

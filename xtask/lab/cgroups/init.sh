#!/bin/sh
# PID 1 of the machine with cgroup v2: set up, then the tests, then off.

. /lab/setup.sh
mount -t tmpfs -o mode=1777 tmpfs /tmp

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

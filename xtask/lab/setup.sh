# Sourced by the init of every machine of the lab: what an init system would set up.

export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root

# The files on the disk have the ids of the user that built it.
if [ "$(stat -c %u /init)" != 0 ]; then
    chown -R 0:0 /
fi
chown -R lab:lab /home/lab
chmod 700 /root /home/lab
chmod 1777 /tmp

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo '+cpu +cpuset +io +memory +pids' >/sys/fs/cgroup/cgroup.subtree_control
ip link set lo up
hostname lab
# In the order of their names: one needs the other.
for module in /lab/modules/*.ko; do
    insmod "$module"
done

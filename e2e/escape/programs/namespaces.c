/* Tries every way to a namespace or a mount, and tells which worked. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void tell(const char *what, long result)
{
	printf("%s %s\n", what, result < 0 ? strerrorname_np(errno) : "done");
	fflush(stdout);
}

/* In a child, so that one that works does not change what the next one means. */
static void apart(const char *what, long number, long a, long b, long c, long d, long e)
{
	fflush(stdout);
	if (fork() == 0) {
		tell(what, syscall(number, a, b, c, d, e));
		_exit(0);
	}
	wait(NULL);
}

int main(void)
{
	static const struct {
		const char *name;
		long flag;
	} kinds[] = {
		{"user", CLONE_NEWUSER}, {"user+mount", CLONE_NEWUSER | CLONE_NEWNS},
		{"mount", CLONE_NEWNS},	 {"net", CLONE_NEWNET},
		{"pid", CLONE_NEWPID},	 {"ipc", CLONE_NEWIPC},
		{"uts", CLONE_NEWUTS},	 {"cgroup", CLONE_NEWCGROUP},
		{"time", CLONE_NEWTIME},
	};
	char what[64];
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		snprintf(what, sizeof what, "unshare-%s", kinds[i].name);
		apart(what, SYS_unshare, kinds[i].flag, 0, 0, 0, 0);
		if (kinds[i].flag == CLONE_NEWTIME)
			continue;
		long child = syscall(SYS_clone, kinds[i].flag | SIGCHLD, 0, 0, 0, 0);
		if (child == 0)
			_exit(0);
		snprintf(what, sizeof what, "clone-%s", kinds[i].name);
		tell(what, child);
		struct clone_args args = {.flags = kinds[i].flag, .exit_signal = SIGCHLD};
		child = syscall(SYS_clone3, &args, sizeof args);
		if (child == 0)
			_exit(0);
		snprintf(what, sizeof what, "clone3-%s", kinds[i].name);
		tell(what, child);
	}
	const char *names[] = {"user", "mnt", "net", "pid", "ipc", "uts", "cgroup"};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		char path[64];
		snprintf(path, sizeof path, "/proc/1/ns/%s", names[i]);
		int fd = open(path, O_RDONLY);
		if (fd < 0)
			snprintf(path, sizeof path, "/proc/self/ns/%s", names[i]), fd = open(path, O_RDONLY);
		snprintf(what, sizeof what, "setns-%s", names[i]);
		apart(what, SYS_setns, fd, 0, 0, 0, 0);
	}
	apart("mount", SYS_mount, (long)"none", (long)"/tmp", (long)"tmpfs", 0, 0);
	apart("mount-bind", SYS_mount, (long)"/", (long)"/tmp", 0, 4096, 0);
	apart("mount-shared", SYS_mount, 0, (long)"/", 0, 1 << 20 | 16384, 0);
	apart("mount-proc", SYS_mount, (long)"proc", (long)"/tmp", (long)"proc", 0, 0);
	apart("mount-cgroup", SYS_mount, (long)"cgroup", (long)"/tmp", (long)"cgroup", 0, (long)"rdma");
	apart("fsopen", SYS_fsopen, (long)"tmpfs", 0, 0, 0, 0);
	apart("open_tree", SYS_open_tree, AT_FDCWD, (long)"/", 1, 0, 0);
	apart("move_mount", SYS_move_mount, AT_FDCWD, (long)"/proc", AT_FDCWD, (long)"/tmp", 0);
	struct mount_attr writable = {.attr_clr = 1};
	apart("mount_setattr", SYS_mount_setattr, AT_FDCWD, (long)"/", 0x8000, (long)&writable,
	      sizeof writable);
	apart("umount-proc-sys", SYS_umount2, (long)"/proc/sys", 2, 0, 0, 0);
	apart("umount-dev", SYS_umount2, (long)"/dev", 2, 0, 0, 0);
	apart("pivot_root", SYS_pivot_root, (long)"/", (long)"/tmp", 0, 0, 0);
}

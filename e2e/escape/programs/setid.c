/* Tries every way to leave a set-id program, a device or a capability in the directory named by
   the first argument. Each file is a copy of this program, so that it can be run. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/openat2.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

static void fill(int fd)
{
	char buffer[65536];
	int self = open("/proc/self/exe", O_RDONLY);
	for (long n; (n = read(self, buffer, sizeof buffer)) > 0;)
		write(fd, buffer, n);
	close(self);
	close(fd);
}

static void plain(const char *name)
{
	fill(open(name, O_CREAT | O_WRONLY, 0755));
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		printf("uid %d euid %d gid %d egid %d\n", getuid(), geteuid(), getgid(), getegid());
		return 0;
	}
	if (chdir(argv[1]))
		return 1;
	umask(0);
	const mode_t mode = 06755;
	plain("chmod"), syscall(SYS_fchmodat, AT_FDCWD, "chmod", mode);
	plain("fchmod"), fchmod(open("fchmod", O_RDONLY), mode);
	plain("fchmodat2"), syscall(452, AT_FDCWD, "fchmodat2", mode, 0);
#ifdef SYS_chmod
	plain("legacy"), syscall(SYS_chmod, "legacy", mode);
	fill(syscall(SYS_creat, "creat", mode));
	fill(syscall(SYS_open, "open", O_CREAT | O_WRONLY, mode));
	syscall(SYS_mknod, "mknod", S_IFREG | mode, 0);
#endif
	plain("proc");
	int held = open("proc", O_RDONLY);
	char path[64];
	snprintf(path, sizeof path, "/proc/self/fd/%d", held);
	chmod(path, mode);
	fill(syscall(SYS_openat, AT_FDCWD, "openat", O_CREAT | O_WRONLY, mode));
	struct open_how how = {.flags = O_CREAT | O_WRONLY, .mode = mode};
	fill(syscall(SYS_openat2, AT_FDCWD, "openat2", &how, sizeof how));
	syscall(SYS_mknodat, AT_FDCWD, "mknodat", S_IFREG | mode, 0);
	int nameless = open(".", O_TMPFILE | O_WRONLY, mode);
	if (nameless >= 0) {
		snprintf(path, sizeof path, "/proc/self/fd/%d", nameless);
		linkat(AT_FDCWD, path, AT_FDCWD, "nameless", AT_SYMLINK_FOLLOW);
		fill(nameless);
	}
	/* Made where set-id bits may be allowed, then brought here. */
	plain("/tmp/made-elsewhere"), chmod("/tmp/made-elsewhere", mode);
	rename("/tmp/made-elsewhere", "renamed");
	plain("/tmp/made-elsewhere"), chmod("/tmp/made-elsewhere", mode);
	link("/tmp/made-elsewhere", "linked");
	mkdir("directory", 02777), chmod("directory", 02777);
	plain("chown-after"), chmod("chown-after", mode), chown("chown-after", 0, 0);
	mknod("block", S_IFBLK | 0666, makedev(8, 0));
	mknod("memory", S_IFCHR | 0666, makedev(1, 1));
	mknod("null", S_IFCHR | 0666, makedev(1, 3));
	plain("capable");
	struct vfs_cap_data old = {.magic_etc = VFS_CAP_REVISION_2 | VFS_CAP_FLAGS_EFFECTIVE,
				   .data = {{.permitted = ~0u}, {.permitted = 0x1ff}}};
	setxattr("capable", "security.capability", &old, sizeof old, 0);
	plain("capable-ns");
	struct vfs_ns_cap_data new = {.magic_etc = VFS_CAP_REVISION_3 | VFS_CAP_FLAGS_EFFECTIVE,
				      .data = {{.permitted = ~0u}, {.permitted = 0x1ff}}};
	setxattr("capable-ns", "security.capability", &new, sizeof new, 0);
	setxattr("capable", "security.msb-canary", "x", 1, 0);
	setxattr("capable", "trusted.msb-canary", "x", 1, 0);
	/* A set-id file of the host's own keeps its bits only as long as it keeps its content. */
	int existing = open("existing", O_WRONLY | O_TRUNC);
	if (existing >= 0)
		fill(existing);
	puts("tried");
}

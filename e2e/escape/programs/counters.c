/* `take KIND`: many users. Each takes as much as it gets of what the kernel counts for users,
   and keeps it. Tells how much that was. `count KIND`: tells how many of 16 can be had now. */
#define _GNU_SOURCE
#include <signal.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { USERS = 12, AT_ONCE = 200 };

static int pairs[2] = { -1, -1 };

/* Sends so many copies of a descriptor into a socket that is not read. */
static int send_away(int count)
{
	char byte = 0, room[CMSG_SPACE(sizeof(int) * AT_ONCE)] = { 0 };
	struct iovec bytes = { &byte, 1 };
	struct msghdr message = { .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = room,
				  .msg_controllen = CMSG_SPACE(sizeof(int) * count) };
	struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
	rights->cmsg_level = SOL_SOCKET;
	rights->cmsg_type = SCM_RIGHTS;
	rights->cmsg_len = CMSG_LEN(sizeof(int) * count);
	for (int i = 0; i < count; i++)
		((int *)CMSG_DATA(rights))[i] = 0;
	for (int try = 0; try < 2; try++) {
		if (pairs[0] >= 0 && sendmsg(pairs[0], &message, MSG_DONTWAIT) == 1)
			return 1;
		/* It may only be full. */
		if (socketpair(AF_UNIX, SOCK_STREAM, 0, pairs) < 0)
			return 0;
	}
	return 0;
}

static int take(const char *kind, int at_once)
{
	if (!strcmp(kind, "inotify"))
		return inotify_init() >= 0;
	if (!strcmp(kind, "timers")) {
		struct sigevent none = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
		int timer;
		return syscall(SYS_timer_create, CLOCK_MONOTONIC, &none, &timer) == 0;
	}
	return send_away(at_once);
}

int main(int argc, char **argv)
{
	long count = 0, most = 200000, one;
	int told[2];
	if (!strcmp(argv[1], "count")) {
		while (count < 16 && take(argv[2], 1))
			count++;
		printf("%ld\n", count);
		return 0;
	}
	if (!strcmp(argv[2], "descriptors"))
		most /= AT_ONCE;
	if (pipe(told) < 0)
		return 1;
	for (int user = 0; user < USERS; user++) {
		if (fork() == 0) {
			if (user && syscall(SYS_setresuid, user, user, user) < 0)
				_exit(1);
			for (one = 0; one < most && take(argv[2], AT_ONCE);)
				one++;
			if (write(told[1], &one, sizeof one) < 0)
				_exit(1);
			for (;;)
				pause();
		}
		if (read(told[0], &one, sizeof one) == sizeof one)
			count += one;
	}
	printf("%ld\n", count);
	fflush(stdout);
	pause();
}

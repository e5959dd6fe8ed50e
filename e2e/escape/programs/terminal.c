/* Types into the terminal as if its user had. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

int main(void)
{
	int own = open("/dev/tty", O_RDWR);
	int fds[] = {0, 1, 2, own};
	for (int i = 0; i < 4; i++) {
		for (const char *key = "typed-by-guest\n"; *key; key++)
			if (ioctl(fds[i], TIOCSTI, key) == 0)
				puts("pushed");
		/* The same through the upper half of the request, which the kernel ignores. */
		if (ioctl(fds[i], 0xffffffff00000000ul | TIOCSTI, "x") == 0)
			puts("pushed");
		char paste[2] = {3, 0};
		if (ioctl(fds[i], TIOCLINUX, paste) == 0)
			puts("pasted");
	}
	puts("tried");
}

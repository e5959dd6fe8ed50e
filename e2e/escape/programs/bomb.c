/* `forks`: starts processes as long as the kernel lets it. `files`: opens descriptors likewise.
   `memory FILE MEGABYTES`: fills a file or, for `-`, its own memory. Tells how far it came. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	long count = 0;
	if (!strcmp(argv[1], "forks")) {
		for (int pid; (pid = fork()) >= 0; count++)
			if (pid == 0)
				for (;;)
					pause();
		printf("%ld\n", count);
		fflush(stdout);
		pause();
	} else if (!strcmp(argv[1], "files")) {
		while (open("/dev/null", O_RDONLY) >= 0 && count < 2000000)
			count++;
		printf("%ld\n", count);
	} else {
		long megabytes = atol(argv[3]);
		int fd = strcmp(argv[2], "-") ? open(argv[2], O_CREAT | O_WRONLY, 0644) : -1;
		for (; count < megabytes; count++) {
			char *block = malloc(1 << 20);
			if (!block)
				break;
			memset(block, 'x', 1 << 20);
			if (fd >= 0) {
				if (write(fd, block, 1 << 20) != 1 << 20)
					break;
				free(block);
			}
			/* Slow enough to be noticed by a limit that is watched. */
			usleep(2000);
		}
		printf("%ld\n", count);
	}
}

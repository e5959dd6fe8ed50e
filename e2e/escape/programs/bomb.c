/* `forks`: starts processes as long as the kernel lets it. `files`: opens descriptors likewise.
   `memory FILE MEGABYTES`: fills a file or, for `-`, its own memory. `segments`: fills a MiB of
   shared memory after another and lets go of each. `inodes DIRECTORY`: makes empty files. Tells how
   far it came. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/shm.h>
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
	} else if (!strcmp(argv[1], "segments")) {
		for (; count < 300; count++) {
			int id = shmget(IPC_PRIVATE, 1 << 20, IPC_CREAT | 0600);
			char *block = id < 0 ? (char *)-1 : shmat(id, NULL, 0);
			if (block == (char *)-1)
				break;
			memset(block, 'x', 1 << 20);
			shmdt(block);
			usleep(2000);
		}
		printf("%ld\n", count);
	} else if (!strcmp(argv[1], "inodes")) {
		char path[256];
		for (; count < 150000; count++) {
			snprintf(path, sizeof path, "%s/%ld", argv[2], count);
			int file = open(path, O_CREAT | O_WRONLY, 0600);
			if (file < 0)
				break;
			close(file);
			/* Slow enough to be noticed by a limit that is watched. */
			if (count % 1000 == 0)
				usleep(5000);
		}
		if (count == 150000)
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

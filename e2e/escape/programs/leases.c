/* `PLACE...`: tries to get leases of each, and to be told of what happens there. Says which it got, and
   how many it tried. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	int tried = 0;
	for (int i = 1; i < argc; i++) {
		int fd = open(argv[i], O_RDONLY);
		if (fd < 0)
			return 1;
		if (fcntl(fd, F_SETLEASE, F_WRLCK) == 0)
			printf("write lease %s\n", argv[i]);
		if (fcntl(fd, F_SETLEASE, F_RDLCK) == 0)
			printf("read lease %s\n", argv[i]);
		if (fcntl(fd, F_NOTIFY, DN_ACCESS | DN_MODIFY | DN_MULTISHOT) == 0)
			printf("notice %s\n", argv[i]);
		tried += 3;
	}
	printf("tried %d\n", tried);
	return 0;
}

/* Makes one of each that is neither file, directory nor link, in the directory that it is given. */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "socket"};
	if (chdir(argv[1]))
		return 1;
	bind(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&address, sizeof address);
	mkfifo("fifo", 0666);
	mknod("zero", S_IFCHR | 0666, makedev(1, 5));
	mknod("disk", S_IFBLK | 0666, makedev(7, 0));
}

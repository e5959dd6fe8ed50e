/* Opens a thousand connections and says nothing on any of them. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct rlimit many = {1100, 1100};
	setrlimit(RLIMIT_NOFILE, &many);
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	strncpy(address.sun_path, argv[1], sizeof address.sun_path - 1);
	for (int i = 0; i < 1000; i++) {
		int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
		/* A full queue is the worker's right; the next one tries again. */
		if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
			close(fd);
	}
	write(1, "!", 1);
	pause();
}

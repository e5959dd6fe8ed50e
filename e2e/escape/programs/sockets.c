/* Connects to unix sockets by path, or by abstract name when the first letter is `@`; then asks
   for socket families that reach past namespaces. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int family;
	} families[] = {
		{"packet", AF_PACKET}, {"vsock", 40},	{"alg", 38},	   {"bluetooth", AF_BLUETOOTH},
		{"can", 29},	       {"xdp", 44},	{"tipc", 30},	   {"rds", 21},
		{"key", AF_KEY},       {"nfc", 39},	{"ax25", AF_AX25}, {"kcm", 41},
		{"qipcrtr", 42},       {"smc", 43},
	};
	for (int i = 1; i < argc; i++) {
		struct sockaddr_un address = {.sun_family = AF_UNIX};
		strncpy(address.sun_path, argv[i], sizeof address.sun_path - 1);
		socklen_t length = sizeof(sa_family_t) + strlen(argv[i]);
		if (argv[i][0] == '@')
			address.sun_path[0] = 0;
		else
			length++;
		int types[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET};
		for (int type = 0; type < 3; type++) {
			int fd = socket(AF_UNIX, types[type], 0);
			if (connect(fd, (struct sockaddr *)&address, length) == 0) {
				write(fd, "intruder", 8);
				printf("connected to %s\n", argv[i]);
			}
		}
	}
	for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
		int types[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_RAW, SOCK_SEQPACKET};
		for (int type = 0; type < 4; type++)
			if (socket(families[i].family, types[type], 0) >= 0)
				printf("has %s\n", families[i].name);
	}
	/* Pairs are another way to the same families. */
	for (int family = 0; family < 50; family++) {
		int types[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET}, pair[2];
		for (int type = 0; type < 3; type++) {
			if (socketpair(family, types[type], 0, pair) == 0 && family != AF_UNIX)
				printf("has pairs of %d\n", family);
			else if (family != AF_UNIX && errno != EAFNOSUPPORT)
				printf("%d has no pairs because of %d\n", family, errno);
		}
	}
	/* Routes are the only part of the kernel that is asked by netlink. */
	for (int protocol = 0; protocol < 32; protocol++) {
		int has = socket(AF_NETLINK, SOCK_RAW, protocol) >= 0;
		if (has != (protocol == 0))
			printf("netlink %d: %d\n", protocol, has);
		if (!has && errno != EPROTONOSUPPORT)
			printf("netlink %d is refused because of %d\n", protocol, errno);
	}
	if (socket(AF_INET, SOCK_RAW, 1) >= 0)
		puts("has raw");
	puts("tried");
}

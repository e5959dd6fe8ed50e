/* `plant PROGRAM ARGS...`: puts a secret into the caller's keyrings, then runs a program with
   their serial numbers behind its arguments. `steal SERIAL...`: tries to read them. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/keyctl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static long key(const char *name, const char *secret, long ring)
{
	return syscall(SYS_add_key, "user", name, secret, strlen(secret), ring);
}

int main(int argc, char **argv)
{
	long rings[] = {KEY_SPEC_SESSION_KEYRING, KEY_SPEC_USER_KEYRING, KEY_SPEC_USER_SESSION_KEYRING,
			KEY_SPEC_PROCESS_KEYRING, KEY_SPEC_THREAD_KEYRING};
	if (!strcmp(argv[1], "plant")) {
		syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, "msb-test");
		static char serials[2][32];
		char **args = calloc(argc + 2, sizeof *args);
		for (int i = 2; i < argc; i++)
			args[i - 2] = argv[i];
		for (int i = 0; i < 2; i++) {
			long serial = key("msb-canary", "keyring-secret", rings[i]);
			if (serial < 0)
				return errno == ENOSYS ? 77 : 78;
			/* All users have all permissions on it, so only the namespace protects it. */
			syscall(SYS_keyctl, KEYCTL_SETPERM, serial, 0x3f3f3f3f);
			snprintf(serials[i], sizeof serials[i], "%ld", serial);
			args[argc - 2 + i] = serials[i];
		}
		execv(args[0], args);
		return 79;
	}
	char text[4096];
	for (int i = 2; i < argc; i++) {
		memset(text, 0, sizeof text);
		if (syscall(SYS_keyctl, KEYCTL_READ, atol(argv[i]), text, sizeof text - 1) > 0)
			printf("read %s\n", text);
		if (syscall(SYS_keyctl, KEYCTL_DESCRIBE, atol(argv[i]), text, sizeof text - 1) > 0)
			printf("described %s\n", text);
	}
	for (size_t i = 0; i < sizeof rings / sizeof *rings; i++) {
		memset(text, 0, sizeof text);
		long found = syscall(SYS_keyctl, KEYCTL_SEARCH, rings[i], "user", "msb-canary", 0);
		if (found > 0 && syscall(SYS_keyctl, KEYCTL_READ, found, text, sizeof text - 1) > 0)
			printf("found %s\n", text);
		if (key("msb-intruder", "from-inside", rings[i]) > 0)
			printf("planted in %ld\n", rings[i]);
	}
	if (syscall(SYS_request_key, "user", "msb-canary", NULL, 0) > 0)
		puts("requested it");
	int fd = open("/proc/keys", O_RDONLY);
	memset(text, 0, sizeof text);
	if (fd >= 0 && read(fd, text, sizeof text - 1) > 0)
		printf("listed %s\n", text);
	puts("tried");
}

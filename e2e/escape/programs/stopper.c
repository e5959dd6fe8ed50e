/* Stops every process of the guest's but PID 1, as soon as it is there, and tells of each. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(void)
{
	int last = 0;
	for (;;) {
		DIR *all = opendir("/proc");
		struct dirent *entry;
		while (all && (entry = readdir(all))) {
			int pid = atoi(entry->d_name);
			char path[64], name[16] = { 0 };
			if (pid <= 1 || pid == getpid())
				continue;
			snprintf(path, sizeof path, "/proc/%d/comm", pid);
			int file = open(path, O_RDONLY);
			if (file < 0)
				continue;
			if (read(file, name, sizeof name - 1) > 0 && !strncmp(name, "msb-guest", 9) &&
			    kill(pid, SIGSTOP) == 0 && pid != last) {
				last = pid;
				printf("%d\n", pid);
				fflush(stdout);
			}
			close(file);
		}
		if (all)
			closedir(all);
	}
}

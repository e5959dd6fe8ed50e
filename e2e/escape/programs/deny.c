/* `NUMBER ERRNO ARGUMENT VALUE PROGRAM ARGS...`: runs a program on a kernel that lacks one system
   call, or one value of one of its arguments (-1 is any). */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	unsigned number = atoi(argv[1]), error = atoi(argv[2]), value = atoi(argv[4]);
	int argument = atoi(argv[3]);
	unsigned where = argument < 0 ? offsetof(struct seccomp_data, nr)
				      : offsetof(struct seccomp_data, args) + 8 * argument;
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, where),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, argument < 0 ? number : value, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof code / sizeof *code, code};
	if (geteuid() != 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return 70;
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		return 71;
	execv(argv[5], argv + 5);
	return 72;
}

/* Lists the extended attributes of every file in a directory. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	DIR *directory = opendir(argv[1]);
	chdir(argv[1]);
	for (struct dirent *entry; (entry = readdir(directory));) {
		char names[4096];
		ssize_t length = llistxattr(entry->d_name, names, sizeof names);
		for (ssize_t at = 0; at < length; at += strlen(names + at) + 1)
			printf("%s %s\n", entry->d_name, names + at);
	}
}

/* Describes each entry of a tree in a line, sorted, so that two trees can be compared as text.
 * What is another mount is named and not entered.
 *
 *     list DIRECTORY
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

struct seen {
    dev_t device;
    ino_t inode;
    char *path;
};

static struct seen *seen;
static size_t seen_count;
static dev_t top;

static void die(const char *what)
{
    fprintf(stderr, "list: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* The first path of an inode with several names, which stands for the group. */
static const char *first_name(const struct stat *st, const char *path)
{
    for (size_t i = 0; i < seen_count; i++)
        if (seen[i].device == st->st_dev && seen[i].inode == st->st_ino)
            return seen[i].path;
    seen = realloc(seen, (seen_count + 1) * sizeof *seen);
    seen[seen_count++] = (struct seen){st->st_dev, st->st_ino, strdup(path)};
    return path;
}

/* FNV-1a: two different files of one size give one sum by accident only. */
static void print_content(const char *path)
{
    static unsigned char buffer[1 << 16];
    uint64_t sum = 14695981039346656037u;
    int fd = open(path, O_RDONLY | O_NOFOLLOW);
    ssize_t n;

    if (fd < 0) {
        printf(" content=%s", strerror(errno));
        return;
    }
    while ((n = read(fd, buffer, sizeof buffer)) > 0)
        for (ssize_t i = 0; i < n; i++)
            sum = (sum ^ buffer[i]) * 1099511628211u;
    if (n < 0)
        die(path);
    close(fd);
    printf(" content=%016llx", (unsigned long long)sum);
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void print_xattrs(const char *path)
{
    char names[4096], value[4096];
    char *sorted[64];
    size_t count = 0;
    ssize_t length = llistxattr(path, names, sizeof names);

    for (char *name = names; length > 0 && name < names + length; name += strlen(name) + 1)
        if (count < 64)
            sorted[count++] = name;
    qsort(sorted, count, sizeof *sorted, compare);
    for (size_t i = 0; i < count; i++) {
        ssize_t size = lgetxattr(path, sorted[i], value, sizeof value);
        printf(" %s=", sorted[i]);
        for (ssize_t at = 0; at < size; at++)
            printf("%02x", (unsigned char)value[at]);
    }
}

static void describe(const char *path)
{
    struct stat st;
    char target[8192];

    if (lstat(path, &st))
        die(path);
    if (st.st_dev != top && S_ISDIR(st.st_mode)) {
        printf("%s mount\n", path);
        return;
    }
    printf("%s mode=%06o owner=%u:%u", path, st.st_mode, st.st_uid, st.st_gid);
    printf(" modified=%lld.%09ld", (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
    if (S_ISREG(st.st_mode)) {
        printf(" size=%lld", (long long)st.st_size);
        print_content(path);
    }
    if (S_ISLNK(st.st_mode)) {
        ssize_t n = readlink(path, target, sizeof target);
        printf(" target=%.*s", (int)n, target);
    }
    if (S_ISCHR(st.st_mode) || S_ISBLK(st.st_mode))
        printf(" device=%u:%u", major(st.st_rdev), minor(st.st_rdev));
    if (!S_ISDIR(st.st_mode) && st.st_nlink > 1)
        printf(" links=%lu same=%s", (unsigned long)st.st_nlink, first_name(&st, path));
    print_xattrs(path);
    putchar('\n');
    if (!S_ISDIR(st.st_mode))
        return;

    DIR *directory = opendir(path);
    if (!directory)
        die(path);
    char **names = NULL;
    size_t count = 0;
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        names = realloc(names, (count + 1) * sizeof *names);
        names[count++] = strdup(entry->d_name);
    }
    closedir(directory);
    if (count)
        qsort(names, count, sizeof *names, compare);
    for (size_t i = 0; i < count; i++) {
        char *below;
        if (asprintf(&below, "%s/%s", path, names[i]) < 0)
            die(path);
        describe(below);
        free(below);
        free(names[i]);
    }
    free(names);
}

int main(int count, char **arguments)
{
    struct stat st;

    /* Paths are told from here, so that it does not matter where the tree is. */
    if (count != 2 || chdir(arguments[1]) || lstat(".", &st))
        die("DIRECTORY");
    top = st.st_dev;
    describe(".");
    return 0;
}

/* Preloaded into a process: calls that bring data to the disk fail as the file that FAILING_SYNCS names says.
 *
 * The file has one line: thousandths of calls that fail with EIO, and a part of the paths that it is about.
 * Without the file nothing fails. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static __thread unsigned int seed;

static int strikes(const char *path) {
    const char *control = getenv("FAILING_SYNCS");
    char part[256];
    int thousandths = 0;
    FILE *stream = control ? fopen(control, "re") : NULL;
    if (!stream) return 0;
    int found = fscanf(stream, "%d %255s", &thousandths, part);
    fclose(stream);
    if (found != 2 || !strstr(path, part)) return 0;
    if (!seed) seed = (unsigned int)(uintptr_t)&seed ^ (unsigned int)getpid();
    return rand_r(&seed) % 1000 < thousandths;
}

static int strikes_file(int descriptor) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return strikes(path);
}

static int strikes_mapping(void *address) {
    char line[4600];
    int struck = 0;
    FILE *stream = fopen("/proc/self/maps", "re");
    while (stream && fgets(line, sizeof line, stream)) {
        unsigned long begin, end;
        char *path = strchr(line, '/');
        if (sscanf(line, "%lx-%lx", &begin, &end) == 2 && path && (unsigned long)address >= begin &&
            (unsigned long)address < end) {
            struck = strikes(path);
            break;
        }
    }
    if (stream) fclose(stream);
    return struck;
}

#define FAIL_IF(struck) do { int kept = errno; if (struck) { errno = EIO; return -1; } errno = kept; } while (0)
#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

int fsync(int descriptor) {
    REAL(fsync);
    FAIL_IF(strikes_file(descriptor));
    return real(descriptor);
}

int fdatasync(int descriptor) {
    REAL(fdatasync);
    FAIL_IF(strikes_file(descriptor));
    return real(descriptor);
}

int msync(void *address, size_t size, int flags) {
    REAL(msync);
    FAIL_IF(strikes_mapping(address));
    return real(address, size, flags);
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t offset) {
    REAL(pwrite64);
    FAIL_IF(strikes_file(descriptor));
    return real(descriptor, data, size, offset);
}

ssize_t pwrite(int descriptor, const void *data, size_t size, off_t offset) {
    return pwrite64(descriptor, data, size, offset);
}

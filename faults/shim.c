/* LD_PRELOAD: lets the k-th file operation below a folder fail, and sets the wall clock off.
   faults/shim.py controls it over a page of shared memory: [0] k, counts down; [1] errno; [2] how
   many fail in a row; [3] operations seen; [4] operations failed; [5] seconds that the wall clock
   is ahead; [6] milliseconds that it takes to bring a file to the disk. KEEP_SYNCED is a folder for
   copies of the files below that folder, as they were when they were last synced. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int *control;
static char below[512], synced[512];

__attribute__((constructor)) static void set_up(void) {
    const char *file = getenv("FAILING_FILES"), *folder = getenv("FAILING_BELOW");
    if (!file || !folder) return;
    int fd = open(file, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    strncpy(below, folder, sizeof below - 1);
    if (getenv("KEEP_SYNCED")) strncpy(synced, getenv("KEEP_SYNCED"), sizeof synced - 1);
    if (page != MAP_FAILED) control = page;
}

static int is_below(const char *path) { return !strncmp(path, below, strlen(below)); }

static int is_fd_below(int fd) {
    char link[64], path[600];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size <= 0) return 0;
    path[size] = 0;
    return is_below(path);
}

/* The errno with which this operation fails; 0 where it does not. */
static int fails(void) {
    __sync_fetch_and_add(&control[3], 1);
    if (control[0] <= 0 || __sync_sub_and_fetch(&control[0], 1) > 0) return 0;
    control[4]++;
    if (--control[2] > 0) control[0] = 1;
    return control[1];
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)
#define FAIL(inside) if (control && (inside)) { int e = fails(); if (e) { errno = e; return -1; } }

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(pwrite64); FAIL(is_fd_below(fd)) return real(fd, data, size, at);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return pwrite64(fd, data, size, at); }
ssize_t write(int fd, const void *data, size_t size) {
    REAL(write); FAIL(fd > 2 && is_fd_below(fd)) return real(fd, data, size);
}
int ftruncate64(int fd, off64_t size) { REAL(ftruncate64); FAIL(is_fd_below(fd)) return real(fd, size); }
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }
static void wait_for_disk(void) {
    if (control && control[6]) usleep(control[6] * 1000);
}
/* Copies a file that is about to be synced: what is written meanwhile need not be on the disk. */
static void keep_synced(int fd) {
    static __thread char buffer[1 << 16];
    char link[64], path[600], part[1200], whole[1200];
    if (!synced[0]) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size <= 0) return;
    path[size] = 0;
    if (!is_below(path)) return;
    const char *name = strrchr(path, '/') + 1;
    snprintf(whole, sizeof whole, "%s/%s", synced, name);
    snprintf(part, sizeof part, "%s.%ld.part", whole, (long)pthread_self());
    int from = open(path, O_RDONLY | O_CLOEXEC);
    int to = from < 0 ? -1 : open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ssize_t got = -1;
    while (to >= 0 && (got = read(from, buffer, sizeof buffer)) > 0) {
        if (write(to, buffer, got) != got) { got = -1; break; }
    }
    if (from >= 0) close(from);
    if (to >= 0) close(to);
    if (!got) rename(part, whole);
}
int fsync(int fd) {
    REAL(fsync); FAIL(is_fd_below(fd)) wait_for_disk(); keep_synced(fd); return real(fd);
}
int fdatasync(int fd) {
    REAL(fdatasync); FAIL(is_fd_below(fd)) wait_for_disk(); keep_synced(fd); return real(fd);
}
int rename(const char *from, const char *to) { REAL(rename); FAIL(is_below(to)) return real(from, to); }
int unlink(const char *path) { REAL(unlink); FAIL(is_below(path)) return real(path); }
int open64(const char *path, int flags, ...) {
    REAL(open64);
    mode_t mode = 0;
    if (flags & O_CREAT) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }
    FAIL((flags & (O_CREAT | O_WRONLY | O_RDWR)) && is_below(path))
    return real(path, flags, mode);
}
int open(const char *path, int flags, ...) {
    mode_t mode = 0;
    if (flags & O_CREAT) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }
    return open64(path, flags, mode);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL(clock_gettime);
    int result = real(clock, now);
    if (!result && control && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        now->tv_sec += control[5];
    }
    return result;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    REAL(gettimeofday);
    int result = real(now, zone);
    if (!result && control) now->tv_sec += control[5];
    return result;
}
time_t time(time_t *where) {
    REAL(time);
    time_t now = real(NULL) + (control ? control[5] : 0);
    if (where) *where = now;
    return now;
}

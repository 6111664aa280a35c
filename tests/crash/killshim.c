// Preloaded library: fail, or die, before the n-th call that changes a file system.
//
// shim_arm(n, fault) starts counting; at the n-th call the process is killed (fault 0), killed after half of
// a write was done (fault -1), or the call fails with errno = fault. shim_arm(0, 0) only counts.
// A thread of any library is counted, as long as it calls through the dynamic linker.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define LONGEST 100000
enum { OFF, COUNTING, SPENT };
static atomic_long calls;
static atomic_int state;
static long target;
static int fault;
static char kinds[LONGEST];

long shim_calls(void) { return calls; }
char shim_kind(long n) { return n > 0 && n < LONGEST ? kinds[n] : '?'; }
void shim_disarm(void) { state = OFF; }
void shim_arm(long n, int f) { calls = 0; target = n; fault = f; state = COUNTING; }

static void die(void) { kill(getpid(), SIGKILL); for (;;) pause(); }

// 1: the call is to fail; 2: it is to be torn; 0: go on.
static int reached(char kind) {
    if (state != COUNTING) return 0;
    long n = ++calls;
    if (n < LONGEST) kinds[n] = kind;
    if (n != target) return 0;
    if (fault == 0) die();
    if (fault < 0) { if (kind == 'w') return 2; die(); }
    state = SPENT;
    errno = fault;
    return 1;
}

#define REAL(name) ({ static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name); real; })

// Only regular files: pipes and event descriptors are not part of any dataset.
static int regular(int fd) { struct stat s; return fd > 2 && fstat(fd, &s) == 0 && S_ISREG(s.st_mode); }

ssize_t write(int fd, const void *data, size_t size) {
    int r = state == COUNTING && regular(fd) ? reached('w') : 0;
    if (r == 2) { REAL(write)(fd, data, size / 2); die(); }
    return r ? -1 : REAL(write)(fd, data, size);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    int r = reached('w');
    if (r == 2) { REAL(pwrite)(fd, data, size / 2, at); die(); }
    return r ? -1 : REAL(pwrite)(fd, data, size, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    int r = reached('w');
    if (r == 2) { REAL(pwrite64)(fd, data, size / 2, at); die(); }
    return r ? -1 : REAL(pwrite64)(fd, data, size, at);
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    int r = state == COUNTING && regular(fd) ? reached('w') : 0;
    if (r == 2) { if (count > 0) REAL(write)(fd, parts[0].iov_base, parts[0].iov_len / 2); die(); }
    return r ? -1 : REAL(writev)(fd, parts, count);
}

#define CALL(kind, type, name, params, ...) \
    type name params { return reached(kind) ? -1 : REAL(name)(__VA_ARGS__); }

CALL('s', int, fsync, (int fd), fd)
CALL('s', int, fdatasync, (int fd), fd)
CALL('r', int, rename, (const char *a, const char *b), a, b)
CALL('r', int, renameat, (int x, const char *a, int y, const char *b), x, a, y, b)
CALL('r', int, renameat2, (int x, const char *a, int y, const char *b, unsigned f), x, a, y, b, f)
CALL('l', int, link, (const char *a, const char *b), a, b)
CALL('l', int, linkat, (int x, const char *a, int y, const char *b, int f), x, a, y, b, f)
CALL('l', int, symlink, (const char *a, const char *b), a, b)
CALL('u', int, unlink, (const char *a), a)
CALL('u', int, unlinkat, (int x, const char *a, int f), x, a, f)
CALL('u', int, remove, (const char *a), a)
CALL('d', int, mkdir, (const char *a, mode_t m), a, m)
CALL('d', int, mkdirat, (int x, const char *a, mode_t m), x, a, m)
CALL('x', int, rmdir, (const char *a), a)
CALL('t', int, truncate, (const char *a, off_t n), a, n)
CALL('t', int, ftruncate, (int fd, off_t n), fd, n)
CALL('t', int, ftruncate64, (int fd, off64_t n), fd, n)
CALL('t', int, fallocate, (int fd, int m, off_t a, off_t n), fd, m, a, n)
CALL('m', int, chmod, (const char *a, mode_t m), a, m)
CALL('m', int, fchmod, (int fd, mode_t m), fd, m)
CALL('m', int, fchmodat, (int x, const char *a, mode_t m, int f), x, a, m, f)
CALL('m', int, chown, (const char *a, uid_t u, gid_t g), a, u, g)
CALL('m', int, fchownat, (int x, const char *a, uid_t u, gid_t g, int f), x, a, u, g, f)
CALL('c', int, creat, (const char *a, mode_t m), a, m)
CALL('c', ssize_t, copy_file_range, (int a, off64_t *x, int b, off64_t *y, size_t n, unsigned f), a, x, b, y, n, f)

#define MODE(flags) mode_t mode = 0; if ((flags) & (O_CREAT | __O_TMPFILE)) { va_list v; va_start(v, flags); mode = va_arg(v, mode_t); va_end(v); }
#define CHANGES(flags) ((flags) & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC))
#define OPEN(name) int name(const char *path, int flags, ...) { MODE(flags) \
    return CHANGES(flags) && reached('c') ? -1 : REAL(name)(path, flags, mode); }
#define OPENAT(name) int name(int at, const char *path, int flags, ...) { MODE(flags) \
    return CHANGES(flags) && reached('c') ? -1 : REAL(name)(at, path, flags, mode); }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

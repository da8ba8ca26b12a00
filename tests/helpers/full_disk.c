/* A disk that is full from the k-th write on, in one process: cc -shared -fPIC, then LD_PRELOAD.

   Counts the calls that need room below one folder: new files and folders, bytes, renames, syncs. The
   calls `first` to `last` fail with ENOSPC. `list` names a file that gets a line for each call. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[PATH_MAX];
static long calls, first, last;
static int list = -1;

/* Watch a folder; calls first..last fail. Without a folder nothing is watched. */
void full_disk_arm(const char *path, long from, long to, const char *log) {
  folder[0] = 0;
  if (list >= 0) close(list);
  list = log ? open(log, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600) : -1;
  calls = 0, first = from, last = to;
  strncpy(folder, path, sizeof folder - 1);
}

long full_disk_calls(void) { return calls; }

/* Whether this call fails. */
static int full(const char *call, const char *path) {
  size_t length = strlen(folder);
  if (!length || strncmp(path, folder, length)) return 0;
  long number = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
  if (list >= 0) dprintf(list, "%s %s\n", call, path + length);
  if (number < first || number > last) return 0;
  errno = ENOSPC;
  return 1;
}

static int full_fd(const char *call, int fd) {
  if (!folder[0] || fd == list) return 0;
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0) return 0;
  path[size] = 0;
  return full(call, path);
}

static int full_at(const char *call, int at, const char *path) {
  char whole[2 * PATH_MAX], base[PATH_MAX];
  if (!folder[0]) return 0;
  if (path[0] == '/') return full(call, path);
  if (at == AT_FDCWD) {
    if (!getcwd(base, sizeof base)) return 0;
  } else {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    ssize_t size = readlink(link, base, sizeof base - 1);
    if (size < 0) return 0;
    base[size] = 0;
  }
  snprintf(whole, sizeof whole, "%s/%s", base, path);
  return full(call, whole);
}

#define REAL(name) \
  static __typeof__(name) *real; \
  if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *data, size_t size) {
  REAL(write);
  return full_fd("write", fd) ? -1 : real(fd, data, size);
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
  REAL(writev);
  return full_fd("write", fd) ? -1 : real(fd, parts, count);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
  REAL(pwrite);
  return full_fd("write", fd) ? -1 : real(fd, data, size, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
  REAL(pwrite64);
  return full_fd("write", fd) ? -1 : real(fd, data, size, at);
}
ssize_t sendfile(int to, int from, off_t *at, size_t size) {
  REAL(sendfile);
  return full_fd("write", to) ? -1 : real(to, from, at, size);
}
ssize_t sendfile64(int to, int from, off64_t *at, size_t size) {
  REAL(sendfile64);
  return full_fd("write", to) ? -1 : real(to, from, at, size);
}
ssize_t copy_file_range(int from, off64_t *a, int to, off64_t *b, size_t size, unsigned flags) {
  REAL(copy_file_range);
  return full_fd("write", to) ? -1 : real(from, a, to, b, size, flags);
}
int fsync(int fd) {
  REAL(fsync);
  return full_fd("fsync", fd) ? -1 : real(fd);
}
int mkdir(const char *path, mode_t mode) {
  REAL(mkdir);
  return access(path, F_OK) && full_at("mkdir", AT_FDCWD, path) ? -1 : real(path, mode);
}
int rename(const char *from, const char *to) {
  REAL(rename);
  return full_at("rename", AT_FDCWD, to) ? -1 : real(from, to);
}

/* Opening needs room where it makes a file. */
#define MODE \
  mode_t mode = 0; \
  if (flags & (O_CREAT | __O_TMPFILE)) { \
    va_list more; \
    va_start(more, flags); \
    mode = va_arg(more, mode_t); \
    va_end(more); \
  }
#define MAKES(path) (flags & O_CREAT && access(path, F_OK))

int open(const char *path, int flags, ...) {
  MODE REAL(open);
  return MAKES(path) && full_at("open", AT_FDCWD, path) ? -1 : real(path, flags, mode);
}
int open64(const char *path, int flags, ...) {
  MODE REAL(open64);
  return MAKES(path) && full_at("open", AT_FDCWD, path) ? -1 : real(path, flags, mode);
}
int openat(int at, const char *path, int flags, ...) {
  MODE REAL(openat);
  return MAKES(path) && full_at("open", at, path) ? -1 : real(at, path, flags, mode);
}
int openat64(int at, const char *path, int flags, ...) {
  MODE REAL(openat64);
  return MAKES(path) && full_at("open", at, path) ? -1 : real(at, path, flags, mode);
}
FILE *fopen(const char *path, const char *mode) {
  REAL(fopen);
  int makes = strpbrk(mode, "wa") && access(path, F_OK);
  return makes && full_at("open", AT_FDCWD, path) ? NULL : real(path, mode);
}
FILE *fopen64(const char *path, const char *mode) {
  REAL(fopen64);
  int makes = strpbrk(mode, "wa") && access(path, F_OK);
  return makes && full_at("open", AT_FDCWD, path) ? NULL : real(path, mode);
}

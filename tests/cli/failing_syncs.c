// Preloaded into the tool, makes syncing fail: of folders with PENSTOCK_FAILING_SYNCS=folders, of files whose path has
// TEXT in it with name:TEXT, else of everything.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int is_named(int fd, const char* text) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = '\0';
  return strstr(path, text) != NULL;
}

static int fails(int fd) {
  const char* what = getenv("PENSTOCK_FAILING_SYNCS");
  struct stat status;
  if (what != NULL && strcmp(what, "folders") == 0 && (fstat(fd, &status) != 0 || !S_ISDIR(status.st_mode))) return 0;
  if (what != NULL && strncmp(what, "name:", 5) == 0 && !is_named(fd, what + 5)) return 0;
  errno = EIO;
  return 1;
}

int fsync(int fd) {
  int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
  return fails(fd) ? -1 : real(fd);
}

int fdatasync(int fd) {
  int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
  return fails(fd) ? -1 : real(fd);
}

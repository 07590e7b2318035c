// Preloaded into the tool, makes syncing fail: of folders with PENSTOCK_FAILING_SYNCS=folders, else of everything.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int fails(int fd) {
  const char* what = getenv("PENSTOCK_FAILING_SYNCS");
  struct stat status;
  if (what != NULL && strcmp(what, "folders") == 0 && (fstat(fd, &status) != 0 || !S_ISDIR(status.st_mode))) return 0;
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

// Preloaded into the tool, cuts the file TRUNCATED_FILE to TRUNCATED_BYTES when the tool looks for data behind them:
// somebody else does that while it is at work, and always in the same moment.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

off_t lseek(int fd, off_t offset, int whence) {
  off_t (*real)(int, off_t, int) = (off_t(*)(int, off_t, int))dlsym(RTLD_NEXT, "lseek");
  const off_t bytes = atoll(getenv("TRUNCATED_BYTES"));
  if (whence == SEEK_DATA && offset >= bytes && truncate(getenv("TRUNCATED_FILE"), bytes) != 0) abort();
  return real(fd, offset, whence);
}

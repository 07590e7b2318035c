// Preloaded into the tool, makes every pread of a worker wait its turn and then a millisecond: few large reads are then
// surely faster than many small ones. With PENSTOCK_SLOW_CACHED, reads past the page cache are as fast as ever, and
// others take twenty: then cold is faster than cached.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

ssize_t pread(int fd, void* data, size_t size, off_t offset) {
  ssize_t (*real)(int, void*, size_t, off_t) = (ssize_t(*)(int, void*, size_t, off_t))dlsym(RTLD_NEXT, "pread");
  const int only_cached = getenv("PENSTOCK_SLOW_CACHED") != NULL;
  const int is_direct = only_cached && (fcntl(fd, F_GETFL) & O_DIRECT) != 0;
  if (gettid() != getpid() && !is_direct) {
    pthread_mutex_lock(&turn);
    usleep(only_cached ? 20000 : 1000);
    pthread_mutex_unlock(&turn);
  }
  return real(fd, data, size, offset);
}

// Preloaded into the tool, makes every large pread of its first thread return one wrong byte: that is the independent
// read of `load --verify`, while the transfer itself runs on other threads. Headers of models are small.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/types.h>
#include <unistd.h>

ssize_t pread(int fd, void* data, size_t size, off_t offset) {
  ssize_t (*real)(int, void*, size_t, off_t) = (ssize_t(*)(int, void*, size_t, off_t))dlsym(RTLD_NEXT, "pread");
  const ssize_t got = real(fd, data, size, offset);
  if (got >= 65536 && gettid() == getpid()) ((unsigned char*)data)[0] ^= 1;
  return got;
}

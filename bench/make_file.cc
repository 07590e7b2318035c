// make_file PATH SIZE: writes a benchmark file, all blocks allocated and synced.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "content.h"
#include "rounds.h"

int main(int argc, char** argv) {
  if (argc != 3) bench::fail("usage: make_file PATH SIZE");
  const std::string path = argv[1];
  const std::uint64_t size_bytes = std::stoull(argv[2]);
  const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0) bench::fail_errno("open " + path);
  // Reserved first, so that the file lies in as few pieces as the file system can manage; not all can reserve.
  (void)posix_fallocate(descriptor, 0, static_cast<off_t>(size_bytes));
  std::vector<std::byte> block(4 << 20);
  for (std::uint64_t offset = 0; offset < size_bytes;) {
    const std::size_t want = std::min<std::uint64_t>(block.size(), size_bytes - offset);
    bench::fill_content(offset, {block.data(), want});
    const ssize_t written = pwrite(descriptor, block.data(), want, static_cast<off_t>(offset));
    if (written <= 0) bench::fail_errno("write " + path);
    offset += static_cast<std::uint64_t>(written);
  }
  if (fdatasync(descriptor) != 0) bench::fail_errno("sync " + path);
  close(descriptor);
}

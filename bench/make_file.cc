// make_file PATH SIZE: writes a benchmark file, all blocks allocated and synced; it stays in the page cache.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
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

  constexpr std::uint64_t block_bytes = 4 << 20;
  std::atomic<std::uint64_t> next{0};
  const auto write_blocks = [&] {
    std::vector<std::byte> block(block_bytes);
    for (std::uint64_t offset = next.fetch_add(block_bytes); offset < size_bytes;
         offset = next.fetch_add(block_bytes)) {
      const std::size_t length = std::min(block_bytes, size_bytes - offset);
      bench::fill_content(offset, {block.data(), length});
      for (std::size_t done = 0; done < length;) {
        const ssize_t written =
            pwrite(descriptor, block.data() + done, length - done, static_cast<off_t>(offset + done));
        if (written <= 0) bench::fail_errno("write " + path);
        done += static_cast<std::size_t>(written);
      }
    }
  };
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < std::clamp(std::thread::hardware_concurrency(), 1U, 8U); ++i) {
    threads.emplace_back(write_blocks);
  }
  threads.clear();
  if (fdatasync(descriptor) != 0) bench::fail_errno("sync " + path);
  close(descriptor);
}

// ForkGuard: tells a forked child from its parent at the cost of reading a word.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>

namespace penstock {

// A page that the kernel empties in a forked child: threads and rings don't come along, so nothing may be served there.
class ForkGuard {
 public:
  ForkGuard() {
    const auto size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    void* page = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return;
    if (::madvise(page, size, MADV_WIPEONFORK) != 0) {
      ::munmap(page, size);
      return;
    }
    word_ = static_cast<volatile unsigned*>(page);
    *word_ = 1;
  }
  ~ForkGuard() {
    if (word_ != nullptr) ::munmap(const_cast<unsigned*>(word_), static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)));
  }
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  bool in_child() const { return word_ != nullptr && *word_ == 0; }

 private:
  volatile unsigned* word_ = nullptr;
};

}  // namespace penstock

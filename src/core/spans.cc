#include "core/spans.h"

#include <sys/mman.h>
#include <unistd.h>

namespace penstock::core {

void SpareSpans::offer_to_system(const Block& block) {
  static const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t bytes = block.spans * sizeof(Span);
  const std::size_t head = (page_bytes - reinterpret_cast<std::uintptr_t>(block.bytes.get()) % page_bytes) % page_bytes;
  const std::size_t whole_pages = (bytes - head) / page_bytes * page_bytes;
  // A wish: locked pages, for one, are not taken.
  ::madvise(block.bytes.get() + head, whole_pages, MADV_FREE);
}

}  // namespace penstock::core

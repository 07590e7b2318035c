#include "services/rows/host_numbers.h"

#include <string>
#include <utility>

#include "penstock/gpu.h"

namespace penstock::rows {
namespace {

Status check_memory(const RowNumbers& numbers) {
  const Region& memory = numbers.memory();
  const std::string bytes = std::to_string(numbers.element_bytes());
  const auto wrong = [&](const std::string& what, const std::string& hint) {
    return Error{Code::invalid_argument, 0, "numbers of rows: " + what, hint};
  };
  if (memory.size_bytes % numbers.element_bytes() != 0) {
    return wrong(std::to_string(memory.size_bytes) + " bytes are no whole numbers of " + bytes + " bytes",
                 "give a size that is a multiple of " + bytes + ", or the type that they have");
  }
  if (memory.size_bytes != 0 && memory.data == nullptr) {
    return wrong("their memory is null", "give the address of the first, or a size of 0");
  }
  if (reinterpret_cast<std::uintptr_t>(memory.data) % numbers.element_bytes() != 0) {
    return wrong("their address is no multiple of their size, " + bytes + " bytes",
                 "align them to " + bytes + " bytes, as an array of their type is");
  }
  return {};
}

}  // namespace

Result<HostNumbers> HostNumbers::of(const Table& table, const RowNumbers& numbers) {
  if (table.in_child()) {
    return Error{Code::closed, 0, "the table belongs to the parent of this process",
                 "make a Context, and open the table, after the fork"};
  }
  if (Status status = check_memory(numbers); !status) return std::move(status).error();
  HostNumbers host(numbers);
  const Region& given = numbers.memory();
  if (given.domain.host_accessible() || numbers.size() == 0) return host;
  auto copied = table.take_numbers(given.size_bytes);
  if (!copied) return std::move(copied).error();
  host.copied_ = std::move(*copied);
  const Region memory = host.copied_.region().part(0, given.size_bytes);
  if (Status status = copy(memory, given); !status) return std::move(status).error();
  host.numbers_ = RowNumbers(numbers.type(), memory);
  return host;
}

std::shared_ptr<const void> HostNumbers::held() const {
  return copied_.size_bytes() != 0 ? hold_memory(copied_.region()) : nullptr;
}

void HostNumbers::give_back(const Table& table) && {
  if (copied_.size_bytes() != 0) table.give_scratch(std::move(copied_));
}

}  // namespace penstock::rows

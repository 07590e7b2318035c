// VfioAnswer: what VFIO tells of something: a structure, and behind it a chain of capabilities.
//
// The kernel says how much there is to tell, and is asked again with room for it. What it tells is not trusted to lie
// within the answer.
//
// Thread safety: a value.
#pragma once

#include <linux/vfio.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "penstock/result.h"

namespace penstock::nvme {

// A structure out of an answer; false if the answer ends before it does.
template <typename T>
bool read_at(std::span<const std::byte> answer, std::size_t offset, T& value) {
  if (offset > answer.size() || answer.size() - offset < sizeof(T)) return false;
  std::memcpy(&value, answer.data() + offset, sizeof value);
  return true;
}

// The capability of that number and all that follows it, from its header on; empty if there is none.
inline std::span<const std::byte> find_capability(std::span<const std::byte> answer, std::size_t offset,
                                                  std::uint16_t id) {
  for (int seen = 0; offset != 0 && seen < 64; ++seen) {
    vfio_info_cap_header header{};
    if (!read_at(answer, offset, header)) return {};
    if (header.id == id) return answer.subspan(offset);
    offset = header.next;
  }
  return {};
}

template <typename Info>
class VfioAnswer {
 public:
  // `question` has all but its size filled in; `what` is for the message of a failure.
  static Result<VfioAnswer> ask(int fd, unsigned long request, Info question, const std::string& what) {
    VfioAnswer answer;
    answer.bytes_.resize(sizeof(Info));
    while (true) {
      question.argsz = static_cast<std::uint32_t>(answer.bytes_.size());
      std::memcpy(answer.bytes_.data(), &question, sizeof question);
      if (::ioctl(fd, request, answer.bytes_.data()) < 0) return system_error(errno, what);
      std::memcpy(&answer.info_, answer.bytes_.data(), sizeof answer.info_);
      if (answer.info_.argsz <= answer.bytes_.size() || answer.bytes_.size() > sizeof(Info)) return answer;
      if (answer.info_.argsz > most_bytes) return Error{Code::unsupported, 0, what + ": the answer is too long", ""};
      answer.bytes_.resize(answer.info_.argsz);
    }
  }

  const Info& operator*() const { return info_; }
  const Info* operator->() const { return &info_; }
  std::span<const std::byte> capability(std::uint16_t id) const {
    return find_capability(bytes_, info_.cap_offset, id);
  }

 private:
  static constexpr std::size_t most_bytes = 64 << 10;
  Info info_{};
  std::vector<std::byte> bytes_;
};

}  // namespace penstock::nvme

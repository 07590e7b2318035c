#include "nvme/errors.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <string_view>

namespace penstock::nvme {
namespace {

constexpr std::int32_t first_number = 0x10000;

struct Known {
  StatusField status;
  Code code;
  bool transient;
  std::string_view text;
};

constexpr std::array known_statuses = {
    Known{status::invalid_opcode, Code::unsupported, false, "the controller does not know this command"},
    Known{status::invalid_field, Code::io_error, false, "a field of the command is invalid"},
    Known{status::data_transfer_error, Code::io_error, true, "the data could not be transferred"},
    Known{make_status(0, 0x05), Code::io_error, true, "aborted for a loss of power"},
    Known{status::internal_error, Code::io_error, true, "an internal error of the controller"},
    Known{status::abort_requested, Code::io_error, true, "aborted"},
    Known{status::queue_deleted, Code::io_error, true, "aborted, its queue was deleted"},
    Known{status::invalid_namespace, Code::not_found, false, "no such namespace"},
    Known{status::invalid_prp_offset, Code::io_error, false, "an invalid PRP offset"},
    Known{status::write_protected, Code::read_only, false, "the namespace is write protected"},
    Known{status::lba_out_of_range, Code::out_of_range, false, "blocks past the end of the namespace"},
    Known{status::capacity_exceeded, Code::no_space, false, "the capacity is exceeded"},
    Known{status::namespace_not_ready, Code::io_error, true, "the namespace is not ready"},
    Known{make_status(0, 0x83), Code::in_use, false, "another host has a reservation"},
    Known{make_status(0, 0x84), Code::io_error, true, "a format is in progress"},
    Known{status::invalid_completion_queue, Code::internal, false, "no such completion queue"},
    Known{status::invalid_queue, Code::internal, false, "an invalid queue identifier"},
    Known{status::invalid_queue_size, Code::internal, false, "an invalid queue size"},
    Known{status::read_only_range, Code::read_only, false, "the blocks are read-only"},
    Known{status::write_fault, Code::io_error, false, "the media could not be written"},
    Known{status::unrecovered_read, Code::io_error, false, "the media could not be read"},
};

const Known* find(StatusField status) {
  for (const Known& one : known_statuses) {
    if (one.status.type() == status.type() && one.status.code() == status.code()) return &one;
  }
  return nullptr;
}

}  // namespace

bool is_transient(StatusField status) {
  if (status.ok() || status.do_not_retry()) return false;
  if (status.type() == status::path) return true;
  const Known* one = find(status);
  return one != nullptr && one->transient;
}

Code code_of(StatusField status) {
  const Known* one = find(status);
  return one != nullptr ? one->code : Code::io_error;
}

std::int32_t number_of(StatusField status) {
  return is_transient(status) ? EAGAIN : first_number + (status.type() << 8 | status.code());
}

std::optional<StatusField> status_from_number(std::int32_t number) {
  constexpr std::int32_t end = first_number + 0x800;
  if (number < first_number || number >= end) return std::nullopt;
  return make_status(static_cast<std::uint32_t>(number) >> 8 & 7, static_cast<std::uint32_t>(number) & 0xff);
}

std::string text_of(StatusField status) {
  const Known* one = find(status);
  std::array<char, 32> number{};
  std::snprintf(number.data(), number.size(), " (status %x/%02x)", status.type(), status.code());
  return std::string(one != nullptr ? one->text : "the controller reports an error") + number.data();
}

}  // namespace penstock::nvme

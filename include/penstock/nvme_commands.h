// Commands and completions of NVMe, as they lie in queues, for the CPU and for CUDA kernels. Sections are those of the
// NVM Express Base Specification 2.0.
#pragma once

#include "penstock/anywhere.h"

namespace penstock::nvme {

enum class IoOpcode : std::uint8_t { flush = 0x00, write = 0x01, read = 0x02, write_zeroes = 0x08, dataset = 0x09 };

// A data block descriptor of an SGL, §4.1.2.1, which lies in a command in place of PRPs: one stretch of memory, of any
// length. Its address is one of memory, or an offset into memory that both sides know.
namespace sgl {
inline constexpr std::uint8_t in_command = 1U << 6;  // of Command::flags
inline constexpr std::uint64_t address = 0;
inline constexpr std::uint64_t offset = 1;

PENSTOCK_ANYWHERE constexpr std::uint64_t pack(std::uint64_t kind, std::uint32_t bytes) {
  return kind << 56 | bytes;
}
PENSTOCK_ANYWHERE constexpr std::uint32_t bytes_of(std::uint64_t descriptor) {
  return static_cast<std::uint32_t>(descriptor);
}
PENSTOCK_ANYWHERE constexpr std::uint64_t kind_of(std::uint64_t descriptor) {
  return descriptor >> 56;
}
}  // namespace sgl

// A submission queue entry, §3.3.3.1.
struct alignas(16) Command {
  std::uint8_t opcode;
  std::uint8_t flags;  // of fused operations, which we don't use, and SGLs
  std::uint16_t cid;
  std::uint32_t nsid;
  std::uint64_t reserved;
  std::uint64_t metadata;
  std::uint64_t prp1;  // or the address of an SGL's descriptor
  std::uint64_t prp2;  // or its length and kind
  std::uint32_t dw10;
  std::uint32_t dw11;
  std::uint32_t dw12;
  std::uint32_t dw13;
  std::uint32_t dw14;
  std::uint32_t dw15;

  // Of reads and writes, in double words 10 and 11.
  PENSTOCK_ANYWHERE void set_first_block(std::uint64_t number) {
    dw10 = static_cast<std::uint32_t>(number);
    dw11 = static_cast<std::uint32_t>(number >> 32);
  }
  PENSTOCK_ANYWHERE std::uint64_t first_block() const { return std::uint64_t{dw11} << 32 | dw10; }
};

// The status of a completion, bits 31:17 of its last double word, §3.3.3.2.1.
struct StatusField {
  std::uint16_t bits = 0;

  PENSTOCK_ANYWHERE constexpr bool ok() const { return (bits & 0x7ff) == 0; }
  PENSTOCK_ANYWHERE constexpr std::uint8_t code() const { return static_cast<std::uint8_t>(bits & 0xff); }
  PENSTOCK_ANYWHERE constexpr std::uint8_t type() const { return static_cast<std::uint8_t>(bits >> 8 & 7); }
  PENSTOCK_ANYWHERE constexpr bool do_not_retry() const { return (bits >> 14 & 1) != 0; }
};
PENSTOCK_ANYWHERE constexpr StatusField make_status(std::uint32_t type, std::uint32_t code, bool do_not_retry = false) {
  return {static_cast<std::uint16_t>(code | type << 8 | (do_not_retry ? 1U << 14 : 0))};
}
PENSTOCK_ANYWHERE constexpr bool operator==(StatusField a, StatusField b) {
  return a.bits == b.bits;
}

// A completion queue entry, §3.3.3.2.
struct alignas(16) Completion {
  std::uint32_t result;
  std::uint32_t reserved;
  std::uint32_t submission;  // the submission queue's head 15:0 and identifier 31:16
  std::uint32_t status;      // command identifier 15:0, phase 16, status field 31:17

  PENSTOCK_ANYWHERE static constexpr std::uint16_t cid(std::uint32_t status) {
    return static_cast<std::uint16_t>(status);
  }
  PENSTOCK_ANYWHERE static constexpr bool phase(std::uint32_t status) { return (status >> 16 & 1) != 0; }
  PENSTOCK_ANYWHERE static constexpr StatusField field(std::uint32_t status) {
    return {static_cast<std::uint16_t>(status >> 17)};
  }
  PENSTOCK_ANYWHERE static constexpr std::uint32_t pack(std::uint16_t cid, bool phase, StatusField field) {
    return cid | (phase ? 1U << 16 : 0) | std::uint32_t{field.bits} << 17;
  }
};

// Status codes that we tell apart, §3.3.3.2.1.
namespace status {
inline constexpr std::uint32_t generic = 0;
inline constexpr std::uint32_t command_specific = 1;
inline constexpr std::uint32_t media = 2;
inline constexpr std::uint32_t path = 3;

inline constexpr StatusField success = make_status(generic, 0x00);
inline constexpr StatusField invalid_opcode = make_status(generic, 0x01);
inline constexpr StatusField invalid_field = make_status(generic, 0x02);
inline constexpr StatusField data_transfer_error = make_status(generic, 0x04);
inline constexpr StatusField internal_error = make_status(generic, 0x06);
inline constexpr StatusField abort_requested = make_status(generic, 0x07);
inline constexpr StatusField queue_deleted = make_status(generic, 0x08);
inline constexpr StatusField invalid_namespace = make_status(generic, 0x0b);
inline constexpr StatusField invalid_prp_offset = make_status(generic, 0x13);
inline constexpr StatusField write_protected = make_status(generic, 0x20);
inline constexpr StatusField lba_out_of_range = make_status(generic, 0x80);
inline constexpr StatusField capacity_exceeded = make_status(generic, 0x81);
inline constexpr StatusField namespace_not_ready = make_status(generic, 0x82);
inline constexpr StatusField invalid_completion_queue = make_status(command_specific, 0x00);
inline constexpr StatusField invalid_queue = make_status(command_specific, 0x01);
inline constexpr StatusField invalid_queue_size = make_status(command_specific, 0x02);
inline constexpr StatusField read_only_range = make_status(command_specific, 0x82);
inline constexpr StatusField write_fault = make_status(media, 0x80);
inline constexpr StatusField unrecovered_read = make_status(media, 0x81);
}  // namespace status

}  // namespace penstock::nvme

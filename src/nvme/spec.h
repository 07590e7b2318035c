// What the NVMe specification lays down in bytes: registers, commands, completions, identify data.
//
// Plain data for the host and for CUDA kernels alike, in the byte order of the wire, which is that of every machine
// that we run on. Sections are those of the NVM Express Base Specification 2.0 and of the NVM Command Set
// Specification 1.0.
#pragma once

#include <cstddef>
#include <cstdint>

#include "penstock/nvme_commands.h"

namespace penstock::nvme {

// §3.1.3: controller properties, as offsets into BAR0.
namespace reg {
inline constexpr std::uint32_t cap = 0x00;
inline constexpr std::uint32_t vs = 0x08;
inline constexpr std::uint32_t intms = 0x0c;
inline constexpr std::uint32_t intmc = 0x10;
inline constexpr std::uint32_t cc = 0x14;
inline constexpr std::uint32_t csts = 0x1c;
inline constexpr std::uint32_t nssr = 0x20;
inline constexpr std::uint32_t aqa = 0x24;
inline constexpr std::uint32_t asq = 0x28;
inline constexpr std::uint32_t acq = 0x30;
inline constexpr std::uint32_t cmbloc = 0x38;
inline constexpr std::uint32_t cmbsz = 0x3c;
inline constexpr std::uint32_t doorbells = 0x1000;
}  // namespace reg

// What a read of any register of a device that is gone gives.
inline constexpr std::uint32_t all_ones = 0xffffffff;

// CAP, §3.1.3.1.
struct Capabilities {
  std::uint64_t bits = 0;

  constexpr std::uint32_t max_queue_entries() const { return static_cast<std::uint32_t>(bits & 0xffff) + 1; }
  constexpr bool contiguous_queues() const { return (bits >> 16 & 1) != 0; }
  // How long enabling and disabling may take.
  constexpr std::uint32_t ready_timeout_ms() const { return static_cast<std::uint32_t>(bits >> 24 & 0xff) * 500; }
  constexpr std::uint32_t doorbell_stride_bytes() const { return 4U << (bits >> 32 & 0xf); }
  constexpr bool nvm_command_set() const { return (bits >> 37 & 1) != 0; }
  constexpr std::uint64_t min_page_bytes() const { return std::uint64_t{4096} << (bits >> 48 & 0xf); }
  constexpr std::uint64_t max_page_bytes() const { return std::uint64_t{4096} << (bits >> 52 & 0xf); }
};

// CC, §3.1.3.5.
namespace cc {
inline constexpr std::uint32_t enable = 1;
inline constexpr std::uint32_t shutdown_mask = 3U << 14;
inline constexpr std::uint32_t shutdown_normal = 1U << 14;
// Entries of 64 and 16 bytes.
inline constexpr std::uint32_t entry_sizes = 6U << 16 | 4U << 20;
// REQUIRES: a power of two, 4096 at least.
constexpr std::uint32_t page_size(std::uint64_t page_bytes) {
  std::uint32_t exponent = 0;
  while (std::uint64_t{4096} << exponent < page_bytes) ++exponent;
  return exponent << 7;
}
constexpr std::uint64_t page_bytes(std::uint32_t bits) {
  return std::uint64_t{4096} << (bits >> 7 & 0xf);
}
}  // namespace cc

// CSTS, §3.1.3.6.
namespace csts {
inline constexpr std::uint32_t ready = 1;
inline constexpr std::uint32_t fatal = 1U << 1;
inline constexpr std::uint32_t shutdown_mask = 3U << 2;
inline constexpr std::uint32_t shutdown_complete = 2U << 2;
}  // namespace csts

// §3.1.2.
constexpr std::uint32_t tail_doorbell(std::uint32_t queue, std::uint32_t stride_bytes) {
  return reg::doorbells + 2 * queue * stride_bytes;
}
constexpr std::uint32_t head_doorbell(std::uint32_t queue, std::uint32_t stride_bytes) {
  return reg::doorbells + (2 * queue + 1) * stride_bytes;
}

enum class AdminOpcode : std::uint8_t {
  delete_submission_queue = 0x00,
  create_submission_queue = 0x01,
  get_log_page = 0x02,
  delete_completion_queue = 0x04,
  create_completion_queue = 0x05,
  identify = 0x06,
  abort = 0x08,
  set_features = 0x09,
  get_features = 0x0a,
  asynchronous_event = 0x0c,
};

inline constexpr std::uint32_t identify_namespace = 0;
inline constexpr std::uint32_t identify_controller = 1;
inline constexpr std::uint32_t identify_active_namespaces = 2;
inline constexpr std::uint32_t identify_command_set = 6;
inline constexpr std::uint32_t identify_bytes = 4096;
inline constexpr std::uint32_t feature_number_of_queues = 7;
inline constexpr std::uint32_t dataset_deallocate = 1U << 2;
inline constexpr std::uint32_t all_namespaces = 0xffffffff;

static_assert(sizeof(Command) == 64 && offsetof(Command, cid) == 2 && offsetof(Command, nsid) == 4);
static_assert(offsetof(Command, metadata) == 16 && offsetof(Command, prp1) == 24 && offsetof(Command, prp2) == 32);
static_assert(offsetof(Command, dw10) == 40 && offsetof(Command, dw12) == 48 && offsetof(Command, dw15) == 60);
static_assert(sizeof(Completion) == 16 && offsetof(Completion, submission) == 8 && offsetof(Completion, status) == 12);

// Identify Controller, §5.17.2.1.
struct IdentifyController {
  std::uint16_t vendor;
  std::uint16_t subsystem_vendor;
  char serial[20];
  char model[40];
  char firmware[8];
  std::uint8_t arbitration_burst;
  std::uint8_t ieee[3];
  std::uint8_t multi_path;
  std::uint8_t mdts;  // the longest transfer is 2^mdts pages of CAP.MPSMIN; 0: no limit
  std::uint16_t controller_id;
  std::uint32_t version;
  std::uint8_t unused_1[512 - 84];
  std::uint8_t submission_entry_sizes;  // exponents, the required one in bits 3:0
  std::uint8_t completion_entry_sizes;
  std::uint16_t max_commands;
  std::uint32_t namespace_count;
  std::uint16_t optional_commands;  // ONCS: bit 2 dataset management, bit 3 write zeroes
  std::uint16_t fused;
  std::uint8_t format_attributes;
  std::uint8_t volatile_write_cache;
  std::uint8_t unused_2[4096 - 526];
};
static_assert(sizeof(IdentifyController) == identify_bytes);
static_assert(offsetof(IdentifyController, serial) == 4 && offsetof(IdentifyController, model) == 24);
static_assert(offsetof(IdentifyController, firmware) == 64 && offsetof(IdentifyController, mdts) == 77);
static_assert(offsetof(IdentifyController, controller_id) == 78 && offsetof(IdentifyController, version) == 80);
static_assert(offsetof(IdentifyController, submission_entry_sizes) == 512);
static_assert(offsetof(IdentifyController, completion_entry_sizes) == 513);
static_assert(offsetof(IdentifyController, namespace_count) == 516);
static_assert(offsetof(IdentifyController, optional_commands) == 520);
static_assert(offsetof(IdentifyController, volatile_write_cache) == 525);

// Identify Controller of the NVM Command Set, §4.1.5: CNS 06h, CSI 00h. 0 is no limit everywhere.
struct IdentifyCommandSet {
  std::uint8_t verify;
  std::uint8_t write_zeroes;  // WZSL: the longest command is 2^n pages of CAP.MPSMIN
  std::uint8_t write_uncorrectable;
  std::uint8_t dataset_ranges;
  std::uint32_t dataset_range_blocks;  // DMRSL: of one range
  std::uint64_t dataset_blocks;        // DMSL: of all ranges of a command
  std::uint8_t unused[4096 - 16];
};
static_assert(sizeof(IdentifyCommandSet) == identify_bytes && offsetof(IdentifyCommandSet, write_zeroes) == 1);
static_assert(offsetof(IdentifyCommandSet, dataset_range_blocks) == 4);
static_assert(offsetof(IdentifyCommandSet, dataset_blocks) == 8);

struct LbaFormat {
  std::uint16_t metadata_bytes;
  std::uint8_t block_exponent;
  std::uint8_t performance;
};

// Identify Namespace, NVM Command Set §4.1.5.1.
struct IdentifyNamespace {
  std::uint64_t size_blocks;
  std::uint64_t capacity_blocks;
  std::uint64_t used_blocks;
  std::uint8_t features;
  std::uint8_t format_count;  // zero-based
  std::uint8_t format;        // bits 3:0 the index in use, 6:5 its upper bits
  std::uint8_t metadata_capabilities;
  std::uint8_t protection_capabilities;
  std::uint8_t protection;  // bits 2:0: the type in use
  std::uint8_t unused_1[128 - 30];
  LbaFormat formats[64];
  std::uint8_t unused_2[4096 - 384];
};
static_assert(sizeof(LbaFormat) == 4 && sizeof(IdentifyNamespace) == identify_bytes);
static_assert(offsetof(IdentifyNamespace, format_count) == 25 && offsetof(IdentifyNamespace, format) == 26);
static_assert(offsetof(IdentifyNamespace, protection) == 29 && offsetof(IdentifyNamespace, formats) == 128);

// A range of Dataset Management, NVM Command Set §3.2.3.
struct DatasetRange {
  std::uint32_t attributes;
  std::uint32_t blocks;
  std::uint64_t first;
};
static_assert(sizeof(DatasetRange) == 16 && offsetof(DatasetRange, first) == 8);

}  // namespace penstock::nvme

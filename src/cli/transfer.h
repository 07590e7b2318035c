// What load and write share: their flags, the GPU that one of them names, and a look at its memory from the CPU.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common.h"
#include "output.h"

namespace penstock::cli {

struct TransferFlags {
  std::string domain = "host";
  std::optional<std::uint64_t> offset, size;
  bool verify = false;
  bool tuning = true;
  double deadline_seconds = 0;  // 0: as the options say
  ContextFlags context;
  OutputFlags output;
};

// An option's name where it differs from command to command, and what it means there.
struct TransferHelp {
  const char* domain_name;
  const char* domain;
  const char* offset;
  const char* size;
  const char* verify;
  const char* deadline;
};
struct TransferOptions {
  CLI::Option *offset, *size;
};
TransferOptions add_transfer_flags(CLI::App& parser, TransferFlags& flags, const TransferHelp& help);

// A Context with what `penstock tune` found, if it found something for the stores of that name and the domain.
struct TunedContext {
  Context context;
  std::optional<std::string> tuning;  // the file that changed its options
};
Result<TunedContext> make_tuned_context(const TransferFlags& flags, std::span<const std::string> names, Domain domain);
// Names that file in the report.
void add_tuning(const std::optional<std::string>& tuning, Transfer& transfer);

// Code::no_device if there is no GPU of that number, or none at all.
Result<Gpu> find_gpu(Domain domain);

// Code::out_of_memory, before anything is allocated, for what can't fit into a GPU or into the host's free memory.
Status check_room(Domain domain, std::uint64_t bytes, std::string hint = "load it in parts, with --offset and --size");

// Names the option that makes room for so many bytes, where a budget of pinned memory was too small for them.
Error with_budget_option(Error error, const Context& context, Domain domain, std::uint64_t bytes);

// Shows memory of any domain to the CPU, a piece at a time.
class Lens {
 public:
  static constexpr std::size_t piece_bytes = 2 << 20;
  // Valid until the next call. REQUIRES: piece.size_bytes <= piece_bytes
  Result<std::span<const std::byte>> look(Region piece);

 private:
  std::vector<std::byte> window_;
};

}  // namespace penstock::cli

#include "transfer.h"

#include <algorithm>
#include <fstream>

namespace penstock::cli {

namespace {

// What could be allocated now without pushing others out; all of memory where the kernel does not say.
std::uint64_t available_memory_bytes(const Machine& machine) {
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  std::uint64_t kilobytes = 0;
  while (meminfo >> key >> kilobytes) {
    if (key == "MemAvailable:") return std::min<std::uint64_t>(machine.memory_bytes, kilobytes * 1024);
    std::getline(meminfo, unit);
  }
  return machine.memory_bytes;
}

}  // namespace

TransferOptions add_transfer_flags(CLI::App& parser, TransferFlags& flags, const TransferHelp& help) {
  parser.add_option(help.domain_name, flags.domain, help.domain)->type_name("DOMAIN")->capture_default_str();
  auto* offset = add_size(parser, "--offset", flags.offset, help.offset);
  auto* size = add_size(parser, "--size", flags.size, help.size);
  parser.add_flag("--verify", flags.verify, help.verify);
  add_context_flags(parser, flags.context);
  parser.add_flag("--json", flags.output.json, "print one JSON object");
  parser.add_flag("--quiet", flags.output.quiet, "print nothing but errors");
  return {offset, size};
}

Result<Gpu> find_gpu(Domain domain) {
  Result<std::vector<Gpu>> gpus = list_gpus();
  if (!gpus.ok()) return gpus.error();
  for (Gpu& gpu : *gpus) {
    if (gpu.domain == domain) return std::move(gpu);
  }
  const std::size_t count = gpus->size();
  return Error{.code = Code::no_device,
               .message = "there is no " + domain.name() + ": this process may use " + std::to_string(count) +
                          (count == 1 ? " GPU" : " GPUs"),
               .hint = "GPUs are counted from cuda:0; CUDA_VISIBLE_DEVICES chooses which ones; see penstock doctor"};
}

Status check_room(Domain domain, std::uint64_t bytes, const Machine& machine) {
  std::uint64_t room = available_memory_bytes(machine);
  std::string where = "that are available";
  if (domain.kind() == Domain::Kind::cuda) {
    const Result<Gpu> gpu = find_gpu(domain);
    if (!gpu.ok()) return gpu.error();
    room = gpu->memory_bytes;
    where = "of " + domain.name();
  }
  if (bytes <= room) return {};
  return Error{.code = Code::out_of_memory,
               .message = format_bytes(bytes) + " are more than the " + format_bytes(room) + " of memory " + where,
               .hint = "take it in parts, with --offset and --size"};
}

Result<std::span<const std::byte>> Lens::look(Region piece) {
  if (piece.domain.host_accessible()) return std::span<const std::byte>(piece.data, piece.size_bytes);
  window_.resize(piece_bytes);
  const Status copied = copy(Region::host(window_.data(), piece.size_bytes), piece);
  if (!copied.ok()) return copied.error();
  return std::span<const std::byte>(window_.data(), piece.size_bytes);
}

}  // namespace penstock::cli

#include "transfer.h"

#include <sys/stat.h>

#include <algorithm>

namespace penstock::cli {

namespace {

constexpr double shortest_deadline_seconds = 0.001, longest_deadline_seconds = 1e6;

// Files on different file systems have no options that are best for all.
bool on_one_device(std::span<const std::string> names) {
  std::optional<dev_t> first;
  for (const std::string& name : names) {
    struct stat status {};
    if (stat(local_path(name).c_str(), &status) != 0) continue;
    const dev_t device = S_ISBLK(status.st_mode) ? status.st_rdev : status.st_dev;
    if (first.value_or(device) != device) return false;
    first = device;
  }
  return true;
}

}  // namespace

TransferOptions add_transfer_flags(CLI::App& parser, TransferFlags& flags, const TransferHelp& help) {
  parser.add_option(help.domain_name, flags.domain, help.domain)->type_name("DOMAIN")->capture_default_str();
  auto* offset = add_size(parser, "--offset", flags.offset, help.offset);
  auto* size = add_size(parser, "--size", flags.size, help.size);
  parser.add_flag("--verify", flags.verify, help.verify);
  parser.add_option("--deadline", flags.deadline_seconds, help.deadline)
      ->type_name("SECONDS")
      ->check(number(shortest_deadline_seconds, longest_deadline_seconds));
  add_context_flags(parser, flags.context);
  parser.add_flag("--no-tuning{false}", flags.tuning, "don't use what `penstock tune` found");
  parser.add_flag("--json", flags.output.json, "print one JSON object");
  parser.add_flag("--quiet", flags.output.quiet, "print nothing but errors");
  return {offset, size};
}

Result<TunedContext> make_tuned_context(const TransferFlags& flags, std::span<const std::string> names, Domain domain) {
  Result<Options> options = make_options(flags.context);
  if (!options.ok()) return options.error();
  std::optional<std::string> used;
  const std::string file = flags.tuning && on_one_device(names) ? default_tuning_file() : "";
  const Result<std::optional<Tuning>> tuning = find_tuning(local_path(names.front()), domain, file);
  if (!tuning.ok()) return tuning.error();
  if (*tuning) {
    const Options tuned = (*tuning)->apply(*options);
    if (tuned != *options) used = file;
    options = tuned;
  }
  Result<Context> context = make_context(*options);
  if (!context.ok()) return context.error();
  return TunedContext{std::move(*context), std::move(used)};
}

void add_tuning(const std::optional<std::string>& tuning, Transfer& transfer) {
  transfer.head["tuning"] = tuning ? Json(*tuning) : Json();
  if (tuning) transfer.own.push_back({"tuning", "options from " + *tuning});
}

Result<Gpu> find_gpu(Domain domain) {
  Result<std::vector<Gpu>> gpus = list_gpus();
  if (!gpus.ok()) return gpus.error();
  for (Gpu& gpu : *gpus) {
    if (gpu.domain == domain) return std::move(gpu);
  }
  const std::size_t count = gpus->size();
  return Error{.code = Code::no_device,
               .message = "there is no " + domain.name() + ": this process can use " + std::to_string(count) +
                          (count == 1 ? " GPU" : " GPUs"),
               .hint = "GPUs are counted from cuda:0; CUDA_VISIBLE_DEVICES chooses which ones; see penstock doctor"};
}

Status check_room(Domain domain, std::uint64_t bytes, std::string hint) {
  std::uint64_t room = Machine::available_memory_bytes();
  std::string where = "available";
  if (domain.kind() == Domain::Kind::cuda) {
    const Result<Gpu> gpu = find_gpu(domain);
    if (!gpu.ok()) return gpu.error();
    room = gpu->memory_bytes;
    where = "of " + domain.name();
  }
  if (bytes <= room) return {};
  return Error{.code = Code::out_of_memory,
               .message = format_bytes(bytes) + " is more than the " + format_bytes(room) + " of memory " + where,
               .hint = std::move(hint)};
}

Error with_budget_option(Error error, const Context& context, Domain domain, std::uint64_t bytes) {
  if (error.code != Code::over_budget || domain.kind() != Domain::Kind::pinned) return error;
  const std::uint64_t enough = context.options().pinned_budget_bytes + bytes;
  error.hint =
      "raise the budget with --options '{\"pinned_budget_bytes\": " + std::to_string(enough) + "}', or load to host";
  return error;
}

Result<std::span<const std::byte>> Lens::look(Region piece) {
  if (piece.domain.host_accessible()) return std::span<const std::byte>(piece.data, piece.size_bytes);
  window_.resize(piece_bytes);
  const Status copied = copy(Region::host(window_.data(), piece.size_bytes), piece);
  if (!copied.ok()) return copied.error();
  return std::span<const std::byte>(window_.data(), piece.size_bytes);
}

}  // namespace penstock::cli

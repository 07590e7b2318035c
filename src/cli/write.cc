// penstock write: copies a store, standard input or a pattern into a store, from host memory or from that of a GPU.
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "apart.h"
#include "copying.h"
#include "source.h"
#include "transfer.h"

namespace penstock::cli {

namespace {

constexpr std::string_view soft_scheme = "soft-nvme:";

struct WriteFlags : TransferFlags {
  std::string source, destination;
  std::optional<Pattern> pattern;  // instead of a source
  bool durable = true;
  bool replace = false;
  bool in_place = false;
  bool allow_device_write = false;
  std::string serial;
  std::vector<std::uint64_t> window;  // the first block that may be written, and how many
};

Error usage(std::string message, std::string hint) {
  return {.code = Code::invalid_argument, .message = std::move(message), .hint = std::move(hint)};
}

Result<Pattern> parse_pattern(const std::string& text) {
  const std::size_t comma = text.find(',');
  const Result<std::uint64_t> size = parse_size(std::string_view(text).substr(0, comma));
  if (!size.ok()) return size.error();
  Pattern pattern{.size_bytes = *size};
  if (comma == std::string::npos) return pattern;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + comma + 1, end, pattern.seed);
  if (error != std::errc() || stop != end) {
    return usage("\"" + text.substr(comma + 1) + "\" is not a seed", "write SIZE,SEED with a whole number as the seed");
  }
  return pattern;
}

// A disk that we reach without the kernel.
bool is_own_disk(const std::string& name) {
  return name.starts_with("nvme:");
}

bool is_block_device(const std::string& name) {
  if (is_own_disk(name)) return true;
  struct stat status {};
  return stat(local_path(name).c_str(), &status) == 0 && S_ISBLK(status.st_mode);
}

// Blocks that are what they are: a device, or the namespace of a controller that this process drives.
bool has_fixed_size(const std::string& name) {
  return is_block_device(name) || name.starts_with(soft_scheme);
}

// How the destination is to be opened: a whole new file, or in place.
Result<Access> choose_access(const WriteFlags& flags) {
  const bool fixed_size = has_fixed_size(flags.destination);
  if (fixed_size && flags.replace) {
    return usage(flags.destination + " is a device and can't be replaced", "leave out --replace");
  }
  if (fixed_size) return Access::write;
  if (flags.in_place) return Access::create;
  if (flags.offset) {
    return usage("--offset makes no sense for a file that is replaced as a whole",
                 "add --in-place to write into " + flags.destination);
  }
  return Access::replace;
}

// With --pattern the only name is that of the destination.
Result<WriteFlags> settle_names(WriteFlags flags) {
  if (flags.pattern && !flags.destination.empty()) {
    return usage("--pattern takes no SOURCE", "penstock write --pattern SIZE DEST");
  }
  if (flags.pattern) flags.destination = std::exchange(flags.source, "pattern");
  if (flags.destination.empty() || flags.source.empty()) {
    return usage("SOURCE or DEST is missing", "penstock write SOURCE DEST, or penstock write --pattern SIZE DEST");
  }
  if (!is_own_disk(flags.destination) && !(flags.serial.empty() && flags.window.empty())) {
    return usage("--serial and --window need a DEST nvme:ADDRESS, which " + flags.destination + " is not",
                 "leave them out");
  }
  if (flags.pattern && flags.size) return usage("--size and --pattern exclude each other", "give the size once");
  return flags;
}

// All of a store, with its holes.
Result<StoreSlice> open_slice(const Context& context, const std::string& name) {
  Holes holes = Holes::of(local_path(name));
  Result<Store> store = context.open(name, {.descriptor = holes.descriptor()});
  if (!store.ok()) return store.error();
  const std::uint64_t size_bytes = store->info().size_bytes;
  return StoreSlice{.store = std::move(*store), .extent = {0, size_bytes}, .holes = std::move(holes)};
}

// A SOURCE that is a store, or nothing for the other kinds.
Result<std::optional<StoreSlice>> open_source(const Context& context, const WriteFlags& flags) {
  if (flags.pattern) return std::optional<StoreSlice>();
  Result<StoreSlice> slice = open_slice(context, flags.source);
  if (!slice.ok()) return slice.error();
  const std::uint64_t all = slice->extent.size_bytes;
  if (flags.size && *flags.size > all) {
    return Error{.code = Code::out_of_range,
                 .message = "--size " + std::to_string(*flags.size) + " reaches past the end of " + flags.source,
                 .hint = "it has " + std::to_string(all) + " bytes"};
  }
  slice->extent.size_bytes = flags.size.value_or(all);
  return std::optional<StoreSlice>(std::move(*slice));
}

// What the destination needs.
struct Demand {
  std::optional<std::uint64_t> source_bytes;  // if they are known
  std::optional<std::uint64_t> data_bytes;    // of a source with holes: what they leave, about
};
Demand demand_of(const std::optional<StoreSlice>& slice, const WriteFlags& flags) {
  if (!slice) return {flags.pattern ? std::optional(flags.pattern->size_bytes) : flags.size, std::nullopt};
  const std::uint64_t size_bytes = slice->extent.size_bytes;
  // On its way through GPU memory a source has no holes any more.
  const bool sparse = !flags.domain.starts_with("cuda") && slice->holes.any_in(slice->extent);
  if (!sparse) return {size_bytes, std::nullopt};
  return {size_bytes, std::min(size_bytes, slice->holes.allocated_bytes())};
}

// The file that is there; 0 if there is none.
std::uint64_t file_size(const std::string& name) {
  struct stat status {};
  return stat(local_path(name).c_str(), &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
}

std::string folder_of(const std::string& name) {
  std::error_code ignored;
  return std::filesystem::absolute(local_path(name), ignored).parent_path().string();
}

// In a file system that is memory, room is memory too, and who takes more than a container has is killed.
Status check_memory(const WriteFlags& flags, std::uint64_t new_bytes) {
  Result<MountFacts> mount = find_mount(local_path(flags.destination));
  if (!mount.ok()) mount = find_mount(folder_of(flags.destination));
  if (!mount.ok() || (mount->file_system != "tmpfs" && mount->file_system != "ramfs")) return {};
  return check_room(Domain::host(), new_bytes, mount->file_system + " is memory: write to a disk instead");
}

// What has holes reserves no room: that there is enough must be known all the same before the first byte.
Status check_disk(const WriteFlags& flags, std::uint64_t data_bytes) {
  std::error_code unknown;
  const std::filesystem::space_info space = std::filesystem::space(folder_of(flags.destination), unknown);
  if (unknown || space.capacity == 0 || data_bytes <= space.free) return {};
  return Error{.code = Code::no_space,
               .message = flags.source + " has " + format_bytes(data_bytes) + " besides its holes, and " +
                          flags.destination + " has room for " + format_bytes(space.free),
               .hint = "free some space, or write to another disk"};
}

Result<Store> open_destination(const Context& context, const WriteFlags& flags, const Demand& demand) {
  const bool fixed_size = has_fixed_size(flags.destination);
  const Result<Access> access = choose_access(flags);
  if (!access.ok()) return access.error();
  Inputs inputs{{}, {flags.context.options}};
  // A file may be replaced by a part of itself: that is what was asked for.
  if (!flags.pattern) (*access == Access::replace ? inputs.replaceable : inputs.stores).push_back(flags.source);
  if (Status apart = check_apart({"DEST", flags.destination}, inputs); !apart.ok()) return apart.error();
  const std::uint64_t offset = flags.offset.value_or(0);
  std::uint64_t end = 0;
  if (__builtin_add_overflow(offset, demand.source_bytes.value_or(0), &end)) {
    return usage("--offset plus the size of the source is beyond 2^64 bytes", "choose a smaller --offset");
  }
  if (!fixed_size) {
    const std::uint64_t old_end = *access == Access::replace ? 0 : file_size(flags.destination);
    const std::uint64_t data_bytes = demand.data_bytes.value_or(end - offset);
    const std::uint64_t new_bytes = std::min(data_bytes, end - std::min(end, old_end));
    if (Status room = check_memory(flags, new_bytes); !room.ok()) return room.error();
  }
  const OpenOptions options{.access = *access,
                            .size_bytes = fixed_size || !demand.source_bytes ? 0 : end,
                            .reserve_from = demand.data_bytes ? end : offset,
                            .allow_block_device_write = flags.allow_device_write,
                            .serial = flags.serial,
                            .first_writable_block = flags.window.empty() ? 0 : flags.window[0],
                            .writable_blocks = flags.window.empty() ? 0 : flags.window[1]};
  Result<Store> store = context.open(flags.destination, options);
  if (!store.ok() && is_block_device(flags.destination) && !flags.allow_device_write &&
      store.error().code == Code::read_only) {
    Error error = store.error();
    error.hint = "writing destroys the data on the device; add --allow-device-write if you mean it";
    return error;
  }
  if (!store.ok() && is_own_disk(flags.destination) && store.error().code == Code::read_only) {
    Error error = store.error();
    error.hint = "add --serial, which `penstock nvme identify` prints, and --window FIRST COUNT, in blocks";
    return error;
  }
  if (store.ok() && demand.data_bytes && *access == Access::replace) {
    if (Status room = check_disk(flags, *demand.data_bytes); !room.ok()) return room.error();
  }
  // A device can't grow: better to know before the first window than after the last that fits.
  if (store.ok() && fixed_size && end > store->info().size_bytes) {
    return Error{
        .code = Code::out_of_range,
        .message = "writing up to byte " + std::to_string(end) + " reaches past the end of " + flags.destination,
        .hint = "it has " + std::to_string(store->info().size_bytes) + " bytes"};
  }
  return store;
}

// The checksum of what the store holds.
Result<Checksum> read_back(const Context& context, const WriteFlags& flags, std::uint64_t size_bytes) {
  Result<StoreSlice> slice = open_slice(context, flags.destination);
  if (!slice.ok()) return slice.error();
  slice->extent = {flags.offset.value_or(0), size_bytes};
  const std::uint64_t window_bytes = std::clamp<std::uint64_t>(size_bytes, 1, copy_window_bytes());
  Result<Buffer> window = context.allocate(Domain::host(), window_bytes);
  if (!window.ok()) return window.error();

  Checksum checksum;
  std::uint64_t position = 0;
  const auto source = store_source(context, std::move(*slice));
  for (;;) {
    const Result<std::vector<Extent>> filled = source->fill_data(window->region());
    if (!filled.ok()) return filled.error();
    std::uint64_t used = 0;
    for (const Extent& run : *filled) {
      if (Status added = add_zeros(checksum, run.offset - position); !added.ok()) return added.error();
      checksum.add(window->bytes().subspan(used, run.size_bytes));
      used += run.size_bytes;
      position = run.end();
    }
    if (!filled->empty()) continue;
    if (Status added = add_zeros(checksum, size_bytes - position); !added.ok()) return added.error();
    return Result<Checksum>(std::move(checksum));
  }
}

// What was written is read past the page cache as far as the store can. A controller that `context` drives has no page
// cache before it, and can't be opened by another.
Result<Checksum> read_back_uncached(const Context& context, const WriteFlags& flags, std::uint64_t size_bytes) {
  if (is_own_disk(flags.destination)) return read_back(context, flags, size_bytes);
  Result<Options> options = make_options(flags.context);
  if (!options.ok()) return options.error();
  options->cache = Cache::bypass;
  Result<Context> other = make_context(*options);
  if (!other.ok()) return other.error();
  return read_back(*other, flags, size_bytes);
}

Verified verify(const Context& context, const WriteFlags& flags, std::uint64_t size_bytes, const Checksum& written) {
  const Result<Checksum> found = read_back_uncached(context, flags, size_bytes);
  if (!found.ok()) {
    Error error = found.error();
    const bool replaced = !flags.in_place && !has_fixed_size(flags.destination);
    error.message = flags.destination + (replaced ? " was written and is the new file" : " was written") +
                    ", but could not be read back: " + error.message;
    return {written.hex(), std::move(error)};
  }
  if (found->value() == written.value()) return {written.hex(), std::nullopt};
  return {written.hex(), Error{.code = Code::io_error,
                               .message = flags.destination + " does not contain the bytes that were written",
                               .hint = "something else wrote to it, or the device fails: see the kernel log"}};
}

struct Written {
  Report report;
  double sync_seconds = 0;  // of those of the report
};

// A window is a request of its own, and counts its own bytes only.
Error of_all_windows(Error error, const CopyJob& job, std::uint64_t bytes) {
  if (error.code != Code::cancelled && error.code != Code::timed_out && error.code != Code::abandoned) return error;
  const std::optional<std::uint64_t> total = job.source.size_bytes();
  error.message = error.message.substr(0, error.message.find(';')) + "; " + std::to_string(bytes) +
                  (total ? " of " + std::to_string(*total) : "") + " bytes were written";
  return error;
}

// Moves the bytes and makes them final; a file that was to be replaced is untouched unless all went well.
Written write_all(const CopyJob& job, Store& destination, const WriteFlags& flags) {
  const Stopwatch stopwatch;
  double sync_seconds = 0;
  Report report = [&] {
    Progress progress(job.memory ? job.memory->size_bytes : job.source.size_bytes(), flags.output);
    return job.memory ? write_memory(job, progress) : copy_windows(job, progress);
  }();
  if (report.ok()) {
    const Stopwatch syncing;
    if (Status status = destination.commit(flags.durable); !status.ok()) {
      report.outcome = Outcome::failed;
      report.error = status.error();
    }
    if (flags.durable) sync_seconds = syncing.seconds();
  }
  // The error that brought us here matters more than one of cleaning up.
  if (!report.ok()) {
    static_cast<void>(destination.abort());
    report.error = of_all_windows(*report.error, job, report.bytes);
  }
  report.seconds = stopwatch.seconds();
  return {std::move(report), sync_seconds};
}

// Why a crash of the system may lose what was written; empty if it is durable.
std::string not_durable_because(const WriteFlags& flags, const Store& destination) {
  return flags.durable ? destination.info().volatile_because : "--no-durable was given";
}

// With a GPU as the domain, all of the source is brought into its memory before the first byte is written.
Result<std::optional<Buffer>> fill_memory(CopyJob& job) {
  const Domain domain = job.domain;
  if (domain.host_accessible()) return std::optional<Buffer>();
  const std::optional<std::uint64_t> size = job.source.size_bytes();
  if (!size) return usage("GPU memory needs a SOURCE of known size", "add --size");
  if (Status room = check_room(domain, *size); !room.ok()) return room.error();
  if (Status ready = job.context.prepare(domain); !ready.ok()) return ready.error();
  job.memory = Region{.domain = domain};
  if (*size == 0) return std::optional<Buffer>();
  Result<Buffer> memory = job.context.allocate(domain, *size);
  if (!memory.ok()) return memory.error();
  job.memory = memory->region();
  if (Status filled = fill_gpu(job); !filled.ok()) return filled.error();
  return std::optional<Buffer>(std::move(*memory));
}

Exit run(const WriteFlags& given) {
  const Output output(given.output);
  const Stopwatch setup;
  const Result<WriteFlags> settled = settle_names(given);
  if (!settled.ok()) return output.fail(settled.error());
  const WriteFlags& flags = *settled;
  const Result<Domain> domain = Domain::parse(flags.domain);
  if (!domain.ok()) return output.fail(domain.error());
  Result<TunedContext> tuned = make_tuned_context(flags, {&flags.destination, 1}, *domain);
  if (!tuned.ok()) return output.fail(tuned.error());
  Context* context = &tuned->context;

  const Deadline deadline(flags.deadline_seconds);
  Result<std::unique_ptr<Source>> stream = std::unique_ptr<Source>();
  if (!flags.pattern) stream = open_stream(flags.source, flags.size, deadline);
  if (!stream.ok()) return output.fail(stream.error());
  Result<std::optional<StoreSlice>> slice = std::optional<StoreSlice>();
  if (!*stream) slice = open_source(*context, flags);
  if (!slice.ok()) return output.fail(slice.error());
  const Demand demand = demand_of(*slice, flags);
  const auto source = *slice          ? store_source(*context, std::move(**slice), deadline)
                      : flags.pattern ? pattern_source(*flags.pattern)
                                      : std::move(*stream);
  Checksum checksum;
  CopyJob job{.context = *context,
              .source = *source,
              .domain = *domain,
              .offset = flags.offset.value_or(0),
              .checksum = flags.verify ? &checksum : nullptr,
              .deadline = deadline};
  const Result<std::optional<Buffer>> memory = fill_memory(job);
  if (!memory.ok()) return output.fail(memory.error());
  const bool replaces = !flags.in_place && !has_fixed_size(flags.destination);
  std::error_code ignored;
  const bool was_there = std::filesystem::exists(local_path(flags.destination), ignored);
  if (!replaces) job.old_end = has_fixed_size(flags.destination) ? UINT64_MAX : file_size(flags.destination);
  Result<Store> destination = open_destination(*context, flags, demand);
  if (!destination.ok()) return output.fail(destination.error());
  job.destination = &*destination;

  const std::string not_durable = not_durable_because(flags, *destination);
  Transfer transfer{.head = {{"schema", "penstock.write/1"},
                             {"source", flags.source},
                             {"from", flags.domain},
                             {"destination", flags.destination},
                             {"offset", flags.offset.value_or(0)},
                             {"durable", not_durable.empty()},
                             {"not_durable_because", not_durable.empty() ? Json() : Json(not_durable)},
                             {"replaced", replaces && was_there},
                             {"in_place", !replaces}},
                    .setup_seconds = setup.seconds()};
  add_tuning(tuned->tuning, transfer);
  Written written = write_all(job, *destination, flags);
  if (!written.report.ok()) return output.fail(written.report);
  transfer.report = std::move(written.report);
  const std::uint64_t bytes = transfer.report.bytes;
  const std::uint64_t hole_bytes = source->size_bytes().value_or(bytes) - bytes;
  transfer.head.update({{"hole_bytes", hole_bytes}, {"sync_seconds", written.sync_seconds}});
  transfer.own.push_back({"sync", format_seconds(written.sync_seconds) + " of the time above"});
  transfer.own.push_back({"durable", not_durable.empty() ? "yes" : "no, a system crash may lose it: " + not_durable});
  if (hole_bytes != 0)
    transfer.own.push_back({"holes", format_bytes(hole_bytes) + ", kept as holes and not counted above"});
  if (flags.verify) transfer.verified = verify(*context, flags, bytes + hole_bytes, checksum);
  return output.transfer(transfer);
}

}  // namespace

Command add_write(CLI::App& tool) {
  auto flags = std::make_shared<WriteFlags>();  // shared by the parser's options and by run
  CLI::App* parser = tool.add_subcommand("write", "Copy a file, standard input or a pattern into a file or device");
  parser->add_option("SOURCE", flags->source, "a file, block device, pipe or URI; - is standard input");
  parser->add_option("DEST", flags->destination, "a file, block device or URI");
  const auto read_pattern = [flags](const std::string& text) {
    const Result<Pattern> pattern = parse_pattern(text);
    if (!pattern.ok()) throw CLI::ValidationError("--pattern", pattern.error().message + ": " + pattern.error().hint);
    flags->pattern = *pattern;
  };
  parser->add_option_function<std::string>("--pattern", read_pattern, "write generated bytes instead of a SOURCE")
      ->type_name("SIZE[,SEED]");
  add_transfer_flags(*parser, *flags,
                     {.domain_name = "--from",
                      .domain = "the memory to write from: host, pinned or cuda:N; SOURCE is first copied there",
                      .offset = "where in DEST to begin; needs --in-place for files",
                      .size = "how much of SOURCE to write; default: all",
                      .verify = "read back past the page cache and compare",
                      .deadline = "give up after this many seconds; a file that was to be replaced is kept"});
  parser->add_flag("--durable,!--no-durable", flags->durable, "sync before reporting success (default), or don't sync");
  auto* replace = parser->add_flag("--replace", flags->replace, "write a new file, then rename it to DEST (default)");
  parser->add_flag("--in-place", flags->in_place, "write into DEST; the bytes around stay as they are")
      ->excludes(replace);
  parser->add_flag("--allow-device-write", flags->allow_device_write, "allow overwriting the block device DEST");
  parser->add_option("--serial", flags->serial, "for DEST nvme:ADDRESS: the serial number of its controller");
  parser->add_option("--window", flags->window, "for DEST nvme:ADDRESS: the first block that may change, and how many")
      ->expected(2)
      ->transform(whole_number(0, UINT64_MAX))
      ->type_name("FIRST COUNT");
  parser->footer(
      "Examples:\n"
      "  penstock write weights.bin /mnt/fast/weights.bin --verify\n"
      "  tar c model | penstock write - model.tar\n"
      "  penstock write patch.bin disk.img --in-place --offset 1MiB\n"
      "  penstock write --pattern 4GiB,7 test.bin --from cuda:0 --json");
  return {parser, [flags] { return run(*flags); }};
}

}  // namespace penstock::cli

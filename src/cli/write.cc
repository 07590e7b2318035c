// penstock write: copies a store, standard input or a pattern into a store, from host memory or from that of a GPU.
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "copying.h"
#include "source.h"
#include "transfer.h"

namespace penstock::cli {

namespace {

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
    return usage("\"" + text.substr(comma + 1) + "\" is not a seed", "write SIZE,SEED with a whole number as seed");
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
  return is_block_device(name) || name.starts_with("soft-nvme:");
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
    return usage("--offset has no meaning for a file that is replaced as a whole",
                 "add --in-place to write into " + flags.destination);
  }
  return Access::replace;
}

// With --pattern the only name is that of the destination.
Result<WriteFlags> settle_names(WriteFlags flags) {
  if (flags.pattern && !flags.destination.empty()) {
    return usage("there is no SOURCE with --pattern", "penstock write --pattern SIZE DEST");
  }
  if (flags.pattern) flags.destination = std::exchange(flags.source, "pattern");
  if (flags.destination.empty() || flags.source.empty()) {
    return usage("SOURCE or DEST is missing", "penstock write SOURCE DEST, or penstock write --pattern SIZE DEST");
  }
  if (flags.pattern && flags.size) return usage("--size and --pattern exclude each other", "give the size once");
  return flags;
}

// A SOURCE that is a store, or nothing for the other kinds.
Result<std::optional<StoreSlice>> open_source(Context& context, const WriteFlags& flags) {
  if (flags.pattern || flags.source == "-") return std::optional<StoreSlice>();
  Result<Store> store = context.open(flags.source);
  if (!store.ok()) return store.error();
  const std::uint64_t all = store->info().size_bytes;
  if (flags.size && *flags.size > all) {
    return Error{.code = Code::out_of_range,
                 .message = "--size " + std::to_string(*flags.size) + " reaches past the end of " + flags.source,
                 .hint = "it has " + std::to_string(all) + " bytes"};
  }
  return std::optional<StoreSlice>(StoreSlice{.store = std::move(*store), .size_bytes = flags.size.value_or(all)});
}

Result<Store> open_destination(Context& context, const WriteFlags& flags, std::optional<std::uint64_t> source_bytes) {
  const bool fixed_size = has_fixed_size(flags.destination);
  const Result<Access> access = choose_access(flags);
  if (!access.ok()) return access.error();
  std::error_code ignored;  // of a destination that is not there yet
  if (*access != Access::replace && !flags.pattern &&
      std::filesystem::equivalent(local_path(flags.source), local_path(flags.destination), ignored)) {
    return usage(flags.source + " and " + flags.destination + " are the same store", "name another destination");
  }
  std::uint64_t end = 0;
  if (__builtin_add_overflow(flags.offset.value_or(0), source_bytes.value_or(0), &end)) {
    return usage("--offset plus the size of the source is beyond 2^64 bytes", "choose a smaller --offset");
  }
  const OpenOptions options{.access = *access,
                            .size_bytes = fixed_size || !source_bytes ? 0 : end,
                            .allow_block_device_write = flags.allow_device_write,
                            .serial = flags.serial,
                            .first_writable_block = flags.window.empty() ? 0 : flags.window[0],
                            .writable_blocks = flags.window.empty() ? 0 : flags.window[1]};
  Result<Store> store = context.open(flags.destination, options);
  if (!store.ok() && is_block_device(flags.destination) && !flags.allow_device_write &&
      store.error().code == Code::read_only) {
    Error error = store.error();
    error.hint = "writing destroys what is on the device; if that is meant, add --allow-device-write";
    return error;
  }
  if (!store.ok() && is_own_disk(flags.destination) && store.error().code == Code::read_only) {
    Error error = store.error();
    error.hint = "add --serial, as `penstock nvme identify` tells it, and --window FIRST COUNT, in blocks";
    return error;
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
Result<Checksum> read_back(Context& context, const WriteFlags& flags, std::uint64_t size_bytes) {
  Result<Store> store = context.open(flags.destination);
  if (!store.ok()) return store.error();
  Result<Buffer> window = context.allocate(Domain::host(), std::clamp<std::uint64_t>(size_bytes, 1, copy_window_bytes));
  if (!window.ok()) return window.error();

  Checksum checksum;
  const auto source =
      store_source(context, {.store = std::move(*store), .offset = flags.offset.value_or(0), .size_bytes = size_bytes});
  for (;;) {
    const Result<std::uint64_t> filled = source->fill(window->region());
    if (!filled.ok()) return filled.error();
    if (*filled == 0) return Result<Checksum>(std::move(checksum));
    checksum.add(window->bytes().first(*filled));
  }
}

// What was written is read past the page cache as far as the store can. A controller that `context` drives has no page
// cache before it, and can't be opened by another.
Result<Checksum> read_back_uncached(Context& context, const WriteFlags& flags, std::uint64_t size_bytes) {
  if (is_own_disk(flags.destination)) return read_back(context, flags, size_bytes);
  Result<Options> options = make_options(flags.context);
  if (!options.ok()) return options.error();
  options->cache = Cache::bypass;
  Result<Context> other = Context::create(*options);
  if (!other.ok()) return other.error();
  return read_back(*other, flags, size_bytes);
}

Verified verify(Context& context, const WriteFlags& flags, std::uint64_t size_bytes, const Checksum& written) {
  const Result<Checksum> found = read_back_uncached(context, flags, size_bytes);
  if (!found.ok()) return {written.hex(), found.error()};
  if (found->value() == written.value()) return {written.hex(), std::nullopt};
  return {written.hex(),
          Error{.code = Code::io_error,
                .message = flags.destination + " does not hold the bytes that were written to it",
                .hint = "something else wrote to it meanwhile, or the device fails: see the kernel log"}};
}

// Moves the bytes and makes them final; a file that was to be replaced is untouched unless all went well.
Report write_all(const CopyJob& job, Store& destination, bool commit, const OutputFlags& flags) {
  const Stopwatch stopwatch;
  Report report = [&] {
    Progress progress(job.memory ? job.memory->size_bytes : job.source.size_bytes(), flags);
    return job.memory ? write_memory(job, progress) : copy_windows(job, progress);
  }();
  if (report.ok() && commit) {
    if (Status status = destination.commit(); !status.ok()) {
      report.outcome = Outcome::failed;
      report.error = status.error();
    }
  }
  // The error that brought us here matters more than one of cleaning up.
  if (!report.ok()) static_cast<void>(destination.abort());
  report.seconds = stopwatch.seconds();
  return report;
}

// With a GPU as the domain, all of the source is brought into its memory before the first byte is written.
Result<std::optional<Buffer>> fill_memory(CopyJob& job) {
  const Domain domain = job.domain;
  if (domain.host_accessible()) return std::optional<Buffer>();
  const std::optional<std::uint64_t> size = job.source.size_bytes();
  if (!size) return usage("the size of the source must be known to put it into GPU memory", "add --size");
  if (Status room = check_room(domain, *size, job.context.machine()); !room.ok()) return room.error();
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

  Result<std::optional<StoreSlice>> slice = open_source(*context, flags);
  if (!slice.ok()) return output.fail(slice.error());
  const auto source = *slice          ? store_source(*context, std::move(**slice))
                      : flags.pattern ? pattern_source(*flags.pattern)
                                      : standard_input(flags.size);
  Checksum checksum;
  CopyJob job{.context = *context,
              .source = *source,
              .domain = *domain,
              .offset = flags.offset.value_or(0),
              .checksum = flags.verify ? &checksum : nullptr};
  const Result<std::optional<Buffer>> memory = fill_memory(job);
  if (!memory.ok()) return output.fail(memory.error());
  Result<Store> destination = open_destination(*context, flags, source->size_bytes());
  if (!destination.ok()) return output.fail(destination.error());
  job.destination = &*destination;

  // A replaced file is always synced before it takes its name: anything else could lose both versions in a crash.
  const bool replaces = !flags.in_place && !has_fixed_size(flags.destination);
  const bool durable = flags.durable || replaces;
  Transfer transfer{.head = {{"schema", "penstock.write/1"},
                             {"source", flags.source},
                             {"from", flags.domain},
                             {"destination", flags.destination},
                             {"offset", flags.offset.value_or(0)},
                             {"durable", durable},
                             {"replaced", replaces}},
                    .own = {{"durable", durable ? "yes" : "no: a crash of the system may lose it"}},
                    .setup_seconds = setup.seconds()};
  add_tuning(tuned->tuning, transfer);
  transfer.report = write_all(job, *destination, durable, flags.output);
  if (!transfer.report.ok()) return output.fail(transfer.report);
  if (flags.verify) transfer.verified = verify(*context, flags, transfer.report.bytes, checksum);
  return output.transfer(transfer);
}

}  // namespace

Command add_write(CLI::App& tool) {
  auto flags = std::make_shared<WriteFlags>();  // shared by the parser's options and by run
  CLI::App* parser = tool.add_subcommand("write", "Copy a file, standard input or a pattern into a file or device");
  parser->add_option("SOURCE", flags->source, "a file, block device or URI; - is standard input");
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
                      .domain = "from which memory: host, pinned, or cuda:N, where the source is brought first",
                      .offset = "where in DEST to begin; needs --in-place for files",
                      .size = "how much of SOURCE to write; default: all",
                      .verify = "read back past the page cache and compare"});
  parser->add_flag("--durable,!--no-durable", flags->durable, "sync before success is reported (default)");
  auto* replace = parser->add_flag("--replace", flags->replace, "write a new file, then give it the name (default)");
  parser->add_flag("--in-place", flags->in_place, "write into DEST; bytes around stay as they are")->excludes(replace);
  parser->add_flag("--allow-device-write", flags->allow_device_write, "yes, overwrite the block device DEST");
  parser->add_option("--serial", flags->serial, "for DEST nvme:ADDRESS: the serial number of its controller");
  parser->add_option("--window", flags->window, "for DEST nvme:ADDRESS: the first block that may change, and how many")
      ->expected(2)
      ->check(whole_number(0, UINT64_MAX))
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

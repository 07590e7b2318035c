// penstock load: brings stores, or a part of them, into memory as one request, and says which way the bytes took.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "interrupt.h"
#include "transfer.h"

namespace penstock::cli {

namespace {

constexpr unsigned repeat_limit = 1000;

struct LoadFlags : TransferFlags {
  std::vector<std::string> paths;
  std::optional<std::uint64_t> lba, count;
  unsigned repeat = 1;
};

// Everything that is open and allocated before the first byte moves.
struct Job {
  Context context;
  std::optional<std::string> tuning;
  std::vector<Store> stores;
  std::vector<Buffer> buffers;
  std::vector<Range> ranges;  // one for each store
  std::uint64_t bytes = 0;
};

struct Slice {
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;
};

Result<Slice> choose_slice(const StoreInfo& info, const LoadFlags& flags) {
  const bool in_blocks = flags.lba || flags.count;
  const std::uint64_t unit = in_blocks ? info.block_bytes : 1;
  if (unit == 0) {
    return Error{.code = Code::unsupported,
                 .message = info.name + " does not tell its block size",
                 .hint = "use --offset and --size instead of --lba and --count"};
  }
  const std::uint64_t start = (in_blocks ? flags.lba : flags.offset).value_or(0);
  const std::optional<std::uint64_t> length = in_blocks ? flags.count : flags.size;

  Slice slice;
  std::uint64_t end = 0;
  if (__builtin_mul_overflow(start, unit, &slice.offset) ||
      (length && __builtin_mul_overflow(*length, unit, &slice.size_bytes)) ||
      __builtin_add_overflow(slice.offset, slice.size_bytes, &end)) {
    return Error{.code = Code::invalid_argument,
                 .message = "the range ends beyond 2^64 bytes",
                 .hint = info.name + " has " + std::to_string(info.size_bytes) + " bytes"};
  }
  if (end > info.size_bytes) {
    return Error{.code = Code::out_of_range,
                 .message = "bytes " + std::to_string(slice.offset) + " to " + std::to_string(end) +
                            " reach past the end of " + info.name,
                 .hint = "it has " + std::to_string(info.size_bytes) + " bytes"};
  }
  if (!length) slice.size_bytes = info.size_bytes - slice.offset;
  return slice;
}

Result<Job> prepare(const LoadFlags& flags) {
  const Result<Domain> domain = Domain::parse(flags.domain);
  if (!domain.ok()) return domain.error();
  Result<TunedContext> tuned = make_tuned_context(flags, flags.paths, *domain);
  if (!tuned.ok()) return tuned.error();

  Job job{.context = std::move(tuned->context), .tuning = std::move(tuned->tuning)};
  std::vector<Slice> slices;
  for (const std::string& path : flags.paths) {
    Result<Store> store = job.context.open(path);
    if (!store.ok()) return store.error();
    const Result<Slice> slice = choose_slice(store->info(), flags);
    if (!slice.ok()) return slice.error();
    if (__builtin_add_overflow(job.bytes, slice->size_bytes, &job.bytes)) job.bytes = UINT64_MAX;
    job.stores.push_back(std::move(*store));
    slices.push_back(*slice);
  }
  if (Status room = check_room(*domain, job.bytes, job.context.machine()); !room.ok()) return room.error();
  if (!domain->host_accessible()) {
    if (Status ready = job.context.prepare(*domain); !ready.ok()) return ready.error();
  }

  for (std::size_t i = 0; i < slices.size(); ++i) {
    Region memory{.domain = *domain};
    if (slices[i].size_bytes != 0) {
      Result<Buffer> buffer = job.context.allocate(*domain, slices[i].size_bytes);
      if (!buffer.ok()) return buffer.error();
      memory = buffer->region();
      job.buffers.push_back(std::move(*buffer));
    }
    job.ranges.push_back({.store = &job.stores[i], .offset = slices[i].offset, .memory = memory});
  }
  return job;
}

// Whether a file is still the one that was opened, unmodified.
bool same_content(int fd, const Identity& identity) {
  struct stat now {};
  if (fstat(fd, &now) != 0) return false;
  const std::int64_t modified_ns = now.st_mtim.tv_sec * 1'000'000'000 + now.st_mtim.tv_nsec;
  return now.st_ino == identity.inode && modified_ns == identity.modified_ns;
}

Error mismatch(const StoreInfo& info, int fd) {
  if (info.kind == StoreKind::file && !same_content(fd, info.identity)) {
    return {.code = Code::changed,
            .message = info.name + " was modified while it was loaded and verified",
            .hint = "load it again when nothing writes to it"};
  }
  return {.code = Code::io_error,
          .message = "the bytes in memory differ from those that a plain read of " + info.name + " gives",
          .hint = "try --engine posix; if the bytes still differ, check the device"};
}

struct Verification {
  Checksum memory, file;
};

// Adds what memory holds and what an independent, plain read of the file gives.
Status add_range(const Range& range, const std::string& path, Verification& sums) {
  const StoreInfo& info = range.store->info();
  struct Descriptor {
    int fd;
    ~Descriptor() {
      if (fd >= 0) close(fd);
    }
  } const file{open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) return system_error(errno, "open " + path + " to verify");

  Lens lens;
  std::vector<std::byte> window(Lens::piece_bytes);
  for (std::size_t done = 0; done < range.memory.size_bytes;) {
    if (interrupted()) return interrupted_error();
    const std::size_t wanted = std::min(window.size(), range.memory.size_bytes - done);
    const ssize_t got = pread(file.fd, window.data(), wanted, static_cast<off_t>(range.offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error(errno, "read " + path + " to verify");
    if (got == 0) return mismatch(info, file.fd);
    const auto bytes = static_cast<std::size_t>(got);
    const Result<std::span<const std::byte>> loaded = lens.look(range.memory.part(done, bytes));
    if (!loaded.ok()) return loaded.error();
    sums.file.add({window.data(), bytes});
    sums.memory.add(*loaded);
    done += bytes;
  }
  if (sums.file.value() != sums.memory.value()) return mismatch(info, file.fd);
  return {};
}

Verified verify(const Job& job, const std::vector<std::string>& names) {
  Verification sums;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const Status status = add_range(job.ranges[i], local_path(names[i]), sums);
    if (!status.ok()) return {sums.memory.hex(), status.error()};
  }
  return {sums.memory.hex(), std::nullopt};
}

Report load_once(Job& job, const OutputFlags& flags) {
  Result<Ticket> ticket = job.context.submit(Direction::read, job.ranges);
  if (!ticket.ok()) return {.outcome = Outcome::failed, .error = ticket.error()};
  Progress progress(job.bytes, flags);
  return await(std::move(*ticket), [&](std::uint64_t bytes) { progress.update(bytes); });
}

// The middle of all rounds but the first, which finds nothing warm.
double steady_rate(const std::vector<Report>& rounds) {
  std::vector<double> rates;
  for (const Report& round : std::span(rounds).subspan(1)) rates.push_back(rate(round.bytes, round.seconds));
  std::ranges::sort(rates);
  return rates.empty() ? 0 : rates[(rates.size() - 1) / 2];
}

void add_rounds(const std::vector<Report>& rounds, Transfer& transfer) {
  Json list = Json::array();
  std::string text;
  for (const Report& round : rounds) {
    const double speed = rate(round.bytes, round.seconds);
    list.push_back({{"seconds", round.seconds},
                    {"gb_per_s", speed / 1e9},
                    {"routes", routes_json(round.routes)},
                    {"limit", limit_name(round.limit)}});
    text += (text.empty() ? "" : ", ") + format_rate(speed);
  }
  const bool repeated = rounds.size() > 1;
  transfer.head["rounds"] = std::move(list);
  transfer.head["steady_gb_per_s"] = repeated ? Json(steady_rate(rounds) / 1e9) : Json();
  if (!repeated) return;
  transfer.own.push_back({"rounds", text});
  transfer.own.push_back({"steady", format_rate(steady_rate(rounds)) + ", the middle of all rounds but the first"});
}

Exit run(const LoadFlags& flags) {
  const Output output(flags.output);
  const Stopwatch setup;
  Result<Job> job = prepare(flags);
  if (!job.ok()) return output.fail(job.error());
  Transfer transfer{.head = {{"schema", "penstock.load/1"}, {"paths", flags.paths}, {"to", flags.domain}},
                    .setup_seconds = setup.seconds()};

  add_tuning(job->tuning, transfer);

  std::vector<Report> rounds;
  while (rounds.size() < flags.repeat) {
    rounds.push_back(load_once(*job, flags.output));
    if (!rounds.back().ok()) return output.fail(rounds.back());
  }
  transfer.report = rounds.front();
  add_rounds(rounds, transfer);
  if (flags.verify) transfer.verified = verify(*job, flags.paths);
  return output.transfer(transfer);
}

}  // namespace

Command add_load(CLI::App& tool) {
  auto flags = std::make_shared<LoadFlags>();  // shared by the parser's options and by run
  CLI::App* parser = tool.add_subcommand("load", "Bring files or devices into memory of the host or a GPU");
  parser->add_option("PATH", flags->paths, "files, block devices or URIs, loaded as one request")->required();
  const TransferOptions shared = add_transfer_flags(*parser, *flags,
                                                    {.domain_name = "--to",
                                                     .domain = "where to: host, pinned or cuda:N",
                                                     .offset = "where to begin, in each PATH",
                                                     .size = "how much to load of each PATH; default: to its end",
                                                     .verify = "compare with an independent, plain read"});
  auto* lba = add_size(*parser, "--lba", flags->lba, "where to begin, in blocks of the store")->type_name("N");
  auto* count = add_size(*parser, "--count", flags->count, "how many blocks")->type_name("N");
  for (CLI::Option* in_blocks : {lba, count}) in_blocks->excludes(shared.offset)->excludes(shared.size);
  parser->add_option("--repeat", flags->repeat, "load so many times into the same memory, and tell the steady speed")
      ->type_name("N")
      ->check(CLI::Range(1u, repeat_limit));
  parser->footer(
      "Examples:\n"
      "  penstock load weights.bin --verify\n"
      "  penstock load weights.bin --to cuda:0 --repeat 5\n"
      "  penstock load shard-*.bin --json\n"
      "  penstock load weights.bin --offset 1GiB --size 64MiB --cache bypass\n"
      "  penstock load /dev/nvme0n1 --lba 2048 --count 8");
  return {parser, [flags] { return run(*flags); }};
}

}  // namespace penstock::cli

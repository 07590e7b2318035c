// penstock load, of stores or parts of them.
#include <fcntl.h>
#include <unistd.h>

#include "interrupt.h"
#include "load.h"

namespace penstock::cli {

Result<Slice> choose_slice(const StoreInfo& info, const LoadFlags& flags) {
  const bool in_blocks = flags.lba || flags.count;
  const std::uint64_t unit = in_blocks ? info.block_bytes : 1;
  if (unit == 0) {
    return Error{.code = Code::unsupported,
                 .message = info.name + " does not report its block size",
                 .hint = "use --offset and --size instead of --lba and --count"};
  }
  const std::uint64_t start = (in_blocks ? flags.lba : flags.offset).value_or(0);
  const std::optional<std::uint64_t> length = in_blocks ? flags.count : flags.size;

  Slice slice;
  std::uint64_t end = 0;
  std::string hint = "it has " + std::to_string(info.size_bytes) + " bytes";
  if (in_blocks) {
    hint +=
        ", which are " + std::to_string(info.size_bytes / unit) + " whole blocks of " + std::to_string(unit) + " bytes";
  }
  if (__builtin_mul_overflow(start, unit, &slice.offset) ||
      (length && __builtin_mul_overflow(*length, unit, &slice.size_bytes)) ||
      __builtin_add_overflow(slice.offset, slice.size_bytes, &end)) {
    const std::string what = in_blocks ? "--lba and --count reach" : "--offset and --size reach";
    return Error{.code = Code::invalid_argument,
                 .message = what + " past the end of " + info.name + " and 2^64 bytes",
                 .hint = std::move(hint)};
  }
  if (end > info.size_bytes) {
    const std::string range = length ? "bytes " + std::to_string(slice.offset) + " to " + std::to_string(end) + " reach"
                                     : "byte " + std::to_string(slice.offset) + " is";
    return Error{
        .code = Code::out_of_range, .message = range + " past the end of " + info.name, .hint = std::move(hint)};
  }
  if (!length) slice.size_bytes = info.size_bytes - slice.offset;
  return slice;
}

namespace {

// Where the bytes of a store can be read once more.
struct Place {
  std::string path;  // or a URI
  bool is_file = true;
};
bool is_of_file(const Identity& identity, const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return false;
  const Result<Identity> found = Identity::of_file(fd);
  ::close(fd);
  return found && *found == identity;
}
// A controller in software has a file behind it.
Place place_of(const StoreInfo& info, const std::string& name) {
  const std::string path = local_path(info.name);
  return info.mappable || is_of_file(info.identity, path) ? Place{path, true} : Place{name, false};
}

class ByteCargo final : public Cargo {
 public:
  ByteCargo(TunedContext tuned, double deadline_seconds)
      : tuned_(std::move(tuned)), deadline_seconds_(deadline_seconds) {}

  Status prepare(const LoadFlags& flags, Domain domain) {
    const Context& context = tuned_.context;
    std::vector<Slice> slices;
    for (const std::string& path : flags.paths) {
      Result<Store> store = context.open(path);
      if (!store.ok()) return store.error();
      const Result<Slice> slice = choose_slice(store->info(), flags);
      if (!slice.ok()) return slice.error();
      if (__builtin_add_overflow(bytes_, slice->size_bytes, &bytes_)) bytes_ = UINT64_MAX;
      places_.push_back(place_of(store->info(), path));
      stores_.push_back(std::move(*store));
      slices.push_back(*slice);
    }
    if (Status room = check_room(domain, bytes_); !room.ok()) return room;
    if (!domain.host_accessible()) {
      if (Status ready = context.prepare(domain); !ready.ok()) return ready;
    }
    for (std::size_t i = 0; i < slices.size(); ++i) {
      Region memory{.domain = domain};
      if (slices[i].size_bytes != 0) {
        Result<Buffer> buffer = context.allocate(domain, slices[i].size_bytes);
        if (!buffer.ok()) return with_budget_option(buffer.error(), context, domain, bytes_);
        memory = buffer->region();
        buffers_.push_back(std::move(*buffer));
      }
      ranges_.push_back({.store = &stores_[i], .offset = slices[i].offset, .memory = memory});
    }
    return {};
  }

  const Context& context() override { return tuned_.context; }
  std::uint64_t bytes() const override { return bytes_; }

  Report load(const std::function<void(std::uint64_t)>& on_progress) override {
    Result<Ticket> ticket = tuned_.context.submit(Direction::read, ranges_, {.deadline_seconds = deadline_seconds_});
    if (!ticket.ok()) return {.outcome = Outcome::failed, .error = ticket.error()};
    return await(std::move(*ticket), on_progress);
  }

  std::vector<Loaded> loaded() const override {
    std::vector<Loaded> pieces;
    for (const Range& range : ranges_) {
      const StoreInfo& info = range.store->info();
      pieces.push_back({.tensor = {},
                        .path = places_[pieces.size()].path,
                        .is_file = places_[pieces.size()].is_file,
                        .identity = info.kind == StoreKind::file ? &info.identity : nullptr,
                        .offset = range.offset,
                        .memory = range.memory});
    }
    return pieces;
  }

  void describe(Transfer& transfer) const override {
    transfer.head["model"] = Json();
    add_tuning(tuned_.tuning, transfer);
  }

 private:
  TunedContext tuned_;
  const double deadline_seconds_;
  std::vector<Store> stores_;
  std::vector<Place> places_;  // of each
  std::vector<Buffer> buffers_;
  std::vector<Range> ranges_;  // one for each store
  std::uint64_t bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<Cargo>> prepare_bytes(const LoadFlags& flags) {
  const Result<Domain> domain = Domain::parse(flags.domain);
  if (!domain.ok()) return domain.error();
  Result<TunedContext> tuned = make_tuned_context(flags, flags.paths, *domain);
  if (!tuned.ok()) return tuned.error();
  auto cargo = std::make_unique<ByteCargo>(std::move(*tuned), flags.deadline_seconds);
  if (Status ready = cargo->prepare(flags, *domain); !ready.ok()) return ready.error();
  return std::unique_ptr<Cargo>(std::move(cargo));
}

}  // namespace penstock::cli

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

#include "base/out_of_memory.h"
#include "penstock/models.h"
#include "services/models/file_reader.h"
#include "services/models/open_store.h"

namespace penstock {

namespace {

constexpr int populate_read = 22;  // MADV_POPULATE_READ of Linux 5.14; older headers don't name it
// What one thread takes at a time: whole pages of page tables.
constexpr std::uint64_t turn_bytes = 16 << 20;

bool may_map(const Context& context) {
  const Options& options = context.options();
  const auto& routes = options.allowed_routes;
  return options.cache != Cache::bypass && (routes.empty() || std::ranges::find(routes, Route::mapped) != routes.end());
}

std::uint64_t missing_bytes(const Store& store, std::uint64_t offset, std::uint64_t size_bytes) {
  return size_bytes - std::min(size_bytes, store.cached_bytes(offset, size_bytes).value_or(0));
}

// Reads what is missing of a file that is all but in the page cache: the system drops pages now and then, and to copy
// everything because of a few would take many times as long. By plain reads, which tell what a disk can't read.
bool make_resident(const Store& store, const models::FileReader& file) {
  std::vector<char> window;
  constexpr std::uint64_t part_that_may_miss = 32;
  const StoreInfo& info = store.info();
  if (info.locality == Locality::memory) return true;
  if (info.locality != Locality::local) return false;
  const std::uint64_t missing = missing_bytes(store, 0, info.size_bytes);
  if (missing == 0) return true;
  if (missing > info.size_bytes / part_that_may_miss) return false;
  for (std::uint64_t offset = 0; offset < info.size_bytes; offset += turn_bytes) {
    const std::uint64_t size_bytes = std::min(turn_bytes, info.size_bytes - offset);
    if (missing_bytes(store, offset, size_bytes) == 0) continue;
    window.resize(size_bytes);
    if (!file.read(offset, window)) return false;
  }
  return true;
}

}  // namespace

Result<std::optional<MappedFile>> MappedFile::map(const Context& context, const ModelFile& file, Which which) {
  return or_out_of_memory([&] { return map_or_throw(context, file, which); });
}

// What threads that read ahead need of a mapping.
class MappedFile::Ahead {
 public:
  explicit Ahead(std::shared_ptr<const models::FileReader> file) : file_(std::move(file)) {}

  void stop() { stopped_ = true; }
  // Step by step, so that it can be stopped. The kernel reads on while the next step is asked for.
  void read(const std::vector<Piece>& pieces) const {
    constexpr std::uint64_t step_bytes = 4 << 20;
    for (const Piece& piece : pieces) {
      for (std::uint64_t at = 0; at < piece.size_bytes && !stopped_; at += step_bytes) {
        const std::uint64_t length = std::min(step_bytes, piece.size_bytes - at);
        ::posix_fadvise(file_->descriptor(), static_cast<off_t>(piece.offset + at), static_cast<off_t>(length),
                        POSIX_FADV_WILLNEED);
      }
    }
  }

 private:
  const std::shared_ptr<const models::FileReader> file_;
  std::atomic<bool> stopped_ = false;
};

Result<std::optional<MappedFile>> MappedFile::map_or_throw(const Context& context, const ModelFile& file, Which which) {
  if (file.size_bytes == 0 || !may_map(context)) return std::optional<MappedFile>();
  const Result<Store> store = models::open_store(context, file);
  if (!store) return store.error();
  const bool is_path = file.path.starts_with('/');
  if (!store->info().mappable || !is_path) return std::optional<MappedFile>();
  std::shared_ptr<const models::FileReader> opened = file.kept_open;
  if (!opened) {
    Result<models::FileReader> by_name = models::FileReader::open(file.path);
    if (!by_name) return std::move(by_name).error();
    opened = std::make_shared<models::FileReader>(std::move(*by_name));
  }
  if (opened->identity() != file.identity) return models::changed(file);
  const bool is_cached = make_resident(*store, *opened);
  if (!is_cached && which == Which::cached) return std::optional<MappedFile>();
  // Writable pages of a private mapping would count as memory that may be needed; hardly any ever is.
  constexpr int flags = MAP_PRIVATE | MAP_NORESERVE;
  void* const data = ::mmap(nullptr, file.size_bytes, PROT_READ | PROT_WRITE, flags, opened->descriptor(), 0);
  if (data == MAP_FAILED) return std::optional<MappedFile>();
  MappedFile mapped(static_cast<std::byte*>(data), file.size_bytes);
  mapped.threads_ = context.options().lanes;
  mapped.was_cached_ = is_cached;
  // Only where the descriptor is kept anyway: a mapping needs none, and there may be many.
  if (!is_cached && file.kept_open) mapped.ahead_ = std::make_shared<Ahead>(file.kept_open);
  return std::optional(std::move(mapped));
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      threads_(other.threads_),
      was_cached_(other.was_cached_),
      ahead_(std::move(other.ahead_)) {}

MappedFile::~MappedFile() {
  if (ahead_) ahead_->stop();
  if (data_ != nullptr) ::munmap(data_, size_bytes_);
}

void MappedFile::read_ahead(const Context& context, std::span<const Piece> pieces, std::uint64_t most_bytes) const {
  constexpr std::uint64_t worth_a_thread_bytes = 4 << 20;
  std::vector<Piece> wanted;
  std::uint64_t wanted_bytes = 0, bytes = 0;
  for (const Piece& piece : pieces) {
    bytes += piece.size_bytes;
    const std::uint64_t taken = std::min(piece.size_bytes, most_bytes - wanted_bytes);
    if (taken == 0) continue;
    // Neighbours are one piece.
    if (!wanted.empty() && wanted.back().offset + wanted.back().size_bytes == piece.offset) {
      wanted.back().size_bytes += taken;
    } else {
      wanted.push_back({piece.offset, taken});
    }
    wanted_bytes += taken;
  }
  if (bytes != 0) context.count_mapped(bytes, 0);
  if (!ahead_) return;  // whoever touches the pages first waits for them
  if (wanted_bytes <= worth_a_thread_bytes) return ahead_->read(wanted);
  try {
    std::thread([ahead = ahead_, wanted] { ahead->read(wanted); }).detach();
  } catch (const std::system_error&) {
    // Without a thread whoever touches the pages first waits for them.
  }
}

void MappedFile::populate(const Context& context, std::span<const Piece> pieces) const {
  const auto begin = std::chrono::steady_clock::now();
  std::uint64_t bytes = 0;
  const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  std::vector<Piece> turns;
  for (const Piece& piece : pieces) {
    bytes += piece.size_bytes;
    const std::uint64_t end = std::min<std::uint64_t>(piece.offset + piece.size_bytes, size_bytes_);
    std::uint64_t at = piece.offset / page_bytes * page_bytes;
    if (!turns.empty()) at = std::max(at, turns.back().offset + turns.back().size_bytes);  // pieces share pages
    while (at < end) {
      const std::uint64_t next =
          std::min((at / turn_bytes + 1) * turn_bytes, (end + page_bytes - 1) / page_bytes * page_bytes);
      turns.push_back({at, next - at});
      at = next;
    }
  }
  std::atomic<std::size_t> taken = 0;
  const auto work = [&] {
    for (std::size_t i = taken++; i < turns.size(); i = taken++) {
      // Where it fails, whoever touches the pages first has that much more to do.
      ::madvise(data_ + turns[i].offset, turns[i].size_bytes, populate_read);
    }
  };
  std::vector<std::thread> threads;
  try {
    while (threads.size() + 1 < std::min<std::size_t>(threads_, turns.size())) threads.emplace_back(work);
  } catch (const std::exception&) {  // no thread, or no memory for it
    // Fewer have to do.
  }
  work();
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  if (bytes != 0) context.count_mapped(bytes, took.count());
}

}  // namespace penstock

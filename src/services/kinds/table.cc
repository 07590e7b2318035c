#include "services/kinds/table.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/clock.h"
#include "base/out_of_memory.h"
#include "services/kinds/dictionary_file.h"
#include "services/models/contents.h"
#include "services/rows/watch.h"

namespace penstock::kinds {
namespace {

constexpr std::string_view beside = ".kinds.json";

// As Context::open tells a URI from a path, whether or not anyone serves the scheme.
bool has_scheme(std::string_view name) {
  const std::size_t colon = name.find(':');
  return colon != std::string_view::npos && colon != 0 && name.find('/') > colon &&
         std::ranges::all_of(name.substr(0, colon),
                             [](unsigned char c) { return std::isalnum(c) != 0 || c == '+' || c == '-' || c == '.'; });
}

// The same from every working directory.
Result<std::string> absolute_name(const std::string& store) {
  if (has_scheme(store)) return store;
  return absolute_path(store);
}

Result<std::string> dictionary_path(const std::string& store, const KindsOptions& options) {
  if (!options.dictionary.empty()) return absolute_path(options.dictionary);
  if (!has_scheme(store)) return absolute_path(store + std::string(beside));
  return Error{Code::invalid_argument, 0, store + ": nothing lies beside this store that could be its dictionary",
               "give the path of the dictionary"};
}

// A file in /dev is gone after the next start.
Status check_place(const StoreInfo& info, const KindsOptions& options) {
  if (info.kind != StoreKind::block_device || !options.dictionary.empty()) return {};
  return Error{Code::invalid_argument, 0, info.name + ": the dictionary of a device can't lie beside it",
               "give the path of the dictionary"};
}

Error one_file(const std::string& path) {
  return {Code::invalid_argument, 0, path + " can't be both the dictionary and the store of its records",
          "name another file as the dictionary"};
}

// Where a file would be made that is not there yet: a link may lead there.
std::filesystem::path place_of(std::filesystem::path path) {
  constexpr int links_most = 40;  // as the kernel follows
  std::error_code failed;         // then making it tells why
  for (int i = 0; i < links_most && std::filesystem::is_symlink(path, failed); ++i) {
    path = path.parent_path() / std::filesystem::read_symlink(path, failed);
  }
  return std::filesystem::weakly_canonical(path, failed);
}

TimePoint deadline_of(const KindsOptions& options) {
  return time_after(Clock::now(), duration_from_seconds(options.lock_seconds));
}

// Readers go on while others append: the records that they read don't change.
OpenOptions for_reading() {
  return {.growing = true};
}

Error no_kind(const std::string& which) {
  return {Code::not_found, 0, "there is no kind " + which, "penstock kind list shows those that there are"};
}

std::string of_id(std::uint32_t id) {
  return "with the id " + std::to_string(id);
}

std::string of_kind(const Kind& kind) {
  return "kind " + models::in_quotes(kind.name);
}

// Null: the records are not there. `before` is the kind of the last ones, since many follow each other.
const Kind* holds(const Table::State& state, const Records& records, const Kind* before) {
  if (before == nullptr || before->id != records.kind) {
    const auto found = state.by_id.find(records.kind);
    if (found == state.by_id.end()) return nullptr;
    before = found->second;
  }
  return records.index <= before->records && records.count <= before->records - records.index ? before : nullptr;
}

// As not_there tells it.
bool is_missing(const Error& error) {
  return error.code == Code::not_found || error.code == Code::out_of_range;
}

// Whoever knew another kind by this id, before it was removed, means that one.
Status check_is_meant(const Table::State& known, const Kind& kind) {
  const auto found = known.by_id.find(kind.id);
  if (found == known.by_id.end()) return {};
  const Kind& meant = *found->second;
  if (meant.name == kind.name && meant.start_byte == kind.start_byte && meant.record_bytes == kind.record_bytes &&
      meant.type == kind.type && meant.shape == kind.shape) {
    return {};
  }
  return Error{Code::changed, 0,
               of_kind(meant) + " is no longer what it was: its id, " + std::to_string(kind.id) + ", is that of " +
                   of_kind(kind) + " as the dictionary is now",
               "refresh, and find the kind again"};
}

// What is said to be there already. Making room would give zeros instead.
Status check_records(const Kind& kind, const StoreInfo& store) {
  const std::uint64_t end = kind.start_byte + kind.records * kind.record_bytes;
  if (kind.records == 0 || end <= store.size_bytes) return {};
  return Error{Code::out_of_range, 0,
               of_kind(kind) + ": its " + std::to_string(kind.records) + " records would end at byte " +
                   std::to_string(end) + ", and " + store.name + " has " + std::to_string(store.size_bytes),
               "count only records that are there, and append the others"};
}

// Lets go of the lock at the end of an append, however long lanes keep the store; but where the disk may still write
// the records of an append that has failed, nobody else may write others there before that is done.
class LockOfAppend {
 public:
  explicit LockOfAppend(WriterLock& lock) : lock_(&lock) {}
  ~LockOfAppend() {
    if (lock_ != nullptr) lock_->release();
  }
  LockOfAppend(const LockOfAppend&) = delete;
  LockOfAppend& operator=(const LockOfAppend&) = delete;

  void leave_to_store() { lock_ = nullptr; }

 private:
  WriterLock* lock_;
};

Error not_there(const Table::State& state, const Records& records) {
  const auto found = state.by_id.find(records.kind);
  if (found == state.by_id.end()) {
    return no_kind(of_id(records.kind));
  }
  const Kind& kind = *found->second;
  return {Code::out_of_range, 0,
          of_kind(kind) + " has " + std::to_string(kind.records) + " records, and " + std::to_string(records.count) +
              " from " + std::to_string(records.index) + " on are asked for",
          kind.records == 0 ? "append records first" : "ask for records that there are"};
}

}  // namespace

Result<std::shared_ptr<Table>> Table::create_locked(const Context& context, const std::string& store,
                                                    const std::string& path, const KindsOptions& options) {
  if (const auto there = context.open(path); there || there.error().code != Code::not_found) {
    if (!there) return there.error();
    return Error{Code::in_use, EEXIST, path + " is there already", "open it, or remove it first"};
  }
  auto opened = context.open(store, for_reading());
  if (!opened && opened.error().code == Code::not_found && !has_scheme(store)) {
    if (place_of(store) == place_of(path)) return one_file(path);
    opened = context.open(store, {.access = Access::create});
    if (opened) {
      if (Status status = opened->commit(); !status) return std::move(status).error();
    }
  }
  if (!opened) return std::move(opened).error();
  const StoreInfo& info = opened->info();
  if (Status status = check_place(info, options); !status) return std::move(status).error();
  Dictionary dictionary;
  if (info.block_bytes != 0) dictionary.block_bytes = info.block_bytes;
  if (is_device(info)) dictionary.device_bytes = info.size_bytes;
  auto table = std::make_shared<Table>(context, store, path, options);
  if (Status status = table->publish(std::move(dictionary)); !status) return std::move(status).error();
  return table;
}

Result<std::shared_ptr<Table>> Table::create(const Context& context, const std::string& name,
                                             const KindsOptions& options) {
  if (Status status = check_seconds("lock_seconds", options.lock_seconds); !status) return std::move(status).error();
  const auto absolute = absolute_name(name);
  if (!absolute) return absolute.error();
  const std::string& store = *absolute;
  auto path = dictionary_path(store, options);
  if (!path) return std::move(path).error();
  const auto lock = WriterLock::of_new_dictionary(*path, deadline_of(options));
  if (!lock) return lock.error();
  auto made = create_locked(context, store, *path, options);
  if (made || made.error().code == Code::not_durable) {
    lock->share();
  } else {
    lock->withdraw();
  }
  return made;
}

Result<std::shared_ptr<Table>> Table::open(const Context& context, const std::string& name,
                                           const KindsOptions& options) {
  if (Status status = check_seconds("lock_seconds", options.lock_seconds); !status) return std::move(status).error();
  const auto absolute = absolute_name(name);
  if (!absolute) return absolute.error();
  const std::string& store = *absolute;
  auto path = dictionary_path(store, options);
  if (!path) return std::move(path).error();
  auto table = std::make_shared<Table>(context, store, std::move(*path), options);
  auto state = table->refresh();
  if (!state) {
    Error error = std::move(state).error();
    if (error.code == Code::not_found && !std::filesystem::exists(table->path())) {
      error.hint = "make the dictionary: penstock kind create";
    }
    return error;
  }
  const StoreInfo& info = (*state)->store.info();
  if (Status status = check_place(info, options); !status) return std::move(status).error();
  const auto dictionary = context.open(table->path(), for_reading());
  if (dictionary && dictionary->info().identity == info.identity) return one_file(table->path());
  return table;
}

std::shared_ptr<const Table::State> Table::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

void Table::adopt(std::shared_ptr<const State> state) {
  const std::lock_guard lock(mutex_);
  state_.swap(state);
}

Status Table::check_process() const {
  if (!fork_guard_.in_child()) return {};
  return Error{Code::closed, 0, "the kinds belong to the parent of this process",
               "make a Context, and open them, after the fork"};
}

Result<std::shared_ptr<const Table::State>> Table::load(Dictionary dictionary) const {
  auto store = context_.open(store_, for_reading());
  if (!store) return std::move(store).error();
  if (Status status = check_store(dictionary, store->info()); !status) return std::move(status).error();
  auto state = std::make_shared<State>(State{std::move(dictionary), std::move(*store), {}});
  for (const Kind& kind : state->dictionary.kinds) state->by_id.emplace(kind.id, &kind);
  return std::shared_ptr<const State>(std::move(state));
}

Result<std::shared_ptr<const Table::State>> Table::refresh() {
  if (Status status = check_process(); !status) return std::move(status).error();
  const std::lock_guard lock(refreshing_);
  auto dictionary = read_dictionary(context_, path_);
  if (!dictionary) return std::move(dictionary).error();
  auto state = load(std::move(*dictionary));
  if (state) adopt(*state);
  return state;
}

Status Table::publish(Dictionary dictionary) {
  auto written = write_dictionary(context_, path_, dictionary);
  if (!written) return written.error();
  return publish(std::move(dictionary), *written);
}

Status Table::publish(Dictionary dictionary, Store& written) {
  Status replaced = written.commit();
  if (!replaced && replaced.error().code != Code::not_durable) return replaced;
  // What was written counts, whether or not it can be read now, or there is memory for it: that is for the next who
  // reads.
  static_cast<void>(or_out_of_memory([&]() -> Status {
    const std::lock_guard lock(refreshing_);
    if (auto state = load(dictionary)) {
      adopt(std::move(*state));
      return {};
    }
    auto unopened = std::make_shared<State>(State{std::move(dictionary), {}, {}});
    for (const Kind& kind : unopened->dictionary.kinds) unopened->by_id.emplace(kind.id, &kind);
    adopt(std::move(unopened));
    return {};
  }));
  return replaced;
}

Result<Kind> Table::find(const std::function<const Kind*(const State&)>& look,
                         const std::function<std::string()>& which) {
  if (const Kind* kind = look(*state())) return *kind;
  const auto again = refresh();
  if (!again) return again.error();
  const Kind* const kind = look(**again);
  if (kind == nullptr) return no_kind(which());
  return *kind;
}

// Who opens it holds the lock, and so does every operation on the store that outlives its request.
Result<Store> Table::open_for_writing(const OpenOptions& wanted, std::shared_ptr<WriterLock> lock) const {
  OpenOptions options = options_.writing;
  if (lock) {
    options.on_commit = [on_commit = options_.writing.on_commit, lock = std::move(lock)] {
      return on_commit ? on_commit() : Status();
    };
  }
  options.access = wanted.access;
  options.size_bytes = wanted.size_bytes;
  options.reserve_from = wanted.reserve_from;
  options.descriptor = -1;
  return context_.open(store_, options);
}

Status Table::make_room(const Kind& kind) const {
  const std::uint64_t end = kind.start_byte + kind.length_bytes;
  {
    const auto store = context_.open(store_, for_reading());
    if (!store) return store.error();
    if (end <= store->info().size_bytes) return {};
    if (is_device(store->info())) {
      return Error{Code::out_of_range, 0,
                   of_kind(kind) + " would end at byte " + std::to_string(end) + ", and " + store_ + " has " +
                       std::to_string(store->info().size_bytes),
                   "choose another place or a smaller capacity"};
    }
  }
  auto store = open_for_writing({.access = Access::create, .size_bytes = end, .reserve_from = kind.start_byte});
  if (!store) return std::move(store).error();
  return store->commit();
}

Result<Kind> Table::add(const NewKind& wanted) {
  if (Status status = check_process(); !status) return std::move(status).error();
  const auto lock = WriterLock::of_dictionary(path_, deadline_of(options_));
  if (!lock) return lock.error();
  auto now = refresh();
  if (!now) return std::move(now).error();
  const StoreInfo& info = (*now)->store.info();
  Dictionary dictionary = (*now)->dictionary;
  const auto added = kinds::add(dictionary, wanted, is_device(info) ? 0 : info.size_bytes);
  if (!added) return added.error();
  Kind kind = dictionary.kinds[*added];
  if (Status status = check_records(kind, info); !status) return std::move(status).error();
  // First, so that no room is made for a kind that can't be written down.
  auto written = write_dictionary(context_, path_, dictionary);
  if (!written) return written.error();
  if (Status status = make_room(kind); !status) return std::move(status).error();
  if (Status status = publish(std::move(dictionary), *written); !status) return std::move(status).error();
  return kind;
}

Status Table::remove(std::uint32_t kind) {
  if (Status status = check_process(); !status) return status;
  const auto lock = WriterLock::of_dictionary(path_, deadline_of(options_));
  if (!lock) return lock.error();
  auto dictionary = read_dictionary(context_, path_);
  if (!dictionary) return std::move(dictionary).error();
  if (std::erase_if(dictionary->kinds, [&](const Kind& each) { return each.id == kind; }) == 0) {
    return no_kind(of_id(kind));
  }
  return publish(std::move(*dictionary));
}

Result<std::vector<std::uint64_t>> Table::append(std::span<const RecordsAppend> parts,
                                                 const std::function<bool()>& keep_going) {
  if (Status status = check_process(); !status) return std::move(status).error();
  if (Status status = rows::Watch::check_may_wait("append"); !status) return std::move(status).error();
  rows::Watch watch(keep_going);
  auto locked = WriterLock::of_dictionary(path_, deadline_of(options_), &watch);
  if (!locked) return locked.error();
  const auto lock = std::make_shared<WriterLock>(std::move(*locked));
  LockOfAppend held(*lock);
  const auto known = state();
  auto read = read_dictionary(context_, path_);
  if (!read) return std::move(read).error();
  Dictionary dictionary = std::move(*read);
  auto store = open_for_writing({.access = Access::write}, lock);
  if (!store) return std::move(store).error();
  if (Status status = check_store(dictionary, store->info()); !status) return std::move(status).error();

  std::vector<std::uint64_t> first;
  std::vector<Range> ranges;
  for (const RecordsAppend& part : parts) {
    const auto found = std::ranges::find(dictionary.kinds, part.kind, &Kind::id);
    if (found == dictionary.kinds.end()) return no_kind(of_id(part.kind));
    Kind& kind = *found;
    if (Status status = check_is_meant(*known, kind); !status) return std::move(status).error();
    const std::uint64_t count = part.memory.size_bytes / kind.record_bytes;
    if (part.memory.size_bytes % kind.record_bytes != 0) {
      return Error{Code::invalid_argument, 0,
                   of_kind(kind) + " has records of " + std::to_string(kind.record_bytes) + " bytes, and " +
                       std::to_string(part.memory.size_bytes) + " bytes are no whole records",
                   "append whole records"};
    }
    if (count > kind.capacity() - kind.records) {
      return Error{Code::no_space, 0,
                   of_kind(kind) + " has room for " + std::to_string(kind.capacity() - kind.records) +
                       " more records, and " + std::to_string(count) + " are to be appended",
                   "add a kind with a larger capacity"};
    }
    first.push_back(kind.records);
    if (count != 0) ranges.push_back({&*store, kind.start_byte + kind.records * kind.record_bytes, part.memory});
    kind.records += count;
  }
  if (ranges.empty()) return first;
  RequestOptions options;
  options.durable = true;
  const Report report = watch.transfer(context_, Direction::write, ranges, options);
  if (report.outcome == Outcome::abandoned) held.leave_to_store();
  if (!report.ok()) return *report.error;
  if (!watch.goes_on()) return rows::Watch::told_to_stop();
  // A device is free for others as soon as its bytes are written.
  *store = Store();
  if (Status status = publish(std::move(dictionary)); !status) return std::move(status).error();
  return first;
}

Result<Table::Placed> Table::place(std::span<const RecordsRead> reads) {
  if (Status status = check_process(); !status) return std::move(status).error();
  const auto known = state();
  if (known->store) {
    auto placed = place_in(known, reads);
    if (placed || !is_missing(placed.error())) return placed;
  }
  // Others may have added kinds or records since.
  auto again = refresh();
  if (!again) return std::move(again).error();
  for (const RecordsRead& each : reads) {
    const auto found = (*again)->by_id.find(each.records.kind);
    if (found == (*again)->by_id.end()) continue;
    if (Status status = check_is_meant(*known, *found->second); !status) return std::move(status).error();
  }
  return place_in(std::move(*again), reads);
}

Result<Table::Placed> Table::place_in(std::shared_ptr<const State> state, std::span<const RecordsRead> reads) {
  Placed placed{std::move(state), {}};
  const Store& store = placed.state->store;
  placed.ranges.reserve(reads.size());
  const Kind* kind = nullptr;
  for (const auto& [records, memory] : reads) {
    kind = holds(*placed.state, records, kind);
    if (kind == nullptr) return not_there(*placed.state, records);
    // It does not overflow: the records lie in the store.
    const std::uint64_t bytes = records.count * kind->record_bytes;
    if (bytes != memory.size_bytes) {
      return Error{Code::invalid_argument, 0,
                   std::to_string(records.count) + " records of " + std::to_string(kind->record_bytes) +
                       " bytes don't fill memory of " + std::to_string(memory.size_bytes),
                   "give memory of exactly their size"};
    }
    if (bytes != 0) placed.ranges.push_back({&store, kind->start_byte + records.index * kind->record_bytes, memory});
  }
  return placed;
}

}  // namespace penstock::kinds

// The Service's part that finds units by name, counts who asks, and opens them to read and to write.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/open_hint.h"
#include "base/out_of_memory.h"
#include "services/tiers/fault_point.h"
#include "services/tiers/folder.h"
#include "services/tiers/names.h"
#include "services/tiers/service.h"

namespace penstock::tiers {
namespace {

constexpr Duration one_use = std::chrono::seconds(1);

}  // namespace

void Service::count(std::int64_t unit) {
  const std::scoped_lock lock(mutex_);
  ++counted_[unit];
  if (accountant_.joinable() || stopping_) return;
  try {
    accountant_ = std::thread([this] { keep_accounts(); });
  } catch (const std::system_error&) {
    // The next use tries again, and closing writes down what nobody has.
  }
}

void Service::count_open(std::int64_t unit) {
  const TimePoint now = Clock::now();
  {
    const std::scoped_lock lock(mutex_);
    const auto [opened, is_first] = opened_at_.try_emplace(unit, now);
    if (!is_first && now - opened->second < one_use) return;
    opened->second = now;
  }
  count(unit);
}

// So that no reader waits for the disk of the catalog.
void Service::keep_accounts() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    wake_.wait_for(lock, duration_from_seconds(std::clamp(options_.flush_seconds, 0.01, 1e6)),
                   [&] { return stopping_; });
    lock.unlock();
    static_cast<void>(or_out_of_memory([this] { return flush(); }));  // what fails is tried again
    lock.lock();
  }
}

Status Service::flush() {
  std::vector<Counted> counted;
  {
    const std::scoped_lock lock(mutex_);
    counted.reserve(counted_.size());
    for (const auto& [unit, accesses] : counted_) counted.push_back({unit, accesses});
    counted_.clear();
    std::erase_if(opened_at_, [now = Clock::now()](const auto& opened) { return now - opened.second >= one_use; });
  }
  if (counted.empty()) return {};
  const auto policy = catalog_->policy();
  Status written =
      policy ? catalog_->add_accesses(counted, wall_seconds(), policy->half_life_seconds) : Status(policy.error());
  if (!written) {
    const std::scoped_lock lock(mutex_);
    for (const Counted& one : counted) counted_[one.unit] += one.accesses;
  }
  return written;
}

Result<Service::Found> Service::find(std::string_view given) {
  const auto name = checked_name(given);
  if (!name) return name.error();
  auto place = catalog_->place_of(*name);
  if (!place) return std::move(place).error();
  if (*place) {
    std::string path = (*place)->root + "/" + *name;
    return Found{std::move(**place), *name, *name, std::move(path), true};
  }
  for (const std::string& parent : parents_of(*name)) {
    auto above = catalog_->place_of(parent);
    if (!above) return std::move(above).error();
    if (!*above || (*above)->kind != UnitKind::directory) continue;
    std::string path = (*above)->root + "/" + *name;
    return Found{std::move(**above), parent, *name, std::move(path), false};
  }
  return no_unit(*name);
}

Result<HeldFolder> Service::tier_folder(const Found& found) {
  return HeldFolder::open(found.place.root);
}

std::string Service::meant(std::string_view text) {
  constexpr std::string_view encoded_mark = "./";  // no name begins so
  const bool marked = text.starts_with(encoded_mark);
  if (marked) text.remove_prefix(encoded_mark.size());
  auto decoded = percent_decoded(text);
  if (!decoded || *decoded == text) return std::string(text);
  if (marked) return std::move(*decoded);
  const auto literal = find(text);
  if (literal && literal->is_unit) return std::string(text);
  const auto folder = literal ? tier_folder(*literal) : Result<HeldFolder>(literal.error());
  const auto there = folder ? look_at({&*folder, literal->name}) : Result<struct stat>(folder.error());
  const bool is_there = there && there->st_ino != 0;
  return is_there ? std::string(text) : std::move(*decoded);
}

Result<std::string> Service::path_of(std::string_view name) {
  auto found = find(name);
  if (!found) return std::move(found).error();
  count(found->place.unit);
  return std::move(found->path);
}

Result<Location> Service::locate(std::string_view text, const OpenOptions& options) {
  if (Status status = usable(); !status) return std::move(status).error();
  const std::string given = meant(text);
  if (options.access == Access::read) return locate_to_read(given, options);
  const auto name = checked_name(given);
  if (!name) return name.error();
  auto found = find(*name);
  if (!found && found.error().code != Code::not_found) return found.error();
  if (found) count_open(found->place.unit);
  const TimePoint until = time_after(Clock::now(), duration_from_seconds(options_.wait_seconds));
  while (found && (options.access != Access::replace || !found->is_unit)) {
    auto location = locate_to_change(*found, options);
    if (location || location.error().code != Code::changed || Clock::now() >= until) return location;
    found = find(*name);  // it has moved while we waited for its mover
    if (!found) return found.error();
  }
  if (options.access == Access::write) return found.error();
  return options.access == Access::replace ? locate_to_replace(*name, options) : locate_to_create(*name, options);
}

// Of a unit that is not there, what a dead process was about to remove. True if it may be there now.
bool Service::put_back(const Found& found) {
  const auto folder = tier_folder(found);
  if (!folder) return false;
  const auto there = look_at({&*folder, found.unit});
  if (!there || there->st_ino != 0) return false;
  const auto mover = this->mover({});
  if (!mover) return false;
  const auto locked = (*mover)->claim(found.place.unit, 0);
  return locked && *locked && (*mover)->end_interrupted(found.place.unit).ok();
}

// The file is opened here, so that a move that follows does not take it away.
Result<Location> Service::locate_to_read(std::string_view name, const OpenOptions& options) {
  constexpr int most_moves = 16;
  std::int64_t last_tier = 0;
  for (int moves = 0;; ++moves) {
    const auto found = find(name);
    if (!found) return found.error();
    if (moves == 0 && put_back(*found)) continue;
    if (found->is_unit && found->place.kind == UnitKind::directory) {
      count_open(found->place.unit);
      return Location{found->path, options};
    }
    const auto folder = tier_folder(*found);
    if (auto fd = folder ? folder->open(found->name, O_RDONLY | O_NONBLOCK) : UniqueFd()) {
      count_open(found->place.unit);
      Location location{found->path, options};
      location.options.descriptor = fd.get();
      location.held = std::make_shared<UniqueFd>(std::move(fd));
      return location;
    }
    const int error = folder ? errno : folder.error().system_error;
    const auto tier = std::exchange(last_tier, found->place.tier);
    if (error != ENOENT || moves == most_moves || tier == last_tier) {
      const auto tiers = catalog_->tiers();
      if (!tiers) return tiers.error();
      const auto row = std::ranges::find(*tiers, found->place.tier, &TierRow::id);
      if (row != tiers->end()) {
        if (const auto there = open_tier(*row); !there) return there.error();
      }
      return system_error(error, "open " + found->path, "see what `penstock tier check` says about it");
    }
  }
}

Result<Location> Service::locate_to_change(const Found& found, const OpenOptions& options) {
  const auto mover = this->mover({});
  if (!mover) return mover.error();
  const auto locked = (*mover)->claim(found.place.unit, options_.wait_seconds);
  if (!locked) return locked.error();
  if (!*locked) return Error{Code::in_use, 0, shown(found.unit) + " is being moved or written", "write to it later"};
  if (Status ended = (*mover)->end_interrupted(found.place.unit); !ended) return std::move(ended).error();
  auto row = catalog_->unit(found.place.unit);
  if (!row) return std::move(row).error();
  if (!*row || (*row)->tier != found.place.tier) {
    return Error{Code::changed, 0, shown(found.unit) + " has moved meanwhile", "open it again"};
  }
  Location location{found.path, options};
  const auto folder = tier_folder(found);
  if (!folder) return folder.error();
  // Open for writing, so that no mover takes it away before the store is open.
  bool is_new = false;
  UniqueFd fd = folder->open(found.name, O_RDWR | O_NONBLOCK);
  if (!fd && errno == ENOENT && options.access == Access::create) {
    fd = folder->open(found.name, O_RDWR | O_CREAT | O_EXCL, 0666);
    is_new = static_cast<bool>(fd);
  }
  const bool may_be_missing = options.access == Access::replace && errno == ENOENT;
  if (!fd && !may_be_missing) {
    const int error = errno;
    return system_error(error, "open " + found.path, open_hint(error, found.path, options.access));
  }
  // No identity is expected until it moves again: then nobody has it open for writing.
  (*row)->identity.clear();
  (*row)->checksum.clear();
  if (Status updated = catalog_->update_unit(**row); !updated) return std::move(updated).error();
  struct Held {
    UniqueFd file;
    UniqueFd folder;
  };
  auto held = std::make_shared<Held>(Held{std::move(fd), {}});
  if (options.access == Access::replace) {
    // Its path may lead elsewhere by now.
    const PathBeneath path{&*folder, found.name};
    held->folder = path.parent().open(O_PATH | O_DIRECTORY);
    if (!held->folder) return file_error(errno, "open the folder " + path.parent().text());
    fault_point("replacing");
  }
  location.options.descriptor = (options.access == Access::replace ? held->folder : held->file).get();
  location.held = std::move(held);
  location.options.on_commit = [self = shared_from_this(), unit = found.place.unit, name = found.name, is_new,
                                root = found.place.root, then = options.on_commit]() -> Status {
    if (is_new) {
      const auto there = HeldFolder::open(root);
      Status synced = there ? sync_parent({&*there, name}) : Status(there.error());
      if (!synced) return synced;
    }
    if (Status refreshed = self->refresh(unit); !refreshed) return refreshed;
    return then ? then() : Status();
  };
  return location;
}

// Sizes that have changed count for the room there is.
Status Service::refresh(std::int64_t unit) {
  auto row = catalog_->unit(unit);
  if (!row) return row.error();
  if (!*row) return {};
  const auto place = catalog_->place_of((*row)->name);
  if (!place) return place.error();
  if (!*place) return {};
  const auto folder = HeldFolder::open((*place)->root);
  if (!folder) return folder.error();
  const auto tree = scan({&*folder, (*row)->name});
  if (!tree) return tree.error();
  (*row)->size_bytes = tree->size_bytes;
  (*row)->room_bytes = tree->room_bytes;
  (*row)->files = tree->files;
  return catalog_->update_unit(**row);
}

Result<TierRow> Service::tier_for_new(const std::string& name, std::uint64_t size_bytes,
                                      std::span<const std::int64_t> but) {
  const auto known = catalog_->unit(name);
  if (!known) return known.error();
  if (*known && (*known)->pinned) {
    const auto tiers = catalog_->tiers();
    if (!tiers) return tiers.error();
    const auto row = std::ranges::find(*tiers, *(*known)->pinned, &TierRow::id);
    if (row != tiers->end()) return *row;
  }
  const auto placed = place(size_bytes, but);
  if (!placed) return placed.error();
  return tier(placed->tier);
}

Result<Location> Service::locate_to_replace(const std::string& name, const OpenOptions& options) {
  const auto known = catalog_->unit(name);
  if (!known) return known.error();
  if (*known && (*known)->kind == UnitKind::directory) {
    return Error{Code::is_directory, EISDIR, shown(name) + " is a directory", "name a file in it"};
  }
  if (!*known) {
    if (Status free = catalog_->check_free(name); !free) return std::move(free).error();
  }
  const auto tier = tier_for_new(name, options.size_bytes);
  if (!tier) return tier.error();
  const auto folder = open_tier(*tier);
  if (!folder) return folder.error();
  // As long as the store is open, its lock tells that somebody writes there.
  auto locks = UnitLocks::open(catalog_->path());
  if (!locks) return std::move(locks).error();
  const auto number = locks->lock_new_number();
  if (!number) return number.error();
  Location location{coming_path(*folder, *number).text(), options};
  location.options.on_commit = [self = shared_from_this(), locks = std::make_shared<UnitLocks>(std::move(*locks)), name,
                                row = *tier, staged = *number, then = options.on_commit]() -> Status {
    Status done = self->usable();
    const auto mover = done ? self->mover({}) : Result<std::unique_ptr<Mover>>(done.error());
    done = mover ? (*mover)->replace(name, row.id, staged, self->options_.wait_seconds) : Status(mover.error());
    if (!done) {
      if (const auto place = open_tier(row)) static_cast<void>(remove_all(coming_path(*place, staged)));
      return done;
    }
    return then ? then() : Status();
  };
  return location;
}

Result<Location> Service::locate_to_create(const std::string& name, const OpenOptions& options) {
  if (Status free = catalog_->check_free(name); !free) return std::move(free).error();
  const auto tier = tier_for_new(name, options.size_bytes);
  if (!tier) return tier.error();
  const auto folder = open_tier(*tier);
  if (!folder) return folder.error();
  const PathBeneath path{&*folder, name};
  if (Status made = make_parents(path); !made) return std::move(made).error();
  if (const UniqueFd made = path.open(O_WRONLY | O_CREAT | O_EXCL, 0666); !made) {
    return system_error(errno, "create " + path.text(), errno == EEXIST ? "import it first, or move it away" : "");
  }
  Status inserted = catalog_->transact([&]() -> Status {
    if (Status free = catalog_->check_free(name); !free) return free;
    const auto id = catalog_->insert_unit({.name = name, .tier = tier->id, .identity = "", .checksum = ""});
    return id ? Status() : Status(id.error());
  });
  if (!inserted) {
    static_cast<void>(remove_file(path));
    return std::move(inserted).error();
  }
  const auto found = find(name);
  if (!found) return found.error();
  return locate_to_change(*found, options);
}

}  // namespace penstock::tiers

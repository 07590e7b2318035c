#include "services/tiers/service.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "services/tiers/folder.h"
#include "services/tiers/names.h"

namespace penstock::tiers {

Service::Service(std::unique_ptr<Catalog> catalog, TiersOptions options)
    : catalog_(std::move(catalog)), options_(std::move(options)) {}

std::shared_ptr<Service> Service::make(std::unique_ptr<Catalog> catalog, TiersOptions options) {
  // In a forked child all of it is left as it is: the threads that wait in it stayed with the parent.
  const auto end = [](Service* service) {
    if (!service->fork_guard_.in_child()) delete service;
  };
  return {new Service(std::move(catalog), std::move(options)), end};
}

Service::~Service() {
  static_cast<void>(stop_mover());
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (accountant_.joinable()) accountant_.join();
  static_cast<void>(flush());
}

Status Service::usable() const {
  if (!fork_guard_.in_child()) return {};
  return Error{Code::closed, 0, "these Tiers were opened before this process was forked", "open them again"};
}

Status Service::check_not_paused() {
  const auto paused = catalog_->paused();
  if (!paused) return paused.error();
  if (!*paused) return {};
  return Error{Code::in_use, 0, "movers are paused", "let them go on with `penstock tier resume`"};
}

Result<UnitRow> Service::unit(std::string_view name) {
  const auto checked = checked_name(name);
  if (!checked) return checked.error();
  auto row = catalog_->unit(*checked);
  if (!row) return std::move(row).error();
  if (!*row || (*row)->is_new) return no_unit(*checked);
  return std::move(**row);
}

UnitInfo Service::info(const UnitRow& unit, const std::vector<TierRow>& tiers, const TierPolicy& policy) {
  const auto name_of = [&](std::int64_t id) {
    const auto found = std::ranges::find(tiers, id, &TierRow::id);
    return found == tiers.end() ? std::string() : found->name;
  };
  const auto place = std::ranges::find(tiers, unit.tier, &TierRow::id);
  return UnitInfo{.name = unit.name,
                  .kind = unit.kind,
                  .tier = name_of(unit.tier),
                  .path = place == tiers.end() ? "" : place->path + "/" + unit.name,
                  .size_bytes = unit.size_bytes,
                  .files = unit.files,
                  .checksum = unit.checksum,
                  .accesses = unit.accesses,
                  .heat = faded(unit.heat, wall_seconds() - unit.heat_at, policy.half_life_seconds),
                  .accessed_at = unit.accessed_at,
                  .moved_at = unit.moved_at,
                  .pinned = unit.pinned ? name_of(*unit.pinned) : "",
                  .moving_to = {},
                  .moved_bytes = 0,
                  .in_doubt = !unit.doubt.empty()};
}

namespace {

// The catalog, what SQLite and we have beside it, or a folder with it.
bool is_of_catalog(const std::string& path, const std::string& catalog) {
  std::error_code failed;
  const std::string own = std::filesystem::weakly_canonical(catalog, failed).string();
  const std::string there = std::filesystem::weakly_canonical(path, failed).string();
  return there == own || there.starts_with(own + "-") || own.starts_with(there + "/");
}

}  // namespace

Status Service::import(std::string_view given, bool checksum) {
  const auto name = checked_name(given);
  if (!name) return name.error();
  const auto tiers = catalog_->tiers();
  if (!tiers) return tiers.error();
  auto known = catalog_->unit(*name);
  if (!known) return known.error();
  const auto mover = this->mover({});
  if (!mover) return mover.error();
  if (*known) {
    // While it moves, it lies on two tiers.
    const auto locked = (*mover)->claim((*known)->id, 0);
    if (!locked) return locked.error();
    if (!*locked) return Error{Code::in_use, 0, shown(*name) + " is being moved or written", "import it later"};
    if (Status ended = (*mover)->end_interrupted((*known)->id); !ended) return ended;
    known = catalog_->unit(*name);
    if (!known) return known.error();
  }
  const TierRow* place = nullptr;
  HeldFolder folder;               // of `place`
  const TierRow* empty = nullptr;  // where it is but a folder that is left from earlier
  HeldFolder empty_folder;
  std::optional<Error> unknown;  // why a tier could not be looked at
  for (const TierRow& tier : *tiers) {
    auto root = open_tier(tier);
    if (!root) {
      if (!unknown) unknown = root.error();
      continue;
    }
    const PathBeneath path{&*root, *name};
    const auto there = look_at(path);
    if (!there && there.error().system_error != ELOOP) return there.error();
    if (!there && !unknown) unknown = there.error();
    if (!there || there->st_ino == 0) continue;
    if (is_empty_folder(path)) {
      if (empty == nullptr) {
        empty = &tier;
        empty_folder = std::move(*root);
      }
      continue;
    }
    if (place != nullptr) {
      return Error{Code::invalid_argument, 0, shown(*name) + " lies on both " + place->name + " and " + tier.name,
                   "remove or rename one of them"};
    }
    place = &tier;
    folder = std::move(*root);
  }
  if (place == nullptr && unknown) {
    unknown->message = shown(*name) + " lies on no tier that can be used; " + unknown->message;
    return *unknown;
  }
  if (place == nullptr) {
    place = empty;
    folder = std::move(empty_folder);
  }
  if (place == nullptr) {
    return Error{Code::not_found, 0, shown(*name) + " lies on no tier",
                 "give its path below the folder of a tier, or copy it in with `penstock tier add`"};
  }
  const PathBeneath path{&folder, *name};
  if (Status parents = check_parents(path); !parents) return parents;
  if (is_of_catalog(path.text(), catalog_->path())) {
    return Error{Code::invalid_argument, 0, shown(*name) + " is the catalog, or has it inside",
                 "keep the catalog outside of units"};
  }
  const auto tree = scan(path);
  if (!tree) return tree.error();
  UnitRow row = *known ? **known : UnitRow{};
  row.name = *name;
  row.tier = place->id;
  describe(row, *tree);
  row.checksum.clear();
  row.doubt.clear();
  row.is_new = false;
  if (checksum) {
    auto sum = (*mover)->checksum(path, *tree);
    if (!sum) return sum.error();
    const auto after = glance(path);
    if (!after || after->identity != tree->identity) {
      return Error{Code::changed, 0, path.text() + " was changed while it was read",
                   "import it when nobody writes to it"};
    }
    row.checksum = std::move(*sum);
  }
  return catalog_->transact([&]() -> Status {
    if (*known) return catalog_->update_unit(row);
    if (Status free = catalog_->check_free(*name); !free) return free;
    const auto again = catalog_->unit(*name);
    if (!again) return again.error();
    if (*again) return Error{Code::in_use, 0, shown(*name) + " was added by another process meanwhile", ""};
    const auto id = catalog_->insert_unit(row);
    return id ? Status() : Status(id.error());
  });
}

// A file of another tier that is no unit would have the same name.
Status Service::check_no_other_has(const std::string& name, std::string_view tier) {
  const auto tiers = catalog_->tiers();
  if (!tiers) return tiers.error();
  for (const TierRow& row : *tiers) {
    if (row.name == tier) continue;
    const auto root = open_tier(row);
    if (!root) continue;
    const PathBeneath path{&*root, name};
    if (is_empty_folder(path)) continue;
    const auto there = look_at(path);
    if (!there || there->st_ino == 0) continue;
    return Error{Code::in_use, 0, path.text() + " is there, and is no unit", "import it, or take it away"};
  }
  return {};
}

Status Service::add(const std::string& path, std::string_view given, std::string_view tier,
                    const MoveOptions& options) {
  const auto name = checked_name(given);
  if (!name) return name.error();
  if (Status going = check_not_paused(); !going) return going;
  std::error_code failed;
  const std::filesystem::path absolute = std::filesystem::absolute(path, failed).lexically_normal();
  const bool is_folder = !absolute.has_filename();  // it ends in a slash
  const std::filesystem::path whole = is_folder ? absolute.parent_path() : absolute;
  const auto folder = HeldFolder::open(whole.parent_path());
  if (!folder) return folder.error();
  const PathBeneath source{&*folder, whole.filename()};
  const auto tree = scan(source);
  if (!tree) return tree.error();
  const auto mover = this->mover(options);
  if (!mover) return mover.error();
  auto known = catalog_->unit(*name);
  if (known && *known && (*known)->is_new) {
    // Somebody adds it, or has died over it.
    if (const auto recovered = (*mover)->recover(true); !recovered) return recovered.error();
    known = catalog_->unit(*name);
  }
  if (!known) return known.error();
  if (*known && (*known)->is_new) {
    return Error{Code::in_use, 0, shown(*name) + " is being added by another process", "wait until it is there"};
  }
  if (*known) {
    return Error{Code::in_use, EEXIST, "there is a unit " + shown(*name) + " already",
                 "remove it first, or replace it"};
  }
  if (Status free = catalog_->check_free(*name); !free) return free;
  if (Status free = check_no_other_has(*name, tier); !free) return free;
  if (!tier.empty()) {
    const auto place = this->tier(tier);
    return place ? (*mover)->add({.name = *name, .tier = place->id}, source) : Status(place.error());
  }
  // What had room may be full when its turn comes: then the next one is tried.
  Status added;
  for (std::vector<std::int64_t> full;;) {
    const auto place = tier_for_new(*name, tree->room_bytes, full);
    if (!place) return full.empty() ? Status(place.error()) : added;
    added = (*mover)->add({.name = *name, .tier = place->id}, source);
    const bool is_about_tier = !added && (added.error().code == Code::no_space || problem_of(*place));
    if (!is_about_tier || std::ranges::find(full, place->id) != full.end()) return added;
    full.push_back(place->id);
  }
}

Status Service::forget(std::string_view name) {
  const auto row = unit(name);
  if (!row) return row.error();
  const auto mover = this->mover({});
  if (!mover) return mover.error();
  const auto locked = (*mover)->claim(row->id, options_.wait_seconds);
  if (!locked) return locked.error();
  if (!*locked) return Error{Code::in_use, 0, shown(name) + " is being moved or written", "forget it later"};
  if (Status ended = (*mover)->end_interrupted(row->id); !ended) return ended;
  if (const auto still = unit(name); !still) return still.error();
  return catalog_->delete_unit(row->id);
}

Result<std::unique_ptr<Mover>> Service::mover(const MoveOptions& options) {
  {
    const std::scoped_lock lock(context_mutex_);
    if (!context_) {
      Options copying = options_.copying;
      copying.cache = Cache::bypass;
      auto made = Context::create(copying);
      if (!made) return std::move(made).error();
      context_.emplace(std::move(*made));
    }
  }
  return Mover::create(*catalog_, *context_, closer_, one_at_a_time(options));
}

}  // namespace penstock::tiers

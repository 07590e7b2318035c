#include "services/tiers/catalog.h"

#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <random>
#include <utility>

#include "services/tiers/folder.h"
#include "services/tiers/names.h"

namespace penstock::tiers {
namespace {

constexpr std::int64_t version = 1;
constexpr std::int64_t application = 0x50656e54;

// The schema of a file that others could write to may call no functions.
constexpr const char* settings =
    "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA trusted_schema = OFF;";

// Usage is kept by triggers, so that nobody has to add up a million units.
constexpr const char* schema = R"sql(
CREATE TABLE about(key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE tier(
  id INTEGER PRIMARY KEY AUTOINCREMENT, place REAL NOT NULL, name TEXT NOT NULL UNIQUE, path TEXT NOT NULL,
  mark TEXT NOT NULL, capacity INTEGER NOT NULL, low REAL NOT NULL, high REAL NOT NULL, from_heat REAL NOT NULL,
  read_only INTEGER NOT NULL, read_speed REAL NOT NULL DEFAULT 0, write_speed REAL NOT NULL DEFAULT 0,
  gpu_direct TEXT NOT NULL DEFAULT '', used INTEGER NOT NULL DEFAULT 0, units INTEGER NOT NULL DEFAULT 0);
CREATE TABLE unit(
  id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, tier INTEGER NOT NULL REFERENCES tier,
  kind INTEGER NOT NULL, size INTEGER NOT NULL, room INTEGER NOT NULL, files INTEGER NOT NULL, identity TEXT NOT NULL,
  checksum TEXT NOT NULL, accesses INTEGER NOT NULL DEFAULT 0, heat REAL NOT NULL DEFAULT 0,
  heat_at REAL NOT NULL DEFAULT 0, accessed_at REAL NOT NULL DEFAULT 0, moved_at REAL NOT NULL DEFAULT 0,
  pinned INTEGER REFERENCES tier, doubt TEXT NOT NULL DEFAULT '', is_new INTEGER NOT NULL DEFAULT 0);
CREATE INDEX unit_of_tier ON unit(tier, name);
CREATE TABLE move(
  unit INTEGER PRIMARY KEY, job INTEGER NOT NULL, stage INTEGER NOT NULL, source INTEGER, target INTEGER NOT NULL,
  staged INTEGER NOT NULL, source_inode INTEGER NOT NULL, identity TEXT NOT NULL, room INTEGER NOT NULL,
  done INTEGER NOT NULL, began_at REAL NOT NULL, stop INTEGER NOT NULL DEFAULT 0);
CREATE TRIGGER unit_comes AFTER INSERT ON unit BEGIN
  UPDATE tier SET used = used + new.room, units = units + 1 WHERE id = new.tier;
END;
CREATE TRIGGER unit_goes AFTER DELETE ON unit BEGIN
  UPDATE tier SET used = used - old.room, units = units - 1 WHERE id = old.tier;
END;
CREATE TRIGGER unit_moves AFTER UPDATE OF tier, room ON unit
WHEN old.tier <> new.tier OR old.room <> new.room BEGIN
  UPDATE tier SET used = used - old.room, units = units - 1 WHERE id = old.tier;
  UPDATE tier SET used = used + new.room, units = units + 1 WHERE id = new.tier;
END;
)sql";

constexpr const char* unit_columns =
    "id, name, tier, kind, size, room, files, identity, checksum, accesses, heat, heat_at, accessed_at, moved_at, "
    "pinned, doubt, is_new, tier IN (SELECT id FROM tier) AND (pinned IS NULL OR pinned IN (SELECT id FROM tier))";

constexpr const char* move_columns =
    "unit, job, stage, source, target, staged, source_inode, identity, room, done, began_at";

std::uint64_t count(std::int64_t value) {
  return value > 0 ? static_cast<std::uint64_t>(value) : 0;
}
std::int64_t stored(std::uint64_t value) {
  return static_cast<std::int64_t>(value);
}

// What is left of a query, each row by `read`.
template <typename Row>
Result<std::vector<Row>> all_rows(const Database& database, Statement& row,
                                  Result<Row> (*read)(const Database&, const Statement&)) {
  std::vector<Row> all;
  for (;;) {
    const auto more = row.step();
    if (!more) return more.error();
    if (!*more) return all;
    auto one = read(database, row);
    if (!one) return std::move(one).error();
    all.push_back(std::move(*one));
  }
}

template <typename Row>
Result<std::optional<Row>> optional(Result<Row> row) {
  if (!row) return std::move(row).error();
  return std::optional<Row>(std::move(*row));
}

// Others may have written to the file, so nothing that it says is taken for granted.
Result<TierRow> tier_row(const Database& database, const Statement& row) {
  const bool are_texts = row.is_text(1) && row.is_text(2) && row.is_text(3);  // before they are converted
  TierRow tier{.id = row.integer(0),
               .name = row.text(1),
               .path = row.text(2),
               .mark = row.text(3),
               .capacity_bytes = count(row.integer(4)),
               .low_water = row.real(5),
               .high_water = row.real(6),
               .from_heat = row.real(7),
               .read_only = row.integer(8) != 0,
               .read_speed = row.real(9),
               .write_speed = row.real(10),
               .gpu_direct = row.text(11)};
  const bool has_path = tier.path.starts_with('/') && tier.path.find('\0') == std::string::npos;
  const bool has_marks = tier.low_water > 0 && tier.low_water <= tier.high_water && tier.high_water <= 1;
  const bool has_texts = are_texts && check_tier_name(tier.name).ok();
  if (has_texts && has_path && has_marks && tier.from_heat >= 0) return tier;
  return database.damaged("a tier has an impossible name, path or limit (row " + std::to_string(tier.id) + ")");
}

Error impossible_unit(const Database& database, std::int64_t id) {
  return database.damaged("a unit has an impossible name, kind or tier (row " + std::to_string(id) + ")");
}

Result<Brief> brief_row(const Database& database, const Statement& row) {
  Brief brief{.id = row.integer(0),
              .tier = row.integer(1),
              .room_bytes = count(row.integer(2)),
              .heat = row.real(3),
              .heat_at = row.real(4),
              .moved_at = row.real(5)};
  if (!row.is_null(6)) brief.pinned = row.integer(6);
  if (row.integer(7) == 0) return impossible_unit(database, brief.id);
  return brief;
}

Result<UnitRow> unit_row(const Database& database, const Statement& row) {
  const bool is_text = row.is_text(1);  // before it is converted
  UnitRow unit{.id = row.integer(0),
               .name = row.text(1),
               .tier = row.integer(2),
               .kind = row.integer(3) == 0 ? UnitKind::file : UnitKind::directory,
               .size_bytes = count(row.integer(4)),
               .room_bytes = count(row.integer(5)),
               .files = count(row.integer(6)),
               .identity = row.text(7),
               .checksum = row.text(8),
               .accesses = count(row.integer(9)),
               .heat = row.real(10),
               .heat_at = row.real(11),
               .accessed_at = row.real(12),
               .moved_at = row.real(13),
               .doubt = row.text(15),
               .is_new = row.integer(16) != 0};
  if (!row.is_null(14)) unit.pinned = row.integer(14);
  const auto name = checked_name(unit.name);
  const bool has_name = is_text && name.ok() && *name == unit.name;
  const bool has_kind = row.integer(3) == 0 || row.integer(3) == 1;
  if (has_name && has_kind && row.integer(17) != 0) return unit;
  return impossible_unit(database, unit.id);
}

Result<MoveRow> move_row(const Database& database, const Statement& row) {
  MoveRow move{.unit = row.integer(0),
               .job = static_cast<Job>(row.integer(1)),
               .stage = static_cast<Stage>(row.integer(2)),
               .target = row.integer(4),
               .staged_inode = static_cast<std::uint64_t>(row.integer(5)),
               .source_inode = static_cast<std::uint64_t>(row.integer(6)),
               .identity = row.text(7),
               .room_bytes = count(row.integer(8)),
               .done_bytes = count(row.integer(9)),
               .began_at = row.real(10)};
  if (!row.is_null(3)) move.source = row.integer(3);
  const auto is_bit = [&](int column) {
    return row.is_integer(column) && (row.integer(column) == 0 || row.integer(column) == 1);
  };
  // Only what is written for the first time comes from nowhere.
  const bool has_source = move.source || move.job == Job::write;
  if (move.unit > 0 && is_bit(1) && is_bit(2) && has_source) return move;
  return database.damaged("a move has an impossible step (of unit " + std::to_string(move.unit) + ")");
}

// The number that a pragma tells.
Result<std::int64_t> pragma(Database& database, const char* sql) {
  Statement statement(database, sql);
  const auto row = statement.step();
  if (!row) return row.error();
  return *row ? statement.integer(0) : 0;
}

Error not_trusted(const std::string& what, const std::string& hint) {
  return {Code::permission_denied, 0, what, hint};
}

// Who writes to the catalog decides which files its movers touch, and for whom. So it belongs to this user or, where
// others share it, to one who is not served by root; and no other user can exchange it, or what SQLite keeps beside it.
Status check_trusted(const std::string& path) {
  struct stat file = {};
  if (::stat(path.c_str(), &file) != 0) file.st_uid = ::geteuid();  // it is about to be made
  const std::string user = std::to_string(file.st_uid);
  if (::geteuid() == 0 && file.st_uid != 0) {
    return not_trusted("the catalog " + path + " belongs to user " + user + ", who could make root move any file",
                       "run as that user, or give it to root once you have looked at it: chown root " + path);
  }
  if ((file.st_mode & S_IWOTH) != 0) {
    return not_trusted("every user may write to the catalog " + path, "forbid it with: chmod o-w " + path);
  }
  const auto is_known = [&](const struct stat& other) {
    return other.st_uid == 0 || other.st_uid == ::geteuid() || other.st_uid == file.st_uid;
  };
  const std::string parent = std::filesystem::path(path).parent_path();
  struct stat folder = {};
  if (::stat(parent.c_str(), &folder) != 0) return {};  // opening says why
  const bool is_open = (folder.st_mode & S_IWOTH) != 0;
  // A sticky folder does not do: SQLite would take a log that he puts there between a look and its opening.
  if (!is_known(folder) || is_open) {
    return not_trusted("another user may exchange the catalog, or its log, since he may write to its folder " + parent,
                       "keep it in a folder of your own, or change its owner or mode (chown, chmod o-w)");
  }
  if (Status above = check_above(path, 0); !above) return above;
  const bool is_shared = (file.st_mode & S_IWGRP) != 0;
  for (const char* ending : {"-wal", "-shm", "-journal", "-units"}) {
    const std::string beside = path + ending;
    struct stat own = {};
    if (::lstat(beside.c_str(), &own) != 0) continue;
    if (S_ISREG(own.st_mode) && own.st_nlink == 1 && (is_known(own) || is_shared)) continue;
    return not_trusted(beside + " is another user's, or no file", "look at it, and remove it");
  }
  return {};
}

Error no_catalog(const std::string& path) {
  return {Code::not_found, 0, "there is no catalog of tiers at " + path,
          "make one with `penstock tier init`, or name another with PENSTOCK_TIERS or --catalog"};
}

}  // namespace

// Prepared once: looking a name up takes as long as preparing a statement.
struct Catalog::Statements {
  explicit Statements(Database& database)
      : by_name(database, (std::string("SELECT ") + unit_columns + " FROM unit WHERE name = ?1").c_str()),
        by_id(database, (std::string("SELECT ") + unit_columns + " FROM unit WHERE id = ?1").c_str()),
        place(database,
              "SELECT unit.id, kind, tier, path FROM unit JOIN tier ON tier.id = tier WHERE unit.name = ?1 AND "
              "is_new = 0"),
        below(database, "SELECT 1 FROM unit WHERE name > ?1 AND name < ?2 LIMIT 1"),
        tiers(database,
              "SELECT id, name, path, mark, capacity, low, high, from_heat, read_only, read_speed, write_speed, "
              "gpu_direct FROM tier ORDER BY place"),
        usage(database,
              "SELECT used + (SELECT coalesce(sum(room), 0) FROM move WHERE target = ?1 AND stage = 0), units "
              "FROM tier WHERE id = ?1"),
        insert_unit(database,
                    "INSERT INTO unit(name, tier, kind, size, room, files, identity, checksum, moved_at, is_new) "
                    "VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)"),
        update_unit(database,
                    "UPDATE unit SET tier = ?2, kind = ?3, size = ?4, room = ?5, files = ?6, identity = ?7, "
                    "checksum = ?8, moved_at = ?9, doubt = ?10, is_new = ?11 WHERE id = ?1"),
        delete_unit(database, "DELETE FROM unit WHERE id = ?1"),
        doubt(database, "UPDATE unit SET doubt = ?2 WHERE id = ?1 AND doubt <> ?2"),
        access(database,
               "UPDATE unit SET accesses = accesses + ?2, heat_at = ?3, accessed_at = ?3, "
               "heat = ?2 + heat * CASE WHEN ?4 > 0 AND ?3 > heat_at THEN exp2_of((heat_at - ?3) / ?4) ELSE 1 END "
               "WHERE id = ?1"),
        moves(database, (std::string("SELECT ") + move_columns + " FROM move").c_str()),
        move_of(database, (std::string("SELECT ") + move_columns + " FROM move WHERE unit = ?1").c_str()),
        put_move(database,
                 "INSERT OR REPLACE INTO move(unit, job, stage, source, target, staged, source_inode, identity, room, "
                 "done, began_at) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)"),
        set_stage(database, "UPDATE move SET stage = ?2, stop = 0 WHERE unit = ?1"),
        set_done(database, "UPDATE move SET done = ?2 WHERE unit = ?1"),
        delete_move(database, "DELETE FROM move WHERE unit = ?1"),
        stop(database, "UPDATE move SET stop = 1 WHERE unit = ?1"),
        stopped(database, "SELECT unit FROM move WHERE stop <> 0"),
        about(database, "SELECT value FROM about WHERE key = ?1") {}

  Statement by_name, by_id, place, below, tiers, usage, insert_unit, update_unit, delete_unit, doubt, access, moves,
      move_of, put_move, set_stage, set_done, delete_move, stop, stopped, about;
};

std::string random_id() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    std::random_device random;
    for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  }
  std::string text;
  for (const unsigned char byte : bytes) {
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", byte);
    text += digits.data();
  }
  return text;
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Catalog::Catalog(Database database, std::string path) : path_(std::move(path)), database_(std::move(database)) {}
Catalog::~Catalog() = default;

Result<std::unique_ptr<Catalog>> Catalog::prepare(Database database, const std::string& path) {
  std::unique_ptr<Catalog> catalog(new Catalog(std::move(database), path));
  struct stat file = {};
  if (::stat(path.c_str(), &file) != 0) return system_error(errno, "look at the catalog " + path);
  catalog->owner_ = file.st_uid;
  if (Status set = catalog->database_.run(settings); !set) return std::move(set).error();
  catalog->database_.add_functions();
  catalog->statements_ = std::make_unique<Statements>(catalog->database_);
  const Using about(catalog->statements_->about);
  const auto row = about->bind(1, std::string_view("id")).step();
  if (!row) return row.error();
  catalog->id_ = about->text(0);
  return catalog;
}

Result<std::unique_ptr<Catalog>> Catalog::create(const std::string& path, const TierPolicy& policy,
                                                 double wait_seconds) {
  if (Status trusted = check_trusted(path); !trusted) return std::move(trusted).error();
  auto database = Database::open(path, Database::Mode::create, wait_seconds);
  if (!database) return std::move(database).error();
  if (Status set = database->run(settings); !set) return std::move(set).error();
  std::optional<UnitLocks> locks;
  {
    auto transaction = Transaction::begin(*database);
    if (!transaction) return std::move(transaction).error();
    const auto has_version = pragma(*database, "PRAGMA user_version");
    const auto has_tables = pragma(*database, "SELECT count(*) FROM sqlite_master");
    if (!has_version || !has_tables) return (has_version ? has_tables : has_version).error();
    const bool is_new = *has_version == 0 && *has_tables == 0;
    const auto unfinished =
        is_new ? Result<std::int64_t>(1) : pragma(*database, "SELECT count(*) FROM about WHERE key = 'unfinished'");
    if (!unfinished || *unfinished == 0) {
      return Error{Code::in_use, EEXIST, path + " exists already", "use it as it is, or name another catalog"};
    }
    auto opened = UnitLocks::open(path);
    if (!opened) return std::move(opened).error();
    locks.emplace(std::move(*opened));
    const auto locked = locks->try_lock(0);
    if (!locked) return locked.error();
    if (!*locked) return Error{Code::in_use, 0, path + " is being made by another process", "wait for it"};
    if (is_new) {
      if (Status made = database->run(schema); !made) return std::move(made).error();
      Statement insert(*database, "INSERT INTO about VALUES('id', ?1), ('unfinished', 1)");
      const std::string id = random_id();
      if (Status made = insert.bind(1, std::string_view(id)).run(); !made) return std::move(made).error();
      const std::string marks = "PRAGMA application_id = " + std::to_string(application) +
                                "; PRAGMA user_version = " + std::to_string(version);
      if (Status made = database->run(marks.c_str()); !made) return std::move(made).error();
    } else if (Status emptied = database->run("DELETE FROM move; DELETE FROM unit; DELETE FROM tier"); !emptied) {
      return std::move(emptied).error();
    }
    if (Status made = transaction->commit(); !made) return std::move(made).error();
  }
  auto catalog = prepare(std::move(*database), path);
  if (!catalog) return catalog;
  (*catalog)->unfinished_ = std::move(locks);
  if (Status set = (*catalog)->set_policy(policy); !set) return std::move(set).error();
  return catalog;
}

Result<std::unique_ptr<Catalog>> Catalog::open(const std::string& path, double wait_seconds) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) {
    return errno == ENOENT || errno == ENOTDIR ? no_catalog(path) : system_error(errno, "open the catalog " + path);
  }
  if (Status trusted = check_trusted(path); !trusted) return std::move(trusted).error();
  auto database = Database::open(path, Database::Mode::existing, wait_seconds);
  if (!database) return std::move(database).error();
  const auto found = pragma(*database, "PRAGMA user_version");
  const auto by = pragma(*database, "PRAGMA application_id");
  if (!found || !by) return (found ? by : found).error();
  if (*found == 0 && *by == 0) {
    const auto has_tables = pragma(*database, "SELECT count(*) FROM sqlite_master");
    if (!has_tables) return has_tables.error();
    if (*has_tables == 0) return no_catalog(path);
  }
  if (*by != application) {
    return Error{Code::invalid_argument, 0, path + " is a database, but no catalog of tiers", "name another file"};
  }
  if (*found > version) {
    return Error{Code::unsupported, 0,
                 path + " was made by a newer Penstock: it has version " + std::to_string(*found) + ", and this one " +
                     "knows " + std::to_string(version),
                 "use that one"};
  }
  auto catalog = prepare(std::move(*database), path);
  if (!catalog) return catalog;
  const auto unfinished = (*catalog)->is_unfinished();
  if (!unfinished) return unfinished.error();
  if (!*unfinished) return catalog;
  return Error{Code::not_found, 0,
               "the catalog of tiers at " + path + " is unfinished: it is being made, or that ended early",
               "wait, or make it again: penstock tier init"};
}

Result<bool> Catalog::is_unfinished() {
  const std::scoped_lock lock(mutex_);
  const Using row(statements_->about);
  return row->bind(1, std::string_view("unfinished")).step();
}

Status Catalog::finish() {
  const std::scoped_lock lock(mutex_);
  Status finished = database_.run("DELETE FROM about WHERE key = 'unfinished'");
  if (finished) unfinished_.reset();
  return finished;
}

Status Catalog::transact(const std::function<Status()>& work) {
  const std::scoped_lock lock(mutex_);
  if (depth_ > 0) return work();
  auto transaction = Transaction::begin(database_);
  if (!transaction) return std::move(transaction).error();
  ++depth_;
  Status done = work();
  --depth_;
  return done ? transaction->commit() : done;
}

Status Catalog::read(const std::function<Status()>& work) {
  const std::scoped_lock lock(mutex_);
  if (depth_ > 0) return work();
  if (Status begun = database_.run("BEGIN"); !begun) return begun;
  Status done = work();
  const Status ended = database_.run("COMMIT");
  return done ? ended : done;
}

Status Catalog::read_each(std::size_t count, const std::function<Status(std::size_t)>& work) {
  constexpr std::size_t at_once = 1000;
  for (std::size_t begin = 0; begin < count; begin += at_once) {
    Status done = read([&]() -> Status {
      for (std::size_t i = begin; i < std::min(count, begin + at_once); ++i) {
        if (Status each = work(i); !each) return each;
      }
      return {};
    });
    if (!done) return done;
  }
  return {};
}

Result<std::vector<TierRow>> Catalog::tiers() {
  const std::scoped_lock lock(mutex_);
  const Using row(statements_->tiers);
  auto all = all_rows(database_, *row, tier_row);
  if (!all) return all;
  for (TierRow& tier : *all) tier.owner = owner_;
  return all;
}

Result<std::int64_t> Catalog::insert_tier(const TierRow& tier, std::int64_t behind) {
  const std::scoped_lock lock(mutex_);
  // Between two places there is always another.
  Statement insert(database_,
                   "INSERT INTO tier(place, name, path, mark, capacity, low, high, from_heat, read_only) VALUES("
                   "((SELECT coalesce(max(place), 0) FROM tier WHERE id = ?1) + coalesce((SELECT min(place) FROM tier "
                   "WHERE place > (SELECT coalesce(max(place), 0) FROM tier WHERE id = ?1)), "
                   "(SELECT coalesce(max(place), 0) FROM tier) + 2)) / 2, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)");
  insert.bind(1, behind).bind(2, std::string_view(tier.name)).bind(3, std::string_view(tier.path));
  insert.bind(4, std::string_view(tier.mark)).bind(5, stored(tier.capacity_bytes)).bind(6, tier.low_water);
  insert.bind(7, tier.high_water).bind(8, tier.from_heat).bind(9, std::int64_t{tier.read_only});
  if (Status inserted = insert.run(); !inserted) return std::move(inserted).error();
  return database_.last_id();
}

Status Catalog::update_tier(const TierRow& tier) {
  const std::scoped_lock lock(mutex_);
  Statement update(database_,
                   "UPDATE tier SET path = ?2, capacity = ?3, low = ?4, high = ?5, from_heat = ?6, read_only = ?7, "
                   "read_speed = ?8, write_speed = ?9, gpu_direct = ?10 WHERE id = ?1");
  update.bind(1, tier.id).bind(2, std::string_view(tier.path)).bind(3, stored(tier.capacity_bytes));
  update.bind(4, tier.low_water).bind(5, tier.high_water).bind(6, tier.from_heat).bind(7, std::int64_t{tier.read_only});
  return update.bind(8, tier.read_speed).bind(9, tier.write_speed).bind(10, std::string_view(tier.gpu_direct)).run();
}

Status Catalog::delete_tier(std::int64_t id) {
  const std::scoped_lock lock(mutex_);
  return Statement(database_, "DELETE FROM tier WHERE id = ?1").bind(1, id).run();
}

Result<Usage> Catalog::usage(std::int64_t tier) {
  const std::scoped_lock lock(mutex_);
  const Using row(statements_->usage);
  const auto found = row->bind(1, tier).step();
  if (!found) return found.error();
  return Usage{count(row->integer(0)), count(row->integer(1))};
}

Result<Claims> Catalog::claims(std::int64_t tier) {
  const std::scoped_lock lock(mutex_);
  Statement row(database_,
                "SELECT coalesce(sum(tier = ?1 AND is_new = 0), 0), coalesce(sum(tier = ?1 AND is_new <> 0), 0), "
                "coalesce(sum(pinned = ?1), 0) FROM unit WHERE tier = ?1 OR pinned = ?1");
  const auto found = row.bind(1, tier).step();
  if (!found) return found.error();
  return Claims{count(row.integer(0)), count(row.integer(1)), count(row.integer(2))};
}

Result<TierPolicy> Catalog::policy() {
  const std::scoped_lock lock(mutex_);
  TierPolicy policy;
  const std::pair<const char*, double*> values[] = {{"half_life", &policy.half_life_seconds},
                                                    {"cooling", &policy.cooling},
                                                    {"least_stay", &policy.least_stay_seconds}};
  for (const auto& [key, value] : values) {
    const Using row(statements_->about);
    const auto found = row->bind(1, std::string_view(key)).step();
    if (!found) return found.error();
    if (*found) *value = row->real(0);
  }
  return policy;
}

Status Catalog::set_policy(const TierPolicy& policy) {
  return transact([&]() -> Status {
    Statement put(database_, "INSERT OR REPLACE INTO about VALUES(?1, ?2)");
    const std::pair<const char*, double> values[] = {{"half_life", policy.half_life_seconds},
                                                     {"cooling", policy.cooling},
                                                     {"least_stay", policy.least_stay_seconds}};
    for (const auto& [key, value] : values) {
      if (Status done = put.bind(1, std::string_view(key)).bind(2, value).run(); !done) return done;
    }
    return {};
  });
}

Result<bool> Catalog::paused() {
  const std::scoped_lock lock(mutex_);
  const Using row(statements_->about);
  const auto found = row->bind(1, std::string_view("paused")).step();
  if (!found) return found.error();
  return *found && row->integer(0) != 0;
}

Status Catalog::set_paused(bool paused) {
  const std::scoped_lock lock(mutex_);
  return Statement(database_, "INSERT OR REPLACE INTO about VALUES('paused', ?1)").bind(1, std::int64_t{paused}).run();
}

Result<std::optional<UnitRow>> Catalog::unit(std::string_view name) {
  const std::scoped_lock lock(mutex_);
  const Using row(statements_->by_name);
  const auto found = row->bind(1, name).step();
  if (!found) return found.error();
  return *found ? optional(unit_row(database_, statements_->by_name)) : std::optional<UnitRow>();
}

Result<std::optional<UnitRow>> Catalog::unit(std::int64_t id) {
  const std::scoped_lock lock(mutex_);
  const Using row(statements_->by_id);
  const auto found = row->bind(1, id).step();
  if (!found) return found.error();
  return *found ? optional(unit_row(database_, statements_->by_id)) : std::optional<UnitRow>();
}

Result<std::optional<Place>> Catalog::place_of(std::string_view name) {
  const std::scoped_lock lock(mutex_);
  const Using row(statements_->place);
  const auto found = row->bind(1, name).step();
  if (!found) return found.error();
  if (!*found) return std::optional<Place>();
  if (!row->text(3).starts_with('/')) return database_.damaged("a tier has an impossible path");
  return std::optional(Place{.unit = row->integer(0),
                             .kind = row->integer(1) == 0 ? UnitKind::file : UnitKind::directory,
                             .tier = row->integer(2),
                             .root = row->text(3)});
}

Result<bool> Catalog::has_units_below(std::string_view name) {
  const std::scoped_lock lock(mutex_);
  const std::string first = std::string(name) + "/";
  const std::string last = std::string(name) + "0";  // the letter behind the slash
  const Using row(statements_->below);
  return row->bind(1, std::string_view(first)).bind(2, std::string_view(last)).step();
}

Status Catalog::check_free(const std::string& name) {
  for (const std::string& parent : parents_of(name)) {
    const auto above = unit(parent);
    if (!above) return above.error();
    if (*above) {
      return Error{Code::in_use, 0, shown(name) + " lies within the unit " + shown(parent), "a unit moves as a whole"};
    }
  }
  const auto below = has_units_below(name);
  if (!below) return below.error();
  if (*below) return Error{Code::in_use, 0, "units lie within " + shown(name), "forget them first"};
  return {};
}

Result<std::vector<UnitRow>> Catalog::units(const UnitFilter& filter, std::optional<std::int64_t> tier) {
  const std::scoped_lock lock(mutex_);
  // The names that begin so lie between the prefix and what follows it.
  std::string end = filter.prefix;
  while (!end.empty() && static_cast<unsigned char>(end.back()) == 0xff) end.pop_back();
  if (!end.empty()) end.back() = static_cast<char>(static_cast<unsigned char>(end.back()) + 1);
  std::string sql = std::string("SELECT ") + unit_columns + " FROM unit WHERE is_new = 0 AND name > ?1 AND name >= ?2";
  if (!end.empty()) sql += " AND name < ?3";
  if (tier) sql += " AND tier = ?4";
  sql += " ORDER BY name LIMIT ?5";
  Statement row(database_, sql.c_str());
  row.bind(1, std::string_view(filter.after)).bind(2, std::string_view(filter.prefix));
  if (!end.empty()) row.bind(3, std::string_view(end));
  if (tier) row.bind(4, *tier);
  row.bind(5, stored(std::min<std::uint64_t>(filter.limit, INT64_MAX)));
  return all_rows(database_, row, unit_row);
}

Result<std::vector<UnitRow>> Catalog::units_in_doubt() {
  const std::scoped_lock lock(mutex_);
  Statement row(database_,
                (std::string("SELECT ") + unit_columns + " FROM unit WHERE doubt <> '' AND is_new = 0").c_str());
  return all_rows(database_, row, unit_row);
}

Result<std::vector<Brief>> Catalog::briefs() {
  const std::scoped_lock lock(mutex_);
  Statement row(
      database_,
      "SELECT id, tier, room, heat, heat_at, moved_at, pinned, tier IN (SELECT id FROM tier) AND (pinned IS NULL "
      "OR pinned IN (SELECT id FROM tier)) FROM unit WHERE is_new = 0 AND doubt = ''");
  return all_rows(database_, row, brief_row);
}

Result<std::int64_t> Catalog::insert_unit(const UnitRow& unit) {
  const std::scoped_lock lock(mutex_);
  Statement& insert = statements_->insert_unit;
  insert.bind(1, std::string_view(unit.name)).bind(2, unit.tier).bind(3, std::int64_t{unit.kind != UnitKind::file});
  insert.bind(4, stored(unit.size_bytes)).bind(5, stored(unit.room_bytes)).bind(6, stored(unit.files));
  insert.bind(7, std::string_view(unit.identity)).bind(8, std::string_view(unit.checksum)).bind(9, unit.moved_at);
  if (Status done = insert.bind(10, std::int64_t{unit.is_new}).run(); !done) return std::move(done).error();
  return database_.last_id();
}

Status Catalog::update_unit(const UnitRow& unit) {
  const std::scoped_lock lock(mutex_);
  Statement& update = statements_->update_unit;
  update.bind(1, unit.id).bind(2, unit.tier).bind(3, std::int64_t{unit.kind != UnitKind::file});
  update.bind(4, stored(unit.size_bytes)).bind(5, stored(unit.room_bytes)).bind(6, stored(unit.files));
  update.bind(7, std::string_view(unit.identity)).bind(8, std::string_view(unit.checksum)).bind(9, unit.moved_at);
  return update.bind(10, std::string_view(unit.doubt)).bind(11, std::int64_t{unit.is_new}).run();
}

Status Catalog::delete_unit(std::int64_t id) {
  const std::scoped_lock lock(mutex_);
  return statements_->delete_unit.bind(1, id).run();
}

Status Catalog::pin(std::int64_t unit, std::optional<std::int64_t> tier) {
  const std::scoped_lock lock(mutex_);
  Statement update(database_, "UPDATE unit SET pinned = ?2 WHERE id = ?1");
  update.bind(1, unit);
  return (tier ? update.bind(2, *tier) : update.bind_nothing(2)).run();
}

Status Catalog::doubt(std::int64_t unit, std::string_view text) {
  const std::scoped_lock lock(mutex_);
  return statements_->doubt.bind(1, unit).bind(2, text).run();
}

Status Catalog::fade_from(double now) {
  const std::scoped_lock lock(mutex_);
  return Statement(database_, "UPDATE unit SET heat_at = ?1 WHERE heat_at > ?1").bind(1, now).run();
}

Status Catalog::add_accesses(std::span<const Counted> counted, double now, double half_life_seconds) {
  return transact([&]() -> Status {
    for (const Counted& one : counted) {
      Statement& update = statements_->access;
      update.bind(1, one.unit).bind(2, stored(one.accesses)).bind(3, now).bind(4, half_life_seconds);
      if (Status done = update.run(); !done) return done;
    }
    return {};
  });
}

Result<std::vector<MoveRow>> Catalog::moves() {
  const std::scoped_lock lock(mutex_);
  const Using row(statements_->moves);
  return all_rows(database_, *row, move_row);
}

Result<std::optional<MoveRow>> Catalog::move_of(std::int64_t unit) {
  const std::scoped_lock lock(mutex_);
  const Using row(statements_->move_of);
  const auto found = row->bind(1, unit).step();
  if (!found) return found.error();
  return *found ? optional(move_row(database_, statements_->move_of)) : std::optional<MoveRow>();
}

Status Catalog::put_move(const MoveRow& move) {
  const std::scoped_lock lock(mutex_);
  Statement& put = statements_->put_move;
  put.bind(1, move.unit).bind(2, static_cast<std::int64_t>(move.job)).bind(3, static_cast<std::int64_t>(move.stage));
  if (move.source) {
    put.bind(4, *move.source);
  } else {
    put.bind_nothing(4);
  }
  put.bind(5, move.target).bind(6, stored(move.staged_inode)).bind(7, stored(move.source_inode));
  put.bind(8, std::string_view(move.identity)).bind(9, stored(move.room_bytes)).bind(10, stored(move.done_bytes));
  return put.bind(11, move.began_at).run();
}

Status Catalog::set_stage(std::int64_t unit, Stage stage) {
  const std::scoped_lock lock(mutex_);
  return statements_->set_stage.bind(1, unit).bind(2, static_cast<std::int64_t>(stage)).run();
}

Status Catalog::set_done(std::int64_t unit, std::uint64_t done_bytes) {
  const std::scoped_lock lock(mutex_);
  return statements_->set_done.bind(1, unit).bind(2, stored(done_bytes)).run();
}

Status Catalog::delete_move(std::int64_t unit) {
  const std::scoped_lock lock(mutex_);
  return statements_->delete_move.bind(1, unit).run();
}

Status Catalog::ask_to_stop(std::int64_t unit) {
  const std::scoped_lock lock(mutex_);
  return statements_->stop.bind(1, unit).run();
}

Result<std::vector<std::int64_t>> Catalog::asked_to_stop() {
  const std::scoped_lock lock(mutex_);
  const Using row(statements_->stopped);
  return all_rows<std::int64_t>(
      database_, *row, [](const Database&, const Statement& each) { return Result<std::int64_t>(each.integer(0)); });
}

}  // namespace penstock::tiers

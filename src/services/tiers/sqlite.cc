#include "services/tiers/sqlite.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/unique_fd.h"

namespace penstock::tiers {
namespace {

// `error` is the system's, where it has failed.
Code code_of(int result, int error) {
  switch (result & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return Code::timed_out;
    case SQLITE_NOMEM:
      return Code::out_of_memory;
    case SQLITE_READONLY:
      return Code::read_only;
    case SQLITE_PERM:
    case SQLITE_AUTH:
      return Code::permission_denied;
    case SQLITE_FULL:
      return Code::no_space;
    case SQLITE_CANTOPEN:
      return error == 0 ? Code::not_found : code_from_errno(error);
    case SQLITE_IOERR:
      return error == ENOSPC || error == EDQUOT ? Code::no_space : Code::io_error;
    default:
      return Code::io_error;
  }
}

const char* hint_for(int result, int error) {
  constexpr const char* make_room = "free some room on the disk of the catalog";
  switch (result & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return "another process keeps the catalog busy; try again, or wait longer";
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return "the units are whole on their tiers; move the catalog aside, make a new one with the same tiers "
             "(penstock tier init --adopt), and import them again (penstock tier import --all)";
    case SQLITE_CANTOPEN:
    case SQLITE_IOERR:
      if (error == EMFILE || error == ENFILE) {
        return "too many files are open: close some, or raise the limit (ulimit -n)";
      }
      if (error == ENOSPC || error == EDQUOT) return make_room;
      return (result & 0xff) == SQLITE_CANTOPEN ? "check the folder of the catalog and its permissions" : "";
    case SQLITE_READONLY:
      return "run as the user who owns the catalog and its folder";
    case SQLITE_FULL:
      return make_room;
    default:
      return "";
  }
}

}  // namespace

namespace {

// How many databases this process has open. What SQLite knows of their locks comes along to a forked child, and is
// wrong there: it would write without locks, and lose what it writes.
class OpenDatabases {
 public:
  // False in a child whose parent had one open when it forked.
  static bool enter() {
    const pid_t process = ::getpid();
    pid_t owner = owner_.load();
    while (owner != process) {
      if (open_.load() != 0 && owner_.load() == owner) return false;
      if (owner_.compare_exchange_strong(owner, process)) break;
    }
    open_.fetch_add(1);
    return true;
  }
  static void leave() { open_.fetch_sub(1); }

 private:
  static inline std::atomic<pid_t> owner_{0};
  static inline std::atomic<int> open_{0};
};

}  // namespace

Result<Database> Database::open(const std::string& path, Mode mode, double wait_seconds) {
  if (!OpenDatabases::enter()) {
    return Error{Code::closed, 0,
                 "this process was forked while its parent had Tiers open, which SQLite does not survive",
                 "fork before you open Tiers, or start the process anew: by exec, in Python by spawn or forkserver"};
  }
  // A reader can hold locks that keep writers waiting, so others may read it only once its owner says so. A file that
  // is there stays closed: closing it would end the locks that this process has on it.
  if (mode == Mode::create) UniqueFd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  // Absolute names only, so that none is taken for a URI.
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE |
                    (mode == Mode::create ? SQLITE_OPEN_CREATE : 0);
  sqlite3* handle = nullptr;
  const int result = sqlite3_open_v2(path.c_str(), &handle, flags, nullptr);
  Database database(handle, path);
  if (handle == nullptr) return Error{Code::out_of_memory, 0, "open the catalog " + path, ""};
  if (result != SQLITE_OK) {
    // SQLite tries to open for reading then, and tells why that fails.
    const std::string folder = std::filesystem::path(path).parent_path();
    if (::access(path.c_str(), F_OK) != 0 && ::access(folder.c_str(), W_OK | X_OK) != 0) {
      return system_error(errno, "make the catalog " + path, "check the folder of the catalog and its permissions");
    }
    return database.error("open");
  }
  sqlite3_busy_timeout(handle, static_cast<int>(std::clamp(wait_seconds, 0.0, 1e6) * 1000));
  return database;
}

Database::Database(Database&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)),
      path_(std::move(other.path_)),
      is_open_(std::exchange(other.is_open_, false)) {}

Database::~Database() {
  if (!is_open_) return;
  sqlite3_close_v2(handle_);
  OpenDatabases::leave();
}

Status Database::run(const char* sql) {
  if (sqlite3_exec(handle_, sql, nullptr, nullptr, nullptr) == SQLITE_OK) return {};
  return error("change");
}

void Database::add_functions() {
  const auto exp2_of = [](sqlite3_context* context, int, sqlite3_value** values) {
    sqlite3_result_double(context, std::exp2(sqlite3_value_double(values[0])));
  };
  sqlite3_create_function_v2(handle_, "exp2_of", 1, SQLITE_UTF8 | SQLITE_DETERMINISTIC, nullptr, exp2_of, nullptr,
                             nullptr, nullptr);
}

std::int64_t Database::last_id() const {
  return sqlite3_last_insert_rowid(handle_);
}

std::int64_t Database::changes() const {
  return sqlite3_changes64(handle_);
}

Error Database::error(const std::string& what) const {
  const int result = sqlite3_extended_errcode(handle_);
  const bool is_system = (result & 0xff) == SQLITE_CANTOPEN || (result & 0xff) == SQLITE_IOERR;
  const int error = is_system ? sqlite3_system_errno(handle_) : 0;
  // SQLite opens what can't be written for reading, and fails later for reasons that follow from it.
  const bool may_follow = is_system || (result & 0xff) == SQLITE_READONLY;
  if (may_follow && sqlite3_db_readonly(handle_, "main") == 1 && ::access(path_.c_str(), W_OK) != 0) {
    return system_error(errno, what + " the catalog " + path_,
                        errno == EROFS ? "remount its file system for writing, or name another catalog"
                                       : "run as the user who owns the catalog");
  }
  std::string message = what + " the catalog " + path_ + ": " + sqlite3_errmsg(handle_);
  if (error != 0) message += ": " + std::generic_category().message(error);
  return {code_of(result, error), error, std::move(message), hint_for(result, error)};
}

Error Database::damaged(const std::string& what) const {
  return {Code::io_error, 0, "the catalog " + path_ + " is damaged: " + what, hint_for(SQLITE_CORRUPT, 0)};
}

Statement::Statement(Database& database, const char* sql) : database_(database) {
  // What does not compile is told by the first step.
  sqlite3_prepare_v3(database.handle(), sql, -1, SQLITE_PREPARE_PERSISTENT, &handle_, nullptr);
}

Statement::~Statement() {
  sqlite3_finalize(handle_);
}

Statement& Statement::bind(int place, std::int64_t value) {
  sqlite3_bind_int64(handle_, place, value);
  return *this;
}

Statement& Statement::bind(int place, double value) {
  sqlite3_bind_double(handle_, place, value);
  return *this;
}

Statement& Statement::bind(int place, std::string_view text) {
  sqlite3_bind_text64(handle_, place, text.data() != nullptr ? text.data() : "", text.size(), SQLITE_STATIC,
                      SQLITE_UTF8);
  return *this;
}

Statement& Statement::bind_nothing(int place) {
  sqlite3_bind_null(handle_, place);
  return *this;
}

Result<bool> Statement::step() {
  if (handle_ == nullptr) return database_.error("ask");
  switch (sqlite3_step(handle_)) {
    case SQLITE_ROW:
      return true;
    case SQLITE_DONE:
      return false;
    default:
      return database_.error("use");
  }
}

Status Statement::run() {
  const Result<bool> done = step();
  reset();
  return done ? Status() : Status(done.error());
}

void Statement::reset() {
  sqlite3_reset(handle_);
}

std::int64_t Statement::integer(int column) const {
  return sqlite3_column_int64(handle_, column);
}

double Statement::real(int column) const {
  return sqlite3_column_double(handle_, column);
}

std::string Statement::text(int column) const {
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(handle_, column));
  return text == nullptr ? std::string()
                         : std::string(text, static_cast<std::size_t>(sqlite3_column_bytes(handle_, column)));
}

bool Statement::is_null(int column) const {
  return sqlite3_column_type(handle_, column) == SQLITE_NULL;
}

bool Statement::is_text(int column) const {
  return sqlite3_column_type(handle_, column) == SQLITE_TEXT;
}

bool Statement::is_integer(int column) const {
  return sqlite3_column_type(handle_, column) == SQLITE_INTEGER;
}

Result<Transaction> Transaction::begin(Database& database) {
  if (Status begun = database.run("BEGIN IMMEDIATE"); !begun) return std::move(begun).error();
  return Transaction(database);
}

Transaction::~Transaction() {
  if (database_ != nullptr) static_cast<void>(database_->run("ROLLBACK"));
}

Status Transaction::commit() {
  if (Status committed = database_->run("COMMIT"); !committed) return committed;
  database_ = nullptr;
  return {};
}

}  // namespace penstock::tiers

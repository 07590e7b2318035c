// A database of SQLite, and statements that are prepared once.
//
// Thread safety: one thread at a time. Lifetime: statements must not outlive their database.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "penstock/result.h"

struct sqlite3;
struct sqlite3_stmt;

namespace penstock::tiers {

class Database {
 public:
  enum class Mode { existing, create };
  // Waits for others at most `wait_seconds` each time. Fails in a child whose parent had a database open when it
  // forked.
  static Result<Database> open(const std::string& path, Mode mode, double wait_seconds);
  Database(Database&& other) noexcept;
  Database& operator=(Database&&) = delete;
  ~Database();

  // Statements without parameters and rows.
  Status run(const char* sql);
  // exp2_of(x) in statements: not every SQLite has functions of its own for that.
  void add_functions();
  std::int64_t last_id() const;
  std::int64_t changes() const;
  // The last failure, with the name of the file.
  Error error(const std::string& what) const;
  // That something in it is not as we would have written it.
  Error damaged(const std::string& what) const;
  sqlite3* handle() const { return handle_; }

 private:
  Database(sqlite3* handle, std::string path) : handle_(handle), path_(std::move(path)) {}
  sqlite3* handle_ = nullptr;
  std::string path_;
  bool is_open_ = true;  // false: it was moved from
};

// REQUIRES: the texts that are bound live until the statement is reset.
class Statement {
 public:
  Statement(Database& database, const char* sql);
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;
  ~Statement();

  Statement& bind(int place, std::int64_t value);
  Statement& bind(int place, double value);
  Statement& bind(int place, std::string_view text);
  Statement& bind_nothing(int place);
  // True while there are rows.
  Result<bool> step();
  // All of it, for what has no rows.
  Status run();
  void reset();

  std::int64_t integer(int column) const;
  double real(int column) const;
  std::string text(int column) const;
  bool is_null(int column) const;
  // Whatever the type of its column, a row can have other values.
  bool is_text(int column) const;
  bool is_integer(int column) const;

 private:
  Database& database_;
  sqlite3_stmt* handle_ = nullptr;
};

// Resets a statement when it goes, so that no read stays open.
class Using {
 public:
  explicit Using(Statement& statement) : statement_(statement) { statement_.reset(); }
  ~Using() { statement_.reset(); }
  Using(const Using&) = delete;
  Using& operator=(const Using&) = delete;
  Statement& operator*() const { return statement_; }
  Statement* operator->() const { return &statement_; }

 private:
  Statement& statement_;
};

// A transaction that writes; undone unless it is committed.
class Transaction {
 public:
  static Result<Transaction> begin(Database& database);
  Transaction(Transaction&& other) noexcept : database_(other.database_) { other.database_ = nullptr; }
  Transaction& operator=(Transaction&&) = delete;
  ~Transaction();
  Status commit();

 private:
  explicit Transaction(Database& database) : database_(&database) {}
  Database* database_;
};

}  // namespace penstock::tiers

// Kinds: named tables of records in one store, and the dictionary that says where each of them lies.
//
//   auto kinds = penstock::Kinds::create(context, "records.bin").value();
//   auto users = kinds.add({.name = "users", .capacity = 1000000, .type = "F32", .shape = {16}}).value();
//   auto first = kinds.append(users.id, penstock::Region::host(data, bytes));      // durable when it returns
//   auto three = kinds.read({.kind = users.id, .index = 7, .count = 3}, penstock::Domain::cuda(0)).value();
//
// The store is a file, a block device, an NVMe namespace, or whatever else a Context opens by its name. The dictionary
// is JSON, in a file of its own: beside a file of records, and for all else at a path that is given. docs/kinds.md has
// its members.
//
// Records that were appended never change. Appending writes them, makes them durable, and then replaces the dictionary
// by one that counts them: whatever ends a writer, a record that counts is whole. Writers take turns, also those of
// several processes. Readers wait for nobody, and find out about new records when they ask for one.
//
// Thread safety: any thread. Lifetime: a handle; copies share it, and it keeps its Context open. In a
// forked child, calls fail with Code::closed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/context.h"
#include "penstock/rows.h"

namespace penstock {

namespace kinds {
class Table;
}

// What the dictionary says of a kind.
struct Kind {
  std::uint32_t id = 0;  // from 1
  std::string name;
  std::uint64_t start_byte = 0;    // in the store
  bool starts_at_lba = false;      // the dictionary gives the start as the number of a block
  std::uint64_t length_bytes = 0;  // of the range that is kept for it
  std::uint64_t record_bytes = 0;
  std::string type;                  // of a record's elements, as dtype_name has it; empty: a record is bytes
  std::vector<std::uint64_t> shape;  // of a record
  std::uint64_t records = 0;         // that there are

  std::uint64_t capacity() const { return record_bytes == 0 ? 0 : length_bytes / record_bytes; }
  friend bool operator==(const Kind&, const Kind&) = default;
};

struct NewKind {
  static constexpr std::uint64_t anywhere = UINT64_MAX;

  std::string name;                       // UTF-8, 255 bytes at most, without control characters; not only digits
  std::uint32_t id = 0;                   // 0: one above all that there ever were
  std::uint64_t start_byte = anywhere;    // anywhere: behind all else in a file, in the first gap of a device
  std::uint64_t start_lba = anywhere;     // instead: in blocks of the dictionary's size
  std::uint64_t capacity = 0;             // in records
  std::uint64_t length_bytes = 0;         // instead; 0: what the capacity takes
  std::uint64_t record_bytes = 0;         // 0: what type and shape say
  std::string type = {};                  // as Kind has them
  std::vector<std::uint64_t> shape = {};  // none, with a type: a record is one element
  std::uint64_t records = 0;              // that are there already; Code::out_of_range if the store ends before them
};

struct KindsOptions {
  std::string dictionary = {};  // a path; empty: that of a file, and ".kinds.json"
  // Permission to write to a device. Access, size and descriptor don't count.
  OpenOptions writing = {};
  double lock_seconds = 10;  // how long to wait for another writer; then Code::in_use
};

// Records that follow each other.
struct Records {
  std::uint32_t kind = 0;  // its id
  std::uint64_t index = 0;
  std::uint64_t count = 1;
};

struct RecordsRead {
  Records records;
  Region memory;  // exactly as large
};

struct RecordsAppend {
  std::uint32_t kind = 0;
  Region memory;  // whole records
};

// Made by default: of no store; calls fail with Code::invalid_argument.
class PENSTOCK_EXPORT Kinds {
 public:
  // A dictionary without kinds, and the file of records if there is none. Code::in_use if there is a dictionary,
  // Code::invalid_argument if both would be one file.
  static Result<Kinds> create(const Context& context, const std::string& store, const KindsOptions& options = {});
  // Code::not_found without a dictionary; Code::invalid_argument, out_of_range or unsupported for one that is wrong, by
  // itself or for this store.
  static Result<Kinds> open(const Context& context, const std::string& store, const KindsOptions& options = {});
  // Checks the text of a dictionary without a store.
  static Result<std::vector<Kind>> parse(std::string_view json);

  Kinds();
  Kinds(const Kinds&);
  Kinds(Kinds&&) noexcept;
  Kinds& operator=(const Kinds&);
  Kinds& operator=(Kinds&&) noexcept;
  ~Kinds();

  // As last read, by their places in the store.
  std::vector<Kind> list() const;
  Result<Kind> find(std::string_view name) const;
  Result<Kind> find(std::uint32_t id) const;
  const std::string& dictionary() const;  // its path
  const std::string& store() const;       // its name
  // The size of a block that LBAs count.
  std::uint64_t block_bytes() const;
  // Where the store is, as far as speed is concerned; `network` while it is not open.
  Locality locality() const;
  // Reads the dictionary again, and opens the store again. Calls that miss a kind or a record do so by themselves.
  Status refresh() const;

  // Makes room for a kind: a file grows, and a device must have it. Durable when it returns.
  Result<Kind> add(const NewKind& kind) const;
  // Takes a kind out of the dictionary. Its bytes stay where they are, and others may get the room: handles that were
  // there before would read theirs.
  Status remove(std::uint32_t kind) const;

  // Appends records, and returns the index of the first: that of each part, where parts are given. All parts count, or
  // none. Code::no_space if the kind has not enough room, Code::in_use if another writer took too long,
  // Code::changed if the id is another kind's than when this handle last looked. After Code::not_durable they are
  // there, but a power cut may take them away again. Inside a completion callback: Code::would_deadlock.
  Result<std::uint64_t> append(std::uint32_t kind, Region records) const;
  // `keep_going` is asked about twenty times a second, on the calling thread; with false it ends with Code::cancelled,
  // and no record counts. A call that is over sooner does not ask. It must not throw: that ends the process with a
  // message. Code::abandoned: no record counts, but the disk may still write where they were to be. Until it is done,
  // writers get Code::in_use.
  Result<std::vector<std::uint64_t>> append(std::span<const RecordsAppend> parts,
                                            const std::function<bool()>& keep_going = {}) const;

  // All that is read in one call is one request. Code::out_of_range for records that there are not, before a byte
  // moves.
  Report read(const Records& records, Region memory, const RequestOptions& options = {}) const;
  Result<Loaded> read(const Records& records, Domain domain, const RequestOptions& options = {}) const;
  Report read(std::span<const RecordsRead> reads, const RequestOptions& options = {}) const;
  Result<Ticket> submit(std::span<const RecordsRead> reads, const RequestOptions& options = {}) const;

  // The records that there are now as a table, to gather them by their numbers: each cold one is read once, with its
  // neighbours, and cached ones are copied from a mapping.
  Result<Rows> rows(std::uint32_t kind, const RowsOptions& options = {}) const;

 private:
  explicit Kinds(std::shared_ptr<kinds::Table> table);
  std::shared_ptr<kinds::Table> table_;  // shared by copies
};

}  // namespace penstock

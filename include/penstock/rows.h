// Rows: rows of a table that is longer than memory, gathered by their numbers into host or GPU memory.
//
//   auto table = penstock::Rows::open_tensor(context, "model.safetensors", "embed_tokens.weight").value();
//   std::vector<std::int64_t> numbers = {7, 7, 0, 131071};
//   auto gathered = table.gather(numbers, penstock::Domain::cuda(0)).value();   // gathered.buffer has 4 rows
//
// A table is a tensor of a safetensors or GGUF file, a .npy file, or raw rows, in any store that a Context opens; or
// several of them, one behind the other. Rows that are in the page cache are copied from a mapping, many at a time, by
// the lanes of the Context. All others are read past it, each once, with neighbours in one operation. docs/rows.md says
// how it is known which are which, and what it costs.
//
// A file that is truncated meanwhile is an error. That takes a handler of SIGBUS, installed with the first table that
// is mapped: it acts on our mappings within a gather, and leaves all else to the handler before it.
//
// Thread safety: any thread; gathers run at the same time. Lifetime: a handle; copies share the table, which keeps its
// Context open. Numbers and memory are borrowed until a call returns, and longer where its report says
// `abandoned` (request.h). In a forked child, calls fail with Code::closed, and inside a completion callback gathers
// with Code::would_deadlock.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "penstock/context.h"

namespace penstock {

namespace rows {
class Table;
}

// Numbers of rows: integers of any type, in host or GPU memory.
class RowNumbers {
 public:
  enum class Type : std::uint8_t { i8, u8, i16, u16, i32, u32, i64, u64 };

  template <std::ranges::contiguous_range Range>
    requires std::integral<std::ranges::range_value_t<Range>> && std::ranges::sized_range<Range> &&
             (!std::same_as<std::ranges::range_value_t<Range>, bool>)
  RowNumbers(const Range& numbers)
      : RowNumbers(
            type_of<std::ranges::range_value_t<Range>>(),
            {reinterpret_cast<std::byte*>(const_cast<std::ranges::range_value_t<Range>*>(std::ranges::data(numbers))),
             std::ranges::size(numbers) * sizeof(std::ranges::range_value_t<Range>), Domain::host()}) {}
  // Only read. Those in GPU memory are copied to the host first, which waits for nothing that is on a stream.
  RowNumbers(Type type, Region memory) : memory_(memory), type_(type) {}

  Type type() const { return type_; }
  const Region& memory() const { return memory_; }
  std::size_t element_bytes() const { return std::size_t{1} << (static_cast<unsigned>(type_) / 2); }
  std::size_t size() const { return memory_.size_bytes / element_bytes(); }

 private:
  template <typename Number>
  static constexpr Type type_of() {
    static_assert(sizeof(Number) <= 8);
    constexpr unsigned log = sizeof(Number) == 1 ? 0 : sizeof(Number) == 2 ? 1 : sizeof(Number) == 4 ? 2 : 3;
    return static_cast<Type>(2 * log + (std::is_unsigned_v<Number> ? 1 : 0));
  }

  Region memory_;
  Type type_ = Type::i64;
};

struct RowsOptions {
  // Rows in the page cache are copied from a mapping. Without, all are read by calls, and no handler is installed.
  bool mapping = true;
  double look_again_seconds = 1;    // what is known of the page cache is believed for so long, at least
  std::uint64_t join_bytes = 4096;  // cold rows with no more than this between them are read together, 1 MiB at most
  // Host memory for cold rows that are read together, or asked for twice; a gather that needs more reads in turns.
  std::uint64_t scratch_bytes = 256 << 20;
};

// Rows that lie in a store without a header.
struct RawRows {
  static constexpr std::uint64_t all = UINT64_MAX;

  std::uint64_t offset = 0;  // of the first
  std::uint64_t row_bytes = 0;
  std::uint64_t stride_bytes = 0;  // from the beginning of a row to that of the next; 0: row_bytes
  std::uint64_t count = all;       // as many as there are up to the end, which must be whole
  // Others write to the store meanwhile, elsewhere than to these rows: it is no error that it has changed, unless it
  // was truncated.
  bool growing = false;
  std::string dtype = {};  // as TableInfo tells them
  std::vector<std::uint64_t> row_shape = {};
};

struct TableInfo {
  std::uint64_t rows = 0;
  std::uint64_t row_bytes = 0;
  std::vector<std::uint64_t> row_shape;  // of a tensor, or an array; of raw rows what RawRows says
  std::string dtype;  // as its format writes it: "BF16", "Q4_K", "<f4"; of raw rows what RawRows says
  std::size_t stores = 1;
};

struct GatherOptions {
  bool zeros_for_missing = false;  // a number that is no row's gives a row of zeros, instead of Code::out_of_range
  double deadline_seconds = 0;     // of the whole gather; as RequestOptions has it
  // Asked about twenty times a second, on the calling thread; false ends the gather with Code::cancelled. A call that
  // is over sooner does not ask. It must not throw: that ends the process with a message.
  std::function<bool()> keep_going = {};
};

struct RowsReport {
  Outcome outcome = Outcome::pending;
  std::optional<Error> error;  // set unless done; no row is vouched for then
  double seconds = 0;
  std::uint64_t bytes = 0;        // of all rows that were asked for
  std::uint64_t cached_rows = 0;  // copied from a mapping; of Rows::rows, as many as the bytes that were cached make up
  std::uint64_t cold_rows = 0;    // not
  std::uint64_t missing_rows = 0;  // zeros
  std::uint64_t read_bytes = 0;    // by calls, for cold rows; each row counts once, however often it was asked for
  std::uint64_t extra_bytes = 0;   // of these, what is no row that was asked for: between rows, and up to whole blocks
  // Pending where there was nothing to do. The first has the requests that read cold rows, to their places or into
  // scratch memory; the second those that wrote all others to theirs, by the routes `made` and `made_staged`, and zeros
  // to places in between that are read over.
  Report reading;
  Report filling;

  bool ok() const { return outcome == Outcome::done; }
};

struct GatheredRows {
  Buffer buffer;
  RowsReport report;
};

// Made by default: of no rows; calls fail with Code::invalid_argument.
class PENSTOCK_EXPORT Rows {
  friend class RowsPlan;

 public:
  // By any name that Model::open takes. A row is one step of the slowest dimension; a quantized one is whole blocks, or
  // the tensor is refused.
  static Result<Rows> open_tensor(const Context& context, const std::string& name, std::string_view tensor,
                                  const RowsOptions& options = {});
  // A file of NumPy's, in C order; any type of fixed size without fields.
  static Result<Rows> open_npy(const Context& context, const std::string& name, const RowsOptions& options = {});
  static Result<Rows> open_raw(const Context& context, const std::string& name, const RawRows& raw,
                               const RowsOptions& options = {});
  // One table of several, whose rows have the same size: those of the first, then those of the second. The options are
  // those of the first.
  static Result<Rows> join(std::span<const Rows> tables);

  Rows();
  Rows(const Rows&);
  Rows(Rows&&) noexcept;
  Rows& operator=(const Rows&);
  Rows& operator=(Rows&&) noexcept;
  ~Rows();

  const TableInfo& info() const;

  // The rows in the order of their numbers, without gaps. Memory of any domain, exactly as large. A number that is no
  // row's is told with its position, before a byte moves.
  RowsReport gather(const RowNumbers& numbers, Region memory, const GatherOptions& options = {}) const;
  Result<GatheredRows> gather(const RowNumbers& numbers, Domain domain, const GatherOptions& options = {}) const;

  // `count` rows from `begin` on.
  RowsReport rows(std::uint64_t begin, std::uint64_t count, Region memory, const GatherOptions& options = {}) const;
  Result<GatheredRows> rows(std::uint64_t begin, std::uint64_t count, Domain domain,
                            const GatherOptions& options = {}) const;

  // Starts bringing rows into the page cache, at most Options::prefetch_window_bytes; says how many bytes were started.
  Result<std::uint64_t> prefetch(const RowNumbers& numbers) const;

 private:
  explicit Rows(std::shared_ptr<const rows::Table> table);
  std::shared_ptr<const rows::Table> table_;  // shared by copies
};

}  // namespace penstock

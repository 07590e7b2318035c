#include "services/models/packed_writer.h"
#include "services/models/open_store.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "penstock/checksum.h"
#include "penstock/machine.h"
#include "services/models/check.h"
#include "services/models/contents.h"
#include "services/models/ending.h"
#include "services/models/json_text.h"
#include "services/models/packed_metadata.h"
#include "services/models/safetensors_head.h"
#include "services/packed/codec.h"

namespace penstock::models {
namespace {

// Two are read into, two are written from, and one is for chunks on their way from these to those.
constexpr std::uint64_t least_window_bytes = 1 << 20, most_window_bytes = 16 << 20, windows_in_use = 5;
constexpr std::size_t chunks_sampled = 8;
constexpr auto asking_interval = std::chrono::milliseconds(50);

Result<std::uint64_t> window_bytes_that_fit() {
  const std::uint64_t available = Machine::available_memory_bytes();
  const std::uint64_t share = available / windows_in_use / least_window_bytes * least_window_bytes;
  if (share != 0) return std::min(share, most_window_bytes);
  return Error{Code::out_of_memory, 0,
               "packing and unpacking take " + std::to_string(windows_in_use * least_window_bytes) +
                   " bytes of memory, and " + std::to_string(available) + " are available",
               "raise the memory limit of the control group, or end other programs"};
}

std::optional<packed::Kind> packed_kind_of(const TensorToSave& tensor) {
  return packed::kind_from_name(dtype_name(tensor.dtype));
}

// Runs a function for each number below `count`, on this thread and as many others as there are and as help. It must
// not throw.
template <typename Function>
void in_parallel(std::uint32_t threads, std::size_t count, const Function& function) {
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) function(i);
  };
  std::vector<std::jthread> helpers;
  try {
    const std::size_t most = std::min<std::size_t>(threads, count);
    helpers.reserve(most);
    while (helpers.size() + 1 < most) helpers.emplace_back(work);
  } catch (const std::system_error&) {
    // Those that run do all.
  } catch (const std::bad_alloc&) {
  }
  work();
}

// Waits for a request, asking now and then whether to go on.
template <typename Ask>
Status wait_for(OwnTicket& ticket, const Ask& ask, Report* total = nullptr) {
  if (!ticket) return {};
  while (!ticket->wait_for(asking_interval)) {
    if (Status status = ask(); !status) return status;
  }
  const Report report = ticket->report();
  ticket = OwnTicket();
  if (!report.ok()) return *report.error;
  if (total != nullptr) {
    total->add(report);
    total->seconds += report.seconds;
  }
  return {};
}

// Writes to a file, one stretch after the other, from two Buffers in turn.
class FileOutput {
 public:
  FileOutput(const Context& context, const Store& store, std::uint64_t begin)
      : context_(context), store_(store), end_(begin) {}

  std::uint64_t end() const { return end_; }
  // Room for the next stretch of at most so many bytes. REQUIRES: the last was written out.
  Status begin_stretch(std::uint64_t bytes) {
    begin_ = end_;
    Buffer& buffer = buffers_[turn_];
    if (buffer.size_bytes() >= bytes) return {};
    Result<Buffer> memory = context_.allocate(Domain::host(), bytes);
    if (!memory) return std::move(memory).error();
    buffer = std::move(*memory);
    return {};
  }
  void append(std::span<const std::byte> bytes) {
    if (!bytes.empty()) std::memcpy(at(end_), bytes.data(), bytes.size());
    end_ += bytes.size();
  }
  void append_zeros(std::uint64_t bytes) {
    if (bytes != 0) std::memset(at(end_), 0, bytes);
    end_ += bytes;
  }
  // Over what is in this stretch, or was written before.
  void put(std::uint64_t offset, std::vector<std::byte> bytes) {
    if (offset >= begin_) {
      std::memcpy(at(offset), bytes.data(), bytes.size());
    } else {
      later_.push_back({offset, std::move(bytes)});
    }
  }

  template <typename Ask>
  Status write_out(const Ask& ask) {
    if (Status status = wait_for(ticket_, ask, &report_); !status) return status;
    if (end_ == begin_) return {};
    const Range range{&store_, begin_, buffers_[turn_].region().part(0, end_ - begin_)};
    Result<Ticket> ticket = context_.submit(Direction::write, {&range, 1});
    if (!ticket) return std::move(ticket).error();
    ticket_ = OwnTicket(std::move(*ticket));
    turn_ = 1 - turn_;
    return {};
  }
  // Waits for all, and writes what was put over what had been written.
  template <typename Ask>
  Status finish(const Ask& ask) {
    if (Status status = wait_for(ticket_, ask, &report_); !status) return status;
    for (const auto& [offset, bytes] : later_) {
      if (Status status = write(offset, bytes); !status) return status;
    }
    later_.clear();
    return {};
  }
  Status write(std::uint64_t offset, std::span<const std::byte> bytes) {
    Result<Buffer> memory = context_.allocate(Domain::host(), bytes.size());
    if (!memory) return std::move(memory).error();
    std::memcpy(memory->data(), bytes.data(), bytes.size());
    const Report written = context_.write(store_, offset, memory->region());
    if (!written.ok()) return *written.error;
    report_.add(written);
    report_.seconds += written.seconds;
    return {};
  }
  const Report& report() const { return report_; }

 private:
  std::byte* at(std::uint64_t offset) { return buffers_[turn_].data() + (offset - begin_); }

  const Context context_;
  const Store& store_;
  std::uint64_t begin_ = 0;  // of the stretch
  std::uint64_t end_;
  std::size_t turn_ = 0;
  std::array<Buffer, 2> buffers_;
  OwnTicket ticket_;  // of the last stretch
  std::vector<std::pair<std::uint64_t, std::vector<std::byte>>> later_;
  Report report_;
};

// Bytes of a tensor in a window.
struct WindowPart {
  std::uint32_t tensor = 0;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
  std::uint64_t place = 0;
};
struct InputWindow {
  Buffer memory;
  std::vector<WindowPart> segments;
  OwnTicket ticket;
};

// Chunks of a window.
struct ChunkJob {
  std::uint32_t tensor = 0;
  std::uint32_t number = 0;
  std::span<const std::byte> values;
  std::vector<std::byte> encoded;
  enum class Outcome : std::uint8_t { right, wrong, no_memory } outcome = Outcome::right;
};

void encode_and_compare(packed::Kind kind, ChunkJob& job) {
  try {
    const packed::Kernels& kernels = packed::best_kernels();
    const auto count = static_cast<std::uint32_t>(job.values.size() / packed::division_of(kind).value_bytes);
    job.encoded.reserve(job.values.size() + 2 * std::size_t{packed::header_bytes});
    packed::encode_chunk(kernels, kind, job.number, job.values, job.encoded);
    std::vector<std::byte> decoded(job.values.size());
    const packed::Fault fault =
        packed::decode_chunk(kernels, kind, job.encoded, {job.number, count}, {.skip = 0, .memory = decoded});
    if (fault != packed::Fault::none || !std::ranges::equal(decoded, job.values))
      job.outcome = ChunkJob::Outcome::wrong;
  } catch (const std::bad_alloc&) {
    job.outcome = ChunkJob::Outcome::no_memory;
  }
}

// One try at a file. A tensor that does not get smaller though samples of it do is known only when it is written; the
// next try takes it as it is.
class Attempt {
 public:
  Attempt(const Context& context, std::span<const TensorToSave> tensors, TensorSource& source,
          const WriterOptions& options, std::vector<bool> packed)
      : context_(context),
        tensors_(tensors),
        source_(source),
        options_(options),
        packed_(std::move(packed)),
        indexes_(tensors.size()),
        sums_(tensors.size()) {
    const std::vector<std::uint32_t> usual = usual_order(tensors);
    std::ranges::copy_if(usual, std::back_inserter(order_), [&](std::uint32_t i) { return packed_[i]; });
    std::ranges::copy_if(usual, std::back_inserter(order_), [&](std::uint32_t i) { return !packed_[i]; });
  }

  // Nothing: another try is needed, without the tensor that `disappointing` says.
  Result<std::optional<WrittenFile>> write(const std::string& path) {
    std::vector<std::uint64_t> most(tensors_.size());
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      most[i] = packed::round_up(tensors_[i].memory.size_bytes, packed::tensor_alignment);
    }
    // With the largest numbers that there may be, and checksums of the length that they have.
    std::ranges::fill(sums_, Checksum().hex());
    const Result<std::string> longest = head(most, 0);
    if (!longest) return longest.error();
    Result<Store> store = open_to_replace(context_, path, {}, options_.folder);
    if (!store) return std::move(store).error();
    Result<std::optional<WrittenFile>> written = write(*store, longest->size());
    const bool is_whole = written && *written;
    if (!is_whole) {
      (void)store->abort();
      return written;
    }
    if (Status committed = store->commit(options_.durable); !committed) return std::move(committed).error();
    return written;
  }
  std::uint32_t disappointing() const { return disappointing_; }

 private:
  Result<std::optional<WrittenFile>> write(const Store& store, std::uint64_t head_bytes) {
    const Result<std::uint64_t> window_bytes = window_bytes_that_fit();
    if (!window_bytes) return window_bytes.error();
    FileOutput output(context_, store, head_bytes);
    std::array<InputWindow, 2> windows;
    for (InputWindow& window : windows) {
      Result<Buffer> memory = context_.allocate(Domain::host(), *window_bytes);
      if (!memory) return std::move(memory).error();
      window.memory = std::move(*memory);
    }
    if (Status status = fill(windows[0]); !status) return std::move(status).error();
    for (std::size_t i = 0; !windows[i % 2].segments.empty(); ++i) {
      InputWindow& window = windows[i % 2];
      if (Status status = fill(windows[1 - i % 2]); !status) return std::move(status).error();
      if (Status status = wait_for(window.ticket, [&] { return ask(); }); !status) return std::move(status).error();
      Result<bool> gained = put_out(window, output);
      if (!gained) return std::move(gained).error();
      if (!*gained) return std::optional<WrittenFile>();
    }
    if (Status status = output.finish([&] { return ask(); }); !status) return std::move(status).error();
    if (Status status = source_.check_unchanged(); !status) return std::move(status).error();
    return finish(output, head_bytes);
  }

  Result<std::optional<WrittenFile>> finish(FileOutput& output, std::uint64_t head_bytes) {
    std::vector<std::uint64_t> stored(tensors_.size());
    WrittenFile written;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      stored[i] = packed_[i] ? indexes_[i].bytes : tensors_[i].memory.size_bytes;
      written.stored_bytes += stored[i];
      written.packed_tensors += packed_[i] ? 1 : 0;
    }
    const Result<std::string> front = head(stored, head_bytes);
    if (!front) return front.error();
    if (front->size() != head_bytes) return Error{Code::internal, 0, "the header changed its length", ""};
    if (Status status = output.write(0, std::as_bytes(std::span(*front))); !status) return std::move(status).error();
    written.report = output.report();
    written.report.outcome = Outcome::done;
    return std::optional<WrittenFile>(std::move(written));
  }

  // Where packed tensors have so many bytes.
  Result<std::string> head(std::span<const std::uint64_t> stored, std::uint64_t least_bytes) const {
    SaveOptions options{.metadata = options_.metadata, .empty_metadata = options_.empty_metadata};
    options.alignment = packed::tensor_alignment;
    options.metadata.erase(std::string(checksums_key));
    options.metadata.erase(std::string(packed_key));
    std::vector<TensorToSave> entries;
    std::vector<PackedEntry> packed;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      TensorToSave entry{tensors_[i].name, tensors_[i].dtype, tensors_[i].shape, tensors_[i].memory};
      if (packed_[i]) {
        packed.push_back({tensors_[i].name, tensors_[i].dtype, tensors_[i].shape});
        entry.dtype = DType::u8;
        entry.shape = {stored[i] / packed::tensor_alignment, packed::tensor_alignment};
        entry.memory.size_bytes = stored[i];
      }
      entries.push_back(std::move(entry));
    }
    try {
      if (!packed.empty()) options.metadata.emplace(packed_key, packed_metadata(packed));
      if (options_.checksums) options.metadata.emplace(checksums_key, checksums_json());
    } catch (const nlohmann::json::type_error&) {
      return Error{Code::invalid_argument, 0, "a name is not UTF-8", "nothing was written"};
    }
    return head_in_order(entries, order_, options, least_bytes);
  }

  std::string checksums_json() const {
    std::string text;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      text += (i == 0 ? "" : ",") + json_of(tensors_[i].name) + ":\"" + sums_[i] + "\"";
    }
    return "{" + text + "}";
  }

  // The next bytes in the order of the file, as many as there is room for.
  Status fill(InputWindow& window) {
    window.segments.clear();
    std::vector<TensorSource::Bytes> wanted;
    std::uint64_t used = 0;
    while (next_ < order_.size()) {
      const std::uint32_t tensor = order_[next_];
      const std::uint64_t all = tensors_[tensor].memory.size_bytes;
      std::uint64_t bytes = std::min(all - next_begin_, window.memory.size_bytes() - used);
      if (packed_[tensor] && next_begin_ + bytes != all) {
        const std::uint64_t chunk = packed::chunk_values * std::uint64_t{dtype_bits(tensors_[tensor].dtype) / 8};
        bytes -= bytes % chunk;
      }
      if (bytes == 0 && all != next_begin_) break;
      if (bytes != 0 || all == 0) {
        window.segments.push_back({tensor, next_begin_, bytes, used});
        if (bytes != 0) wanted.push_back({tensor, next_begin_, window.memory.region().part(used, bytes)});
      }
      used = packed::round_up(used + bytes, 64);
      next_begin_ += bytes;
      if (next_begin_ != all) break;
      ++next_;
      next_begin_ = 0;
      if (used >= window.memory.size_bytes()) break;
    }
    if (wanted.empty()) return {};
    Result<Ticket> ticket = source_.read(wanted);
    if (!ticket) return std::move(ticket).error();
    window.ticket = *ticket ? OwnTicket(std::move(*ticket)) : OwnTicket();
    return {};
  }

  // False: a tensor does not get smaller.
  Result<bool> put_out(InputWindow& window, FileOutput& output) {
    std::vector<ChunkJob> jobs = jobs_of(window);
    bool has_sums = true;
    in_parallel(options_.threads, jobs.size() + 1, [&](std::size_t i) {
      if (i == 0) {
        has_sums = add_up(window);
      } else {
        encode_and_compare(*packed_kind_of(tensors_[jobs[i - 1].tensor]), jobs[i - 1]);
      }
    });
    if (!has_sums) return no_memory();
    std::uint64_t most = 0;
    for (const ChunkJob& job : jobs) {
      if (Status status = check(job); !status) return std::move(status).error();
      most += job.encoded.size();
    }
    for (const WindowPart& segment : window.segments) {
      most += packed_[segment.tensor] ? index_room(segment.tensor) + packed::tensor_alignment : segment.bytes;
    }
    if (Status status = output.begin_stretch(most); !status) return std::move(status).error();
    std::size_t job = 0;
    for (const WindowPart& segment : window.segments) {
      if (packed_[segment.tensor]) {
        while (job < jobs.size() && jobs[job].tensor == segment.tensor) append(jobs[job++], output);
        if (segment.begin + segment.bytes == size_of(segment.tensor) && !end_tensor(segment.tensor, output))
          return false;
      } else {
        output.append({window.memory.data() + segment.place, segment.bytes});
      }
      done_bytes_ += segment.bytes;
      if (Status status = check_sum(segment); !status) return std::move(status).error();
    }
    if (Status status = output.write_out([&] { return ask(); }); !status) return std::move(status).error();
    if (Status status = ask(); !status) return std::move(status).error();
    return true;
  }

  std::vector<ChunkJob> jobs_of(const InputWindow& window) const {
    std::vector<ChunkJob> jobs;
    for (const WindowPart& segment : window.segments) {
      if (!packed_[segment.tensor]) continue;
      const std::uint64_t chunk = packed::chunk_values * std::uint64_t{dtype_bits(tensors_[segment.tensor].dtype) / 8};
      for (std::uint64_t at = 0; at < segment.bytes; at += chunk) {
        const std::span values(window.memory.data() + segment.place + at, std::min(chunk, segment.bytes - at));
        jobs.push_back({.tensor = segment.tensor,
                        .number = static_cast<std::uint32_t>((segment.begin + at) / chunk),
                        .values = values,
                        .encoded = {}});
      }
    }
    return jobs;
  }

  // Tensors lie in the order of their bytes. False: there is no memory.
  bool add_up(const InputWindow& window) try {
    if (!options_.checksums) return true;
    for (const WindowPart& segment : window.segments) {
      if (segment.begin == 0) sum_ = Checksum();
      sum_.add({window.memory.data() + segment.place, segment.bytes});
      if (segment.begin + segment.bytes == size_of(segment.tensor)) sums_[segment.tensor] = sum_.hex();
    }
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }

  static Error no_memory() { return {Code::out_of_memory, 0, "no memory to pack with", "use fewer threads"}; }

  Status check_sum(const WindowPart& segment) const {
    if (!options_.checksums || segment.begin + segment.bytes != size_of(segment.tensor)) return {};
    const auto known = options_.known_checksums.find(tensors_[segment.tensor].name);
    if (known == options_.known_checksums.end() || known->second == sums_[segment.tensor]) return {};
    return Error{Code::io_error, 0,
                 "tensor " + in_quotes(tensors_[segment.tensor].name) +
                     " has other bytes than the checksum says that is recorded in its file",
                 "the file is damaged: penstock verify says which tensors are wrong"};
  }

  Status check(const ChunkJob& job) const {
    switch (job.outcome) {
      case ChunkJob::Outcome::right:
        return {};
      case ChunkJob::Outcome::no_memory:
        return no_memory();
      case ChunkJob::Outcome::wrong:
        break;
    }
    return Error{Code::internal, 0,
                 "chunk " + std::to_string(job.number) + " of tensor " + in_quotes(tensors_[job.tensor].name) +
                     " was packed and did not come back as it was",
                 "please report this with the type of the tensor and the processor"};
  }

  std::uint64_t size_of(std::uint32_t tensor) const { return tensors_[tensor].memory.size_bytes; }
  std::uint64_t values_of(std::uint32_t tensor) const {
    return size_of(tensor) * 8 / dtype_bits(tensors_[tensor].dtype);
  }
  std::uint64_t index_room(std::uint32_t tensor) const { return packed::index_bytes(values_of(tensor)); }

  void append(const ChunkJob& job, FileOutput& output) {
    packed::TensorIndex& index = indexes_[job.tensor];
    if (job.number == 0) {
      tensor_begin_ = output.end();
      index = {
          .kind = *packed_kind_of(tensors_[job.tensor]), .values = values_of(job.tensor), .bytes = 0, .starts = {}};
      output.append_zeros(index_room(job.tensor));
    }
    index.starts.push_back(static_cast<std::uint32_t>((output.end() - tensor_begin_) / packed::chunk_alignment));
    output.append(job.encoded);
  }

  bool end_tensor(std::uint32_t tensor, FileOutput& output) {
    packed::TensorIndex& index = indexes_[tensor];
    const std::uint64_t used = output.end() - tensor_begin_;
    index.starts.push_back(static_cast<std::uint32_t>(used / packed::chunk_alignment));
    index.bytes = packed::round_up(used, packed::tensor_alignment);
    output.append_zeros(index.bytes - used);
    output.put(tensor_begin_, packed::write_index(index));
    if (SampledSize{.stored_bytes = index.bytes}.gains(size_of(tensor))) return true;
    disappointing_ = tensor;
    return false;
  }

  Status ask() const { return options_.progress ? options_.progress(done_bytes_) : Status(); }

  const Context context_;
  const std::span<const TensorToSave> tensors_;
  TensorSource& source_;
  const WriterOptions& options_;
  const std::vector<bool> packed_;
  std::vector<std::uint32_t> order_;  // in the file
  std::size_t next_ = 0;              // in that order, what is to be read
  std::uint64_t next_begin_ = 0;
  std::vector<packed::TensorIndex> indexes_;  // of those that are packed
  std::uint64_t tensor_begin_ = 0;            // in the file, of the one that is being packed
  std::vector<std::string> sums_;
  Checksum sum_;
  std::uint64_t done_bytes_ = 0;
  std::uint32_t disappointing_ = 0;
};

}  // namespace

Result<std::optional<SampledSize>> sample_size(const Context& context, TensorSource& source, std::uint32_t number,
                                               const TensorToSave& tensor) {
  const std::optional<packed::Kind> kind = packed_kind_of(tensor);
  if (!kind || tensor.memory.size_bytes == 0) return std::optional<SampledSize>();
  const std::uint64_t value_bytes = packed::division_of(*kind).value_bytes;
  const std::uint64_t values = tensor.memory.size_bytes / value_bytes;
  const std::uint64_t chunks = packed::chunks_of(values);
  const std::uint64_t chunk_bytes = packed::chunk_values * value_bytes;
  // Chunks are counted in units of 64 bytes, in 32 bits.
  if (tensor.memory.size_bytes / packed::chunk_alignment >= UINT32_MAX) return std::optional<SampledSize>();
  const std::uint64_t taken = std::min<std::uint64_t>(chunks, chunks_sampled);
  Result<Buffer> memory = context.allocate(Domain::host(), taken * chunk_bytes);
  if (!memory) return std::move(memory).error();
  std::vector<TensorSource::Bytes> wanted;
  std::uint64_t sampled_bytes = 0;
  for (std::uint64_t i = 0; i < taken; ++i) {
    const std::uint64_t begin = (taken == chunks ? i : i * (chunks - 1) / (taken - 1)) * chunk_bytes;
    const std::uint64_t bytes = std::min(chunk_bytes, tensor.memory.size_bytes - begin);
    wanted.push_back({number, begin, memory->region().part(i * chunk_bytes, bytes)});
    sampled_bytes += bytes;
  }
  Result<Ticket> ticket = source.read(wanted);
  if (!ticket) return std::move(ticket).error();
  OwnTicket own = *ticket ? OwnTicket(std::move(*ticket)) : OwnTicket();
  if (Status status = wait_for(own, [] { return Status(); }); !status) return std::move(status).error();
  std::vector<std::byte> encoded;
  for (const TensorSource::Bytes& piece : wanted) {
    packed::encode_chunk(packed::best_kernels(), *kind, 0, {piece.to.data, piece.to.size_bytes}, encoded);
  }
  const double ratio = static_cast<double>(encoded.size()) / static_cast<double>(sampled_bytes);
  const auto all = taken == chunks ? encoded.size()
                                   : static_cast<std::uint64_t>(ratio * static_cast<double>(tensor.memory.size_bytes));
  return std::optional<SampledSize>(
      {.stored_bytes = packed::round_up(packed::index_bytes(values) + all, packed::tensor_alignment),
       .is_exact = taken == chunks});
}

Result<WrittenFile> write_packed(const Context& context, const std::string& path, std::span<const TensorToSave> tensors,
                                 TensorSource& source, const WriterOptions& options) {
  std::vector<bool> packed(tensors.size());
  for (std::uint32_t i = 0; options.pack && i < tensors.size(); ++i) {
    if (options.progress) {
      if (Status status = options.progress(0); !status) return std::move(status).error();
    }
    const auto sampled = sample_size(context, source, i, tensors[i]);
    if (!sampled) return sampled.error();
    packed[i] = *sampled && (*sampled)->gains(tensors[i].memory.size_bytes);
  }
  for (;;) {
    Attempt attempt(context, tensors, source, options, packed);
    Result<std::optional<WrittenFile>> written = attempt.write(path);
    if (!written) return std::move(written).error();
    if (*written) return std::move(**written);
    packed[attempt.disappointing()] = false;
  }
}

}  // namespace penstock::models

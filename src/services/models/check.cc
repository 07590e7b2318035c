#include "services/models/check.h"

#include <algorithm>
#include <filesystem>

#include "base/callback.h"
#include "base/out_of_memory.h"
#include "penstock/checksum.h"
#include "penstock/models.h"
#include "penstock/window_ring.h"
#include "services/models/contents.h"
#include "services/models/json_reader.h"
#include "services/models/open_store.h"
#include "services/models/packed_indexes.h"
#include "services/models/sha256.h"

namespace penstock {

namespace models {

Result<Checksums> parse_checksums(std::string_view json) {
  Checksums sums;
  JsonReader reader(json);
  const bool taken = reader.object([&](std::string_view tensor) {
    std::string_view sum;
    if (!reader.string(sum)) return false;
    sums.emplace(std::string(tensor), std::string(sum));
    return true;
  });
  if (const Status status = reader.end(taken); !status) return status.error();
  return sums;
}

std::optional<std::string> blob_digest(const std::string& path) {
  constexpr std::size_t digest_digits = 64;
  std::error_code failed;
  const std::filesystem::path blob = std::filesystem::canonical(path, failed);
  const std::string name = blob.filename().string();
  const bool is_digest =
      name.size() == digest_digits && name.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (failed || !is_digest || blob.parent_path().filename() != "blobs") return std::nullopt;
  return name;
}

}  // namespace models

namespace {

using Verdict = CheckedFile::Verdict;

constexpr std::uint64_t window_bytes = 16 << 20;
constexpr auto turn = std::chrono::milliseconds(50);

// Reads the files of a model one after the other, the next window while the last one is added up.
class Checking {
 public:
  Checking(const Context& context, const Model& model,
           const std::function<bool(std::uint64_t done, std::uint64_t all)>& progress)
      : context_(context), model_(model), progress_(progress), tensors_(model.files().size()) {
    for (const TensorInfo& tensor : model.tensors()) tensors_[tensor.file].push_back(&tensor);
  }

  Result<std::vector<CheckedFile>> run() {
    Result<WindowRing> ring = WindowRing::create(context_, {.size_bytes = window_bytes});
    if (!ring) return std::move(ring).error();
    ring_.emplace(std::move(*ring));
    for (std::size_t i = 0; i < model_.files().size(); ++i) all_bytes_ += model_.files()[i].size_bytes;
    std::vector<CheckedFile> checked;
    for (std::size_t i = 0; i < model_.files().size(); ++i) {
      const ModelFile& file = model_.files()[i];
      checked.push_back({.path = file.path});
      if (Status status = check_file(file, tensors_[i], checked.back()); !status) return std::move(status).error();
      bytes_before_ += file.size_bytes;
    }
    if (progress_) (void)ask(all_bytes_);
    return checked;
  }

 private:
  using Tensors = std::vector<const TensorInfo*>;
  using Metadata = std::map<std::string, MetadataValue>;

  Status check_file(const ModelFile& file, const Tensors& tensors, CheckedFile& checked) {
    const auto recorded = file.metadata.find(std::string(models::checksums_key));
    if (const auto digest = models::blob_digest(file.path)) {
      Result<models::Sha256> sha256 = models::Sha256::create();
      if (sha256) return check_blob(file, *digest, std::move(*sha256), checked);
      checked.how = sha256.error().message;
      if (recorded == file.metadata.end() && !is_packed(tensors)) return {};
    }
    if (is_packed(tensors)) return check_packed(file, recorded, tensors, checked);
    if (recorded != file.metadata.end()) return check_tensors(file, recorded->second.text(), tensors, checked);
    if (checked.how.empty()) checked.how = "it has no recorded checksums and is not a Hugging Face blob";
    return {};
  }

  Status check_blob(const ModelFile& file, const std::string& digest, models::Sha256 sha256, CheckedFile& checked) {
    Status done =
        read(file, cut(0, file.size_bytes), [&](std::size_t, std::span<const std::byte> bytes) { sha256.add(bytes); });
    if (!done) return done;
    checked.verdict = sha256.hex() == digest ? Verdict::right : Verdict::wrong;
    checked.how = "sha256 of the blob";
    return {};
  }

  Status check_tensors(const ModelFile& file, const std::string& recorded, const Tensors& tensors,
                       CheckedFile& checked) {
    const Result<models::Checksums> sums = models::parse_checksums(recorded);
    const bool complete =
        sums && sums->size() == tensors.size() &&
        std::ranges::all_of(tensors, [&](const auto* tensor) { return sums->contains(tensor->name); });
    if (!complete) {
      checked.how = "its recorded checksums don't match its list of tensors";
      return {};
    }
    std::size_t next = 0;
    Checksum sum;
    const auto finish = [&](std::uint64_t end) {
      for (; next < tensors.size() && tensors[next]->offset + tensors[next]->size_bytes <= end; ++next) {
        if (sum.hex() != sums->find(tensors[next]->name)->second) checked.wrong_tensors.push_back(tensors[next]->name);
        sum = Checksum();
      }
    };
    // Tensors lie one after the other, so each byte belongs to the next that is not finished.
    finish(file.data_offset);
    const std::vector<Piece> pieces = cut(file.data_offset, file.size_bytes);
    Status done = read(file, pieces, [&](std::size_t number, std::span<const std::byte> bytes) {
      std::uint64_t offset = pieces[number].offset;
      while (!bytes.empty() && next < tensors.size()) {
        const std::uint64_t left = tensors[next]->offset + tensors[next]->size_bytes - offset;
        const std::size_t length = std::min<std::uint64_t>(left, bytes.size());
        sum.add(bytes.first(length));
        bytes = bytes.subspan(length);
        offset += length;
        finish(offset);
      }
    });
    if (!done) return done;
    checked.verdict = checked.wrong_tensors.empty() ? Verdict::right : Verdict::wrong;
    checked.how = "xxh3 of " + std::to_string(tensors.size()) + " tensors";
    return {};
  }

  static bool is_packed(const Tensors& tensors) {
    return std::ranges::any_of(tensors, [](const auto* tensor) { return !tensor->packing.empty(); });
  }

  // Chunks of packed tensors have checksums of their own; those that are recorded are of the decoded bytes.
  Status check_packed(const ModelFile& file, Metadata::const_iterator recorded, const Tensors& tensors,
                      CheckedFile& checked) {
    std::optional<models::Checksums> sums;
    if (recorded != file.metadata.end()) {
      Result<models::Checksums> parsed = models::parse_checksums(recorded->second.text());
      if (parsed) sums = std::move(*parsed);
    }
    std::size_t unknown = 0;
    std::uint64_t chunks = 0;
    for (const TensorInfo* tensor : tensors) {
      const auto known = sums ? sums->find(tensor->name) : models::Checksums::const_iterator();
      const bool has_sum = sums && known != sums->end();
      if (tensor->packing.empty() && !has_sum) {
        unknown += tensor->size_bytes != 0 ? 1 : 0;
        continue;
      }
      Result<std::optional<Checksum>> sum = sum_of(file, *tensor, chunks);
      if (!sum) return std::move(sum).error();
      const bool is_right = *sum && (!has_sum || (*sum)->hex() == known->second);
      if (!is_right) checked.wrong_tensors.push_back(tensor->name);
    }
    checked.how = "checksums of " + std::to_string(chunks) + " chunks";
    if (sums) checked.how += ", and xxh3 of " + std::to_string(tensors.size() - unknown) + " tensors";
    if (unknown != 0) checked.how += "; " + std::to_string(unknown) + " tensors have no checksums";
    checked.verdict = !checked.wrong_tensors.empty() ? Verdict::wrong
                      : unknown != 0                 ? Verdict::unknown
                                                     : Verdict::right;
    return {};
  }

  // Of the bytes of a tensor, decoded if it is packed. Nothing if it can't be.
  Result<std::optional<Checksum>> sum_of(const ModelFile& file, const TensorInfo& tensor, std::uint64_t& chunks) {
    Checksum sum;
    if (tensor.packing.empty()) {
      const std::vector<Piece> pieces = cut(tensor.offset, tensor.offset + tensor.size_bytes);
      Status done = read(file, pieces, [&](std::size_t, std::span<const std::byte> bytes) { sum.add(bytes); });
      if (!done) return std::move(done).error();
      return std::optional<Checksum>(std::move(sum));
    }
    const auto index = static_cast<std::uint32_t>(&tensor - model_.tensors().data());
    models::FileStores stores(context_, model_, {.files = std::vector<bool>(model_.files().size())});
    Status known = models::PackedIndexes::read(context_, model_, stores, {&index, 1}, {});
    if (!known && known.error().code == Code::invalid_argument) return std::optional<Checksum>();
    if (!known) return std::move(known).error();
    const auto unpack = models::PackedIndexes::place_of(model_, index).packed;
    const auto runs = unpack->runs(0, tensor.size_bytes, {.stored_bytes = window_bytes / 4});
    std::vector<Piece> pieces;
    for (const packed::ChunkRun& run : runs) pieces.push_back({unpack->place() + run.offset, run.stored_bytes});
    std::vector<std::byte> decoded;
    std::uint64_t begin = 0;
    bool is_right = true;
    Status done = read(file, pieces, [&](std::size_t number, std::span<const std::byte> bytes) {
      decoded.resize(runs[number].bytes);
      is_right = is_right && unpack->by_cpu({.tag = begin, .stored = bytes, .memory = decoded}).ok();
      begin += runs[number].bytes;
      sum.add(decoded);
    });
    if (!done) return std::move(done).error();
    chunks += unpack->index().chunks();
    return is_right ? std::optional<Checksum>(std::move(sum)) : std::nullopt;
  }

  // Of a file; none is longer than a window.
  struct Piece {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };
  static std::vector<Piece> cut(std::uint64_t begin, std::uint64_t end) {
    std::vector<Piece> pieces;
    for (; begin < end; begin += pieces.back().bytes) pieces.push_back({begin, std::min(window_bytes, end - begin)});
    return pieces;
  }

  using Visit = std::function<void(std::size_t piece, std::span<const std::byte> bytes)>;

  Status read(const ModelFile& file, std::span<const Piece> pieces, const Visit& visit) {
    Result<Store> store = models::open_store(context_, file);
    if (!store) return std::move(store).error();
    std::size_t next = 0, visited = 0;
    const auto begin = [&](const Window& window) -> Result<Ticket> {
      if (next == pieces.size()) return Ticket();
      const Piece& piece = pieces[next++];
      const Range range{&*store, piece.offset, window.memory.part(0, piece.bytes)};
      return context_.submit(Direction::read, {&range, 1});
    };
    const auto await_here = [&](const Ticket& ticket, const Window&) { return await(ticket, pieces[visited].offset); };
    for (;;) {
      const Result<std::optional<Window>> window = ring_->next(begin, await_here);
      if (!window) return window.error();
      if (!*window) return {};
      visit(visited, {(*window)->memory.data, pieces[visited].bytes});
      ++visited;
    }
  }

  Status await(const Ticket& ticket, std::uint64_t offset) {
    do {
      if (Status status = tell(offset); !status) return status;
    } while (!ticket.wait_for(turn));
    const Report report = ticket.report();
    return report.ok() ? Status() : Status(*report.error);
  }

  Status tell(std::uint64_t offset) {
    const std::chrono::steady_clock::time_point now = std::chrono::steady_clock::now();
    if (!progress_ || now - told_ < turn) return {};
    told_ = now;
    if (ask(bytes_before_ + offset)) return {};
    return Error{Code::cancelled, 0, "checking was cancelled", ""};
  }

  // Whether to go on.
  bool ask(std::uint64_t done_bytes) const {
    return call_back("progress of check_model", progress_, done_bytes, all_bytes_);
  }

  const Context context_;
  const Model& model_;
  const std::function<bool(std::uint64_t done, std::uint64_t all)>& progress_;
  std::vector<Tensors> tensors_;    // by file
  std::optional<WindowRing> ring_;  // while it runs
  std::uint64_t all_bytes_ = 0;
  std::uint64_t bytes_before_ = 0;
  std::chrono::steady_clock::time_point told_ = std::chrono::steady_clock::now();
};

}  // namespace

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::right:
      return "right";
    case Verdict::wrong:
      return "wrong";
    case Verdict::unknown:
      break;
  }
  return "unknown";
}

Result<std::vector<CheckedFile>> check_model(
    const Context& context, const Model& model,
    const std::function<bool(std::uint64_t done, std::uint64_t all)>& progress) {
  return or_out_of_memory([&] { return Checking(context, model, progress).run(); });
}

}  // namespace penstock

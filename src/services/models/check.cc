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
  Checking(Context& context, const Model& model,
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

  Status check_file(const ModelFile& file, const Tensors& tensors, CheckedFile& checked) {
    const auto recorded = file.metadata.find(std::string(models::checksums_key));
    if (const auto digest = models::blob_digest(file.path)) {
      Result<models::Sha256> sha256 = models::Sha256::create();
      if (sha256) return check_blob(file, *digest, std::move(*sha256), checked);
      checked.how = sha256.error().message;
      if (recorded == file.metadata.end()) return {};
    }
    if (recorded != file.metadata.end()) return check_tensors(file, recorded->second.text(), tensors, checked);
    if (checked.how.empty()) checked.how = "it has no recorded checksums and is not a Hugging Face blob";
    return {};
  }

  Status check_blob(const ModelFile& file, const std::string& digest, models::Sha256 sha256, CheckedFile& checked) {
    Status read = read_all(file, 0, [&](std::uint64_t, std::span<const std::byte> bytes) { sha256.add(bytes); });
    if (!read) return read;
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
    Status read = read_all(file, file.data_offset, [&](std::uint64_t offset, std::span<const std::byte> bytes) {
      while (!bytes.empty() && next < tensors.size()) {
        const std::uint64_t left = tensors[next]->offset + tensors[next]->size_bytes - offset;
        const std::size_t length = std::min<std::uint64_t>(left, bytes.size());
        sum.add(bytes.first(length));
        bytes = bytes.subspan(length);
        offset += length;
        finish(offset);
      }
    });
    if (!read) return read;
    checked.verdict = checked.wrong_tensors.empty() ? Verdict::right : Verdict::wrong;
    checked.how = "xxh3 of " + std::to_string(tensors.size()) + " tensors";
    return {};
  }

  using Visit = std::function<void(std::uint64_t offset, std::span<const std::byte> bytes)>;

  Status read_all(const ModelFile& file, std::uint64_t offset, const Visit& visit) {
    Result<Store> store = models::open_store(context_, file);
    if (!store) return std::move(store).error();
    const auto length_at = [&](std::uint64_t at) { return std::min(window_bytes, file.size_bytes - at); };
    std::uint64_t next = offset;
    const auto begin = [&](const Window& window) -> Result<Ticket> {
      if (next >= file.size_bytes) return Ticket();
      const Range range{&*store, next, window.memory.part(0, length_at(next))};
      next += length_at(next);
      return context_.submit(Direction::read, {&range, 1});
    };
    const auto await_here = [&](const Ticket& ticket, const Window&) { return await(ticket, offset); };
    for (;;) {
      const Result<std::optional<Window>> window = ring_->next(begin, await_here);
      if (!window) return window.error();
      if (!*window) return {};
      const std::uint64_t length = length_at(offset);
      visit(offset, {(*window)->memory.data, length});
      offset += length;
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

  Context& context_;
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
    Context& context, const Model& model, const std::function<bool(std::uint64_t done, std::uint64_t all)>& progress) {
  return or_out_of_memory([&] { return Checking(context, model, progress).run(); });
}

}  // namespace penstock

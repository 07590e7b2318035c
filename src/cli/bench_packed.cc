// penstock bench of a packed model: loads of its tensors, beside reads of its file as it is.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "bench.h"
#include "interrupt.h"
#include "model_names.h"
#include "transfer.h"

namespace penstock::cli {

namespace {

constexpr std::size_t packed_loads_least = 3;
constexpr std::size_t packed_loads_most = 1000;

// The file of the model, to bring its pages into the page cache, and out of it.
class PagesOfFile {
 public:
  explicit PagesOfFile(const std::string& path) : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  PagesOfFile(const PagesOfFile&) = delete;
  PagesOfFile& operator=(const PagesOfFile&) = delete;
  ~PagesOfFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  void evict() const { ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED); }
  void bring(std::uint64_t bytes) const {
    std::vector<char> piece(1 << 20);
    for (std::uint64_t done = 0; done < bytes && !interrupted();) {
      const ssize_t got = ::pread(descriptor_, piece.data(), piece.size(), static_cast<off_t>(done));
      if (got <= 0) return;
      done += static_cast<std::uint64_t>(got);
    }
  }

 private:
  const int descriptor_;
};

class PackedLoads {
 public:
  PackedLoads(Context context, Store store, Model model, Domain domain)
      : context_(std::move(context)), store_(std::move(store)), model_(std::move(model)), domain_(domain) {}

  // As many tensors from the beginning of the file as have so many bytes, but one at least.
  Status prepare(std::uint64_t size_bytes) {
    std::vector<std::uint32_t> chosen;
    for (std::uint32_t i = 0; i < model_.tensors().size(); ++i) {
      if (!model_.tensors()[i].packing.empty()) chosen.push_back(i);
    }
    std::ranges::sort(chosen, {}, [&](std::uint32_t i) { return model_.tensors()[i].offset; });
    std::size_t count = 0;
    for (; count < chosen.size() && (count == 0 || decoded_bytes_ < size_bytes); ++count) {
      const TensorInfo& tensor = model_.tensors()[chosen[count]];
      decoded_bytes_ += tensor.size_bytes;
      stored_bytes_ += tensor.stored_bytes;
      end_ = tensor.offset + tensor.stored_bytes;
    }
    chosen.resize(count);
    const Placement placement = place(model_, chosen);
    if (Status room = check_room(domain_, placement.size_bytes, "choose a smaller --size"); !room.ok()) {
      return room;
    }
    if (!domain_.host_accessible()) {
      if (Status ready = context_.prepare(domain_); !ready.ok()) return ready;
    }
    Result<Buffer> memory = context_.allocate(domain_, placement.size_bytes);
    if (!memory.ok()) return memory.error();
    memory_ = std::move(*memory);
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      const std::uint64_t bytes = model_.tensors()[chosen[i]].size_bytes;
      parts_.push_back({.tensor = chosen[i], .memory = memory_.region().part(placement.offsets[i], bytes)});
    }
    return {};
  }

  // Decoded bytes a second of each load; the first one is not counted.
  Result<Json> race(const std::string& state, double seconds, const std::function<bool()>& keep_going) {
    const PagesOfFile pages(model_.files().front().path);
    Json result = {{"state", state}, {"refused", Json()}};
    const bool is_cached = state == "cached", is_memory = store_.info().locality == Locality::memory;
    if (is_memory && !is_cached) {
      result["refused"] = "the file system is memory";
      return result;
    }
    if (is_cached) pages.bring(end_);
    std::vector<double> rounds;
    const Stopwatch all;
    for (std::size_t i = 0; i <= packed_loads_most; ++i) {
      if (i > packed_loads_least && all.seconds() > seconds) break;
      if (!keep_going()) return interrupted_error();
      if (!is_cached) pages.evict();
      if (!is_memory && store_.cached_bytes(0, end_) != (is_cached ? end_ : 0)) {
        result["refused"] = is_cached ? "the page cache does not keep the file" : "the page cache keeps the file";
        return result;
      }
      const Stopwatch one;
      Result<Loading> loading = penstock::load(context_, model_, parts_);
      if (!loading.ok()) return loading.error();
      loading->wait();
      const LoadReport report = loading->report();
      if (!report.ok()) return *report.transfer.error;
      if (i != 0) rounds.push_back(static_cast<double>(decoded_bytes_) / one.seconds());
    }
    result["gb_per_s"] = series_json(Series::of(std::move(rounds)), 1e-9);
    return result;
  }

  Json facts() const {
    return {{"tensors", parts_.size()},
            {"stored_bytes", stored_bytes_},
            {"decoded_bytes", decoded_bytes_},
            {"ratio", stored_ratio(stored_bytes_, decoded_bytes_)}};
  }

 private:
  Context context_;
  Store store_;
  Model model_;
  const Domain domain_;
  Buffer memory_;
  std::vector<TensorPart> parts_;
  std::uint64_t stored_bytes_ = 0, decoded_bytes_ = 0;
  std::uint64_t end_ = 0;  // of the last of them, in the file
};

const Json* rows_in_state(const Json& bench, const Json& state) {
  for (const Json& race : bench.at("races")) {
    if (race.at("state") == state && !race.at("rows").empty()) return &race.at("rows");
  }
  return nullptr;
}

std::string packed_number(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

}  // namespace

Result<Json> bench_packed(const PackedJob& job) {
  if (!job.path.ends_with(".safetensors")) return Json();
  Result<Context> context = Context::create();
  if (!context.ok()) return context.error();
  const std::string names[] = {job.path};
  Result<Model> model = open_model(*context, names);
  // Whatever else it is, its bytes were measured.
  if (!model.ok() || model->stored_bytes() == model->size_bytes()) return Json();
  Result<Store> store = context->open(job.path);
  if (!store.ok()) return store.error();
  PackedLoads loads(std::move(*context), std::move(*store), std::move(*model), job.to);
  if (Status ready = loads.prepare(job.size_bytes); !ready.ok()) return ready.error();
  Json result = loads.facts();
  for (const char* state : {"cached", "cold"}) {
    Result<Json> race = loads.race(state, job.seconds, job.keep_going);
    if (!race.ok()) return race.error();
    result["races"].push_back(std::move(*race));
  }
  return result;
}

void print_packed(const Output& output, const Json& bench) {
  const Json& packed = bench.at("packed");
  const std::uint64_t stored = packed.at("stored_bytes"), decoded = packed.at("decoded_bytes");
  output.section("packed: tensors, decoded and checked on their way");
  output.field("size", format_bytes(decoded) + " decoded from " + format_bytes(stored) + " stored, " +
                           ratio_text(stored, decoded) + " of it");
  for (const Json& race : packed.at("races")) {
    const std::string state = race.at("state");
    if (race.at("refused").is_string()) {
      output.field(state, "not measured: " + race.at("refused").get<std::string>());
      continue;
    }
    const double speed = race.at("gb_per_s").at("median");
    std::string text = packed_number("%.2f GB/s decoded", speed);
    // What the file as it is could reach, and the bus if that is the yardstick.
    if (const Json* const rows = rows_in_state(bench, state); rows != nullptr) {
      const Json& yardstick = rows->at(0);
      text += packed_number(", %.3f of ", speed / yardstick.at("gb_per_s").at("median").get<double>()) +
              yardstick.at("name").get<std::string>();
      const auto usual = std::ranges::find_if(*rows, [](const Json& row) { return !row.at("plain").get<bool>(); });
      if (usual != rows->end()) {
        text += packed_number("; the file as it is %.2f GB/s", usual->at("gb_per_s").at("median").get<double>());
      }
    }
    output.field(state, text);
  }
}

}  // namespace penstock::cli

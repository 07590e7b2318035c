// penstock load, of the tensors of a model.
#include <fnmatch.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "interrupt.h"
#include "load.h"
#include "model_names.h"

namespace penstock::cli {

namespace {

using Indices = std::vector<std::uint32_t>;

// All tensors, or those that one of the patterns fits. One that fits none is a mistake.
Result<Indices> select_tensors(const Model& model, const LoadFlags& flags) {
  std::vector<bool> used(flags.select.size());
  Indices chosen;
  for (std::uint32_t i = 0; i < model.tensors().size(); ++i) {
    bool fits = flags.select.empty();
    for (std::size_t k = 0; k < flags.select.size(); ++k) {
      if (fnmatch(flags.select[k].c_str(), model.tensors()[i].name.c_str(), 0) == 0) fits = used[k] = true;
    }
    if (fits) chosen.push_back(i);
  }
  const auto unused = std::ranges::find(used, false);
  if (unused == used.end()) return chosen;
  return Error{.code = Code::not_found,
               .message = "no tensor of " + flags.paths.front() + " matches --select " +
                          flags.select[static_cast<std::size_t>(unused - used.begin())],
               .hint = "penstock inspect " + flags.paths.front() + " --tensors lists their names"};
}

// What is broken as a model can still be loaded as bytes.
Error with_way_out(Error error, const std::string& path) {
  const bool broken =
      error.code == Code::invalid_argument || error.code == Code::truncated || error.code == Code::unsupported;
  std::error_code failed;
  const bool is_directory = std::filesystem::is_directory(local_path(path), failed);
  if (broken && !is_directory) error.hint += std::string(error.hint.empty() ? "" : "; ") + "--raw loads it as bytes";
  return error;
}

// By a Context of its own: which one is to load it depends on where the files are.
Result<Model> open_named(const LoadFlags& flags) {
  Result<Context> context = make_context(flags.context);
  if (!context.ok()) return context.error();
  Result<Model> model = cli::open_model(*context, flags.paths);
  if (!model.ok()) return with_way_out(model.error(), flags.paths.front());
  return model;
}

class ModelCargo final : public Cargo {
 public:
  ModelCargo(TunedContext tuned, Model model, Indices chosen, double deadline_seconds)
      : tuned_(std::move(tuned)),
        deadline_seconds_(deadline_seconds),
        model_(std::move(model)),
        chosen_(std::move(chosen)) {}

  Status prepare(Domain domain) {
    const Placement placement = place(model_, chosen_);
    Status room = check_room(domain, placement.size_bytes, "load fewer tensors, with --select");
    if (!room.ok()) return room;
    if (!domain.host_accessible()) {
      if (Status ready = tuned_.context.prepare(domain); !ready.ok()) return ready;
    }
    Region all{.domain = domain};
    if (placement.size_bytes != 0) {
      Result<Buffer> memory = tuned_.context.allocate(domain, placement.size_bytes);
      if (!memory.ok()) return with_budget_option(memory.error(), tuned_.context, domain, placement.size_bytes);
      memory_ = std::move(*memory);
      all = memory_.region();
    }
    parts_.reserve(chosen_.size());
    for (std::size_t i = 0; i < chosen_.size(); ++i) {
      const std::uint64_t size_bytes = model_.tensors()[chosen_[i]].size_bytes;
      parts_.push_back({.tensor = chosen_[i], .memory = all.part(placement.offsets[i], size_bytes)});
    }
    return {};
  }

  const Context& context() override { return tuned_.context; }
  std::uint64_t bytes() const override { return memory_.size_bytes(); }

  Report load(const std::function<void(std::uint64_t)>& on_progress) override {
    Result<Loading> loading =
        penstock::load(tuned_.context, model_, parts_, {.request = {.deadline_seconds = deadline_seconds_}});
    if (!loading.ok()) return {.outcome = Outcome::failed, .error = loading.error()};
    while (!loading->wait_for(std::chrono::milliseconds(100))) {
      if (interrupted()) loading->cancel();
      on_progress(loading->bytes_done());
    }
    LoadReport report = loading->report();
    packed_bytes_ = report.packed_bytes;
    stored_bytes_ = report.stored_bytes;
    const std::uint64_t needed_bytes =
        report.wanted_bytes - std::min(report.wanted_bytes, packed_bytes_) + stored_bytes_;
    over_read_bytes_ = report.read_bytes - std::min(report.read_bytes, needed_bytes);
    report.transfer.seconds = report.seconds;
    return ended(std::move(report.transfer));
  }

  std::vector<Loaded> loaded() const override {
    std::vector<Loaded> pieces;
    pieces.reserve(parts_.size());
    for (const TensorPart& part : parts_) {
      const TensorInfo& tensor = model_.tensors()[part.tensor];
      const ModelFile& file = model_.files()[tensor.file];
      pieces.push_back({.tensor = tensor.name,
                        .path = file.path,
                        .is_file = file.path.starts_with('/'),
                        .identity = &file.identity,
                        .offset = tensor.offset,
                        .memory = part.memory,
                        .packed_in = tensor.packing.empty() ? nullptr : &model_,
                        .index = part.tensor});
    }
    return pieces;
  }

  void describe(Transfer& transfer) const override {
    std::set<std::uint32_t> files;
    for (const std::uint32_t i : chosen_) files.insert(model_.tensors()[i].file);
    transfer.head["model"] = {{"formats", formats(model_)},
                              {"files", files.size()},
                              {"tensors", chosen_.size()},
                              {"tensors_in_model", model_.tensors().size()},
                              {"over_read_bytes", over_read_bytes_}};
    if (packed_bytes_ != 0) {
      transfer.head["model"]["packed_bytes"] = packed_bytes_;
      transfer.head["model"]["stored_bytes"] = stored_bytes_;
    }
    const bool all = chosen_.size() == model_.tensors().size();
    transfer.own.push_back(
        {"model", list_of(formats(model_)) + ", " + (all ? "" : std::to_string(chosen_.size()) + " of ") +
                      count_of(model_.tensors().size(), "tensor") + " from " + count_of(files.size(), "file")});
    if (packed_bytes_ != 0) {
      transfer.own.push_back({"unpacked", format_bytes(packed_bytes_) + " from " + format_bytes(stored_bytes_) +
                                              " stored, " + ratio_text(stored_bytes_, packed_bytes_) + " of it"});
    }
    if (over_read_bytes_ != 0) transfer.own.push_back({"over-read", format_bytes(over_read_bytes_)});
    add_tuning(tuned_.tuning, transfer);
  }

 private:
  TunedContext tuned_;
  const double deadline_seconds_;
  Model model_;
  Indices chosen_;
  Buffer memory_;  // of all tensors
  std::vector<TensorPart> parts_;
  std::uint64_t over_read_bytes_ = 0;
  std::uint64_t packed_bytes_ = 0;  // that were unpacked
  std::uint64_t stored_bytes_ = 0;  // from which
};

}  // namespace

Result<std::unique_ptr<Cargo>> prepare_model(const LoadFlags& flags) {
  const Result<Domain> domain = Domain::parse(flags.domain);
  if (!domain.ok()) return domain.error();
  Result<Model> model = open_named(flags);
  if (!model.ok()) return model.error();
  Result<Indices> chosen = select_tensors(*model, flags);
  if (!chosen.ok()) return chosen.error();
  std::vector<std::string> files;
  for (const ModelFile& file : model->files()) files.push_back(file.path);
  Result<TunedContext> tuned = make_tuned_context(flags, files, *domain);
  if (!tuned.ok()) return tuned.error();
  auto cargo =
      std::make_unique<ModelCargo>(std::move(*tuned), std::move(*model), std::move(*chosen), flags.deadline_seconds);
  if (Status ready = cargo->prepare(*domain); !ready.ok()) return ready.error();
  return std::unique_ptr<Cargo>(std::move(cargo));
}

}  // namespace penstock::cli

// penstock bench --layers: passes over the groups of a model through a budget of memory.
#include <algorithm>
#include <thread>

#include "bench.h"
#include "interrupt.h"
#include "model_names.h"
#include "transfer.h"

namespace penstock::cli {

namespace {

// The first passes fill the budget and teach the order.
constexpr std::size_t passes_before = 2;
constexpr std::size_t passes_measured = 3;  // at least
constexpr std::size_t passes_most = 1000;
constexpr int budgets_most = 8;

struct Passes {
  double first_seconds = 0;
  std::vector<double> seconds;  // of those that count
  LayersReport before, after;   // of these

  std::uint64_t waits() const { return after.all.waits - before.all.waits; }
};

struct LayersJob {
  const Context& context;
  const Model& model;
  const std::vector<TensorGroup>& groups;
  LayersOptions options;
  double compute_seconds = 0;  // of a group
};

Status run_pass(Layers& layers, const LayersJob& job) {
  for (std::size_t i = 0; i < job.groups.size(); ++i) {
    if (interrupted()) return interrupted_error();
    if (const auto tensors = layers.acquire(i); !tensors.ok()) return tensors.error();
    if (job.compute_seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(job.compute_seconds));
    if (Status released = layers.release(i); !released.ok()) return released;
  }
  return {};
}

Result<Passes> run_passes(const LayersJob& job, double seconds) {
  Result<Layers> layers = Layers::open(job.context, job.model, job.groups, job.options);
  if (!layers.ok()) return layers.error();
  Passes passes;
  const Stopwatch all;
  for (std::size_t i = 0; i < passes_most; ++i) {
    if (i == passes_before) passes.before = layers->report();
    if (i >= passes_before + passes_measured && all.seconds() > seconds) break;
    const Stopwatch one;
    if (Status done = run_pass(*layers, job); !done.ok()) return done.error();
    if (i == 0) passes.first_seconds = one.seconds();
    if (i >= passes_before) passes.seconds.push_back(one.seconds());
  }
  passes.after = layers->report();
  std::ranges::sort(passes.seconds);
  return passes;
}

// Budgets between which acquires cease to wait; as close as the time allows.
struct Threshold {
  std::uint64_t waits_bytes = 0;  // 0: none does
  std::uint64_t enough_bytes = 0;
};

struct Sizes {
  std::uint64_t largest = 0;
  std::uint64_t all = 0;
};

// Of groups, with room for what is rounded up.
Sizes sizes_of(const Model& model, std::span<const TensorGroup> groups) {
  constexpr std::uint64_t rounding = 64 << 10;  // to whole pages, and tensors to their alignment
  Sizes sizes;
  for (const TensorGroup& group : groups) {
    std::uint64_t bytes = rounding;
    for (const GroupTensor& each : group.tensors) bytes += model.tensors()[each.tensor].size_bytes + 256;
    sizes.largest = std::max(sizes.largest, bytes);
    sizes.all += bytes;
  }
  return sizes;
}

Result<Threshold> find_threshold(LayersJob job, double seconds, MeasureProgress& progress) {
  const auto [largest, all] = sizes_of(job.model, job.groups);
  Threshold found{.waits_bytes = 0, .enough_bytes = all};
  const Stopwatch stopwatch;
  std::uint64_t budget = largest;
  for (int i = 0; i < budgets_most && stopwatch.seconds() < seconds; ++i) {
    progress.say("looking for the budget that is enough: " + format_bytes(budget));
    job.options.budget_bytes = budget;
    const Result<Passes> passes = run_passes(job, 0);
    if (!passes.ok()) return passes.error();
    (passes->waits() != 0 ? found.waits_bytes : found.enough_bytes) = budget;
    if (found.waits_bytes == 0 || found.enough_bytes - found.waits_bytes <= largest) break;
    budget = found.waits_bytes + (found.enough_bytes - found.waits_bytes) / 2;
  }
  return found;
}

Json passes_json(const Passes& passes, const LayersJob& job) {
  const auto count = static_cast<double>(passes.seconds.size());
  const auto each = [&](auto member) {
    return static_cast<double>(passes.after.all.*member - passes.before.all.*member) / count;
  };
  Json slots = Json::array();
  for (const SlotsReport& size : passes.after.slots) {
    slots.push_back({{"slot_bytes", size.slot_bytes}, {"slots", size.slots}, {"groups", size.groups}});
  }
  Json groups = Json::array();
  for (std::size_t i = 0; i < job.groups.size(); ++i) {
    const GroupReport& report = passes.after.groups[i];
    groups.push_back({{"name", job.groups[i].name},
                      {"hits", report.hits},
                      {"waits", report.waits},
                      {"wait_seconds", report.wait_seconds},
                      {"loads", report.loads},
                      {"loaded_bytes", report.loaded_bytes}});
  }
  const double seconds = passes.seconds[passes.seconds.size() / 2];
  return {{"passes", passes.seconds.size()},
          {"first_pass_seconds", passes.first_seconds},
          {"pass_seconds", seconds},
          {"gb_per_s", rate(job.model.size_bytes(), seconds) / 1e9},
          {"hits_per_pass", each(&GroupReport::hits)},
          {"waits_per_pass", each(&GroupReport::waits)},
          {"wait_seconds_per_pass", each(&GroupReport::wait_seconds)},
          {"loaded_bytes_per_pass", each(&GroupReport::loaded_bytes)},
          {"memory_bytes", passes.after.memory_bytes},
          {"slots", slots},
          {"groups", groups}};
}

}  // namespace

Result<Json> bench_layers(const BenchFlags& flags) {
  const Result<Domain> domain = Domain::parse(flags.domain);
  if (!domain.ok()) return domain.error();
  MeasureProgress progress(flags.output, "making ready");
  Result<Context> context = make_context(ContextFlags{});
  if (!context.ok()) return context.error();
  const Result<Model> model = open_model(*context, std::span(&flags.path, 1));
  if (!model.ok()) return model.error();
  const auto groups = layer_groups(*model, flags.groups);
  if (!groups.ok()) return groups.error();
  const std::uint64_t budget =
      flags.budget.value_or(std::max(model->size_bytes() / 4, 2 * sizes_of(*model, *groups).largest));
  const Status room = check_room(*domain, std::min(budget, model->size_bytes()), "choose a smaller --budget");
  if (!room.ok()) return room.error();
  const LayersJob job{.context = *context,
                      .model = *model,
                      .groups = *groups,
                      .options = {.domain = *domain, .budget_bytes = budget, .in_order = true},
                      .compute_seconds = flags.compute_ms / 1000};
  progress.say("passes through " + format_bytes(budget));
  const Result<Passes> passes = run_passes(job, flags.seconds / 2);
  if (!passes.ok()) return passes.error();
  Json result = passes_json(*passes, job);
  const Result<Threshold> threshold = find_threshold(job, flags.seconds / 2, progress);
  if (!threshold.ok()) return threshold.error();
  result["schema"] = "penstock.layers/1";
  result["path"] = flags.path;
  result["to"] = flags.domain;
  result["model_bytes"] = model->size_bytes();
  result["budget_bytes"] = budget;
  result["compute_ms"] = flags.compute_ms;
  result["largest_budget_that_waits"] = threshold->waits_bytes == 0 ? Json() : Json(threshold->waits_bytes);
  result["smallest_budget_that_does_not"] = threshold->enough_bytes;
  return result;
}

void print_layers(const Output& output, const Json& result) {
  const auto bytes = [&](const char* key) { return format_bytes(result.at(key).get<std::uint64_t>()); };
  const auto seconds = [&](const char* key) { return format_seconds(result.at(key).get<double>()); };
  const auto number = [&](const char* key) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f", result.at(key).get<double>());
    return std::string(text);
  };
  const double pass_seconds = result.at("pass_seconds").get<double>();
  output.verdict(bytes("model_bytes") + " through " + bytes("memory_bytes") + ": " + seconds("pass_seconds") +
                 " a pass, " + format_rate(rate(result.at("model_bytes").get<std::uint64_t>(), pass_seconds)));
  output.field("first", seconds("first_pass_seconds"));
  output.field("groups", count_of(result.at("groups").size(), "group") + "; of a pass " + number("hits_per_pass") +
                             " were there, " + number("waits_per_pass") + " were waited for");
  output.field("waits", seconds("wait_seconds_per_pass") + " a pass");
  output.field("loaded",
               format_bytes(static_cast<std::uint64_t>(result.at("loaded_bytes_per_pass").get<double>())) + " a pass");
  for (const Json& size : result.at("slots")) {
    output.field("slots", std::to_string(size.at("slots").get<std::uint64_t>()) + " of " +
                              format_bytes(size.at("slot_bytes").get<std::uint64_t>()) + ", for " +
                              count_of(size.at("groups").get<std::size_t>(), "group"));
  }
  const Json& waits = result.at("largest_budget_that_waits");
  output.field("budget", waits.is_null() ? "none that was tried waits"
                                         : bytes("largest_budget_that_waits") + " still waits, " +
                                               bytes("smallest_budget_that_does_not") + " does not");
}

}  // namespace penstock::cli

#include "penstock/options.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <variant>

#include "base/out_of_memory.h"
#include "core/lane_set.h"

namespace penstock {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kib = 1 << 10;
constexpr std::uint64_t mib = 1 << 20;
constexpr std::uint64_t gib = 1 << 30;
constexpr std::uint64_t slot_granule = 64 * kib;
constexpr double most_seconds = 1e8;
constexpr std::size_t most_name_bytes = 64;

bool may_be_in_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

// Every whole number of Options: its key, where it is, and what it may be.
struct Number {
  std::string_view key;
  std::variant<std::uint32_t Options::*, std::uint64_t Options::*> member;
  std::uint64_t least;
  std::uint64_t most;
  std::uint64_t multiple = 1;

  std::uint64_t get(const Options& options) const {
    return std::visit([&](auto field) -> std::uint64_t { return options.*field; }, member);
  }
  bool set(Options& options, std::uint64_t value) const {
    return std::visit(
        [&](auto field) {
          options.*field = static_cast<std::remove_reference_t<decltype(options.*field)>>(value);
          return options.*field == value;
        },
        member);
  }
};
constexpr Number numbers[] = {
    {"lanes", &Options::lanes, 0, 1024},
    {"operations_in_flight", &Options::operations_in_flight, 1, 4096},
    {"operations_in_flight_total", &Options::operations_in_flight_total, 0, mib},
    {"bytes_in_flight", &Options::bytes_in_flight, mib, 1024 * gib},
    {"storage_chunk_bytes", &Options::storage_chunk_bytes, 4 * kib, gib, 4 * kib},
    {"staging_slot_bytes", &Options::staging_slot_bytes, slot_granule, gib, slot_granule},
    {"staging_slots_per_lane", &Options::staging_slots_per_lane, 1, 64},
    {"prefetch_window_bytes", &Options::prefetch_window_bytes, 0, 1024 * gib},
    {"alignment_bytes", &Options::alignment_bytes, 0, mib},
    {"pinned_budget_bytes", &Options::pinned_budget_bytes, slot_granule, 1024 * 1024 * gib},
    {"device_budget_bytes", &Options::device_budget_bytes, 0, 1024 * 1024 * gib},
    {"trace_events", &Options::trace_events, 0, mib},
};

struct Seconds {
  std::string_view key;
  double Deadlines::*member;
  double most = most_seconds;
};
constexpr Seconds seconds[] = {
    {"request_seconds", &Deadlines::request_seconds},
    {"stall_seconds", &Deadlines::stall_seconds},
    {"cancel_grace_seconds", &Deadlines::cancel_grace_seconds, 10},
    {"stream_seconds", &Deadlines::stream_seconds},
    {"close_seconds", &Deadlines::close_seconds},
};

Error invalid(std::string message, std::string hint = {}) {
  return {Code::invalid_argument, 0, "options: " + std::move(message), std::move(hint)};
}

template <typename Fields>
std::string keys_of(const Fields& fields, std::string list) {
  for (const auto& field : fields) list.append(list.empty() ? "" : ", ").append(field.key);
  return list;
}

template <typename Fields>
auto find_key(const Fields& fields, std::string_view key) {
  return std::find_if(std::begin(fields), std::end(fields), [&](const auto& field) { return field.key == key; });
}

// Keys come from outside: whatever is in them, an error shows them short and printable.
std::string shown(std::string_view key) {
  constexpr std::size_t most_characters = 64;
  std::string text(key.substr(0, most_characters));
  std::replace_if(text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return "\"" + text + (key.size() > most_characters ? "...\"" : "\"");
}

// Notes while parsing what the parsed value no longer shows: keys given twice, and nesting that no option has.
class StructureCheck {
 public:
  bool operator()(int depth, Json::parse_event_t event, const Json& parsed) {
    constexpr int deepest = 3;
    too_deep_ = too_deep_ || depth > deepest;
    if (too_deep_) return false;
    if (event == Json::parse_event_t::object_start) keys_.emplace_back();
    if (event == Json::parse_event_t::object_end) keys_.pop_back();
    if (event == Json::parse_event_t::key && !keys_.back().insert(parsed.get_ref<const std::string&>()).second) {
      twice_ = parsed.get_ref<const std::string&>();
    }
    return true;
  }
  Status status() const {
    if (too_deep_) return invalid("nested too deeply", "the only nested values are lists and objects");
    if (twice_) return invalid(shown(*twice_) + " is given twice", "give each key once");
    return {};
  }

 private:
  std::vector<std::set<std::string>> keys_;
  bool too_deep_ = false;
  std::optional<std::string> twice_;
};

Result<Json> parse(std::string_view text) {
  if (text.size() > mib) return invalid("more than 1 MiB of JSON");
  StructureCheck check;
  Json json;
  try {
    json = Json::parse(text.begin(), text.end(), std::ref(check));
  } catch (const Json::parse_error& error) {
    return invalid("not valid JSON at byte " + std::to_string(error.byte));
  } catch (const Json::exception&) {
    return invalid("a number in the JSON is too large");
  }
  if (Status status = check.status(); !status) return std::move(status).error();
  if (!json.is_object()) return invalid("not a JSON object", "write {\"lanes\": 8}");
  return json;
}

Status read_number(const Number& number, const Json& value, Options& options) {
  if (value.is_number_unsigned() && number.set(options, value.get<std::uint64_t>())) return {};
  const std::string range = "from " + std::to_string(number.least) + " to " + std::to_string(number.most);
  return invalid(std::string(number.key) + " must be a whole number " + range);
}

Status read_deadlines(const Json& value, Deadlines& deadlines) {
  if (!value.is_object()) return invalid("deadlines must be an object", "keys: " + keys_of(seconds, ""));
  for (const auto& [key, item] : value.items()) {
    const auto field = find_key(seconds, key);
    if (field == std::end(seconds)) {
      return invalid("unknown key " + shown(key) + " in deadlines", "known keys: " + keys_of(seconds, ""));
    }
    if (!item.is_number()) return invalid("deadlines." + key + " must be a number of seconds");
    deadlines.*(field->member) = item.get<double>();
  }
  return {};
}

Status read_routes(const Json& value, std::vector<Route>& routes) {
  std::string known;
  for (std::size_t route = 0; route < route_count; ++route) {
    known.append(known.empty() ? "" : ", ").append(route_name(static_cast<Route>(route)));
  }
  if (!value.is_array()) return invalid("allowed_routes must be a list of route names", "routes: " + known);
  routes.clear();
  for (const Json& item : value) {
    const auto route = item.is_string() ? route_from_name(item.get_ref<const std::string&>()) : std::nullopt;
    if (!route) {
      const std::string name = item.is_string() ? shown(item.get_ref<const std::string&>()) : "a value";
      return invalid(name + " in allowed_routes is not the name of a route", "routes: " + known);
    }
    routes.push_back(*route);
  }
  return {};
}

Status read_cache(const Json& value, Cache& cache) {
  for (const Cache candidate : {Cache::automatic, Cache::keep, Cache::bypass}) {
    if (value.is_string() && value.get_ref<const std::string&>() == cache_name(candidate)) {
      cache = candidate;
      return {};
    }
  }
  return invalid("cache must be \"auto\", \"keep\" or \"bypass\"");
}

Status read_key(const std::string& key, const Json& value, Options& options) {
  if (key == "allowed_routes") return read_routes(value, options.allowed_routes);
  if (key == "cache") return read_cache(value, options.cache);
  if (key == "deadlines") return read_deadlines(value, options.deadlines);
  if (key == "nvtx") {
    if (!value.is_boolean()) return invalid("nvtx must be true or false");
    options.nvtx = value.get<bool>();
    return {};
  }
  if (key == "engine") {
    if (!value.is_string()) return invalid("engine must be the name of an engine, or \"\"");
    options.engine = value.get<std::string>();
    return {};
  }
  if (key == "modules") {
    const bool are_paths =
        value.is_array() && std::all_of(value.begin(), value.end(), [](const Json& path) { return path.is_string(); });
    if (!are_paths) return invalid("modules must be a list of paths");
    options.modules = value.get<std::vector<std::string>>();
    return {};
  }
  if (key == "publish") {
    if (!value.is_string()) return invalid("publish must be a name, or \"\"");
    options.publish = value.get<std::string>();
    return {};
  }
  const auto number = find_key(numbers, key);
  if (number != std::end(numbers)) return read_number(*number, value, options);
  return invalid("unknown key " + shown(key),
                 "known keys: " + keys_of(numbers, "allowed_routes, engine, modules, cache, nvtx, publish, deadlines"));
}

Status check_deadlines(const Deadlines& deadlines) {
  for (const Seconds& field : seconds) {
    const double value = deadlines.*(field.member);
    if (!(value >= 0 && value <= field.most)) {
      return invalid("deadlines." + std::string(field.key) + " is " + std::to_string(value) + " seconds",
                     "choose from 0 to " + std::to_string(static_cast<std::uint64_t>(field.most)));
    }
  }
  if (deadlines.cancel_grace_seconds == 0) {
    return invalid("deadlines.cancel_grace_seconds is 0", "operations need some time to complete: 0.1 is usual");
  }
  if (deadlines.cancel_grace_seconds >= deadlines.close_seconds) {
    return invalid("deadlines.close_seconds is not longer than deadlines.cancel_grace_seconds",
                   "closing waits for requests to end, which may take the whole grace");
  }
  return {};
}

std::uint64_t staging_bytes(const Options& options) {
  return options.lanes * options.staging_slots_per_lane * options.staging_slot_bytes;
}

// Down to slots that together still hold a block of the store.
void shrink_slots(Options& options, std::uint64_t target_bytes, std::uint64_t smallest_slot) {
  while (staging_bytes(options) > target_bytes) {
    const std::uint64_t half = options.staging_slot_bytes / 2 / slot_granule * slot_granule;
    if (half < smallest_slot || half * options.staging_slots_per_lane < options.alignment_bytes) return;
    options.staging_slot_bytes = half;
  }
}

// Of the budget, for lanes with threads: what callers' lanes need is left to them, within reason.
std::uint64_t lanes_share(const Options& options) {
  const std::uint64_t budget = options.pinned_budget_bytes;
  return budget - std::min(core::LaneSet::callers_staging_bytes(options.lanes), budget / 4);
}

}  // namespace

Result<Options> Options::from_json(std::string_view text) {
  return or_out_of_memory([&]() -> Result<Options> {
    const auto json = parse(text);
    if (!json) return json.error();
    Options options;
    for (const auto& [key, value] : json->items()) {
      if (Status status = read_key(key, value, options); !status) return std::move(status).error();
    }
    if (Status status = options.validate(); !status) return std::move(status).error();
    return options;
  });
}

std::string Options::to_json(int indent) const {
  Json json = Json::object();
  json["allowed_routes"] = Json::array();
  for (const Route route : allowed_routes) json["allowed_routes"].push_back(route_name(route));
  json["engine"] = engine;
  json["modules"] = modules;
  json["cache"] = cache_name(cache);
  json["nvtx"] = nvtx;
  json["publish"] = publish;
  for (const Number& number : numbers) json[std::string(number.key)] = number.get(*this);
  for (const Seconds& field : seconds) json["deadlines"][std::string(field.key)] = deadlines.*(field.member);
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

Status Options::validate() const {
  for (const Number& number : numbers) {
    const std::uint64_t value = number.get(*this);
    if (value < number.least || value > number.most || value % number.multiple != 0) {
      std::string hint = "choose from " + std::to_string(number.least) + " to " + std::to_string(number.most);
      if (number.multiple > 1) hint += ", a multiple of " + std::to_string(number.multiple);
      return invalid(std::string(number.key) + " is " + std::to_string(value), std::move(hint));
    }
  }
  if (alignment_bytes != 0 && (alignment_bytes < 512 || !std::has_single_bit(alignment_bytes))) {
    return invalid("alignment_bytes is " + std::to_string(alignment_bytes),
                   "choose 0 to ask the store, or a power of two from 512 to 1048576");
  }
  if (publish.size() > most_name_bytes || !std::ranges::all_of(publish, may_be_in_name)) {
    return invalid("publish is " + shown(publish), "choose up to 64 letters, digits, - and _");
  }
  const std::uint64_t one_lane = staging_slots_per_lane * staging_slot_bytes;
  if (pinned_budget_bytes < one_lane) {
    return invalid("pinned_budget_bytes is " + std::to_string(pinned_budget_bytes) + ", less than the " +
                       std::to_string(one_lane) + " bytes of one lane's staging slots",
                   "raise it, or lower staging_slot_bytes or staging_slots_per_lane");
  }
  if (alignment_bytes > one_lane) {
    return invalid("alignment_bytes is " + std::to_string(alignment_bytes) + ", more than the " +
                       std::to_string(one_lane) + " bytes of one lane's staging slots",
                   "lower it, or raise staging_slot_bytes or staging_slots_per_lane");
  }
  return check_deadlines(deadlines);
}

Options Options::resolved(const Machine& machine) const {
  Options result = *this;
  if (result.lanes == 0) result.lanes = std::clamp<std::uint32_t>(machine.usable_cpus, 1, 16);

  if (machine.memory_bytes > 0) {
    const std::uint64_t quarter = machine.memory_bytes / 4 / slot_granule * slot_granule;
    const std::uint64_t most = std::max(slot_granule, result.pinned_budget_bytes);
    // Slots that hold a block are not halved any more, and may be nearly two blocks long.
    const std::uint64_t least = std::min(most, std::max(slot_granule, 2 * result.alignment_bytes));
    result.pinned_budget_bytes = std::clamp(quarter, least, most);
  }
  // Registering memory with the kernel counts against the lockable bytes: smaller slots are better than unregistered
  // ones, down to a size at which each operation costs more than registration saves.
  shrink_slots(result, machine.lockable_bytes / 2, 256 * kib);
  shrink_slots(result, lanes_share(result), slot_granule);
  const auto can_lose_a_slot = [&] {
    return (result.staging_slots_per_lane - 1) * result.staging_slot_bytes >=
           std::max(slot_granule, result.alignment_bytes);
  };
  while (staging_bytes(result) > lanes_share(result) && can_lose_a_slot()) --result.staging_slots_per_lane;
  while (staging_bytes(result) > lanes_share(result) && result.lanes > 1) --result.lanes;
  if (result.operations_in_flight_total != 0) {
    const std::uint32_t share = result.operations_in_flight_total / core::LaneSet::lanes_with_callers(result.lanes);
    result.operations_in_flight = std::clamp(share, 1U, result.operations_in_flight);
  }
  return result;
}

}  // namespace penstock

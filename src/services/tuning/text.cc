#include "services/tuning/text.h"

#include <initializer_list>
#include <nlohmann/json.hpp>

namespace penstock {

namespace tuning {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view schema = "penstock.tuning/1";
constexpr std::size_t name_limit_bytes = 4096;
constexpr double rate_limit = 1e15;  // bytes a second

Error invalid(std::string message) {
  return {.code = Code::invalid_argument, .message = std::move(message)};
}

// An object with exactly these keys.
Status check_keys(const Json& value, std::string_view what, std::initializer_list<std::string_view> keys) {
  if (!value.is_object()) return invalid(std::string(what) + " is not an object");
  for (const std::string_view key : keys) {
    if (!value.contains(key)) return invalid(std::string(what) + " has no \"" + std::string(key) + "\"");
  }
  if (value.size() != keys.size()) return invalid(std::string(what) + " has a key that is not known");
  return {};
}

Status read_name(const Json& value, const char* key, std::string& name) {
  const Json& item = value[key];
  if (!item.is_string() || item.get_ref<const std::string&>().size() > name_limit_bytes) {
    return invalid("\"" + std::string(key) + "\" is not a string of at most 4096 bytes");
  }
  name = item.get<std::string>();
  return {};
}

Status read_key(const Json& value, TuningKey& key) {
  if (Status status = check_keys(value, "\"for\"", {"file_system", "source", "mount_point", "memory"}); !status) {
    return status;
  }
  if (Status status = read_name(value, "file_system", key.file_system); !status) return status;
  if (Status status = read_name(value, "source", key.source); !status) return status;
  if (Status status = read_name(value, "mount_point", key.mount_point); !status) return status;
  return read_name(value, "memory", key.memory);
}

// What each option may be is known to Options; here only that it is one that is tuned.
Status read_options(const Json& value, Options& options) {
  if (!value.is_object()) return invalid("\"options\" is not an object");
  for (const auto& item : value.items()) {
    bool is_tuned = false;
    for_each_tuned([&](std::string_view key, auto) { is_tuned = is_tuned || key == item.key(); });
    if (!is_tuned) return invalid("\"options\" has a key that is not tuned");
    if (!item.value().is_number_unsigned()) return invalid("\"" + item.key() + "\" is not a whole number");
  }
  Result<Options> parsed = Options::from_json(value.dump());
  if (!parsed) return std::move(parsed).error();
  options = std::move(*parsed);
  return {};
}

Status read_rate(const Json& value, const char* key, double& bytes_per_second) {
  const Json& item = value[key];
  const double rate = item.is_number() ? item.get<double>() : -1;
  if (!(rate >= 0 && rate <= rate_limit))
    return invalid("\"" + std::string(key) + "\" is not a number of bytes a second");
  bytes_per_second = rate;
  return {};
}

Status read_speed(const Json& value, std::string_view what, std::optional<TuningSpeed>& speed) {
  if (value.is_null()) return {};
  if (Status status = check_keys(value, what, {"before_bytes_per_second", "after_bytes_per_second"}); !status)
    return status;
  speed.emplace();
  if (Status status = read_rate(value, "before_bytes_per_second", speed->before_bytes_per_second); !status)
    return status;
  return read_rate(value, "after_bytes_per_second", speed->after_bytes_per_second);
}

Status read_tuning(const Json& value, Tuning& tuning) {
  if (Status status = check_keys(value, "a tuning", {"for", "options", "when", "version", "cached", "cold"}); !status) {
    return status;
  }
  if (Status status = read_key(value["for"], tuning.key); !status) return status;
  if (Status status = read_options(value["options"], tuning.options); !status) return status;
  if (Status status = read_name(value, "when", tuning.when); !status) return status;
  if (Status status = read_name(value, "version", tuning.version); !status) return status;
  if (Status status = read_speed(value["cached"], "\"cached\"", tuning.cached); !status) return status;
  return read_speed(value["cold"], "\"cold\"", tuning.cold);
}

Json speed_json(const std::optional<TuningSpeed>& speed) {
  if (!speed) return {};
  return {{"before_bytes_per_second", speed->before_bytes_per_second},
          {"after_bytes_per_second", speed->after_bytes_per_second}};
}

Json tuning_json(const Tuning& tuning) {
  Json options = Json::object();
  for (const auto& [key, value] : tuned_options(tuning.options)) options[std::string(key)] = value;
  return {{"for",
           {{"file_system", tuning.key.file_system},
            {"source", tuning.key.source},
            {"mount_point", tuning.key.mount_point},
            {"memory", tuning.key.memory}}},
          {"options", std::move(options)},
          {"when", tuning.when},
          {"version", tuning.version},
          {"cached", speed_json(tuning.cached)},
          {"cold", speed_json(tuning.cold)}};
}

}  // namespace

Result<std::vector<Tuning>> parse(std::string_view text) {
  if (text.size() > file_limit_bytes) return invalid("more than 1 MiB");
  const Json json = Json::parse(text.begin(), text.end(), nullptr, false);
  if (json.is_discarded()) return invalid("not valid JSON");
  if (Status status = check_keys(json, "the file", {"schema", "tunings"}); !status) return std::move(status).error();
  if (json["schema"] != schema) return invalid("\"schema\" is not \"" + std::string(schema) + "\"");
  if (!json["tunings"].is_array()) return invalid("\"tunings\" is not a list");
  std::vector<Tuning> tunings;
  for (const Json& item : json["tunings"]) {
    if (Status status = read_tuning(item, tunings.emplace_back()); !status) return std::move(status).error();
  }
  return tunings;
}

Result<std::string> format(const std::vector<Tuning>& tunings) {
  Json json = {{"schema", schema}, {"tunings", Json::array()}};
  for (const Tuning& tuning : tunings) json["tunings"].push_back(tuning_json(tuning));
  try {
    std::string text = json.dump(2) + "\n";
    if (text.size() <= file_limit_bytes) return text;
  } catch (const Json::type_error&) {
    return Error{.code = Code::unsupported,
                 .message = "the name of a device or mount point is not UTF-8",
                 .hint = "mount it elsewhere to keep a tuning for it"};
  }
  return Error{.code = Code::unsupported,
               .message = "more tunings than 1 MiB can hold",
               .hint = "delete the file, or forget some with penstock tune --forget"};
}

}  // namespace tuning

std::vector<std::pair<std::string_view, std::uint64_t>> tuned_options(const Options& options) {
  std::vector<std::pair<std::string_view, std::uint64_t>> changed;
  tuning::for_each_tuned([&](std::string_view key, auto member) {
    if (options.*member != Options().*member) changed.emplace_back(key, options.*member);
  });
  return changed;
}

}  // namespace penstock

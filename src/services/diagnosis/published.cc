#include "penstock/published.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "base/unique_fd.h"
#include "penstock/checksum.h"

namespace penstock {

namespace {

using Json = nlohmann::json;

constexpr std::size_t max_bytes = 128 << 10;       // many times what statistics take
constexpr std::size_t max_files_of_a_user = 1024;  // so that one can't hide what others publish
constexpr int tries = 20;
constexpr std::size_t checksum_digits = 16;

// A file whose process lives.
class File {
 public:
  explicit File(UniqueFd fd) : fd_(std::move(fd)) {}

  // Nothing while it is being written.
  std::optional<std::string> read() const {
    struct stat status = {};
    if (::fstat(fd_.get(), &status) != 0 || status.st_size <= static_cast<off_t>(published_head_bytes)) return {};
    const auto size = static_cast<std::uint64_t>(status.st_size) - published_head_bytes;
    std::string content(std::min<std::uint64_t>(size, max_bytes), '\0');
    const ssize_t got = ::pread(fd_.get(), content.data(), content.size(), published_head_bytes);
    content.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    return checked(content);
  }

 private:
  // The text without its checksum; nothing if they don't fit.
  static std::optional<std::string> checked(const std::string& content) {
    if (content.size() < checksum_digits + 2 || content[checksum_digits] != '\n' || content.back() != '\n') return {};
    std::string text = content.substr(checksum_digits + 1, content.size() - checksum_digits - 2);
    Checksum checksum;
    checksum.add(std::as_bytes(std::span(text)));
    if (checksum.hex() != content.substr(0, checksum_digits)) return {};
    return text;
  }

  UniqueFd fd_;
};

// The kernel takes the mutex from a thread that dies.
bool is_alive(int fd) {
  std::uint32_t owner = 0;
  return ::pread(fd, &owner, sizeof owner, 0) == sizeof owner && (owner & FUTEX_TID_MASK) != 0;
}

// Prometheus refuses all of what it reads where two series have the same labels.
bool has_routes_twice(const Statistics& statistics) {
  std::set<std::pair<std::string, Route>> seen;
  return !std::ranges::all_of(
      statistics.routes, [&](const RouteStatistics& route) { return seen.emplace(route.engine, route.route).second; });
}

// Of the characters that a publisher writes, with which a terminal or a reader of the list can't be fooled.
bool is_plain(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; });
}

// Under the name that its content says: penstock.NAME.PID.N.
bool has_own_name(const Published& published) {
  const std::string begin = std::string(published_prefix) + published.name + ".";
  if (!published.file.starts_with(begin)) return false;
  const std::string_view numbers = std::string_view(published.file).substr(begin.size());
  const std::size_t point = numbers.find('.');
  return point != 0 && point != std::string_view::npos && point + 1 != numbers.size() &&
         numbers.find_first_not_of("0123456789", point + 1) == std::string_view::npos &&
         numbers.find_first_not_of("0123456789") == point;
}

// Any user may put anything into the folder.
std::optional<Published> parse(const std::string& text, const std::string& file) {
  // Printing what is nested takes stack for each level.
  constexpr int max_depth = 32;
  const auto is_shallow = [](int depth, Json::parse_event_t, const Json&) { return depth < max_depth; };
  const Json json = Json::parse(text, is_shallow, false);
  if (!json.is_object() || !json.contains("name") || !json["name"].is_string() || !json.contains("pid") ||
      !json["pid"].is_number_unsigned() || !json.contains("command") || !json["command"].is_string() ||
      !json.contains("statistics")) {
    return {};
  }
  const Result<Statistics> statistics = Statistics::from_json(json["statistics"].dump());
  if (!statistics || has_routes_twice(*statistics)) return {};
  Published published{.name = json["name"].get<std::string>(),
                      .pid = json["pid"].get<std::uint64_t>(),
                      .command = json["command"].get<std::string>(),
                      .file = file,
                      .statistics = *statistics};
  const bool has_plain_routes = std::ranges::all_of(
      published.statistics.routes, [](const RouteStatistics& route) { return is_plain(route.engine); });
  if (!has_own_name(published) || !is_plain(published.file) || !is_plain(published.command) || !has_plain_routes) {
    return {};
  }
  return published;
}

// One look into the folder.
class Reading {
 public:
  explicit Reading(int folder) : folder_(folder) {}

  void take(const std::string& name) {
    struct stat status = {};
    if (::fstatat(folder_, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode)) return;
    if (files_of_[status.st_uid] == max_files_of_a_user) return;
    UniqueFd fd(::openat(folder_, name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (!fd) return;
    if (!is_alive(fd.get())) {
      if (status.st_uid == ::geteuid()) ::unlinkat(folder_, name.c_str(), 0);
      return;
    }
    ++files_of_[status.st_uid];
    File file(std::move(fd));
    if (!read(name, file)) torn_.emplace_back(name, std::move(file));
  }

  // What was being written is read again, all of it together.
  std::vector<Published> finish() {
    for (int i = 1; i < tries && !torn_.empty(); ++i) {
      ::usleep(1000);
      std::erase_if(torn_, [&](const auto& one) { return read(one.first, one.second); });
    }
    return std::move(found_);
  }

 private:
  bool read(const std::string& name, const File& file) {
    const auto text = file.read();
    if (!text) return false;
    if (auto one = parse(*text, name)) found_.push_back(std::move(*one));
    return true;
  }

  int folder_;
  std::map<uid_t, std::size_t> files_of_;
  std::vector<std::pair<std::string, File>> torn_;
  std::vector<Published> found_;
};

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\' || c == '"') result += '\\';
    if (c == '\n')
      result += "\\n";
    else
      result += c;
  }
  return result;
}

class Exposition {
 public:
  explicit Exposition(std::span<const Published> published) : published_(published) {}

  // One value of each process.
  void add(const char* name, const char* type, const char* help,
           const std::function<double(const Statistics&)>& value) {
    head(name, type, help);
    for (const Published& one : published_) line(name, labels(one), value(one.statistics));
  }
  // One of each route of each process.
  void add_routes(const char* name, const char* type, const char* help,
                  const std::function<double(const RouteStatistics&)>& value) {
    head(name, type, help);
    for (const Published& one : published_) {
      for (const RouteStatistics& route : one.statistics.routes) line(name, labels(one, route), value(route));
    }
  }
  void add_latencies() {
    head("penstock_latency_seconds", "summary", "How long operations took.");
    for (const Published& one : published_) {
      for (const RouteStatistics& route : one.statistics.routes) {
        const std::string all = labels(one, route);
        line("penstock_latency_seconds", all + ",quantile=\"0.5\"", route.latency_p50_seconds);
        line("penstock_latency_seconds", all + ",quantile=\"0.99\"", route.latency_p99_seconds);
        line("penstock_latency_seconds", all + ",quantile=\"0.999\"", route.latency_p999_seconds);
        line("penstock_latency_seconds_sum", all,
             route.latency_average_seconds * static_cast<double>(route.operations));
        line("penstock_latency_seconds_count", all, static_cast<double>(route.operations));
      }
    }
  }
  std::string text() && { return std::move(text_); }

 private:
  static std::string labels(const Published& one) {
    return "name=\"" + escaped(one.name) + "\",pid=\"" + std::to_string(one.pid) + "\",file=\"" + escaped(one.file) +
           "\"";
  }
  static std::string labels(const Published& one, const RouteStatistics& route) {
    return labels(one) + ",engine=\"" + escaped(route.engine) + "\",route=\"" + std::string(route_name(route.route)) +
           "\"";
  }
  void head(const char* name, const char* type, const char* help) {
    text_ += std::string("# HELP ") + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
  }
  void line(const std::string& name, const std::string& all_labels, double value) {
    char number[32];
    std::snprintf(number, sizeof number, "%.17g", value);
    text_ += name + "{" + all_labels + "} " + number + "\n";
  }

  std::span<const Published> published_;
  std::string text_;
};

}  // namespace

Result<std::vector<Published>> list_published(std::string_view name) {
  const std::string folder(published_folder);
  const std::unique_ptr<DIR, int (*)(DIR*)> names(opendir(folder.c_str()), closedir);
  if (!names) return system_error(errno, "look into " + folder);
  const std::string prefix = std::string(published_prefix) + (name.empty() ? "" : std::string(name) + ".");
  Reading reading(::dirfd(names.get()));
  while (const dirent* entry = readdir(names.get())) {
    const std::string file = entry->d_name;
    if (file.starts_with(prefix)) reading.take(file);
  }
  std::vector<Published> all = reading.finish();
  std::ranges::sort(all, {}, [](const Published& one) { return std::tie(one.name, one.pid, one.file); });
  return all;
}

std::string to_prometheus(std::span<const Published> published) {
  Exposition exposition(published);
  const auto number = [](auto member) {
    return [member](const auto& one) { return static_cast<double>(one.*member); };
  };
  exposition.add_routes("penstock_bytes_total", "counter", "Bytes moved.", number(&RouteStatistics::bytes));
  exposition.add_routes("penstock_operations_total", "counter", "Operations completed.",
                        number(&RouteStatistics::operations));
  exposition.add_routes("penstock_operations_failed_total", "counter", "Operations that failed.",
                        number(&RouteStatistics::failed));
  exposition.add_latencies();
  exposition.add("penstock_requests_total", "counter", "Requests ended.", number(&Statistics::requests));
  exposition.add("penstock_requests_failed_total", "counter", "Requests failed, cancelled or abandoned.",
                 number(&Statistics::requests_failed));
  exposition.add("penstock_stored_bytes_total", "counter", "Bytes read to make others of them, such as packed tensors.",
                 number(&Statistics::stored_bytes));
  exposition.add("penstock_made_bytes_total", "counter", "Bytes made of stored ones.", number(&Statistics::made_bytes));
  exposition.add("penstock_lanes_replaced_total", "counter", "Lanes replaced because operations were stuck.",
                 number(&Statistics::lanes_replaced));
  exposition.add("penstock_pinned_bytes", "gauge", "Staging and pinned memory.", number(&Statistics::pinned_bytes));
  exposition.add("penstock_quarantined_bytes", "gauge", "Memory that abandoned operations may still touch.",
                 number(&Statistics::quarantined_bytes));
  exposition.add("penstock_unfreed_calls", "gauge", "Frees that wait until a GPU has done what it is busy with.",
                 number(&Statistics::unfreed_calls));
  exposition.add("penstock_unfreed_pinned_bytes", "gauge", "Pinned memory of those.",
                 number(&Statistics::unfreed_pinned_bytes));
  exposition.add("penstock_unfreed_device_bytes", "gauge", "GPU memory of those.",
                 number(&Statistics::unfreed_device_bytes));
  exposition.add("penstock_operations_in_flight", "gauge", "Operations that engines have.",
                 number(&Statistics::operations_in_flight));
  exposition.add("penstock_bytes_in_flight", "gauge", "Bytes of those operations.",
                 number(&Statistics::bytes_in_flight));
  return std::move(exposition).text();
}

}  // namespace penstock

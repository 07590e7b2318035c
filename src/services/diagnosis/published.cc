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
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "penstock/checksum.h"

namespace penstock {

namespace {

using Json = nlohmann::json;

constexpr std::size_t most_bytes = 1 << 20;
constexpr std::size_t most_files = 1024;
constexpr int tries = 20;
constexpr std::size_t checksum_digits = 16;

class File {
 public:
  explicit File(const std::string& path) : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)) {
    is_file_ = fd_ >= 0 && fstat(fd_, &status_) == 0 && S_ISREG(status_.st_mode);
  }
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  bool is_file() const { return is_file_; }
  bool is_ours() const { return status_.st_uid == geteuid(); }
  // The kernel takes the mutex from a thread that dies.
  bool is_alive() const {
    std::uint32_t owner = 0;
    return pread(fd_, &owner, sizeof owner, 0) == sizeof owner && (owner & FUTEX_TID_MASK) != 0;
  }
  std::string read() const {
    std::string text(most_bytes, '\0');
    const ssize_t got = pread(fd_, text.data(), text.size(), published_head_bytes);
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    return text;
  }

 private:
  int fd_;
  struct stat status_ {};
  bool is_file_ = false;
};

// The text without its checksum; nothing if they don't fit.
std::optional<std::string> checked(const std::string& content) {
  if (content.size() < checksum_digits + 2 || content[checksum_digits] != '\n' || content.back() != '\n') return {};
  std::string text = content.substr(checksum_digits + 1, content.size() - checksum_digits - 2);
  Checksum checksum;
  checksum.add(std::as_bytes(std::span(text)));
  if (checksum.hex() != content.substr(0, checksum_digits)) return {};
  return text;
}

// Whoever may write to the folder may put anything there.
std::optional<Published> parse(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("name") || !json["name"].is_string() || !json.contains("pid") ||
      !json["pid"].is_number_unsigned() || !json.contains("command") || !json["command"].is_string() ||
      !json.contains("statistics")) {
    return {};
  }
  const Result<Statistics> statistics = Statistics::from_json(json["statistics"].dump());
  if (!statistics) return {};
  return Published{.name = json["name"].get<std::string>(),
                   .pid = json["pid"].get<std::uint64_t>(),
                   .command = json["command"].get<std::string>(),
                   .statistics = *statistics};
}

std::optional<Published> read_file(const std::string& path) {
  const File file(path);
  if (!file.is_file()) return {};
  if (!file.is_alive()) {
    if (file.is_ours()) unlink(path.c_str());
    return {};
  }
  for (int i = 0; i < tries; ++i) {
    if (const std::optional<std::string> text = checked(file.read())) return parse(*text);
    usleep(1000);  // it was just being written
  }
  return {};
}

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\' || c == '"') result += '\\';
    result += c == '\n' ? ' ' : c;
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
  std::vector<Published> all;
  while (const dirent* entry = readdir(names.get())) {
    const std::string file = entry->d_name;
    if (!file.starts_with(prefix) || all.size() == most_files) continue;
    std::optional<Published> one = read_file(folder + "/" + file);
    if (!one) continue;
    one->file = file;
    all.push_back(std::move(*one));
  }
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

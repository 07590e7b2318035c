#include "redaction.h"

#include <pwd.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <regex>

namespace penstock::cli {

namespace {

// Paths that are the same on every machine.
constexpr std::array<std::string_view, 10> known_folders = {
    "/dev/", "/sys/", "/proc/",  "/run/udev/",  "/boot/", "/etc/modprobe.d/",
    "/usr/", "/lib/", "/lib64/", "/opt/nvidia/"};
// Of those, what is named after machines, people or serial numbers.
constexpr std::array<std::string_view, 2> telling_folders = {"/dev/mapper/", "/dev/disk/"};
// Options of mounts whose values name nobody.
constexpr std::array<std::string_view, 34> harmless_options = {
    "rw",    "ro",      "noatime", "relatime", "nodiratime", "nodev",   "nosuid",        "noexec",  "discard",
    "data",  "errors",  "rsize",   "wsize",    "nconnect",   "vers",    "proto",         "hard",    "soft",
    "timeo", "retrans", "sec",     "compress", "max_read",   "stripe",  "nobarrier",     "barrier", "commit",
    "size",  "mode",    "inode64", "logbufs",  "logbsize",   "noquota", "compress-force"};
// Names that tell nothing, and that stand in texts of ours.
constexpr std::array<std::string_view, 8> names_of_all = {"root",      "user",   "nobody", "host",
                                                          "localhost", "(none)", "memory", "penstock"};

bool is_known(std::string_view path) {
  if (std::ranges::any_of(telling_folders, [&](std::string_view folder) { return path.starts_with(folder); })) {
    return false;
  }
  return path == "/" || std::ranges::any_of(known_folders, [&](std::string_view folder) {
           return path.starts_with(folder) || (folder.back() == '/' && path == folder.substr(0, folder.size() - 1));
         });
}

std::string without_paths(std::string_view text) {
  constexpr std::string_view ends = " \t\n\"'()[]{},;<>=|`";
  std::string clean;
  for (std::size_t at = 0; at < text.size();) {
    // A slash within a word is a fraction or a rate, but "server:/export" is a place.
    const bool begins =
        text[at] == '/' && (at == 0 || ends.find(text[at - 1]) != std::string_view::npos || text[at - 1] == ':');
    const std::size_t end = begins ? std::min(text.find_first_of(ends, at), text.size()) : at + 1;
    const std::string_view word = text.substr(at, end - at);
    clean += begins && !is_known(word) ? "<path>" : std::string(word);
    at = end;
  }
  return clean;
}

bool is_part_of_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0;
}

void replace_words(std::string& text, const Secret& secret) {
  const std::string& what = secret.text;
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos;) {
    const std::size_t end = at + what.size();
    const bool begins = at == 0 || !is_part_of_word(text[at - 1]) || !is_part_of_word(what.front());
    const bool ends = end == text.size() || !is_part_of_word(text[end]) || !is_part_of_word(what.back());
    if (begins && ends) text.replace(at, what.size(), secret.instead);
    at += begins && ends ? secret.instead.size() : 1;
  }
}

// A PCI address, as 0000:01:00.0, is none of these: it says where a slot is, not whose.
std::string without_addresses(const std::string& text) {
  static const std::regex uuid("[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}");
  static const std::regex mac("\\b([0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}\\b");
  static const std::regex ipv6(
      "([0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{1,4}|[0-9a-fA-F]{1,4}(:[0-9a-fA-F]{1,4})*::[0-9a-fA-F:]*");
  static const std::regex ipv4("\\b((25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])\\b");
  std::string clean = std::regex_replace(text, uuid, "<UUID>");
  for (const std::regex* pattern : {&mac, &ipv6, &ipv4}) clean = std::regex_replace(clean, *pattern, "<address>");
  return clean;
}

void add(std::vector<Secret>& secrets, const std::string& text, const char* instead) {
  if (text.size() > 1 && std::ranges::find(names_of_all, text) == names_of_all.end()) {
    secrets.push_back({text, instead});
  }
}

void scrub_texts(Json& value, const std::vector<Secret>& secrets) {
  if (value.is_string()) {
    auto text = value.get<std::string>();
    for (const Secret& secret : secrets) replace_words(text, secret);
    value = without_paths(without_addresses(text));
  }
  if (value.is_structured()) {
    for (Json& item : value) scrub_texts(item, secrets);
  }
}

std::string harmless(const std::string& options) {
  std::string kept;
  for (std::size_t at = 0; at < options.size();) {
    const std::size_t end = std::min(options.find(',', at), options.size());
    const std::string word = options.substr(at, end - at);
    const bool known = std::ranges::find(harmless_options, word.substr(0, word.find('='))) != harmless_options.end();
    kept += (kept.empty() ? "" : ",") + (known ? word : word.substr(0, word.find('=')) + "=<left out>");
    at = end + 1;
  }
  return kept;
}

}  // namespace

std::vector<Secret> personal_names() {
  std::vector<Secret> secrets;
  for (const char* name : {"HOME", "USER", "LOGNAME", "SUDO_USER", "HOSTNAME"}) {
    const char* value = ::secure_getenv(name);
    if (value != nullptr) add(secrets, value, "<private>");
  }
  if (const passwd* user = getpwuid(getuid()); user != nullptr) {
    add(secrets, user->pw_name, "<private>");
    add(secrets, user->pw_dir, "<private>");
  }
  utsname machine{};
  if (uname(&machine) == 0) {
    const std::string whole = machine.nodename;
    add(secrets, whole, "<machine>");
    add(secrets, whole.substr(0, whole.find('.')), "<machine>");
  }
  return secrets;
}

void scrub(Json& value, std::vector<Secret> secrets) {
  // The longest first: one may be a part of another.
  std::ranges::sort(secrets, std::ranges::greater(), [](const Secret& secret) { return secret.text.size(); });
  scrub_texts(value, secrets);
}

void redact(Json& diagnosis) {
  Json& store = diagnosis["store"];
  if (store.is_null()) return;
  std::vector<Secret> secrets;
  add(secrets, store["name"].get<std::string>(), "<store>");
  if (Json& mount = store["mount"]; !mount.is_null()) {
    const auto source = mount["source"].get<std::string>();
    if (!is_known(source)) add(secrets, source, "<source>");
    add(secrets, mount["point"].get<std::string>(), "<mount>");
    mount["options"] = harmless(mount["options"].get<std::string>());
  }
  scrub(diagnosis, std::move(secrets));
}

}  // namespace penstock::cli

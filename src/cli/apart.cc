#include "apart.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "common.h"
#include "model_names.h"

namespace penstock::cli {

namespace {

namespace fs = std::filesystem;

constexpr const char* standard_input = "/proc/self/fd/0";
constexpr const char* standard_output = "/proc/self/fd/1";

// A device by its number: it may have several nodes.
bool is_same_file(const struct stat& a, const struct stat& b) {
  if (S_ISBLK(a.st_mode) && S_ISBLK(b.st_mode)) return a.st_rdev == b.st_rdev;
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

bool is_or_lies_in(const std::string& path, const std::string& whole) {
  std::error_code failed;
  const fs::path inner = fs::weakly_canonical(fs::absolute(path, failed), failed);
  const fs::path outer = fs::weakly_canonical(whole, failed);
  return !outer.empty() && std::ranges::mismatch(outer, inner).in1 == outer.end();
}

// What a name may mean on this machine.
std::vector<std::string> possible_paths(const std::string& name) {
  std::vector<std::string> paths = {name, local_path(name)};
  std::string unit = name;
  if (name_by_path(unit).ok()) paths.push_back(unit);
  if (const std::size_t colon = name.find(':'); colon != std::string::npos) paths.push_back(name.substr(colon + 1));
  return paths;
}

std::vector<std::string> files_of(const std::string& path) {
  std::vector<std::string> files = {path};
  std::error_code failed;
  const bool is_folder = fs::is_directory(path, failed);
  const std::string name = fs::path(path).filename().string();
  const bool has_others = name.ends_with(".index.json") || name.find("-of-") != std::string::npos;
  if (!is_folder && !has_others) return files;
  std::string folder = is_folder ? path : fs::path(path).parent_path().string();
  if (folder.empty()) folder = ".";
  for (fs::directory_iterator entry(folder, failed), end; !failed && entry != end; entry.increment(failed)) {
    if (entry->is_regular_file(failed) && names_model(entry->path())) files.push_back(entry->path());
  }
  return files;
}

std::vector<std::string> files_of(const Inputs& inputs) {
  std::vector<std::string> names = inputs.stores;
  for (const std::string& argument : inputs.arguments) {
    if (argument.starts_with('@')) names.push_back(argument.substr(1));
  }
  std::vector<std::string> files;
  for (const std::string& name : names) {
    if (name == "-") {
      files.push_back(standard_input);
      continue;
    }
    for (const std::string& path : possible_paths(name)) {
      std::ranges::copy(files_of(path), std::back_inserter(files));
    }
  }
  return files;
}

// The catalog with what lies beside it, and what each tier keeps of its own.
std::vector<std::string> kept_by(const Tiers& tiers) {
  std::vector<std::string> kept;
  for (const char* ending : {"", "-wal", "-shm", "-journal", "-units"}) kept.push_back(tiers.catalog() + ending);
  const auto all = tiers.tiers();
  if (!all.ok()) return kept;
  for (const TierInfo& tier : *all) kept.push_back(tier.path + "/.penstock");
  return kept;
}

std::vector<std::string> kept_by_tiers(const Inputs& inputs) {
  if (inputs.tiers != nullptr) return kept_by(*inputs.tiers);
  const auto is_unit = [](const std::string& name) { return name.starts_with("tier:"); };
  if (std::ranges::none_of(inputs.stores, is_unit) && std::ranges::none_of(inputs.replaceable, is_unit)) return {};
  const Result<Tiers> tiers = Tiers::open();
  return tiers.ok() ? kept_by(*tiers) : std::vector<std::string>();
}

// A link may lead there by any name, so each file counts by itself.
std::vector<std::string> with_files_within(const std::vector<std::string>& paths) {
  std::vector<std::string> all = paths;
  for (const std::string& path : paths) {
    std::error_code failed;
    for (fs::recursive_directory_iterator entry(path, failed), end; !failed && entry != end; entry.increment(failed)) {
      all.push_back(entry->path());
    }
  }
  return all;
}

}  // namespace

Status check_apart(const Written& written, const Inputs& inputs) {
  if (written.name.empty()) return {};
  const std::vector<std::string> outputs =
      written.name == "-" ? std::vector<std::string>{standard_output} : possible_paths(written.name);
  const auto refusal = [&](const std::string& file) {
    // Not even the error may go there.
    if (written.name == "-") static_cast<void>(dup2(STDERR_FILENO, STDOUT_FILENO));
    return Error{.code = Code::invalid_argument,
                 .message = written.option + " " + written.name + " would overwrite an input, " +
                            (file == standard_input ? "standard input" : file),
                 .hint = "name another file"};
  };
  const std::vector<std::string> kept = kept_by_tiers(inputs);
  std::vector<std::string> files = files_of(inputs);
  std::ranges::copy(with_files_within(kept), std::back_inserter(files));
  for (const std::string& output : outputs) {
    for (const std::string& path : kept) {
      if (is_or_lies_in(output, path)) return refusal(path);
    }
    struct stat to {};
    if (stat(output.c_str(), &to) != 0 || (!S_ISREG(to.st_mode) && !S_ISBLK(to.st_mode))) continue;
    for (const std::string& file : files) {
      struct stat from {};
      if (stat(file.c_str(), &from) == 0 && is_same_file(to, from)) return refusal(file);
    }
  }
  return {};
}

}  // namespace penstock::cli

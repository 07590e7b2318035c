#include "apart.h"

#include <sys/stat.h>

#include <filesystem>

#include "common.h"
#include "model_names.h"

namespace penstock::cli {

namespace {

// A device by its number: it may have several nodes.
bool is_same_file(const struct stat& a, const struct stat& b) {
  if (S_ISBLK(a.st_mode) && S_ISBLK(b.st_mode)) return a.st_rdev == b.st_rdev;
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// What a name may mean on this machine.
std::vector<std::string> possible_paths(const std::string& name) {
  if (name == "-") return {"/proc/self/fd/0"};
  std::vector<std::string> paths = {name, local_path(name)};
  std::string unit = name;
  if (name_by_path(unit).ok()) paths.push_back(unit);
  if (const std::size_t colon = name.find(':'); colon != std::string::npos) paths.push_back(name.substr(colon + 1));
  return paths;
}

std::vector<std::string> files_of(const std::string& path) {
  std::vector<std::string> files = {path};
  std::error_code failed;
  const bool is_folder = std::filesystem::is_directory(path, failed);
  const std::string name = std::filesystem::path(path).filename().string();
  const bool has_others = name.ends_with(".index.json") || name.find("-of-") != std::string::npos;
  if (!is_folder && !has_others) return files;
  std::string folder = is_folder ? path : std::filesystem::path(path).parent_path().string();
  if (folder.empty()) folder = ".";
  for (std::filesystem::directory_iterator entry(folder, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    if (entry->is_regular_file(failed) && names_model(entry->path())) files.push_back(entry->path());
  }
  return files;
}

}  // namespace

Status check_apart(const Written& written, const Inputs& inputs) {
  if (written.name.empty() || written.name == "-") return {};
  std::vector<struct stat> outputs;
  for (const std::string& path : possible_paths(written.name)) {
    struct stat status {};
    if (stat(path.c_str(), &status) != 0 || (!S_ISREG(status.st_mode) && !S_ISBLK(status.st_mode))) continue;
    outputs.push_back(status);
  }
  if (outputs.empty()) return {};
  std::vector<std::string> names = inputs.stores;
  for (const std::string& argument : inputs.arguments) {
    if (argument.starts_with('@')) names.push_back(argument.substr(1));
  }
  for (const std::string& name : names) {
    for (const std::string& path : possible_paths(name)) {
      for (const std::string& file : files_of(path)) {
        struct stat status {};
        if (stat(file.c_str(), &status) != 0) continue;
        for (const struct stat& output : outputs) {
          if (!is_same_file(output, status)) continue;
          return Error{.code = Code::invalid_argument,
                       .message = written.option + " " + written.name + " would overwrite an input, " +
                                  (name == "-" ? "standard input" : file),
                       .hint = "name another file"};
        }
      }
    }
  }
  return {};
}

}  // namespace penstock::cli

#include "services/models/pack_folder.h"

#include <sys/stat.h>

#include <filesystem>
#include <set>
#include <utility>

namespace penstock::models {

namespace fs = std::filesystem;

std::string target_in(const std::string& folder, const std::string& source) {
  return (fs::path(folder) / fs::path(source).filename()).string();
}

Status check_targets(const std::string& folder, std::span<const std::string> sources) {
  std::set<std::pair<dev_t, ino_t>> own;
  struct stat status = {};
  for (const std::string& source : sources) {
    if (::stat(source.c_str(), &status) == 0) own.emplace(status.st_dev, status.st_ino);
  }
  for (const std::string& source : sources) {
    const std::string target = target_in(folder, source);
    if (::stat(target.c_str(), &status) == 0 && own.contains({status.st_dev, status.st_ino})) {
      return Error{Code::invalid_argument, 0, target + " is a file of the model itself, or a link to one",
                   "name another folder"};
    }
    if (::lstat(target.c_str(), &status) == 0 && S_ISLNK(status.st_mode)) {
      return Error{Code::invalid_argument, 0, target + " is a symbolic link, and links are not written through",
                   "remove the link, or name another folder"};
    }
  }
  return {};
}

}  // namespace penstock::models

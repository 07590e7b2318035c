// MadeFolders: folders that are made for what is to be written. Those that are still empty at the end go again, so that
// a failure leaves nothing.
//
// Thread safety: one thread at a time.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <vector>

namespace penstock {

class MadeFolders {
 public:
  explicit MadeFolders(std::filesystem::path folder) {
    if (!folder.has_filename()) folder = folder.parent_path();
    const std::filesystem::path wanted = folder;
    std::error_code unknown;
    for (; !folder.empty() && !std::filesystem::exists(folder, unknown); folder = folder.parent_path()) {
      made_.push_back(folder);
    }
    std::filesystem::create_directories(wanted, failed_);
  }
  ~MadeFolders() {
    for (const std::filesystem::path& folder : made_) ::rmdir(folder.c_str());
  }
  MadeFolders(const MadeFolders&) = delete;
  MadeFolders& operator=(const MadeFolders&) = delete;

  const std::error_code& failed() const { return failed_; }

 private:
  std::vector<std::filesystem::path> made_;  // the innermost first
  std::error_code failed_;
};

}  // namespace penstock

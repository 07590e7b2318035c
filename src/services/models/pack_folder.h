// The folder that a packed or unpacked model is written into. From before the first byte until all files are there, a
// marker lies in it, and it is no model.
//
// Thread safety: functions of the file system; an Unfinished is one thread's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "penstock/result.h"
#include "penstock/store.h"

namespace penstock::models {

// Where a file of a model goes: into the folder, under its own name.
std::string target_in(const std::string& folder, const std::string& source);

// The folder that a model is copied from, held: it may belong to another user, who can exchange it and what is in it
// for links to files that he may not read.
class SourceFolder {
 public:
  static Result<SourceFolder> open(const std::string& path);

  // Sorted.
  Result<std::vector<std::string>> names() const;
  // Whether a file that was opened by this name, and has this identity, may be copied to where others can read it.
  // Code::permission_denied: the name is a link of another user to a file that is not his, and not everybody's to read.
  // Code::changed: the name means another file.
  Status check_copied(const std::string& name, const Identity& identity) const;
  // Of a regular file; nothing of anything else.
  std::optional<std::uint64_t> file_bytes(const std::string& name) const;

 private:
  SourceFolder(UniqueFd folder, std::string path) : folder_(std::move(folder)), path_(std::move(path)) {}

  UniqueFd folder_;
  std::string path_;
};

// Before anything is written: that no file in the folder that would be replaced is one of `sources`, under whatever
// name, nor a symbolic link; and that the folder has no weights nor an index that would stay beside them.
Status check_targets(const std::string& folder, std::span<const std::string> sources);

// That no run has begun to write into the folder and not ended.
Status check_finished(const std::string& folder);

// The marker of a folder, locked (flock) for as long as a run writes there. It outlives the run unless that ends it.
class Unfinished {
 public:
  // Takes over what a run left that failed or was killed. Code::in_use while another writes there.
  static Result<std::unique_ptr<Unfinished>> begin(const std::string& folder, bool durable);
  ~Unfinished();
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;

  // Files are made in it, whatever its path comes to mean.
  int folder() const { return folder_.get(); }
  // All files are there.
  Status end();
  // Nothing was replaced: the folder is what it was, unfinished if it was that.
  void withdraw();

 private:
  Unfinished(std::string path, bool durable) : path_(std::move(path)), durable_(durable) {}
  Status open_marker();
  Result<bool> lock();
  Status sync() const;

  const std::string path_;  // of the folder
  const bool durable_;
  UniqueFd folder_;
  UniqueFd marker_;
  bool is_new_ = false;
};

}  // namespace penstock::models

#include "services/tiers/folder.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "services/tiers/catalog.h"
#include "services/tiers/names.h"
#include "services/tiers/side_by_side.h"
#include "services/tiers/tree.h"

namespace penstock::tiers {
namespace {

namespace fs = std::filesystem;

std::string own(const std::string& root, std::string_view file) {
  return root + "/" + std::string(own_folder) + "/" + std::string(file);
}

template <typename Predicate>
bool any_in(const std::string& folder, Predicate is_meant) {
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    if (is_meant(at->path())) return true;
  }
  return false;
}

Status make_folder(const std::string& path, mode_t mode) {
  if (::mkdir(path.c_str(), mode) == 0 || errno == EEXIST) return {};
  return system_error(errno, "make the folder " + path, errno == EROFS ? "the tier is mounted read-only" : "");
}

}  // namespace

Error file_error(int error_number, std::string what, std::string hint) {
  const bool no_descriptors = error_number == EMFILE || error_number == ENFILE;
  if (no_descriptors) hint = "too many files are open: close some, or raise the limit (ulimit -n)";
  return system_error(error_number, std::move(what), std::move(hint));
}

bool is_shortage(const Error& error) {
  return error.code == Code::out_of_memory || error.system_error == EMFILE || error.system_error == ENFILE;
}

Result<Marker> read_marker(const std::string& root) {
  constexpr std::size_t most_bytes = 4096;
  const std::string path = own(root, "tier.json");
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return file_error(errno, "read " + path);
  std::string text(most_bytes, '\0');
  std::size_t length = 0;
  while (length < most_bytes) {
    const ssize_t count = ::read(file.get(), text.data() + length, most_bytes - length);
    if (count == 0) break;
    if (count > 0) length += static_cast<std::size_t>(count);
    if (count < 0 && errno != EINTR) return file_error(errno, "read " + path);
  }
  text.resize(length);
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const auto field = [&](const char* key) {
    return json.is_object() && json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : "";
  };
  Marker marker{field("tier"), field("catalog"), field("name")};
  if (!marker.tier.empty()) return marker;
  return Error{Code::io_error, 0, path + " is damaged", "if the folder is to be a tier of yours, take it with --adopt"};
}

bool is_lost_marker(const Error& error) {
  return error.code == Code::not_found || (error.code == Code::io_error && error.system_error == 0);
}

Status write_marker(const std::string& root, const Marker& marker) {
  for (const char* folder : {"", "coming", "going"}) {
    if (Status made = make_folder(own(root, folder), 0700); !made) return made;
  }
  const std::string path = own(root, "tier.json");
  const std::string part = path + ".part";
  const nlohmann::json json = {{"tier", marker.tier}, {"catalog", marker.catalog}, {"name", marker.name}};
  {
    std::ofstream file(part, std::ios::binary | std::ios::trunc);
    file << json.dump() << "\n";
    file.close();
    if (!file) return file_error(errno, "write " + part);
  }
  if (Status done = sync_file(part); !done) return done;
  if (Status done = rename_over(part, path); !done) return done;
  if (Status done = sync_parent(path); !done) return done;
  return sync_file(root);
}

void remove_marker(const std::string& root, std::string_view tier) {
  const auto marker = read_marker(root);
  if (!marker.ok() || marker->tier != tier) return;
  ::unlink(own(root, "tier.json").c_str());
  for (const char* folder : {"coming", "going", ""}) ::rmdir(own(root, folder).c_str());  // if they are empty
}

Status check_marker(const std::string& root, std::string_view tier, std::string_view name) {
  const auto marker = read_marker(root);
  if (!marker) {
    Error error = marker.error();
    if (!is_lost_marker(error)) return error;
    const std::string anew = "if this is its folder, write the marker anew: penstock tier change " + std::string(name) +
                             " --path " + root + " --adopt";
    if (error.code == Code::not_found) {
      return Error{Code::not_found, 0,
                   "the tier " + std::string(name) + " is not at " + root + ": its marker is missing",
                   "mount its disk there; " + anew};
    }
    error.hint = anew;
    return error;
  }
  if (marker->tier == tier) return {};
  return Error{
      Code::changed, 0,
      root + " is another tier than " + std::string(name) + ": its marker says \"" + shown(marker->name) + "\"",
      "mount the disk of " + std::string(name) + " there, or change its path (penstock tier change)"};
}

std::string coming_path(const std::string& root, std::int64_t unit) {
  return own(root, "coming/" + std::to_string(unit));
}

std::string going_path(const std::string& root, std::int64_t unit) {
  return own(root, "going/" + std::to_string(unit));
}

std::string new_gone_path(const std::string& root, std::int64_t unit) {
  return going_path(root, unit) + "." + random_id().substr(0, 8) + ".gone";
}

void keep_going(const std::string& root) {
  std::error_code failed;
  std::vector<std::string> found;
  for (fs::directory_iterator at(own(root, "going"), failed), end; !failed && at != end; at.increment(failed)) {
    if (!at->path().has_extension()) found.push_back(at->path().string());
  }
  for (const std::string& path : found) {
    static_cast<void>(rename_to_free(path, path + "." + random_id().substr(0, 8) + ".kept"));
  }
}

bool is_anything_aside(const std::string& root) {
  return any_in(own(root, "going"), [](const fs::path& path) { return !path.has_extension(); }) ||
         any_in(coming_folder(root), [](const fs::path& path) { return !path.has_extension(); });
}

bool is_anything_kept(const std::string& root) {
  return any_in(own(root, "going"), [](const fs::path& path) { return path.extension() == ".kept"; });
}

Status remove_gone(const std::string& root) {
  Status status;
  std::error_code failed;
  for (fs::directory_iterator at(own(root, "going"), failed), end; !failed && at != end; at.increment(failed)) {
    if (at->path().extension() != ".gone") continue;
    if (Status removed = remove_all(at->path().string()); !removed) status = std::move(removed);
  }
  return status;
}

std::string coming_folder(const std::string& root) {
  return own(root, "coming");
}

Result<Room> room_of(const std::string& root) {
  struct statvfs status = {};
  if (::statvfs(root.c_str(), &status) != 0) return system_error(errno, "ask for the room of " + root);
  return Room{static_cast<std::uint64_t>(status.f_blocks) * status.f_frsize,
              static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize};
}

Result<struct stat> look_at(const std::string& path) {
  struct stat status = {};
  if (::lstat(path.c_str(), &status) == 0) return status;
  status = {};
  if (errno == ENOENT || errno == ENOTDIR) return status;
  return system_error(errno, "look at " + path);
}

Status check_parents(const std::string& root, const std::string& name) {
  for (const std::string& parent : parents_of(name)) {
    const auto there = look_at(root + "/" + parent);
    if (!there) return there.error();
    if (there->st_ino == 0 || S_ISDIR(there->st_mode)) continue;
    return Error{Code::invalid_argument, ENOTDIR, root + "/" + parent + " is a link, or no folder",
                 "name units by folders that lie on their tier"};
  }
  return {};
}

Status make_parents(const std::string& root, const std::string& name, const std::string& model_root) {
  std::vector<std::string> parents = parents_of(name);
  for (auto parent = parents.rbegin(); parent != parents.rend(); ++parent) {
    const std::string path = root + "/" + *parent;
    if (::mkdir(path.c_str(), 0777) != 0) {
      if (errno == EEXIST) continue;
      return system_error(errno, "make the folder " + path);
    }
    struct stat model = {};
    if (!model_root.empty() && ::stat((model_root + "/" + *parent).c_str(), &model) == 0) {
      static_cast<void>(::chmod(path.c_str(), model.st_mode & 07777));
      // Whoever may not give it away keeps it.
      if (::geteuid() == 0 && ::chown(path.c_str(), model.st_uid, model.st_gid) != 0) errno = 0;
    }
    if (Status synced = sync_parent(path); !synced) return synced;
  }
  return {};
}

bool is_empty_folder(const std::string& path) {
  std::error_code failed;
  if (!fs::is_directory(fs::symlink_status(path, failed))) return false;
  fs::recursive_directory_iterator at(path, failed);
  for (const fs::recursive_directory_iterator end; !failed && at != end; at.increment(failed)) {
    if (!fs::is_directory(at->symlink_status(failed))) return false;
  }
  return !failed;
}

void remove_empty_folder(const std::string& path) {
  std::error_code failed;
  if (!fs::is_directory(fs::symlink_status(path, failed))) return;
  std::vector<std::string> folders;
  for (fs::directory_iterator at(path, failed), end; !failed && at != end; at.increment(failed)) {
    folders.push_back(at->path().string());
  }
  for (const std::string& folder : folders) remove_empty_folder(folder);
  ::rmdir(path.c_str());  // refused where anything is left in it
}

Status rename_to_free(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return {};
  if (errno == EINVAL || errno == ENOSYS) {  // a file system without it, such as NFS
    struct stat status = {};
    if (::lstat(to.c_str(), &status) == 0)
      errno = EEXIST;
    else if (::rename(from.c_str(), to.c_str()) == 0)
      return {};
  }
  if (errno == EEXIST || errno == ENOTEMPTY) {
    return Error{Code::in_use, EEXIST, to + " exists, and is not the unit's", "move it away, or import it by its name"};
  }
  return system_error(errno, "rename " + from + " to " + to);
}

Status exchange_names(const std::string& one, const std::string& other) {
  if (::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) == 0) return {};
  return system_error(errno, "exchange " + one + " and " + other);
}

Status rename_over(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return {};
  return system_error(errno, "rename " + from + " to " + to);
}

// Others may be at it too.
Status remove_all(const std::string& path) {
  if (::unlink(path.c_str()) == 0 || errno == ENOENT) return {};
  const int refused = errno;
  struct stat status = {};
  if (::lstat(path.c_str(), &status) != 0) return errno == ENOENT ? Status() : system_error(errno, "look at " + path);
  if (!S_ISDIR(status.st_mode)) return system_error(refused, "remove " + path);
  if (is_mounted_on(AT_FDCWD, path.c_str())) {
    return Error{Code::in_use, EBUSY, path + " is a mount, and stays", "unmount it first"};
  }
  std::vector<std::string> files;
  std::vector<std::string> folders;
  std::error_code failed;
  for (fs::directory_iterator at(path, failed), end; !failed && at != end; at.increment(failed)) {
    (fs::is_directory(at->symlink_status(failed)) ? folders : files).push_back(at->path().string());
  }
  Status removed;
  for (const std::string& folder : folders) {
    if (Status below = remove_all(folder); !below) removed = std::move(below);
  }
  std::atomic<int> error = 0;
  side_by_side(files.size(), [&](std::size_t i) {
    if (::unlink(files[i].c_str()) != 0 && errno != ENOENT) error = errno;
  });
  if (removed && error != 0) removed = system_error(error, "remove what is in " + path);
  if (!removed) return removed;
  if (::rmdir(path.c_str()) == 0 || errno == ENOENT) return {};
  return system_error(errno, "remove " + path);
}

Status sync_file(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file) return system_error(errno, "sync " + path);
  if (::fsync(file.get()) == 0 || errno == EINVAL) return {};
  return system_error(errno, "sync " + path);
}

Status sync_parent(const std::string& path) {
  return sync_file(parent_of(path));
}

Status sync_file_system(const std::string& root) {
  const UniqueFd folder(::open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return system_error(errno, "sync " + root);
  if (::syncfs(folder.get()) == 0) return {};
  return system_error(errno, "sync the file system of " + root);
}

std::string parent_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace penstock::tiers

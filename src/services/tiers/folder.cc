#include "services/tiers/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/unique_fd.h"
#include "services/tiers/fault_point.h"
#include "services/tiers/names.h"
#include "services/tiers/side_by_side.h"
#include "services/tiers/tree.h"

namespace penstock::tiers {
namespace {

constexpr int max_depth = 200;  // each has a descriptor

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

PathBeneath own(const HeldFolder& root, std::string_view file) {
  return PathBeneath{&root, std::string(own_folder)} / file;
}

std::string extension_of(const std::string& name) {
  return std::filesystem::path(name).extension();
}

template <typename Predicate>
bool any_in(const PathBeneath& folder, Predicate is_meant) {
  const auto names = list_names(folder);
  return names.ok() && std::ranges::any_of(*names, is_meant);
}

Status make_folder(const PathBeneath& path, mode_t mode) {
  const NameInFolder at(path);
  if (at && (::mkdirat(at.folder(), at.name(), mode) == 0 || errno == EEXIST)) return {};
  return system_error(errno, "make the folder " + path.text(), errno == EROFS ? "the tier is mounted read-only" : "");
}

// Who may write to a folder of a tier decides which files its movers touch.
Status check_trusted(const struct stat& folder, const std::string& path, uid_t owner) {
  const std::string user = std::to_string(folder.st_uid);
  if (folder.st_uid != 0 && folder.st_uid != owner && folder.st_uid != ::geteuid()) {
    return Error{Code::permission_denied, 0, path + " belongs to user " + user + ", who could exchange what is in it",
                 "run as that user with a catalog of his, or, once you have looked at it, give it to the owner of the "
                 "catalog: chown " +
                     std::to_string(owner) + " " + path};
  }
  if ((folder.st_mode & S_IWOTH) != 0 && (folder.st_mode & S_ISVTX) == 0) {
    return Error{Code::permission_denied, 0, "every user may write to " + path + ", and exchange what is in it",
                 "forbid it with: chmod o-w " + path};
  }
  return {};
}

// What is held, and that its path means it for good.
Status check_trusted(const HeldFolder& root, uid_t owner) {
  struct stat held = {};
  struct stat named = {};
  if (::fstat(root.get(), &held) != 0) return system_error(errno, "look at " + root.path());
  if (Status trusted = check_trusted(held, root.path(), owner); !trusted) return trusted;
  if (Status above = check_above(root.path(), owner); !above) return above;
  if (::stat(root.path().c_str(), &named) == 0 && is_same_file(held, named)) return {};
  return Error{Code::changed, 0, root.path() + " was replaced while it was looked at", "try again"};
}

Status check_trusted(const PathBeneath& folder, uid_t owner) {
  const UniqueFd fd = folder.open(O_PATH | O_DIRECTORY);
  struct stat status = {};
  if (fd && ::fstat(fd.get(), &status) == 0) return check_trusted(status, folder.text(), owner);
  if (errno != ELOOP && errno != ENOTDIR) return file_error(errno, "open the folder " + folder.text());
  return Error{Code::permission_denied, errno, folder.text() + " is a link, or no folder", "look at it, and remove it"};
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

Status check_above(const std::string& path, uid_t owner) {
  if (::geteuid() != 0) return {};
  std::error_code failed;
  std::filesystem::path above = std::filesystem::weakly_canonical(path, failed);
  if (failed) return system_error(failed.value(), "look at " + path);
  while (above.has_relative_path()) {
    above = above.parent_path();
    struct stat folder = {};
    if (::stat(above.c_str(), &folder) != 0) {
      if (errno == ENOENT) continue;  // it is about to be made
      return system_error(errno, "look at " + above.string());
    }
    if (Status trusted = check_trusted(folder, above.string(), owner); !trusted) return trusted;
  }
  return {};
}

Result<Marker> read_marker(const HeldFolder& root, uid_t owner) {
  constexpr std::size_t max_bytes = 4096;
  const PathBeneath marker_path = own(root, "tier.json");
  const std::string path = marker_path.text();
  const UniqueFd file = marker_path.open(O_RDONLY | O_NONBLOCK);
  const int failed = file ? 0 : errno;
  if (failed != 0 && failed != ELOOP && failed != ENOTDIR) return file_error(failed, "read " + path);
  if (Status trusted = check_trusted(root, owner); !trusted) return std::move(trusted).error();
  if (Status trusted = check_trusted(own(root, ""), owner); !trusted) return std::move(trusted).error();
  if (failed != 0) return file_error(failed, "read " + path);
  std::string text(max_bytes, '\0');
  std::size_t length = 0;
  while (length < max_bytes) {
    const ssize_t count = ::read(file.get(), text.data() + length, max_bytes - length);
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

Status write_marker(const HeldFolder& root, const Marker& marker, uid_t owner) {
  if (Status trusted = check_trusted(root, owner); !trusted) return trusted;
  for (const char* name : {"", "coming", "going"}) {
    const PathBeneath folder = own(root, name);
    if (Status made = make_folder(folder, 0700); !made) return made;
    // Another user may have made it before.
    if (Status trusted = check_trusted(folder, owner); !trusted) return trusted;
  }
  const PathBeneath path = own(root, "tier.json");
  const PathBeneath part = own(root, "tier.json.part");
  const nlohmann::json json = {{"tier", marker.tier}, {"catalog", marker.catalog}, {"name", marker.name}};
  const std::string text = json.dump() + "\n";
  {
    if (Status removed = remove_file(part); !removed) return removed;
    const UniqueFd file = part.open(O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (!file) return file_error(errno, "create " + part.text());
    const ssize_t written = ::write(file.get(), text.data(), text.size());
    if (written != static_cast<ssize_t>(text.size())) {
      return file_error(written < 0 ? errno : ENOSPC, "write " + part.text());
    }
  }
  if (Status done = sync_file(part); !done) return done;
  if (Status done = rename_over(part, path); !done) return done;
  if (Status done = sync_parent(path); !done) return done;
  return sync_file({&root, ""});
}

void remove_marker(const TierRow& tier) {
  const auto root = HeldFolder::open(tier.path);
  if (!root) return;
  const auto marker = read_marker(*root, tier.owner);
  if (!marker.ok() || marker->tier != tier.mark) return;
  static_cast<void>(remove_file(own(*root, "tier.json")));
  for (const char* folder : {"coming", "going", ""}) {
    const NameInFolder at(own(*root, folder));
    if (at) ::unlinkat(at.folder(), at.name(), AT_REMOVEDIR);  // if it is empty
  }
}

namespace {

std::string how_to_write_anew(const TierRow& tier, const std::string& path) {
  return "if this is its folder, write the marker anew: penstock tier change " + tier.name + " --path " + path +
         " --adopt";
}

Error no_marker(const TierRow& tier, const std::string& path) {
  return {Code::not_found, 0, "the tier " + tier.name + " is not at " + path + ": its marker is missing",
          "mount its disk there; " + how_to_write_anew(tier, path)};
}

}  // namespace

Status check_marker(const HeldFolder& root, const TierRow& tier) {
  const auto marker = read_marker(root, tier.owner);
  if (!marker) {
    Error error = marker.error();
    if (!is_lost_marker(error)) return error;
    if (error.code == Code::not_found) return no_marker(tier, root.path());
    error.hint = how_to_write_anew(tier, root.path());
    return error;
  }
  if (marker->tier == tier.mark) return {};
  return Error{Code::changed, 0,
               root.path() + " is another tier than " + tier.name + ": its marker says \"" + shown(marker->name) + "\"",
               "mount the disk of " + tier.name + " there, or change its path (penstock tier change)"};
}

Result<HeldFolder> open_tier(const TierRow& tier) {
  auto root = HeldFolder::open(tier.path);
  if (!root && root.error().code == Code::not_found) return no_marker(tier, tier.path);
  if (!root) return file_error(root.error().system_error, "open the folder " + tier.path);
  if (Status marked = check_marker(*root, tier); !marked) return std::move(marked).error();
  return root;
}

Result<HeldFolder> open_usable(const TierRow& tier) {
  if (tier.read_only) {
    return Error{Code::read_only, 0, "the tier " + tier.name + " is read-only", "allow it with `penstock tier change`"};
  }
  return open_tier(tier);
}

PathBeneath coming_path(const HeldFolder& root, std::int64_t unit) {
  return coming_folder(root) / std::to_string(unit);
}

PathBeneath going_path(const HeldFolder& root, std::int64_t unit) {
  return going_folder(root) / std::to_string(unit);
}

PathBeneath new_gone_path(const HeldFolder& root, std::int64_t unit) {
  return going_folder(root) / (std::to_string(unit) + "." + random_id().substr(0, 8) + ".gone");
}

PathBeneath new_kept_path(const PathBeneath& path) {
  return {path.folder, path.name + "." + random_id().substr(0, 8) + ".kept"};
}

PathBeneath coming_folder(const HeldFolder& root) {
  return own(root, "coming");
}

PathBeneath going_folder(const HeldFolder& root) {
  return own(root, "going");
}

void keep_going(const HeldFolder& root) {
  const auto names = list_names(going_folder(root));
  if (!names) return;
  for (const std::string& name : *names) {
    const PathBeneath path = going_folder(root) / name;
    if (extension_of(name).empty()) static_cast<void>(rename_to_free(path, new_kept_path(path)));
  }
}

bool is_anything_aside(const HeldFolder& root) {
  const auto is_of_unit = [](const std::string& name) { return extension_of(name).empty(); };
  return any_in(going_folder(root), is_of_unit) || any_in(coming_folder(root), is_of_unit);
}

bool is_anything_kept(const HeldFolder& root) {
  return any_in(going_folder(root), [](const std::string& name) { return extension_of(name) == ".kept"; });
}

Status remove_gone(const HeldFolder& root) {
  Status status;
  const auto names = list_names(going_folder(root));
  if (!names) return status;
  for (const std::string& name : *names) {
    if (extension_of(name) != ".gone") continue;
    if (Status removed = remove_all(going_folder(root) / name); !removed) status = std::move(removed);
  }
  return status;
}

Result<Room> room_of(const HeldFolder& root) {
  struct statvfs status = {};
  if (::fstatvfs(root.get(), &status) != 0) return system_error(errno, "ask for the room of " + root.path());
  return Room{static_cast<std::uint64_t>(status.f_blocks) * status.f_frsize,
              static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize};
}

namespace {

struct Listed {
  std::string name;
  bool may_be_folder = false;
};

Result<std::vector<Listed>> list(int folder, const std::string& path) {
  const int again = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, CloseFolder> stream(again < 0 ? nullptr : ::fdopendir(again));
  if (!stream) return file_error(errno, "list " + path);
  std::vector<Listed> found;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(stream.get());
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    found.push_back({std::string(name), entry->d_type == DT_DIR || entry->d_type == DT_UNKNOWN});
  }
  if (errno != 0) return file_error(errno, "list " + path);
  std::ranges::sort(found, {}, &Listed::name);
  return found;
}

}  // namespace

Result<std::vector<std::string>> list_names(int folder, const std::string& path) {
  auto found = list(folder, path);
  if (!found) return std::move(found).error();
  std::vector<std::string> names;
  names.reserve(found->size());
  for (Listed& one : *found) names.push_back(std::move(one.name));
  return names;
}

Result<std::vector<std::string>> list_names(const PathBeneath& folder) {
  const UniqueFd fd = folder.open(O_RDONLY | O_DIRECTORY);
  if (!fd) return file_error(errno, "list " + folder.text());
  return list_names(fd.get(), folder.text());
}

Result<struct stat> look_at(const PathBeneath& path) {
  struct stat status = {};
  const NameInFolder at(path);
  if (at && ::fstatat(at.folder(), at.name(), &status, AT_SYMLINK_NOFOLLOW) == 0) return status;
  status = {};
  if (errno == ENOENT || errno == ENOTDIR) return status;
  if (errno != ELOOP) return file_error(errno, "look at " + path.text());
  return Error{Code::invalid_argument, ELOOP, path.text() + " lies below a link",
               "name units by folders that lie on their tier"};
}

Status check_parents(const PathBeneath& unit) {
  const std::vector<std::string> parents = parents_of(unit.name);
  for (auto parent = parents.rbegin(); parent != parents.rend(); ++parent) {
    const PathBeneath path{unit.folder, *parent};
    const auto there = look_at(path);
    if (!there) return there.error();
    if (there->st_ino == 0) return {};
    if (S_ISDIR(there->st_mode)) continue;
    return Error{Code::invalid_argument, ENOTDIR, path.text() + " is a link, or no folder",
                 "name units by folders that lie on their tier"};
  }
  return {};
}

namespace {

// A folder that is made, and given what the folder of that name has in `model`, before other users can reach it.
Status make_alike(const PathBeneath& path, const struct stat& model, std::int64_t unit) {
  const PathBeneath aside = coming_folder(*path.folder) / (std::to_string(unit) + ".folder");
  const NameInFolder at(aside);
  if (!at) return file_error(errno, "make the folder " + aside.text());
  ::unlinkat(at.folder(), at.name(), AT_REMOVEDIR);  // of an earlier attempt
  if (::mkdirat(at.folder(), at.name(), 0700) != 0) return file_error(errno, "make the folder " + aside.text());
  fault_point("parent");
  const UniqueFd made = aside.open(O_RDONLY | O_DIRECTORY);
  // A user who may not give it away keeps it.
  if (made && ::fchown(made.get(), ::geteuid() == 0 ? model.st_uid : static_cast<uid_t>(-1), model.st_gid) != 0) {
    errno = 0;
  }
  Status named;
  if (!made || ::fchmod(made.get(), model.st_mode & 07777) != 0) {
    named = file_error(errno, "make the folder " + aside.text());
  } else {
    named = rename_to_free(aside, path);
  }
  if (named) return {};
  ::unlinkat(at.folder(), at.name(), AT_REMOVEDIR);
  return named.error().code == Code::in_use ? Status() : named;  // another mover was faster
}

}  // namespace

namespace {

// Where every user may make folders, one may have made it who must not decide about what comes into it.
Status check_alike(const PathBeneath& path, const struct stat& there, const struct stat& model) {
  const bool is_trusted = there.st_uid == 0 || there.st_uid == ::geteuid();
  if (is_trusted || !S_ISDIR(model.st_mode) || there.st_uid == model.st_uid) return {};
  return Error{
      Code::permission_denied, 0,
      path.text() + " belongs to user " + std::to_string(there.st_uid) +
          ", and the folder of that name that the unit comes from to user " + std::to_string(model.st_uid),
      "look at it, and remove it or give it to that user: chown " + std::to_string(model.st_uid) + " " + path.text()};
}

}  // namespace

Status make_parents(const PathBeneath& path, const HeldFolder* model, std::int64_t unit) {
  const std::vector<std::string> parents = parents_of(path.name);
  for (auto parent = parents.rbegin(); parent != parents.rend(); ++parent) {
    const PathBeneath folder{path.folder, *parent};
    auto there = look_at(folder);
    if (!there) return there.error();
    struct stat alike = {};
    if (model != nullptr) {
      if (const auto found = look_at({model, *parent})) alike = *found;
    }
    if (there->st_ino == 0) {
      Status made = S_ISDIR(alike.st_mode) ? make_alike(folder, alike, unit) : make_folder(folder, 0777);
      if (made) made = sync_parent(folder);
      if (!made) return made;
      there = look_at(folder);  // another may have been faster
      if (!there) return there.error();
    }
    // What is no folder, those that follow notice.
    if (Status safe = check_alike(folder, *there, alike); !safe) return safe;
  }
  return {};
}

namespace {

bool has_no_files(int folder, const char* name, int depth) {
  const UniqueFd below(::openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!below || depth > max_depth) return false;
  const auto found = list(below.get(), name);
  return found.ok() && std::ranges::all_of(*found, [&](const Listed& one) {
           return one.may_be_folder && has_no_files(below.get(), one.name.c_str(), depth + 1);
         });
}

void remove_empty_folder(int folder, const char* name, int depth) {
  {
    const UniqueFd below(::openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!below || depth > max_depth) return;
    const auto found = list(below.get(), name);
    if (!found) return;
    for (const Listed& one : *found) {
      if (one.may_be_folder) remove_empty_folder(below.get(), one.name.c_str(), depth + 1);
    }
  }
  ::unlinkat(folder, name, AT_REMOVEDIR);  // refused where anything is left in it
}

}  // namespace

bool is_empty_folder(const PathBeneath& path) {
  const NameInFolder at(path);
  return at && has_no_files(at.folder(), at.name(), 0);
}

void remove_empty_folder(const PathBeneath& path) {
  const NameInFolder at(path);
  if (at) remove_empty_folder(at.folder(), at.name(), 0);
}

Status rename_to_free(const PathBeneath& from, const PathBeneath& to) {
  const NameInFolder old(from);
  const NameInFolder fresh = old ? NameInFolder(to) : NameInFolder(from);
  if (!old || !fresh) return file_error(errno, "rename " + from.text() + " to " + to.text());
  if (::renameat2(old.folder(), old.name(), fresh.folder(), fresh.name(), RENAME_NOREPLACE) == 0) return {};
  if (errno == EINVAL || errno == ENOSYS) {  // a file system without it, such as NFS
    struct stat status = {};
    if (::fstatat(fresh.folder(), fresh.name(), &status, AT_SYMLINK_NOFOLLOW) == 0)
      errno = EEXIST;
    else if (::renameat(old.folder(), old.name(), fresh.folder(), fresh.name()) == 0)
      return {};
  }
  if (errno == EEXIST || errno == ENOTEMPTY) {
    return Error{Code::in_use, EEXIST, to.text() + " exists, and is not the unit's",
                 "move it away, or import it by its name"};
  }
  return system_error(errno, "rename " + from.text() + " to " + to.text());
}

Status exchange_names(const PathBeneath& one, const PathBeneath& other) {
  const NameInFolder first(one);
  const NameInFolder second(other);
  if (first && second &&
      ::renameat2(first.folder(), first.name(), second.folder(), second.name(), RENAME_EXCHANGE) == 0) {
    return {};
  }
  return system_error(errno, "exchange " + one.text() + " and " + other.text());
}

Status rename_over(const PathBeneath& from, const PathBeneath& to) {
  const NameInFolder old(from);
  const NameInFolder fresh(to);
  if (old && fresh && ::renameat(old.folder(), old.name(), fresh.folder(), fresh.name()) == 0) return {};
  return system_error(errno, "rename " + from.text() + " to " + to.text());
}

Status remove_file(const PathBeneath& path) {
  const NameInFolder at(path);
  if ((at && ::unlinkat(at.folder(), at.name(), 0) == 0) || errno == ENOENT) return {};
  return system_error(errno, "remove " + path.text());
}

namespace {

// Others may be at it too.
Status remove_in(int folder, const std::string& name, const std::string& path, int depth) {
  if (::unlinkat(folder, name.c_str(), 0) == 0 || errno == ENOENT) return {};
  const int refused = errno;
  fault_point("removing");
  {
    const UniqueFd below(::openat(folder, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!below && errno == ENOENT) return {};
    if (!below && (errno == ENOTDIR || errno == ELOOP)) return system_error(refused, "remove " + path);
    if (!below) return file_error(errno, "list " + path);
    if (is_mount(below.get())) {
      return Error{Code::in_use, EBUSY, path + " is a mount, and stays", "unmount it first"};
    }
    if (depth > max_depth) return Error{Code::unsupported, 0, path + " is nested too deeply", "remove it by hand"};
    auto listed = list(below.get(), path);
    if (!listed) return std::move(listed).error();
    const auto files = std::ranges::stable_partition(*listed, &Listed::may_be_folder);
    Status removed;
    for (auto one = listed->begin(); one != files.begin(); ++one) {
      Status gone = remove_in(below.get(), one->name, path + "/" + one->name, depth + 1);
      if (!gone) removed = std::move(gone);
    }
    std::atomic<int> error = 0;
    side_by_side(files.size(), [&](std::size_t i) {
      if (::unlinkat(below.get(), files[i].name.c_str(), 0) != 0 && errno != ENOENT) error = errno;
    });
    if (removed && error != 0) removed = system_error(error, "remove what is in " + path);
    if (!removed) return removed;
  }
  if (::unlinkat(folder, name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return {};
  return system_error(errno, "remove " + path);
}

}  // namespace

Status remove_all(const PathBeneath& path) {
  const NameInFolder at(path);
  if (at) return remove_in(at.folder(), at.name(), path.text(), 0);
  return errno == ENOENT ? Status() : file_error(errno, "remove " + path.text());
}

namespace {

Status sync(const UniqueFd& file, const std::string& path) {
  if (!file) return file_error(errno, "sync " + path);
  for (;;) {
    if (::fsync(file.get()) == 0 || errno == EINVAL) return {};
    if (errno != EINTR) return system_error(errno, "sync " + path);
  }
}

}  // namespace

Status sync_file(const PathBeneath& path) {
  return sync(path.open(O_RDONLY | O_NONBLOCK), path.text());
}

Status sync_parent(const PathBeneath& path) {
  return sync_file(path.parent());
}

Status sync_file_system(const HeldFolder& root) {
  const UniqueFd folder = root.open("", O_RDONLY | O_DIRECTORY);
  if (!folder) return file_error(errno, "sync " + root.path());
  while (::syncfs(folder.get()) != 0) {
    if (errno != EINTR) return system_error(errno, "sync the file system of " + root.path());
  }
  return {};
}

}  // namespace penstock::tiers

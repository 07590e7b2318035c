#include "penstock/tuning.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "penstock/context.h"
#include "penstock/diagnosis.h"
#include "penstock/gpu.h"
#include "services/tuning/text.h"

namespace penstock {

namespace {

Error broken(const std::string& file, const std::string& why) {
  return {.code = Code::invalid_argument,
          .message = "the tuning file " + file + " is broken: " + why,
          .hint = "delete it: rm '" + file + "'; the defaults are good without"};
}

// Nothing where there is no such file, or it is not for this user to read.
Result<std::optional<std::string>> read_text(const std::string& file) {
  // Without O_NONBLOCK, opening a FIFO would wait for somebody to write.
  const int fd = file.empty() ? -1 : open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    if (file.empty() || errno == ENOENT || errno == ENOTDIR || errno == EACCES) return std::optional<std::string>();
    return system_error(errno, "open the tuning file " + file);
  }
  struct stat status {};
  std::string text(tuning::file_limit_bytes + 1, '\0');
  const bool regular = fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
  const ssize_t got = regular ? read(fd, text.data(), text.size()) : 0;
  const int error_number = errno;
  close(fd);
  if (!regular) {
    return Error{.code = Code::invalid_argument,
                 .message = "tunings can't be kept in " + file + ": it is not a file",
                 .hint = "name a file; it need not exist yet"};
  }
  if (got < 0) return system_error(error_number, "read the tuning file " + file);
  text.resize(static_cast<std::size_t>(got));
  return std::optional(std::move(text));
}

Result<std::vector<Tuning>> read_file(const std::string& file) {
  Result<std::optional<std::string>> text = read_text(file);
  if (!text) return text.error();
  if (!*text) return std::vector<Tuning>();
  Result<std::vector<Tuning>> tunings = tuning::parse(**text);
  if (!tunings) return broken(file, tunings.error().message);
  return tunings;
}

// A new file takes the name when it is complete and synced: whoever reads meanwhile sees the old one or the new one.
Status write_file(const std::vector<Tuning>& tunings, const std::string& file) {
  Result<std::string> text = tuning::format(tunings);
  if (!text) return text.error();
  std::error_code failed;
  const std::filesystem::path folder = std::filesystem::absolute(file, failed).parent_path();
  std::filesystem::create_directories(folder, failed);
  if (failed) return system_error(failed.value(), "make the folder " + folder.string());

  Result<Context> context = Context::create({.lanes = 1});
  if (!context) return context.error();
  // "file:" would undo percent-encoding; an absolute path is a path whatever it looks like.
  Result<Store> store =
      context->open((folder / std::filesystem::path(file).filename()).string(), {.access = Access::replace});
  if (!store) return store.error();
  const Report report = context->write(*store, 0, Region::host(text->data(), text->size()));
  if (!report.ok()) return *report.error;
  return store->commit();
}

Result<std::string> memory_name(Domain memory) {
  if (memory.kind() != Domain::Kind::cuda) return memory.name();
  const Result<std::vector<Gpu>> gpus = list_gpus();
  if (!gpus) return gpus.error();
  for (const Gpu& gpu : *gpus) {
    if (gpu.domain == memory) return gpu.name;
  }
  return Error{.code = Code::no_device, .message = "there is no " + memory.name(), .hint = "see penstock doctor"};
}

void drop(std::vector<Tuning>& tunings, const TuningKey& key) {
  std::erase_if(tunings, [&](const Tuning& tuning) { return tuning.key == key; });
}

}  // namespace

Result<TuningKey> tuning_key(const std::string& path, Domain memory) {
  Result<MountFacts> mount = find_mount(path);
  if (!mount && mount.error().code == Code::not_found) {
    const std::string folder = std::filesystem::path(path).parent_path().string();
    mount = find_mount(folder.empty() ? "." : folder);
  }
  if (!mount) return mount.error();
  Result<std::string> name = memory_name(memory);
  if (!name) return name.error();
  return TuningKey{.file_system = std::move(mount->file_system),
                   .source = std::move(mount->source),
                   .mount_point = std::move(mount->point),
                   .memory = std::move(*name)};
}

Options Tuning::apply(const Options& given) const {
  Options result = given;
  tuning::for_each_tuned([&](std::string_view, auto member) {
    if (given.*member == Options().*member) result.*member = options.*member;
  });
  return result.validate() ? result : given;
}

std::string default_tuning_file() {
  if (const char* named = ::secure_getenv("PENSTOCK_TUNING")) return named;
  const auto folder_in = [](const char* variable) {
    const char* value = ::secure_getenv(variable);
    return std::filesystem::path(value != nullptr ? value : "");
  };
  std::filesystem::path folder = folder_in("XDG_CONFIG_HOME");
  if (!folder.is_absolute()) folder = folder_in("HOME") / ".config";
  return folder.is_absolute() ? (folder / "penstock" / "tuning.json").string() : "";
}

Result<std::optional<Tuning>> find_tuning(const std::string& path, Domain memory, const std::string& file) {
  Result<std::vector<Tuning>> tunings = read_file(file);
  if (!tunings) return tunings.error();
  if (tunings->empty()) return std::optional<Tuning>();
  // What is wrong with the path or the GPU is for those to say who use them.
  const Result<TuningKey> key = tuning_key(path, memory);
  if (!key) return std::optional<Tuning>();
  const auto found = std::ranges::find(*tunings, *key, &Tuning::key);
  return found == tunings->end() ? std::nullopt : std::optional(std::move(*found));
}

Status save_tuning(const Tuning& tuning, const std::string& file) {
  if (file.empty()) {
    return Error{.code = Code::invalid_argument,
                 .message = "there is no file for tunings",
                 .hint = "name one, set PENSTOCK_TUNING, or set HOME"};
  }
  Result<std::vector<Tuning>> tunings = read_file(file);
  if (!tunings) return tunings.error();
  drop(*tunings, tuning.key);
  tunings->push_back(tuning);
  return write_file(*tunings, file);
}

Result<bool> remove_tuning(const TuningKey& key, const std::string& file) {
  Result<std::vector<Tuning>> tunings = read_file(file);
  if (!tunings) return tunings.error();
  const std::size_t before = tunings->size();
  drop(*tunings, key);
  if (tunings->size() == before) return false;
  if (!tunings->empty()) {
    if (Status written = write_file(*tunings, file); !written) return std::move(written).error();
  } else if (unlink(file.c_str()) != 0) {
    return system_error(errno, "delete the tuning file " + file);
  }
  return true;
}

}  // namespace penstock

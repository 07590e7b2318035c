#include "services/models/source.h"

#include <filesystem>
#include <utility>

namespace penstock::models {

Source::Source(FileReader file, std::string path)
    : name_(std::move(path)), file_(std::make_shared<const FileReader>(std::move(file))) {}

Result<Source> Source::open_file(const std::string& path) {
  Result<FileReader> file = FileReader::open(path);
  if (!file) return std::move(file).error();
  std::error_code failed;
  const std::filesystem::path absolute = std::filesystem::absolute(path, failed);
  if (failed) return system_error(failed.value(), "find the directory of " + path, "give an absolute path");
  return Source(std::move(*file), absolute.string());
}

Result<Source> Source::open(const Context* context, const std::string& name) {
  if (context == nullptr) return open_file(name);
  Result<Store> store = context->open(name);
  if (!store) return std::move(store).error();
  if (!store->info().mappable) return Source(*context, std::move(*store), name);
  // The store goes first: a process has only so many descriptors.
  const StoreInfo info = store->info();
  *store = {};
  Result<Source> file = open_file(info.name);
  if (file && file->identity() == info.identity) return file;
  // A block device, say, or something of an engine's own.
  store = context->open(name);
  if (!store) return std::move(store).error();
  return Source(*context, std::move(*store), name);
}

bool Source::ends_with_its_file() const {
  return file_ || (store_.info().kind == StoreKind::file && store_.info().page_cache);
}

Status Source::read(std::uint64_t offset, std::span<char> bytes) const {
  if (file_) return file_->read(offset, bytes);
  if (bytes.empty()) return {};
  const Region memory = Region::host(reinterpret_cast<std::byte*>(bytes.data()), bytes.size());
  const Report report = context_.read(store_, offset, memory);
  return report.ok() ? Status() : Status(*report.error);
}

Result<std::string> Source::read(std::uint64_t offset, std::uint64_t size_bytes) const {
  std::string bytes(size_bytes, '\0');
  if (Status status = read(offset, bytes); !status) return std::move(status).error();
  return bytes;
}

}  // namespace penstock::models

// Source: one file of a model, as far as its header is read: a file of the kernel's, or any other store that a Context
// opens. Tensors are read by requests of a Context, which opens it again.
//
// Thread safety: one thread at a time. Lifetime: a store's Source is used while its Context is there.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "penstock/context.h"
#include "services/models/file_reader.h"

namespace penstock::models {

class Source {
 public:
  // Any name that the Context opens. The store is asked what it is: a file that can be mapped is read, and kept open,
  // by a descriptor. Without a Context the name is a path, whatever it looks like.
  static Result<Source> open(const Context* context, const std::string& name);

  // By which a Context opens it again: a path that is absolute, or else a URI.
  const std::string& name() const { return name_; }
  std::uint64_t size_bytes() const { return file_ ? file_->size_bytes() : store_.info().size_bytes; }
  const Identity& identity() const { return file_ ? file_->identity() : store_.info().identity; }
  // False where a file may lie at the front of what is longer, as a device is.
  bool ends_with_its_file() const;
  // Null where it is no file of the kernel's, or the process has few descriptors left.
  std::shared_ptr<const FileReader> to_keep_open() const { return file_ && file_->may_stay_open() ? file_ : nullptr; }

  // Code::truncated where it has become shorter.
  Status read(std::uint64_t offset, std::span<char> bytes) const;
  Result<std::string> read(std::uint64_t offset, std::uint64_t size_bytes) const;

 private:
  Source(FileReader file, std::string path);
  static Result<Source> open_file(const std::string& path);
  Source(const Context& context, Store store, std::string name)
      : name_(std::move(name)), context_(context), store_(std::move(store)) {}

  std::string name_;
  std::shared_ptr<const FileReader> file_;  // shared with the Model, and with copies of it
  Context context_;                         // empty where there is a file
  Store store_;                             // likewise
};

}  // namespace penstock::models

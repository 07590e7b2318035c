// Store of the uring engine: a FileStore with a place in the fixed file tables.
#pragma once

#include "engines/uring/registry.h"
#include "files/file_store.h"

namespace penstock::uring {

class Store : public files::FileStore {
 public:
  Store(files::OpenedFile&& file, Registry& registry)
      : FileStore(std::move(file)), registry_(registry), slot_(registry.add_store()) {}
  ~Store() override { registry_.remove_store(slot_); }

  Slot slot() const { return slot_; }

 private:
  Registry& registry_;
  const Slot slot_;
};

}  // namespace penstock::uring

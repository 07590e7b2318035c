// Given: memory that the caller gives, by a descriptor: a memfd, say, that other processes map too. Parts of it are
// handed out, and come back.
//
// Thread safety: any thread. Lifetime: shared by who holds a part.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "memory/allocation.h"
#include "penstock/region.h"
#include "penstock/result.h"

namespace penstock::memory {

class Given : public std::enable_shared_from_this<Given> {
  struct Private {};

 public:
  // Maps all of it. The descriptor is not needed any more.
  static Result<std::shared_ptr<Given>> map(int descriptor);
  Given(Private, Region memory) : memory_(memory) {}
  ~Given();
  Given(const Given&) = delete;
  Given& operator=(const Given&) = delete;

  // So many bytes, from a page's beginning on; Code::over_budget where no part of that size is free.
  Result<std::unique_ptr<Allocation>> take(std::size_t size_bytes);

 private:
  void give_back(std::size_t offset);

  const Region memory_;
  std::mutex mutex_;
  std::map<std::size_t, std::size_t> taken_;  // where each part ends, by where it begins; guarded by mutex_
};

}  // namespace penstock::memory

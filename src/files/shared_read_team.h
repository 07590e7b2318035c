// The ReadTeam of an engine, made when a queue first wants one.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "files/read_team.h"

namespace penstock::files {

// Thread safety: any thread.
class SharedReadTeam {
 public:
  // Null for no helpers.
  std::shared_ptr<ReadTeam> get(std::uint32_t helpers_max) {
    if (helpers_max == 0) return nullptr;
    const std::scoped_lock lock(mutex_);
    if (!team_) team_ = std::make_shared<ReadTeam>(helpers_max);
    return team_;
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<ReadTeam> team_;  // shared with the queues, which may outlive the engine's use of it
};

}  // namespace penstock::files

// What integration tests borrow from the machine, loop devices and mounts, and tables of one engine.
#pragma once

#include <string>

#include "engine/engine.h"
#include "engines/posix/engine.h"
#include "engines/uring/engine.h"
#include "files/test_machine.h"

namespace penstock::test {

using files::AttachedLoop;
using files::make_file_system;
using files::OwnMount;

inline engine::Table table_of(const std::string& engine) {
  engine::Table table;
  table.push_back(engine == "posix" ? posix::make_engine() : uring::make_engine());
  return table;
}

}  // namespace penstock::test

#include "engines/table.h"

#include "engines/cufile/engine.h"
#include "engines/posix/engine.h"
#include "engines/uring/engine.h"

namespace penstock::engines {

engine::Table default_table() {
  engine::Table table;
  table.push_back(uring::make_engine());
  table.push_back(cufile::make_engine());
  table.push_back(posix::make_engine());
  return table;
}

}  // namespace penstock::engines

#include "engines/table.h"

#include <memory>
#include <utility>

#include "engines/cufile/engine.h"
#include "engines/made/engine.h"
#include "engines/nvme/engine.h"
#include "engines/posix/engine.h"
#include "engines/uring/engine.h"

namespace penstock::engines {

std::unique_ptr<engine::Engine> best_for_files() {
  auto ring = uring::make_engine();
  return ring->probe().available ? std::move(ring) : posix::make_engine();
}

engine::Table default_table() {
  engine::Table table;
  table.push_back(uring::make_engine());
  table.push_back(cufile::make_engine());
  table.push_back(nvme::make_pci_engine());
  table.push_back(nvme::make_soft_engine(best_for_files()));
  table.push_back(made::make_engine());
  table.push_back(posix::make_engine());
  return table;
}

}  // namespace penstock::engines

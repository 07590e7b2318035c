// WaveReader: reads pieces of more files than may be open at a time, in waves of files that may. While one wave is
// read, the next is opened and submitted.
//
// Thread safety: one thread's. Lifetime: a step of a Background.
#pragma once

#include <memory>
#include <vector>

#include "services/models/background.h"
#include "services/models/ending.h"
#include "services/models/file_stores.h"
#include "services/models/parts.h"

namespace penstock::models {

class WaveReader : public Background::Step {
 public:
  // `pieces`: in the order of files. `stores` is shared with other steps.
  WaveReader(std::shared_ptr<FileStores> stores, std::vector<FilePiece> pieces)
      : stores_(std::move(stores)), pieces_(std::move(pieces)), held_(hold_memory_of(pieces_)) {}

  Status run(Background& background) override;

 private:
  Result<OwnTicket> begin(Background& background);

  const std::shared_ptr<FileStores> stores_;
  const std::vector<FilePiece> pieces_;
  const HeldMemory held_;
  std::size_t next_ = 0;  // the first piece that is not submitted
};

}  // namespace penstock::models

// WaveReader: reads pieces of more files than may be open at a time, in waves of files that may. While one wave is
// read, the next is opened and submitted.
//
// Thread safety: one thread's. Lifetime: a step of a Background.
#pragma once

#include <memory>
#include <vector>

#include "penstock/window_ring.h"
#include "services/models/background.h"
#include "services/models/file_stores.h"
#include "services/models/parts.h"

namespace penstock::models {

class WaveReader : public Background::Step {
 public:
  // `pieces`: in the order of files. `stores` is shared with other steps.
  static Result<std::unique_ptr<WaveReader>> create(const Context& context, std::shared_ptr<FileStores> stores,
                                                    std::vector<FilePiece> pieces);

  Status run(Background& background) override;

 private:
  WaveReader(std::shared_ptr<FileStores> stores, std::vector<FilePiece> pieces, WindowRing ring)
      : stores_(std::move(stores)),
        pieces_(std::move(pieces)),
        held_(hold_memory_of(pieces_)),
        ring_(std::move(ring)) {}
  Result<Ticket> begin(Background& background);

  const std::shared_ptr<FileStores> stores_;
  const std::vector<FilePiece> pieces_;
  const HeldMemory held_;
  WindowRing ring_;            // of no memory: the pieces have theirs
  std::size_t next_ = 0;       // the first piece that is not submitted
  std::size_t under_way_ = 0;  // waves
};

}  // namespace penstock::models

#include "services/models/wave_reader.h"

#include <deque>

namespace penstock::models {

Status WaveReader::run(Background& background) {
  for (OwnTicket running;;) {
    Result<OwnTicket> next = begin(background);
    if (!next && !(running && is_out_of_descriptors(next.error()))) return std::move(next).error();
    if (running) {
      if (Status read = background.await(*running, true); !read) return read;
    }
    if (!next) continue;  // what was running has closed its files
    if (!*next) return {};
    running = std::move(*next);
  }
}

// A null ticket: nothing is left.
Result<OwnTicket> WaveReader::begin(Background& background) {
  std::deque<Store> stores;  // their addresses stay; the request keeps them open
  std::vector<Range> ranges;
  std::size_t at = next_;
  for (; at < pieces_.size(); ++at) {
    const FilePiece& piece = pieces_[at];
    if (at == next_ || piece.file != pieces_[at - 1].file) {
      if (stores.size() == stores_->for_one_request()) break;
      Result<Store> store = stores_->open(piece.file);
      if (!store && !stores.empty() && is_out_of_descriptors(store.error())) break;
      if (!store) return std::move(store).error();
      stores.push_back(std::move(*store));
    }
    ranges.push_back({&stores.back(), piece.offset, piece.memory});
  }
  if (ranges.empty()) return OwnTicket();
  Result<Ticket> ticket = background.submit(ranges);
  if (!ticket) return std::move(ticket).error();
  next_ = at;
  return OwnTicket(std::move(*ticket));
}

}  // namespace penstock::models

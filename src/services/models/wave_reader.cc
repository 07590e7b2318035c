#include "services/models/wave_reader.h"

#include <deque>

#include "services/models/range_list.h"

namespace penstock::models {

Result<std::unique_ptr<WaveReader>> WaveReader::create(const Context& context, std::shared_ptr<FileStores> stores,
                                                       std::vector<FilePiece> pieces) {
  Result<WindowRing> ring = WindowRing::create(context, {});
  if (!ring) return std::move(ring).error();
  return std::unique_ptr<WaveReader>(new WaveReader(std::move(stores), std::move(pieces), std::move(*ring)));
}

Status WaveReader::run(Background& background) {
  const auto begin_one = [&](const Window&) { return begin(background); };
  const auto await = [&](Ticket& ticket, const Window&) {
    --under_way_;
    return background.await(ticket, true);
  };
  for (;;) {
    const Result<std::optional<Window>> wave = ring_.next(begin_one, await);
    if (!wave) return wave.error();
    if (!*wave) return {};
  }
}

Result<Ticket> WaveReader::begin(Background& background) {
  std::deque<Store> stores;  // their addresses stay; the request keeps them open
  RangeList list(background.context());
  std::size_t at = next_;
  for (; at < pieces_.size(); ++at) {
    const FilePiece& piece = pieces_[at];
    if (at == next_ || piece.file != pieces_[at - 1].file) {
      if (stores.size() == stores_->for_one_request()) break;
      Result<Store> store = stores_->open(piece.file);
      const bool later = !store && is_out_of_descriptors(store.error());
      if (later && !stores.empty()) break;
      if (later && under_way_ != 0) return Ticket();  // what is under way will have closed its files
      if (!store) return std::move(store).error();
      stores.push_back(std::move(*store));
    }
    list.add(stores.back(), piece);
  }
  if (list.empty()) return Ticket();
  Result<Ticket> ticket = background.submit(list.ranges());
  if (!ticket) return ticket;
  next_ = at;
  ++under_way_;
  return ticket;
}

}  // namespace penstock::models

// Store of the nvme engines: a namespace, or as much of it as a file behind it has.
//
// Thread safety and lifetime: as engine::Store.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "engine/store.h"
#include "engines/nvme/connection.h"

namespace penstock::nvme {

class Store : public engine::Store, private engine::Writer {
 public:
  // `claim` is held as long as the store is open.
  Store(StoreInfo info, std::shared_ptr<Connection> connection, Namespace space,
        std::function<Result<engine::State>()> state, std::shared_ptr<void> claim = nullptr)
      : engine::Store(std::move(info)),
        connection_(std::move(connection)),
        space_(std::move(space)),
        state_(std::move(state)),
        claim_(std::move(claim)) {}

  const std::shared_ptr<Connection>& connection() const { return connection_; }
  const Namespace& space() const { return space_; }

  Result<engine::State> state() const override {
    return state_ ? state_() : Result<engine::State>({info_.identity, info_.size_bytes});
  }
  engine::Writer* writer() override { return info_.writable ? this : nullptr; }

 private:
  Edges edges() const override { return Edges::blocks; }
  Status reserve(engine::Room room) override {
    if (room.end <= info_.size_bytes) return {};
    return Error{Code::no_space, 0, info_.name + " ends at " + std::to_string(info_.size_bytes) + " and can't grow",
                 "write within its size"};
  }
  Status commit(bool durable) override {
    if (!durable) return {};
    return connection_->run({.kind = IoKind::flush, .space = &space_}, "flush " + info_.name);
  }
  Status abort() override { return {}; }

  const std::shared_ptr<Connection> connection_;  // shared by the stores of a controller
  const Namespace space_;
  const std::function<Result<engine::State>()> state_;
  const std::shared_ptr<void> claim_;  // shared with the engine, which looks whether it is still held
};

}  // namespace penstock::nvme

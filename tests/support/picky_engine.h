// For tests: the posix engine, made to have rules about memory: it reaches only what it was told of, or only memory of
// its own, or it lends what it reads. Whoever breaks a rule ends the process.
//
// Thread safety and lifetime: as engine::Engine.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "memory/allocation.h"
#include "support/over_posix.h"

namespace penstock::test {

class PickyEngine : public OverPosix, private engine::Memory {
 public:
  struct Rules {
    engine::HostReach host = engine::HostReach::any;
    bool lends = false;
    cuda::Device* gpu = nullptr;  // that knows what is lent
  };
  explicit PickyEngine(const Rules& rules) : rules_(rules), description_(OverPosix::description()) {
    description_.name = "picky";
    description_.host = rules.host;
    description_.lends = rules.lends;
  }

  const engine::Description& description() const override { return description_; }
  engine::Memory* memory() override { return rules_.host == engine::HostReach::any ? nullptr : this; }
  Result<std::unique_ptr<engine::Queue>> make_queue(const engine::QueueOptions& options) override {
    auto inner = OverPosix::make_queue(options);
    if (!inner) return inner;
    return std::unique_ptr<engine::Queue>(std::make_unique<Queue>(std::move(*inner), rules_));
  }

 private:
  using Bytes = std::unique_ptr<memory::Allocation>;
  static Bytes make_bytes(std::size_t size, cuda::Device* gpu = nullptr) {
    auto bytes = memory::Allocation::create({.domain = Domain::host(), .size_bytes = size}).value();
    if (gpu != nullptr) demand(bytes->register_with(*gpu).ok(), "memory to lend can't be registered");
    return bytes;
  }
  static void demand(bool kept, const char* rule) {
    if (kept) return;
    std::fprintf(stderr, "picky engine: %s\n", rule);
    std::abort();
  }

  class Known : public engine::Attached {
   public:
    Known(Region memory, Bytes own) : memory_(memory), own_(std::move(own)) {}
    bool covers(const engine::Op& op) const {
      return op.memory >= memory_.data && op.memory + op.length <= memory_.data + memory_.size_bytes;
    }
    bool is_own() const { return own_ != nullptr; }

   private:
    const Region memory_;
    const Bytes own_;
  };
  Result<std::unique_ptr<engine::Attached>> attach(Region memory) override {
    return std::unique_ptr<engine::Attached>(std::make_unique<Known>(memory, nullptr));
  }
  Result<Allocated> allocate(std::size_t size) override {
    Bytes bytes = make_bytes(size);
    const Region memory = bytes->region();
    return Allocated{memory, std::make_unique<Known>(memory, std::move(bytes))};
  }

  class Queue : public engine::Queue {
   public:
    Queue(std::unique_ptr<engine::Queue> inner, const Rules& rules) : inner_(std::move(inner)), rules_(rules) {}
    ~Queue() override { demand(lent_ == 0, "a loan was not given back"); }

    std::size_t submit(std::span<const engine::Op> ops) override {
      std::size_t taken = 0;
      for (; taken < ops.size(); ++taken) {
        engine::Op op = ops[taken];
        if (engine::moves_bytes(op.kind)) check(op);
        const bool lends = rules_.lends && op.kind == engine::OpKind::read;
        Bytes bytes = lends ? make_bytes(op.length, rules_.gpu) : nullptr;
        if (lends) op.memory = bytes->region().data;
        if (inner_->submit({&op, 1}) == 0) break;
        if (lends) read_[op.cookie] = std::move(bytes);
      }
      return taken;
    }
    std::size_t poll(std::span<engine::Done> done, TimePoint deadline) override {
      const std::size_t count = inner_->poll(done, deadline);
      for (engine::Done& one : done.first(count)) {
        const auto bytes = read_.extract(one.cookie);
        if (bytes.empty() || one.code != Code::ok) continue;
        one.loan = new Loan(*this, std::move(bytes.mapped()));
        ++lent_;
      }
      return count;
    }
    int event() override { return inner_->event(); }
    void wake() override { inner_->wake(); }
    void cancel(std::uint64_t cookie) override { inner_->cancel(cookie); }

   private:
    class Loan : public engine::Loan {
     public:
      Loan(Queue& queue, Bytes bytes) : queue_(queue), bytes_(std::move(bytes)) {}
      const std::byte* data() const override { return bytes_->region().data; }
      bool is_pinned() const override { return bytes_->host_to_device().has_value(); }
      void give_back() override {
        --queue_.lent_;
        delete this;
      }

     private:
      Queue& queue_;
      const Bytes bytes_;
    };

    void check(const engine::Op& op) const {
      if (rules_.host == engine::HostReach::any) return;
      demand(op.attached != nullptr, "an operation names memory that was not attached");
      const auto& known = *static_cast<const Known*>(op.attached);
      demand(known.covers(op), "an operation names other memory than was attached");
      demand(rules_.host != engine::HostReach::own || known.is_own(), "an operation names memory that is not mine");
    }

    const std::unique_ptr<engine::Queue> inner_;
    const Rules rules_;
    std::map<std::uint64_t, Bytes> read_;  // by the cookie of what is on its way
    std::size_t lent_ = 0;
  };

  const Rules rules_;
  engine::Description description_;
};

}  // namespace penstock::test

// BlockLocks: which blocks of a store are being read, modified and written, so that two writers of parts of one block
// don't undo each other. They are few, and linked by themselves: to lock one takes no memory.
//
// Thread safety: any thread. Nobody sleeps on it: who fails comes back. Lifetime: a Block stays where it is while it is
// locked.
#pragma once

#include <cstdint>
#include <mutex>

namespace penstock::core {

class BlockLocks {
 public:
  struct Block {
    std::uint64_t number = 0;  // that no other block of the store has
    Block* next = nullptr;     // that is locked
  };

  bool try_lock(Block& block) {
    const std::scoped_lock lock(mutex_);
    for (const Block* locked = first_; locked != nullptr; locked = locked->next) {
      if (locked->number == block.number) return false;
    }
    block.next = first_;
    first_ = &block;
    return true;
  }
  // REQUIRES: it is locked.
  void unlock(const Block& block) {
    const std::scoped_lock lock(mutex_);
    Block** link = &first_;
    while (*link != &block) link = &(*link)->next;
    *link = block.next;
  }

 private:
  std::mutex mutex_;
  Block* first_ = nullptr;
};

}  // namespace penstock::core

// LastFound: what this thread found last in a table of memory that is searched for every request and seldom changes. To
// find the same again takes no lock.
//
// A table has a version, which no earlier state of it, and no other table of the kind, ever had. It is taken before the
// table is searched, and changed after the table.
//
// Thread safety: each thread has its own. Lifetime: its thread's. It keeps nothing that it names.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

namespace penstock::memory {

template <typename Value>
class LastFound {
 public:
  struct Place {
    std::uint64_t version = 0;
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;  // past the last byte
    std::weak_ptr<Value> value;
  };

  // Around an address, if that is where the thread was last and the table has not changed since.
  static const Place* find(std::uint64_t version, std::uintptr_t address) {
    const Place* const last = last_;
    return last != nullptr && last->version == version && last->begin <= address && address < last->end ? last
                                                                                                        : nullptr;
  }
  static void remember(Place place) {
    static thread_local Owner owner;
    if (last_ != nullptr) *last_ = std::move(place);
  }

 private:
  // Apart from last_, which is looked at even when a thread has ended its other objects.
  struct Owner {
    Owner() { last_ = &place; }
    ~Owner() { last_ = nullptr; }
    Owner(const Owner&) = delete;
    Owner& operator=(const Owner&) = delete;

    Place place;
  };

  static constinit inline thread_local Place* last_ = nullptr;
};

}  // namespace penstock::memory

// Store, as an engine opens it: facts, and abilities that are there or not (a null pointer, never a stub).
//
// What follows may wait where the store is a server's (Locality::network and fuse). There core calls it by an Op
// (OpKind::call), as it destroys the store, so that nobody waits longer than he has time; but for what says that it
// does not wait.
//
// Thread safety: const calls and abilities from any thread. Lifetime: outlives every Op that names it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "penstock/gpu.h"
#include "penstock/result.h"
#include "penstock/route.h"
#include "penstock/store.h"

namespace penstock::engine {

// What a store is like at a moment.
struct State {
  Identity identity;
  std::uint64_t size_bytes = 0;
};

// Of stores that the kernel caches.
class PageCache {
 public:
  virtual ~PageCache() = default;
  // Of the file, whatever it contains, and of no other for as long as it exists (base/file_number.h); 0: it is no file.
  virtual std::uint64_t file_number() const { return 0; }
  // How many bytes of the range are in the page cache; nothing where the kernel won't tell the truth, or a server would
  // have to be asked: it does not wait.
  virtual std::optional<std::uint64_t> resident_bytes(std::uint64_t offset, std::uint64_t length) const = 0;
  // Whether the page that has this byte is there, where the kernel tells that of a page. If not, the question may bring
  // in this page, and no other. Does not wait. For guessing what is cached where resident_bytes has no answer.
  virtual std::optional<bool> is_resident(std::uint64_t) const { return std::nullopt; }
  // Reads the range through the page cache, discards it, and tells how long that took; nothing if it failed. For
  // guessing where is_resident has no answer either. At most 64 KiB. Not asked of a server's.
  virtual std::optional<double> timed_read_seconds(std::uint64_t offset, std::uint64_t length) const = 0;
  // Copies the range into memory as far as it is in the page cache without a gap from its beginning on, and returns how
  // many bytes that were; does not wait for a disk. Nothing where the store can't do that, or a server would have to be
  // asked. Of what is not there, the kernel may begin to read something.
  virtual std::optional<std::uint64_t> read_cached(std::uint64_t, std::span<std::byte>) { return std::nullopt; }
  // Starts reading the range into the page cache.
  virtual Status prefetch(std::uint64_t offset, std::uint64_t length) = 0;
  // Lets go of clean cached pages of the range. Does not wait.
  virtual void drop(std::uint64_t offset, std::uint64_t length) = 0;
};

// Of stores that can be mapped.
class Mapping {
 public:
  virtual ~Mapping() = default;
  virtual Result<View> map() const = 0;
};

// The bytes that are about to be written.
struct Room {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// Of stores opened for writing.
class Writer {
 public:
  enum class Edges : std::uint8_t {
    buffered,  // ranges that are not aligned may be written with Path::buffered
    blocks,    // only whole blocks can be written: core reads, modifies and writes
  };
  virtual ~Writer() = default;
  virtual Edges edges() const = 0;
  // Makes room so that writes within it don't change the size; undoes itself on failure (Code::no_space). What lies
  // between the end of a file and the room becomes a hole.
  virtual Status reserve(Room room) = 0;
  // Makes the name durable of a file that opening made; its content is the matter of commit, and of OpKind::flush.
  virtual Status sync_name() { return {}; }
  // Makes the content durable, if that is asked for, and for Access::replace gives it its name.
  virtual Status commit(bool durable = true) = 0;
  // After commit, a file that was replaced, if this holds it: without a name it is removed with the last holder, which
  // takes time (on ext4 1.8 ms for 40 kB, 3 to 25 for 10 MB). Null: nothing is left to remove.
  virtual std::shared_ptr<const void> take_replaced() { return nullptr; }
  // For Access::replace: removes the unfinished file. Nothing after commit.
  virtual Status abort() = 0;
};

class Store {
 public:
  explicit Store(StoreInfo info) : info_(std::move(info)) {}
  virtual ~Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // As of opening.
  const StoreInfo& info() const { return info_; }
  // As of now. Code::changed if the name now means another file.
  virtual Result<State> state() const = 0;

  // Returns when writes of others that were under way have ended, as far as this machine knows of them. The time of
  // modification is set when a write begins: a state that was told before means bytes that were read afterwards.
  // Nothing where the store can't wait for writers, or a server would have to be asked.
  virtual void await_writers() const {}
  // By which the same file can be opened again; -1 where only the name will do.
  virtual int descriptor() const { return -1; }
  // The way that Path::device takes; nothing where there is none.
  virtual std::optional<Route> device_route() const { return std::nullopt; }
  // To and from memory of this GPU: others may be better off.
  virtual std::optional<Route> device_route_to(const Gpu&) const { return device_route(); }
  virtual PageCache* page_cache() { return nullptr; }
  virtual Mapping* mapping() { return nullptr; }
  virtual Writer* writer() { return nullptr; }

 protected:
  StoreInfo info_;
};

}  // namespace penstock::engine

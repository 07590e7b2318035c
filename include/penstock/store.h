// Store: something open that holds bytes, named by a path or URI. View: a read-only mapping of a Store.
//
// Thread safety: const calls from any thread. Lifetime: a Store may be destroyed while requests on it run: they keep it
// open. It may outlive its Context; requests need both.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "penstock/region.h"
#include "penstock/result.h"

namespace penstock {

namespace client {
class OpenStore;
struct Access;
}  // namespace client

enum class StoreKind : std::uint8_t { file, block_device, made };
PENSTOCK_EXPORT std::string_view store_kind_name(StoreKind kind);

// Where the bytes of a Store are, as far as speed is concerned.
enum class Locality : std::uint8_t {
  local,    // a disk of this machine
  memory,   // tmpfs, ramfs, hugetlbfs: always resident
  network,  // NFS, CIFS, Lustre, Ceph, 9p, …
  fuse,     // a user-space file system
};
PENSTOCK_EXPORT std::string_view locality_name(Locality locality);
// Far away, whatever the bandwidth; its server may not answer.
constexpr bool is_remote(Locality locality) {
  return locality == Locality::network || locality == Locality::fuse;
}

// Differs if the content may differ: bytes to compare, and text to show. The engine decides what is in it; for files it
// is device, inode, time of modification and size.
class PENSTOCK_EXPORT Identity {
 public:
  Identity() = default;
  explicit Identity(std::string text) : text_(std::move(text)) {}
  // The identity of an open file, as its Store has it.
  static Result<Identity> of_file(int descriptor);

  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(text_)); }
  const std::string& text() const { return text_; }

  friend bool operator==(const Identity&, const Identity&) = default;

 private:
  std::string text_;
};

// What direct transfers require, in bytes, powers of two.
struct Alignments {
  std::uint32_t offset = 1;   // of an operation's start and length
  std::uint32_t memory = 1;   // of the memory address
  std::uint32_t optimal = 0;  // the store's preferred size of an operation; 0: unknown
};

struct StoreInfo {
  std::string name;  // the path or URI that was opened
  StoreKind kind = StoreKind::file;
  Locality locality = Locality::local;
  std::string device;       // what holds the bytes ("259:1"), maybe shared with other stores; empty: unknown
  std::string file_system;  // "ext4", "tmpfs", "nfs", "fuse"; for block devices "block"
  std::uint64_t size_bytes = 0;
  std::uint32_t block_bytes = 0;  // the logical block: what LBAs count
  std::uint32_t queues = 0;       // of the disk for commands, where the kernel has it and tells; 0: unknown
  Identity identity;
  Alignments alignments;
  bool writable = false;
  bool direct = false;      // reached past the page cache
  bool page_cache = false;  // reached through it
  bool mappable = false;
  // If opened for writing: why nothing in it survives a power cut, synced or not ("tmpfs is memory"); empty if syncing
  // helps.
  std::string volatile_because;
};

enum class Access : std::uint8_t {
  read,     // the store must exist
  write,    // the store must exist; reading and writing in place
  create,   // created if missing; reading and writing in place
  replace,  // a new file that takes the name at commit, and vanishes without it
};

struct OpenOptions {
  Access access = Access::read;
  // With create and replace: reserve this much room at once, so that a full disk shows before the first byte. A file
  // that was shorter is this long from then on, a new one (replace) exactly so, unless it is written past that.
  std::uint64_t size_bytes = 0;
  // Where that room begins: the gap between the old end and this is a hole. Equal to size_bytes: all of it.
  std::uint64_t reserve_from = 0;
  // Writing to a block device destroys its data, so it needs this as well as Access::write.
  bool allow_block_device_write = false;
  // Writing past the kernel to a disk that Penstock drives itself ("nvme:...") also needs the serial number of its
  // controller, and the blocks that may change.
  std::string serial = {};
  std::uint64_t first_writable_block = 0;
  std::uint64_t writable_blocks = 0;
  // A file that is already open, whatever its name means by now; messages use the name. It is needed until the call
  // returns. Access::write and create change it in place; for Access::replace it is the folder: no link is followed.
  int descriptor = -1;
  // For reading: others write to it meanwhile, elsewhere than where it is read. A read does not fail because they did.
  bool growing = false;
  // Called by `Store::commit` once that has succeeded; what it returns is what `commit` returns. It must not throw.
  std::function<Status()> on_commit = {};
};

// Default-constructed or moved from, it has no bytes.
class PENSTOCK_EXPORT View {
 public:
  View();
  View(View&&) noexcept;
  View& operator=(View&&) noexcept;
  ~View();

  // The mapped bytes. Touching them after the file was truncated raises SIGBUS; copy_to does not.
  std::span<const std::byte> bytes() const { return {data_, size_bytes_}; }
  // Copies out of the mapping; Code::truncated if the file has shrunk below the range.
  Status copy_to(std::uint64_t offset, Region destination) const;

  // For stores that can be mapped; takes ownership of a mapping of `size_bytes` at `data`.
  View(const std::byte* data, std::size_t size_bytes);

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

// Default-constructed or moved from, it is not open: calls fail with Code::invalid_argument, and the rest returns empty
// values.
class PENSTOCK_EXPORT Store {
 public:
  Store();
  Store(const Store&);
  Store(Store&&) noexcept;
  Store& operator=(const Store&);
  Store& operator=(Store&&) noexcept;
  ~Store();

  explicit operator bool() const { return store_ != nullptr; }
  const StoreInfo& info() const;
  // The size now: a file may have grown since it was opened.
  Result<std::uint64_t> size_bytes() const;
  // The identity now; it differs from that at opening if the content may have changed since. Code::changed if the name
  // now means another file, or none.
  Result<Identity> identity() const;
  // Returns when writes of others that were under way have ended; waits only for those of this machine, to files on
  // ext4 and tmpfs. An identity changes when a write begins. So if the identity is asked for, then this is called, then
  // bytes are read, and the identity is still the same, the bytes belong to it.
  void await_writers() const;
  // How much of a range is in the page cache; nothing if there is no page cache, or the kernel won't say.
  std::optional<std::uint64_t> cached_bytes(std::uint64_t offset, std::uint64_t length) const;
  // Maps the whole store read-only; Code::unsupported if the store can't be mapped.
  Result<View> view() const;
  // Access::replace: syncs and takes the name, if no write to it has failed or was refused that was not repeated, and
  // none was abandoned; wait for those under way first. What is written later changes that file, in place. Otherwise
  // syncs, including the name of a file that opening created. Without `durable` nothing is synced, and a crash soon
  // after may leave an incomplete file. Code::not_durable: everything worked and the name is taken, but making that
  // durable failed. Code::timed_out: the server has not answered, and may still do it.
  Status commit(bool durable = true);
  // Access::replace: removes the unfinished file, to which nothing can be written then. Otherwise nothing.
  Status abort();

 private:
  friend struct client::Access;
  explicit Store(std::shared_ptr<client::OpenStore> store);

  std::shared_ptr<client::OpenStore> store_;  // shared: requests in flight keep the store open
};

}  // namespace penstock

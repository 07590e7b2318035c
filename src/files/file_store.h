// FileStore: a file or a block device, shared by the engines that reach files through the kernel.
//
// Two descriptors, one through the page cache and one past it. The second may be opened only when it is first needed.
//
// Thread safety: as engine::Store. Lifetime: as engine::Store; an uncommitted Access::replace is removed with it.
#pragma once

#include <atomic>
#include <mutex>

#include "base/once.h"
#include "engine/store.h"
#include "files/open.h"

namespace penstock::files {

class FileStore : public engine::Store, private engine::PageCache, private engine::Mapping, private engine::Writer {
 public:
  explicit FileStore(OpenedFile&& file);

  int buffered_fd() const { return buffered_.get(); }
  // -1 if the store can't be reached past the page cache. Opened by the first call, where opening the store has not.
  int direct_fd() const;

  Result<engine::State> state() const override;
  void await_writers() const override;
  int descriptor() const override {
    make_waiting();
    return buffered_fd();
  }
  // From now on io_uring waits where operations of buffered_fd() have to. Opening leaves that out: it takes a call.
  void make_waiting() const {
    if (is_nonblocking_.load(std::memory_order_acquire)) make_blocking_now();
  }
  engine::PageCache* page_cache() override { return this; }
  engine::Mapping* mapping() override { return this; }
  engine::Writer* writer() override { return info_.writable ? this : nullptr; }

 protected:
  // They are closed with what is returned. REQUIRES: nothing else is asked of the store any more.
  std::shared_ptr<const void> give_descriptors();

 private:
  void make_blocking_now() const;
  Status sync_new_name();  // REQUIRES: writer_mutex_
  void find_who_tells_residency() const;
  std::uint64_t file_number() const override { return number_; }
  std::optional<std::uint64_t> resident_bytes(std::uint64_t offset, std::uint64_t length) const override;
  std::optional<bool> is_resident(std::uint64_t offset) const override;
  std::optional<double> timed_read_seconds(std::uint64_t offset, std::uint64_t length) const override;
  std::optional<std::uint64_t> read_cached(std::uint64_t offset, std::span<std::byte> memory) override;
  Status prefetch(std::uint64_t offset, std::uint64_t length) override;
  void drop(std::uint64_t offset, std::uint64_t length) override;

  Result<View> map() const override;

  Edges edges() const override;
  Status reserve(engine::Room room) override;
  Status sync_name() override;
  Status commit(bool durable = true) override;
  std::shared_ptr<const void> take_replaced() override;
  Status abort() override;

  const std::string path_;
  const std::uint64_t number_;
  UniqueFd buffered_;
  mutable std::atomic<bool> is_nonblocking_;
  mutable Once direct_once_;
  mutable UniqueFd direct_;
  // Found out when the store is opened: who asks about residency later must not wait for a server.
  const bool asks_cachestat_;
  mutable Once residency_once_;  // guards what follows, of local files
  mutable bool mincore_is_honest_ = false;
  const bool checks_path_;  // whether the name must go on meaning this file
  std::mutex writer_mutex_;
  bool name_is_new_;
  std::atomic<bool> reads_cached_;  // the file system reads what is cached, and nothing else, if it is asked to
  std::unique_ptr<Replacement> replacement_;
};

}  // namespace penstock::files

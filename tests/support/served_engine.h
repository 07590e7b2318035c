// An engine for tests: the posix engine, with a server behind files whose name begins with "served". They count as
// remote, and whatever may wait is asked of the server, which can be made not to answer, and not to let go of a file.
#pragma once

#include <gtest/gtest.h>

#include <cerrno>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "files/file_store.h"
#include "files/test_silent_peer.h"
#include "support/over_posix.h"

namespace penstock::test {

// Thread safety: any thread. Lifetime: shared by the test, the engine and its stores.
class Server {
 public:
  // Answers so many more questions, and then none until answer().
  void hang_after(int questions) {
    const std::scoped_lock lock(mutex_);
    answers_left_ = questions;
    hangs_ = true;
  }
  // The next store that is opened does not close before answer(). False where that can't be brought about.
  bool hang_in_closing() {
    const std::scoped_lock lock(mutex_);
    lingering_ = peer_.emplace().take_descriptor();
    return static_cast<bool>(lingering_);
  }
  UniqueFd take_lingering() {
    const std::scoped_lock lock(mutex_);
    return std::move(lingering_);
  }
  void answer() {
    const std::scoped_lock lock(mutex_);
    peer_.reset();
    hangs_ = false;
    changed_.notify_all();
  }
  // Questions without an answer.
  int waiting() {
    const std::scoped_lock lock(mutex_);
    return waiting_;
  }
  void ask() {
    std::unique_lock lock(mutex_);
    if (!hangs_ || answers_left_-- > 0) return;
    ++waiting_;
    changed_.wait(lock, [this] { return !hangs_; });
    --waiting_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  UniqueFd lingering_;
  std::optional<files::SilentPeer> peer_;
  bool hangs_ = false;
  int answers_left_ = 0;
  int waiting_ = 0;
};

// What another does, when the server has answered.
class ServedWriter : public engine::Writer {
 public:
  ServedWriter(engine::Writer* inner, Server& server) : inner_(inner), server_(server) {}

  Edges edges() const override { return inner_->edges(); }
  Status reserve(engine::Room room) override { return server_.ask(), inner_->reserve(room); }
  Status sync_name() override { return server_.ask(), inner_->sync_name(); }
  Status commit(bool durable) override { return server_.ask(), inner_->commit(durable); }
  Status abort() override { return server_.ask(), inner_->abort(); }

 private:
  engine::Writer* const inner_;
  Server& server_;
};

class ServedStore : public files::FileStore {
 public:
  ServedStore(files::OpenedFile&& file, std::shared_ptr<Server> server)
      : FileStore(std::move(file)), server_(std::move(server)), writer_(FileStore::writer(), *server_) {}
  Result<engine::State> state() const override { return server_->ask(), FileStore::state(); }
  engine::Writer* writer() override { return info_.writable ? &writer_ : nullptr; }

 private:
  const std::shared_ptr<Server> server_;
  ServedWriter writer_;
};

class ServedEngine : public OverPosix {
 public:
  explicit ServedEngine(std::shared_ptr<Server> server) : server_(std::move(server)) {
    description_.may_wait = is_served;
  }

  const engine::Description& description() const override { return description_; }
  Result<std::unique_ptr<engine::Store>> open(const std::string& name, const OpenOptions& options) override {
    if (!is_served(name)) return OverPosix::open(name, options);
    server_->ask();
    auto file = files::open_file(name, options);
    if (!file) return std::move(file).error();
    file->info.locality = Locality::network;
    file->info.direct = false;
    file->direct = server_->take_lingering();
    return std::unique_ptr<engine::Store>(std::make_unique<ServedStore>(std::move(*file), server_));
  }

 private:
  static bool is_served(const std::string& name) {
    return std::filesystem::path(name).filename().string().starts_with("served");
  }

  const std::shared_ptr<Server> server_;
  engine::Description description_ = OverPosix::description();
};

// The server answers questions about the file with ELOOP.
inline void make_unknowable(const std::filesystem::path& file) {
  std::filesystem::rename(file, file.string() + ".kept");
  std::filesystem::create_symlink(file.filename(), file);
}
// What a request says that asked about it: the answer, in these words.
inline void expect_unknowable(const Report& report, const std::string& words) {
  EXPECT_EQ(report.outcome, Outcome::failed);
  ASSERT_TRUE(report.error);
  EXPECT_EQ(report.error->code, system_error(ELOOP, "").code);
  EXPECT_EQ(report.error->system_error, ELOOP);
  EXPECT_NE(report.error->message.find(words), std::string::npos) << report.error->message;
}

}  // namespace penstock::test

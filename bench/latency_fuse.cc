// latency_fuse MOUNTPOINT: a read-only file system with one file, "data", each read of which is answered a fixed time
// after it was asked, however many are waiting: a network mount with latency and no limit of its own.
//
// Reads are queued by the threads of libfuse and answered by a few threads of ours when they are due, so a waiting
// read holds no thread. The content (content.h) is kept in memory, so that an answer costs one copy.
#include <csignal>
#define FUSE_USE_VERSION 312
#include <fuse3/fuse_lowlevel.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <iostream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "arguments.h"
#include "content.h"
#include "rounds.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr fuse_ino_t file_inode = 2;
constexpr const char* file_name = "data";
constexpr double attribute_seconds = 3600;

struct Settings {
  std::string mountpoint;
  std::uint64_t size_bytes = 256 << 20;
  double latency_ms = 5;
  bool direct_io = false;
};

class Answers {
 public:
  explicit Answers(const Settings& settings)
      : latency_(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(settings.latency_ms / 1e3))),
        memory_(settings.size_bytes),
        content_(memory_.bytes().first(settings.size_bytes)) {
    bench::fill_content(0, content_);
    const unsigned count = std::clamp(std::thread::hardware_concurrency(), 2U, 8U);
    for (unsigned i = 0; i < count; ++i) threads_.emplace_back([this] { answer_when_due(); });
  }

  ~Answers() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
  }

  void enqueue(fuse_req_t request, std::uint64_t offset, std::size_t size_bytes) {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back({request, offset, size_bytes, Clock::now() + latency_});
    }
    changed_.notify_one();
  }

 private:
  struct Waiting {
    fuse_req_t request;
    std::uint64_t offset;
    std::size_t size_bytes;
    Clock::time_point due;
  };

  // The latency is the same for all, so the queue is in the order in which they are due.
  void answer_when_due() {
    std::unique_lock lock(mutex_);
    while (!closing_) {
      if (waiting_.empty()) {
        changed_.wait(lock);
      } else if (waiting_.front().due > Clock::now()) {
        changed_.wait_until(lock, waiting_.front().due);
      } else {
        const Waiting next = waiting_.front();
        waiting_.pop_front();
        lock.unlock();
        answer(next);
        lock.lock();
      }
    }
  }

  void answer(const Waiting& read) const {
    const std::uint64_t begin = std::min<std::uint64_t>(read.offset, content_.size());
    const std::size_t length = std::min<std::uint64_t>(read.size_bytes, content_.size() - begin);
    fuse_reply_buf(read.request, reinterpret_cast<const char*>(content_.data() + begin), length);
  }

  const Clock::duration latency_;
  bench::Memory memory_;
  const std::span<std::byte> content_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Waiting> waiting_;
  bool closing_ = false;
  std::vector<std::jthread> threads_;  // last: they use all of the above
};

struct FileSystem {
  Settings settings;
  Answers answers{settings};
};

FileSystem& file_system(fuse_req_t request) {
  return *static_cast<FileSystem*>(fuse_req_userdata(request));
}

struct stat attributes(fuse_req_t request, fuse_ino_t inode) {
  struct stat status {};
  status.st_ino = inode;
  if (inode == FUSE_ROOT_ID) {
    status.st_mode = S_IFDIR | 0755;
    status.st_nlink = 2;
  } else {
    status.st_mode = S_IFREG | 0444;
    status.st_nlink = 1;
    status.st_size = static_cast<off_t>(file_system(request).settings.size_bytes);
  }
  return status;
}

void initialize(void*, fuse_conn_info* connection) {
  // The largest requests the kernel makes, and as many as the reader wants: the depth is the reader's choice here.
  connection->max_write = 1 << 20;
  connection->max_background = 4096;
  connection->congestion_threshold = 4096;
}

void look_up(fuse_req_t request, fuse_ino_t parent, const char* name) {
  if (parent != FUSE_ROOT_ID || std::strcmp(name, file_name) != 0) {
    fuse_reply_err(request, ENOENT);
    return;
  }
  fuse_entry_param entry{};
  entry.ino = file_inode;
  entry.attr = attributes(request, file_inode);
  entry.attr_timeout = attribute_seconds;
  entry.entry_timeout = attribute_seconds;
  fuse_reply_entry(request, &entry);
}

void get_attributes(fuse_req_t request, fuse_ino_t inode, fuse_file_info*) {
  const struct stat status = attributes(request, inode);
  fuse_reply_attr(request, &status, attribute_seconds);
}

void open_file(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file) {
  if (inode != file_inode) {
    fuse_reply_err(request, EISDIR);
  } else if ((file->flags & O_ACCMODE) != O_RDONLY) {
    fuse_reply_err(request, EROFS);
  } else {
    file->direct_io = file_system(request).settings.direct_io;
    file->keep_cache = 1;
    fuse_reply_open(request, file);
  }
}

void read_file(fuse_req_t request, fuse_ino_t, std::size_t size_bytes, off_t offset, fuse_file_info*) {
  file_system(request).answers.enqueue(request, static_cast<std::uint64_t>(offset), size_bytes);
}

int serve(FileSystem& state) {
  fuse_lowlevel_ops operations{};
  operations.init = initialize;
  operations.lookup = look_up;
  operations.getattr = get_attributes;
  operations.open = open_file;
  operations.read = read_file;

  std::string program = "latency_fuse";
  std::string option = "-o";
  std::string values = "ro,fsname=latency_fuse,subtype=latency_fuse";
  char* words[] = {program.data(), option.data(), values.data(), nullptr};
  fuse_args arguments = FUSE_ARGS_INIT(3, words);
  fuse_session* session = fuse_session_new(&arguments, &operations, sizeof operations, &state);
  if (session == nullptr) bench::fail("libfuse refuses the session");
  fuse_set_signal_handlers(session);
  if (fuse_session_mount(session, state.settings.mountpoint.c_str()) != 0) {
    bench::fail("can't mount on " + state.settings.mountpoint);
  }
  std::cout << "{\"mounted\": true}" << std::endl;
  fuse_loop_config* configuration = fuse_loop_cfg_create();
  fuse_loop_cfg_set_clone_fd(configuration, 1);
  fuse_loop_cfg_set_max_threads(configuration, 16);
  const int result = fuse_session_loop_mt(session, configuration);
  fuse_loop_cfg_destroy(configuration);
  fuse_session_unmount(session);
  fuse_remove_signal_handlers(session);
  fuse_session_destroy(session);
  fuse_opt_free_args(&arguments);
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  bench::Arguments arguments("Serves one file whose reads take a fixed time, until it is unmounted or told to end.");
  arguments.add("mountpoint", settings.mountpoint).required();
  arguments.add("--size", settings.size_bytes).positive();
  arguments.add("--latency-ms", settings.latency_ms).between(0, 1e6);
  arguments.add_flag("--direct-io", settings.direct_io, "no page cache");
  arguments.parse(argc, argv);
  FileSystem state{settings};
  return serve(state) < 0 ? 1 : 0;
}

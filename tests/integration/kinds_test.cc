// Kinds of records, as a program adds, appends and reads them.
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <numeric>
#include <random>
#include <thread>

#include "base/test_syncs.h"
#include "integration/context_fixture.h"
#include "integration/machine.h"
#include "support/other_user.h"
#include "support/support.h"

namespace penstock::test {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t record_bytes = 300;  // of no alignment

class KindsOfRecords : public ContextTest {
 protected:
  // Records that say which they are.
  static std::vector<std::byte> records(std::uint64_t first, std::uint64_t count, std::uint64_t seed = 1) {
    return content(seed, first * record_bytes, count * record_bytes);
  }
  static Result<std::uint64_t> append(const Kinds& kinds, std::uint32_t kind, std::uint64_t first, std::uint64_t count,
                                      std::uint64_t seed = 1) {
    auto bytes = records(first, count, seed);
    return kinds.append(kind, Region::host(bytes.data(), bytes.size()));
  }
  static testing::AssertionResult has(const Kinds& kinds, const Records& wanted, std::uint64_t seed = 1) {
    const auto loaded = kinds.read(wanted, Domain::host());
    if (!loaded) return testing::AssertionFailure() << loaded.error().message;
    return holds_content({loaded->buffer.data(), loaded->buffer.size_bytes()}, seed, wanted.index * record_bytes);
  }

  const std::string path_ = folder_.path("records.bin");
  Context context_ = make_context();
};

// What a dictionary and its store go through, wherever the store is.
void is_written_and_read(const Context& context, const std::string& store, const KindsOptions& options) {
  const auto made = Kinds::create(context, store, options);
  ASSERT_TRUE(made) << made.error().message;
  const auto one = made->add({.name = "one", .capacity = 1000, .record_bytes = record_bytes});
  ASSERT_TRUE(one) << one.error().message;
  const auto two = made->add({.name = "two", .capacity = 50, .type = "F32", .shape = {25, 3}});
  ASSERT_TRUE(two) << two.error().message;
  ASSERT_EQ(two->record_bytes, record_bytes);
  auto some = content(1, 0, 40 * record_bytes);
  auto others = content(2, 0, 50 * record_bytes);
  for (int i = 0; i < 4; ++i) {
    const auto first = made->append(one->id, Region::host(some.data() + i * 10 * record_bytes, 10 * record_bytes));
    ASSERT_TRUE(first) << first.error().message;
    EXPECT_EQ(*first, 10U * i);
  }
  ASSERT_TRUE(made->append(two->id, Region::host(others.data(), others.size())).ok());

  const Kinds kinds = Kinds::open(context, store, options).value();
  EXPECT_EQ(kinds.find("one")->records, 40U);
  auto memory = context.allocate(Domain::host(), 4 * record_bytes).value();
  const RecordsRead reads[] = {{{one->id, 39}, memory.region().part(0, record_bytes)},
                               {{two->id, 0, 2}, memory.region().part(record_bytes, 2 * record_bytes)},
                               {{one->id, 0}, memory.region().part(3 * record_bytes, record_bytes)}};
  const Report report = kinds.read(reads);
  ASSERT_TRUE(report.ok()) << message_of(report);
  EXPECT_TRUE(holds_content({memory.data(), record_bytes}, 1, 39 * record_bytes));
  EXPECT_TRUE(holds_content({memory.data() + record_bytes, 2 * record_bytes}, 2, 0));
  EXPECT_TRUE(holds_content({memory.data() + 3 * record_bytes, record_bytes}, 1, 0));
  const auto gathered = kinds.rows(two->id)->gather(std::vector{49, 3, 49}, Domain::host());
  ASSERT_TRUE(gathered) << gathered.error().message;
  EXPECT_TRUE(holds_content({gathered->buffer.data(), record_bytes}, 2, 49 * record_bytes));
  EXPECT_TRUE(holds_content({gathered->buffer.data() + record_bytes, record_bytes}, 2, 3 * record_bytes));
}

TEST_F(KindsOfRecords, are_written_and_read_in_a_file_with_its_dictionary_beside_it) {
  is_written_and_read(context_, path_, {});
  EXPECT_TRUE(std::filesystem::exists(path_ + ".kinds.json"));
  const auto text = read_file(path_ + ".kinds.json");
  EXPECT_EQ(Kinds::parse({reinterpret_cast<const char*>(text.data()), text.size()})->size(), 2U);
}

TEST_F(KindsOfRecords, are_written_and_read_in_an_nvme_namespace) {
  ASSERT_TRUE(write_sparse_file(folder_.path("disk.img"), 1 << 20));
  const std::string name = "soft-nvme:" + folder_.path("disk.img");
  EXPECT_EQ(Kinds::create(context_, name).error().code, Code::invalid_argument);
  is_written_and_read(context_, name, {.dictionary = folder_.path("disk.json"), .writing = {}});
}

TEST_F(KindsOfRecords, are_written_and_read_in_a_block_device) {
  ASSERT_TRUE(write_sparse_file(folder_.path("image"), 1 << 20));
  const AttachedLoop device(folder_.path("image"), "--sector-size 512");
  if (!device.refusal().empty()) SKIP_OUTSIDE_CI(device.refusal());
  EXPECT_EQ(Kinds::create(context_, device.path()).error().code, Code::invalid_argument);
  const std::string dictionary = folder_.path("device.json");
  is_written_and_read(context_, device.path(),
                      {.dictionary = dictionary, .writing = {.allow_block_device_write = true}});
  const Kinds kinds = Kinds::open(context_, device.path(), {.dictionary = dictionary, .writing = {}}).value();
  EXPECT_EQ(kinds.block_bytes(), 512U);
  auto bytes = records(0, 1);
  EXPECT_EQ(kinds.append(1, Region::host(bytes.data(), bytes.size())).error().code, Code::read_only);
  EXPECT_EQ(kinds.add({.name = "large", .capacity = 2 << 20, .record_bytes = 1}).error().code, Code::out_of_range);
}

TEST_F(KindsOfRecords, are_written_and_read_in_a_store_that_a_scheme_opens) {
  const std::string path = folder_.path("elsewhere");
  write_file(path, {});
  ASSERT_TRUE(
      context_
          .add_scheme("far", [&](std::string_view, const OpenOptions& options) { return context_.open(path, options); })
          .ok());
  is_written_and_read(context_, "far:records", {.dictionary = folder_.path("far.json"), .writing = {}});
}

TEST_F(KindsOfRecords, lie_in_data_that_was_there_before) {
  write_file(path_, content(1, 0, 10 * record_bytes));
  const Kinds kinds = Kinds::create(context_, path_).value();
  const Kind old =
      kinds.add({.name = "old", .start_byte = 0, .capacity = 10, .record_bytes = record_bytes, .records = 10}).value();
  EXPECT_TRUE(has(kinds, {old.id, 3, 7}));
  const Kind more = kinds.add({.name = "more", .capacity = 10, .record_bytes = record_bytes}).value();
  EXPECT_EQ(more.start_byte, 4096U);
  EXPECT_GE(std::filesystem::file_size(path_), 4096U + 10 * record_bytes);
  EXPECT_TRUE(has(kinds, {old.id, 0, 10}));
}

TEST_F(KindsOfRecords, are_not_said_to_be_there_where_the_store_ends_before_them) {
  const Kinds kinds = Kinds::create(context_, path_).value();
  const NewKind old{.name = "old", .start_lba = 8, .capacity = 10, .record_bytes = record_bytes, .records = 10};
  const auto on_nothing = kinds.add(old);
  EXPECT_EQ(on_nothing.error().code, Code::out_of_range);
  EXPECT_EQ(on_nothing.error().message, "kind \"old\": its 10 records would end at byte 7096, and " + path_ + " has 0");
  EXPECT_EQ(std::filesystem::file_size(path_), 0U);
  std::filesystem::resize_file(path_, 4096 + 10 * record_bytes - 1);
  EXPECT_EQ(kinds.add(old).error().code, Code::out_of_range);
  EXPECT_EQ(kinds.add({.name = "behind", .capacity = 1, .record_bytes = 1, .records = 1}).error().code,
            Code::out_of_range);
  EXPECT_TRUE(kinds.list().empty());
  std::filesystem::resize_file(path_, 4096 + 10 * record_bytes);
  EXPECT_TRUE(kinds.add(old).ok());
}

TEST_F(KindsOfRecords, are_seen_by_readers_that_were_there_before_them) {
  const Kinds writer = Kinds::create(context_, path_).value();
  const Kinds reader = Kinds::open(context_, path_).value();
  const Kind kind = writer.add({.name = "kind", .capacity = 20'000, .record_bytes = record_bytes}).value();
  EXPECT_EQ(reader.find("kind").value(), kind);
  EXPECT_EQ(reader.read({kind.id, 0}, Domain::host()).error().code, Code::out_of_range);
  ASSERT_TRUE(append(writer, kind.id, 0, 5).ok());
  EXPECT_TRUE(has(reader, {kind.id, 0, 5}));

  // A file that is replaced, as whoever moves it to another disk does.
  std::filesystem::copy(path_, path_ + ".new");
  std::filesystem::rename(path_ + ".new", path_);
  ASSERT_TRUE(append(writer, kind.id, 5, 5).ok());
  EXPECT_TRUE(has(reader, {kind.id, 0, 10}));
}

TEST_F(KindsOfRecords, are_read_while_others_are_appended) {
  const Kinds writer = Kinds::create(context_, path_).value();
  const Kind kind = writer.add({.name = "kind", .capacity = 20'000, .record_bytes = record_bytes}).value();
  ASSERT_TRUE(append(writer, kind.id, 0, 8000).ok());
  const Kinds reader = Kinds::open(context_, path_).value();
  const Rows rows = reader.rows(kind.id).value();
  std::atomic<bool> stop = false;
  std::thread appending([&] {
    for (std::uint64_t at = 8000; !stop && at + 10 <= 20'000; at += 10) {
      if (const auto done = append(writer, kind.id, at, 10); !done) {
        ADD_FAILURE() << done.error().message;
        break;
      }
    }
  });
  std::vector<std::uint32_t> numbers(8000);
  std::iota(numbers.begin(), numbers.end(), 0U);
  auto memory = context_.allocate(Domain::host(), 8000 * record_bytes).value();
  for (int i = 0; i < 20; ++i) {  // each is long enough to be compared with what the file was
    EXPECT_TRUE(has(reader, {kind.id, 0, 8000}));
    const RowsReport report = rows.gather(numbers, memory.region());
    EXPECT_TRUE(report.ok()) << (report.error ? report.error->message : "");
    EXPECT_TRUE(holds_content({memory.data(), memory.size_bytes()}, 1, 0));
  }
  stop = true;
  appending.join();
}

TEST_F(KindsOfRecords, of_many_writers_come_one_behind_the_other) {
  constexpr int writers = 4, appends = 10;
  const Kind kind =
      Kinds::create(context_, path_)->add({.name = "kind", .capacity = writers * appends, .record_bytes = 8}).value();
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < writers; ++i) {
    threads.emplace_back([&, i] {
      const Kinds kinds = Kinds::open(context_, path_).value();
      for (int k = 0; k < appends; ++k) {
        std::uint64_t record = i;
        const auto first = kinds.append(kind.id, Region::host(&record, 8));
        EXPECT_TRUE(first) << first.error().message;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto loaded = Kinds::open(context_, path_)->read({kind.id, 0, writers * appends}, Domain::host()).value();
  std::array<int, writers> seen{};
  for (int i = 0; i < writers * appends; ++i) {
    std::uint64_t record = 0;
    std::memcpy(&record, loaded.buffer.data() + 8 * i, 8);
    ASSERT_LT(record, writers);
    ++seen[record];
  }
  for (const int each : seen) EXPECT_EQ(each, appends);
}

TEST_F(KindsOfRecords, are_not_appended_while_another_writer_has_the_dictionary) {
  const KindsOptions impatient{.writing = {}, .lock_seconds = 0.05};
  const Kinds kinds = Kinds::create(context_, path_, impatient).value();
  const Kind kind = kinds.add({.name = "kind", .capacity = 10, .record_bytes = record_bytes}).value();
  const int fd = ::open((kinds.dictionary() + ".lock").c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  const auto refused = append(kinds, kind.id, 0, 1);
  EXPECT_EQ(refused.error().code, Code::in_use);
  const std::string holder = "process " + std::to_string(::getpid()) + " of user " + std::to_string(::geteuid());
  EXPECT_NE(refused.error().message.find(holder), std::string::npos) << refused.error().message;
  EXPECT_EQ(kinds.remove(kind.id).error().code, Code::in_use);
  ::close(fd);
  EXPECT_TRUE(append(kinds, kind.id, 0, 1).ok());
}

TEST_F(KindsOfRecords, are_appended_whatever_is_locked_by_who_may_only_read) {
  if (::geteuid() != 0) GTEST_SKIP() << "takes root, for a second user";
  fs::permissions(folder_.path("."), fs::perms(0755));
  const Kinds kinds = Kinds::create(context_, path_, {.writing = {}, .lock_seconds = 0.05}).value();
  const Kind kind = kinds.add({.name = "kind", .capacity = 10, .record_bytes = record_bytes}).value();
  fs::permissions(kinds.dictionary(), fs::perms(0644));
  int locked[2] = {};
  ASSERT_EQ(::pipe(locked), 0);
  const pid_t stranger = ::fork();
  if (stranger == 0) {
    if (!become_another_user()) ::_exit(1);
    for (const std::string& name : {path_, kinds.dictionary(), kinds.dictionary() + ".lock", folder_.path(".")}) {
      static_cast<void>(::flock(::open(name.c_str(), O_RDONLY | O_CLOEXEC), LOCK_EX | LOCK_NB));
    }
    if (::write(locked[1], "x", 1) == 1) ::pause();
    ::_exit(1);
  }
  char byte = 0;
  EXPECT_EQ(::read(locked[0], &byte, 1), 1);
  for (std::uint64_t i = 0; i < 3; ++i) EXPECT_TRUE(append(kinds, kind.id, i, 1).ok());
  EXPECT_TRUE(Kinds::open(context_, path_)->add({.name = "more", .capacity = 10, .record_bytes = 8}).ok());
  EXPECT_TRUE(Kinds::create(context_, folder_.path("others.bin")).ok());
  ::kill(stranger, SIGKILL);
  EXPECT_EQ(::waitpid(stranger, nullptr, 0), stranger);
  for (const int end : locked) ::close(end);
}

// The lock of a dictionary is for those who may write to that.
TEST_F(KindsOfRecords, are_locked_by_a_file_that_only_writers_may_open) {
  if (::geteuid() != 0) GTEST_SKIP() << "takes root, for a second user";
  const Kinds kinds = Kinds::create(context_, path_).value();
  const Kind kind = kinds.add({.name = "kind", .capacity = 10, .record_bytes = record_bytes}).value();
  const std::string lock = kinds.dictionary() + ".lock";
  EXPECT_EQ(fs::status(lock).permissions(), fs::perms(0600));
  fs::permissions(kinds.dictionary(), fs::perms(0664));
  ASSERT_EQ(::chown(kinds.dictionary().c_str(), another_user, another_user), 0);
  fs::remove(lock);  // as of a dictionary from before there were such files
  ASSERT_TRUE(append(kinds, kind.id, 0, 1).ok());
  struct stat status = {};
  ASSERT_EQ(::stat(lock.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0660U);
  EXPECT_EQ(status.st_uid, another_user) << "his own appends need it";
  EXPECT_EQ(status.st_gid, another_user);
}

TEST_F(KindsOfRecords, are_not_locked_by_a_file_that_is_something_else) {
  if (::geteuid() != 0) GTEST_SKIP() << "takes root, for a second user";
  const Kinds kinds = Kinds::create(context_, path_).value();
  const Kind kind = kinds.add({.name = "kind", .capacity = 10, .record_bytes = record_bytes}).value();
  const std::string lock = kinds.dictionary() + ".lock";
  const std::string secret = folder_.path("secret");
  std::ofstream(secret) << "mine";
  fs::permissions(secret, fs::perms(0600));
  fs::permissions(kinds.dictionary(), fs::perms(0666));
  const auto refused = [&](const std::string& what) {
    const auto appended = append(kinds, kind.id, 0, 1);
    EXPECT_FALSE(appended.ok()) << what;
    EXPECT_EQ(fs::status(secret).permissions(), fs::perms(0600)) << what;
    fs::remove(lock);
    return appended ? Code::ok : appended.error().code;
  };
  fs::remove(lock);
  fs::create_symlink(secret, lock);
  refused("a link");
  fs::create_hard_link(secret, lock);
  EXPECT_EQ(refused("another file"), Code::permission_denied);
  fs::create_directory(lock);
  refused("a folder");
  ASSERT_EQ(::mkfifo(lock.c_str(), 0666), 0);
  EXPECT_EQ(refused("a pipe"), Code::permission_denied);
  // In a folder like /tmp it may be a stranger's.
  fs::permissions(folder_.path("."), fs::perms(01777));
  std::ofstream(lock).close();
  ASSERT_EQ(::chown(lock.c_str(), another_user, another_user), 0);
  EXPECT_EQ(refused("a stranger's"), Code::permission_denied);
  EXPECT_TRUE(append(kinds, kind.id, 0, 1).ok());
}

TEST_F(KindsOfRecords, that_could_not_be_made_leave_no_lock_behind) {
  EXPECT_FALSE(Kinds::create(context_, folder_.path("."), {.dictionary = folder_.path("kinds.json")}).ok());
  EXPECT_FALSE(fs::exists(folder_.path("kinds.json.lock")));
  ASSERT_TRUE(Kinds::create(context_, path_).ok());
  EXPECT_EQ(Kinds::create(context_, path_).error().system_error, EEXIST);
  EXPECT_TRUE(fs::exists(path_ + ".kinds.json.lock"));
}

TEST_F(KindsOfRecords, that_count_are_whole_whenever_their_writer_is_killed) {
  if (under_thread_sanitizer) GTEST_SKIP() << "the thread sanitizer does not follow a fork of several threads";
  const std::uint32_t kind =
      Kinds::create(context_, path_)->add({.name = "kind", .capacity = 100'000, .record_bytes = record_bytes})->id;
  std::mt19937_64 random(24);
  std::uint64_t before = 0;
  for (int round = 0; round < 8; ++round) {
    int started[2] = {};
    ASSERT_EQ(::pipe(started), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      auto context = Context::create({.lanes = 1});
      const auto kinds = Kinds::open(*context, path_);
      if (!kinds || ::write(started[1], "x", 1) != 1) ::_exit(1);
      for (std::uint64_t at = kinds->find(kind)->records;; at += 7) {
        if (!append(*kinds, kind, at, 7)) ::_exit(1);
      }
    }
    char byte = 0;
    ASSERT_EQ(::read(started[0], &byte, 1), 1);
    ::close(started[0]);
    ::close(started[1]);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 40'000));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "it ended by itself with " << WEXITSTATUS(status);

    const Kinds kinds = Kinds::open(context_, path_).value();
    const std::uint64_t now = kinds.find(kind)->records;
    EXPECT_GE(now, before);
    EXPECT_EQ((now - round) % 7, 0U);
    EXPECT_TRUE(has(kinds, {kind, 0, now}));
    ASSERT_TRUE(append(kinds, kind, now, 1).ok());  // nobody has to clean up first
    before = now + 1;
  }
}

TEST_F(KindsOfRecords, count_all_together_or_not_at_all) {
  const Kinds kinds = Kinds::create(context_, path_).value();
  const Kind one = kinds.add({.name = "one", .capacity = 10, .record_bytes = record_bytes}).value();
  const Kind two = kinds.add({.name = "two", .capacity = 1, .record_bytes = record_bytes}).value();
  auto bytes = records(0, 2);
  const Region both = Region::host(bytes.data(), bytes.size()), first = both.part(0, record_bytes),
               second = both.part(record_bytes, record_bytes);
  const RecordsAppend too_many[] = {{one.id, first}, {two.id, both}};
  EXPECT_EQ(kinds.append(too_many).error().code, Code::no_space);
  EXPECT_EQ(kinds.find(one.id)->records, 0U);
  const RecordsAppend fitting[] = {{one.id, first}, {two.id, first}, {one.id, second}};
  EXPECT_EQ(kinds.append(fitting).value(), (std::vector<std::uint64_t>{0, 0, 1}));
  EXPECT_TRUE(has(kinds, {one.id, 0, 2}));
  EXPECT_EQ(kinds.append(one.id, Region::host(bytes.data(), record_bytes + 1)).error().code, Code::invalid_argument);
  EXPECT_EQ(kinds.append(one.id, Region::host(bytes.data(), 0)).value(), 2U);
  EXPECT_EQ(kinds.append(77, first).error().code, Code::not_found);
}

TEST_F(KindsOfRecords, are_refused_before_a_byte_moves_where_there_are_none) {
  const Kinds kinds = Kinds::create(context_, path_).value();
  const Kind kind = kinds.add({.name = "kind", .capacity = 10, .record_bytes = record_bytes}).value();
  ASSERT_TRUE(append(kinds, kind.id, 0, 3).ok());
  std::vector<std::byte> memory(4 * record_bytes);
  const auto code = [&](const Records& wanted, std::uint64_t bytes) {
    const Report report = kinds.read(wanted, Region::host(memory.data(), bytes));
    return report.error ? report.error->code : Code::ok;
  };
  EXPECT_EQ(code({kind.id, 0, 4}, 4 * record_bytes), Code::out_of_range);
  EXPECT_EQ(code({kind.id, 4, 0}, 0), Code::out_of_range);
  EXPECT_EQ(code({kind.id, 3, 0}, 0), Code::ok);
  EXPECT_EQ(code({kind.id, UINT64_MAX, 2}, 2 * record_bytes), Code::out_of_range);
  EXPECT_EQ(code({kind.id, 1, UINT64_MAX}, 2 * record_bytes), Code::out_of_range);
  EXPECT_EQ(code({kind.id, 0, 2}, record_bytes), Code::invalid_argument);
  EXPECT_EQ(code({9, 0, 1}, record_bytes), Code::not_found);
  EXPECT_EQ(kinds.read({kind.id, 0, UINT64_MAX}, Domain::host()).error().code, Code::out_of_range);
  EXPECT_EQ(Kinds().read({1, 0, 1}, Domain::host()).error().code, Code::invalid_argument);
  EXPECT_TRUE(std::ranges::all_of(memory, [](std::byte each) { return each == std::byte{}; }));
}

TEST_F(KindsOfRecords, are_not_appended_inside_a_callback) {
  const Kinds kinds = Kinds::create(context_, path_).value();
  const Kind kind = kinds.add({.name = "kind", .capacity = 10, .record_bytes = record_bytes}).value();
  const Store store = context_.open(path_).value();
  std::array<std::byte, 1> byte{};
  std::promise<Error> told;
  const Ticket ticket =
      submit_read(context_, store, Region::host(byte.data(), 1),
                  {.on_end = [&](const Report&) { told.set_value(append(kinds, kind.id, 0, 1).error()); }});
  const Error error = told.get_future().get();
  EXPECT_EQ(error.code, Code::would_deadlock);
  EXPECT_EQ(error.hint, "append on a thread of your own");
  EXPECT_TRUE(append(kinds, kind.id, 0, 1).ok());
}

TEST_F(KindsOfRecords, need_a_dictionary_that_fits_their_store) {
  EXPECT_EQ(Kinds::open(context_, path_).error().code, Code::not_found);
  const Kinds kinds = Kinds::create(context_, path_).value();
  EXPECT_EQ(Kinds::create(context_, path_).error().code, Code::in_use);
  const Kind kind = kinds.add({.name = "kind", .capacity = 10, .record_bytes = record_bytes}).value();
  ASSERT_TRUE(append(kinds, kind.id, 0, 3).ok());
  std::filesystem::resize_file(path_, 10 * record_bytes - 1);
  EXPECT_EQ(Kinds::open(context_, path_).error().code, Code::out_of_range);
  EXPECT_EQ(append(kinds, kind.id, 3, 1).error().code, Code::out_of_range);
  std::ofstream(kinds.dictionary()) << "{\"schema\": \"penstock.kinds/1\"";
  const auto broken = Kinds::open(context_, path_);
  EXPECT_EQ(broken.error().code, Code::invalid_argument);
  EXPECT_NE(broken.error().message.find("records.bin.kinds.json"), std::string::npos) << broken.error().message;
}

TEST_F(KindsOfRecords, do_not_lie_in_their_dictionary) {
  const std::string other = folder_.path("link") + "/records.bin";
  std::filesystem::create_directory_symlink(folder_.path("."), folder_.path("link"));
  std::filesystem::create_symlink("records.bin", folder_.path("dangling"));
  for (const std::string& name : {path_, other, folder_.path("dangling")}) {
    EXPECT_EQ(Kinds::create(context_, name, {.dictionary = path_}).error().code, Code::invalid_argument) << name;
    EXPECT_EQ(Kinds::create(context_, path_, {.dictionary = name}).error().code, Code::invalid_argument) << name;
    EXPECT_FALSE(std::filesystem::exists(path_));
  }
  const std::string dictionary = folder_.path("dictionary");
  ASSERT_TRUE(Kinds::create(context_, path_, {.dictionary = dictionary}));
  std::filesystem::create_hard_link(dictionary, folder_.path("hard"));
  for (const std::string& name : {dictionary, folder_.path("hard"), "file:" + dictionary}) {
    const auto kinds = Kinds::open(context_, name, {.dictionary = dictionary});
    EXPECT_EQ(kinds.error().code, Code::invalid_argument) << name;
    EXPECT_NE(kinds.error().message.find("both the dictionary and the store"), std::string::npos);
  }
  EXPECT_EQ(Kinds::create(context_, folder_.path("new"), {.dictionary = dictionary}).error().code, Code::in_use);
  EXPECT_FALSE(std::filesystem::exists(folder_.path("new")));
}

TEST_F(KindsOfRecords, of_a_kind_that_was_removed_are_not_taken_for_those_of_the_next) {
  const Kinds kinds = Kinds::create(context_, path_).value();
  const Kind kind = kinds.add({.name = "kind", .capacity = 10, .record_bytes = record_bytes}).value();
  const Kinds before = Kinds::open(context_, path_).value();
  ASSERT_TRUE(kinds.remove(kind.id).ok());
  const Kind next = kinds.add({.name = "next", .capacity = 10, .record_bytes = record_bytes}).value();
  EXPECT_NE(next.id, kind.id);
  EXPECT_EQ(append(before, kind.id, 0, 1).error().code, Code::not_found);
  // Also where somebody chose the same id.
  ASSERT_TRUE(kinds.remove(next.id).ok());
  const Kind same = kinds.add({.name = "same", .id = kind.id, .capacity = 600, .record_bytes = 1}).value();
  ASSERT_TRUE(append(kinds, same.id, 0, 1).ok());
  EXPECT_EQ(append(before, kind.id, 0, 1).error().code, Code::changed);
  EXPECT_EQ(kinds.find(same.id)->records, record_bytes);
  const Kinds other = before;
  EXPECT_EQ(other.read({kind.id, 40, 5}, Domain::host()).error().code, Code::changed);
}

TEST_F(KindsOfRecords, leave_their_bytes_where_they_are_when_a_kind_is_removed) {
  const Kinds kinds = Kinds::create(context_, path_).value();
  const Kind kind = kinds.add({.name = "kind", .capacity = 10, .record_bytes = record_bytes}).value();
  ASSERT_TRUE(append(kinds, kind.id, 0, 3).ok());
  ASSERT_TRUE(kinds.remove(kind.id).ok());
  EXPECT_EQ(kinds.remove(kind.id).error().code, Code::not_found);
  EXPECT_TRUE(kinds.list().empty());
  const Kind again =
      kinds.add({.name = "again", .start_byte = 0, .capacity = 10, .record_bytes = record_bytes, .records = 3}).value();
  EXPECT_TRUE(has(kinds, {again.id, 0, 3}));
}

TEST_F(KindsOfRecords, records_are_synced_before_the_dictionary_counts_them) {
  options_.engine = "posix";  // a ring's syncs are the kernel's own
  Context context = make_context();
  const Kinds kinds = Kinds::create(context, path_).value();
  const Kind kind = kinds.add({.name = "a", .capacity = 10, .record_bytes = record_bytes}).value();
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  const auto syncs = syncs_of([&] { EXPECT_TRUE(append(kinds, kind.id, 0, 3).ok()); });
  const auto of_records = std::ranges::find(syncs, path_);
  const auto of_folder = std::ranges::find(syncs, folder);
  ASSERT_NE(of_records, syncs.end());
  ASSERT_NE(of_folder, syncs.end()) << "of the dictionary that takes the name";
  EXPECT_LT(of_records - syncs.begin(), of_folder - syncs.begin());
  // The dictionary counts though its name may be lost: that is told.
  syncs_of(
      [&] {
        const auto appended = append(kinds, kind.id, 3, 3);
        ASSERT_FALSE(appended.ok());
        EXPECT_EQ(appended.error().code, Code::not_durable) << appended.error().message;
      },
      folder);
  EXPECT_EQ(Kinds::open(context, path_)->find("a")->records, 6U);
}

}  // namespace
}  // namespace penstock::test

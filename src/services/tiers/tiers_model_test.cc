// Several processes at once on one catalog, compared with a model; and a process that is killed at any time.
#include <sys/mman.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "services/tiers/test_tiers.h"

namespace penstock::tiers {
namespace {

using namespace test;

constexpr int units_of_a_process = 6;
constexpr int processes = 3;
constexpr const char* tier_names[] = {"nvme", "ssd", "hdd"};

int number_from(const char* variable, int usual) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : usual;
}

std::string name_of(int process, int unit) {
  return "p" + std::to_string(process) + "/" + (unit % 2 == 0 ? "" : "deep/") + "u" + std::to_string(unit);
}

// Its length tells nothing, so that versions differ in size as well.
std::string version_of(const std::string& name, int version) {
  const std::size_t size = (std::hash<std::string>()(name) + static_cast<std::size_t>(version) * 7919) % 60000;
  return bytes_of(name, version, size);
}

// What lies under a name, of every process: 0: nothing. Shared with those that are forked.
struct Book {
  struct Page {
    std::atomic<int> begun;  // the version that was begun last
    std::atomic<int> known;  // the version that a call has vouched for
  };
  std::array<std::array<Page, units_of_a_process>, processes> pages;
};

class SharedBook {
 public:
  SharedBook() {
    memory_ = ::mmap(nullptr, sizeof(Book), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    book_ = new (memory_) Book();
  }
  ~SharedBook() { ::munmap(memory_, sizeof(Book)); }
  SharedBook(const SharedBook&) = delete;
  SharedBook& operator=(const SharedBook&) = delete;
  Book::Page& page(int process, int unit) {
    return book_->pages[static_cast<std::size_t>(process)][static_cast<std::size_t>(unit)];
  }

 private:
  void* memory_;
  Book* book_;
};

// One process: it writes and removes units of its own, moves and reads everyone's.
class Actor {
 public:
  Actor(const Folders& folders, SharedBook& book, int process, unsigned seed)
      : book_(book), process_(process), random_(seed), context_(*Context::create({.lanes = 1})) {
    auto opened = Tiers::open(folders.options());
    if (!opened || !opened->serve(context_)) fail("open", opened ? "serve" : opened.error().message);
    tiers_ = *opened;
  }

  void act() {
    const int unit = below(units_of_a_process);
    const std::string name = name_of(process_, unit);
    Book::Page& page = book_.page(process_, unit);
    switch (below(10)) {
      case 0:
      case 1:
        return write(name, page);
      case 2:
        if (page.known == 0) return write(name, page);
        if (below(3) == 0) return remove(name, page);
        return read(name, page);
      case 3:
        return read(name, page);
      case 4: {
        const auto report = tiers_.rebalance();
        if (!report) fail("rebalance", report.error().message);
        return;
      }
      default: {
        const std::string any = name_of(below(processes), below(units_of_a_process));
        const auto moved = tiers_.move(any, tier_names[below(3)]);
        if (moved) return;
        // Another process has it, has just removed it, or has replaced it meanwhile.
        const Code code = moved.error().code;
        if (code != Code::in_use && code != Code::not_found && code != Code::changed)
          fail("move", moved.error().message);
      }
    }
  }

 private:
  int below(int limit) { return static_cast<int>(random_() % static_cast<unsigned>(limit)); }

  [[noreturn]] static void fail(const char* what, const std::string& why) {
    std::fprintf(stderr, "%s: %s\n", what, why.c_str());
    ::_exit(1);
  }

  void write(const std::string& name, Book::Page& page) {
    const int version = page.begun + 1;
    page.begun = version;
    std::string bytes = version_of(name, version);
    auto store = context_.open("tier:" + name, {.access = Access::replace, .size_bytes = bytes.size()});
    if (!store) fail("open", store.error().message);
    if (!bytes.empty()) {
      const Report report = context_.write(*store, 0, Region::host(bytes.data(), bytes.size()));
      if (!report.ok()) fail("write", report.to_string());
    }
    if (const Status committed = store->commit(); !committed) fail("commit", committed.error().message);
    page.known = version;
  }

  void remove(const std::string& name, Book::Page& page) {
    page.known = 0;
    if (const Status removed = tiers_.remove(name); !removed) fail("remove", removed.error().message);
  }

  void read(const std::string& name, const Book::Page& page) {
    auto store = context_.open("tier:" + name);
    if (page.known == 0) {
      if (store) fail("read", name + " is there, and was removed");
      return;
    }
    if (!store) fail("read", store.error().message);
    std::string bytes(store->info().size_bytes, '\0');
    if (!bytes.empty() && !context_.read(*store, 0, Region::host(bytes.data(), bytes.size())).ok()) fail("read", name);
    if (bytes != version_of(name, page.known)) fail("read", name + " has other bytes than were written");
  }

  SharedBook& book_;
  const int process_;
  std::mt19937 random_;
  Context context_;
  Tiers tiers_;
};

pid_t start(const std::function<void()>& work) {
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child != 0) return child;
  work();
  ::_exit(0);
}

TEST(TiersModel, several_processes_agree_with_a_model) {
  const auto seed = static_cast<unsigned>(number_from("PENSTOCK_TIER_SEED", 1));
  const int operations = number_from("PENSTOCK_TIER_OPERATIONS", 40);
  const Folders folders;
  SharedBook book;
  { Tiers tiers = folders.create(); }
  std::vector<pid_t> children;
  for (int process = 0; process < processes; ++process) {
    children.push_back(start([&, process] {
      Actor actor(folders, book, process, seed * 100 + static_cast<unsigned>(process));
      for (int i = 0; i < operations; ++i) actor.act();
    }));
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "seed " << seed;
  }
  auto tiers = Tiers::open(folders.options());
  ASSERT_TRUE(tiers.ok());
  const auto checked = tiers->check({.bytes = true});
  ASSERT_TRUE(checked.ok());
  EXPECT_EQ(text_of(*checked), "") << "seed " << seed;
  std::size_t units = 0;
  for (int process = 0; process < processes; ++process) {
    for (int unit = 0; unit < units_of_a_process; ++unit) {
      const std::string name = name_of(process, unit);
      const int version = book.page(process, unit).known;
      const auto places = folders.where(name);
      ASSERT_EQ(places.size(), version == 0 ? 0U : 1U) << name << ", seed " << seed;
      if (version == 0) continue;
      ++units;
      EXPECT_EQ(tiers->find(name)->tier, places[0]) << name;
      EXPECT_EQ(read_file(folders.path(places[0] + "/" + name)), version_of(name, version))
          << name << ", seed " << seed;
    }
  }
  EXPECT_EQ(tiers->list()->size(), units);
  EXPECT_EQ(folders.aside(), std::vector<std::string>());
}

TEST(TiersModel, a_process_that_is_killed_at_any_time_loses_nothing) {
  const auto seed = static_cast<unsigned>(number_from("PENSTOCK_TIER_SEED", 1));
  const int kills = number_from("PENSTOCK_TIER_KILLS", 8);
  std::mt19937 random(seed);
  const Folders folders;
  SharedBook book;
  { Tiers tiers = folders.create(); }
  std::uint64_t repaired = 0;
  for (int kill = 0; kill < kills; ++kill) {
    const unsigned own = static_cast<unsigned>(random());
    const pid_t child = start([&] {
      Actor actor(folders, book, 0, own);
      for (;;) actor.act();
    });
    std::this_thread::sleep_for(std::chrono::microseconds(20000 + random() % 150000));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "kill " << kill << ", seed " << seed;
    auto tiers = Tiers::open(folders.options());
    ASSERT_TRUE(tiers.ok()) << text_of(tiers);
    const auto checked = tiers->check({.bytes = true});
    ASSERT_TRUE(checked.ok()) << text_of(checked);
    for (const TierFinding& finding : checked->findings) {
      EXPECT_TRUE(finding.repaired) << finding.path << ": " << finding.text << ", kill " << kill << ", seed " << seed;
      repaired += finding.repaired ? 1 : 0;
    }
    for (int unit = 0; unit < units_of_a_process; ++unit) {
      const std::string name = name_of(0, unit);
      Book::Page& page = book.page(0, unit);
      const auto places = folders.where(name);
      ASSERT_LE(places.size(), 1U) << name << ", kill " << kill << ", seed " << seed;
      if (places.empty()) {
        // Never committed, or removed: `known` is cleared before that begins.
        ASSERT_EQ(page.known, 0) << name << ", kill " << kill << ", seed " << seed;
        ASSERT_FALSE(tiers->find(name).ok());
        continue;
      }
      // The version that was vouched for, or the one that was on its way when the process died.
      const std::string content = read_file(folders.path(places[0] + "/" + name));
      int found = 0;
      for (int version = std::max(1, page.known.load()); version <= page.begun; ++version) {
        if (content == version_of(name, version)) found = version;
      }
      ASSERT_NE(found, 0) << name << ", kill " << kill << ", seed " << seed;
      page.known = found;
      ASSERT_EQ(tiers->find(name)->tier, places[0]);
    }
    ASSERT_EQ(folders.aside(), std::vector<std::string>()) << "kill " << kill << ", seed " << seed;
  }
  std::printf("%d kills, %llu changes finished or undone\n", kills, static_cast<unsigned long long>(repaired));
}

}  // namespace
}  // namespace penstock::tiers

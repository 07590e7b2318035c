// bench_open: opening and closing files for reading and for writing, and replacing one of many in a folder, each by
// Penstock and by the plain system calls: open, fstat, close; a temporary file that is written and renamed. Nothing is
// synced. The files vanish with the program.
#include <fcntl.h>
#include <penstock/penstock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "arguments.h"
#include "rounds.h"
#include "tally.h"

namespace {

using bench::Json;
using penstock::Access;

constexpr std::size_t file_bytes = 4096;
constexpr std::size_t opened_files = 64;

class Folder {
 public:
  Folder(const std::string& parent, std::uint64_t files) : path_(parent + "/penstock-bench-open-XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) bench::fail_errno("make a folder in " + parent);
    for (std::uint64_t i = 0; i < files; ++i) {
      const int descriptor = ::open(file(i).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
      if (descriptor < 0 || (i < opened_files && ::ftruncate(descriptor, file_bytes) != 0)) {
        bench::fail_errno("make " + file(i));
      }
      ::close(descriptor);
    }
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  std::string file(std::uint64_t number) const { return path_ + "/" + std::to_string(number); }

 private:
  std::string path_;
};

void open_plain(const std::string& name, int flags) {
  const int descriptor = ::open(name.c_str(), flags | O_CLOEXEC);
  struct stat status = {};
  if (descriptor < 0 || ::fstat(descriptor, &status) != 0) bench::fail_errno("open " + name);
  ::close(descriptor);
}

void replace_plain(const std::string& name, std::span<const std::byte> content) {
  const std::string temporary = name + ".new";
  const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  const bool written = descriptor >= 0 &&
                       ::pwrite(descriptor, content.data(), content.size(), 0) == static_cast<ssize_t>(content.size());
  if (!written) bench::fail_errno("write " + temporary);
  ::close(descriptor);
  if (::rename(temporary.c_str(), name.c_str()) != 0) bench::fail_errno("rename " + temporary);
}

void check(const penstock::Status& status) {
  if (!status.ok()) bench::fail(status.error().message);
}

void replace(const penstock::Context& context, const std::string& name, const bench::Memory& memory) {
  auto store = bench::value_of(context.open(name, {.access = Access::replace, .size_bytes = file_bytes}));
  const penstock::Range range{&store, 0, penstock::Region::host(memory.bytes().data(), file_bytes)};
  const penstock::Report report = context.transfer(penstock::Direction::write, {&range, 1});
  if (!report.ok()) bench::fail(report.error->message);
  check(store.commit(false));
}

}  // namespace

int main(int argc, char** argv) {
  std::string parent;
  std::uint64_t files = 50'000;
  bench::Arguments arguments("Opens and replaces small files; answers commands on its standard input.");
  arguments.add("folder", parent, "where files are made").required();
  arguments.add("--files", files, "in the folder").positive();
  arguments.parse(argc, argv);

  const Folder folder(parent, std::max<std::uint64_t>(files, opened_files));
  auto context = bench::context_with(2);
  const bench::Memory memory(file_bytes);
  std::vector<std::string> names;
  for (std::uint64_t i = 0; i < opened_files; ++i) names.push_back(folder.file(i));
  std::size_t next = 0;
  const auto name = [&]() -> const std::string& { return names[next++ % names.size()]; };

  // So many at once that the clock does not count.
  const auto repeat = [&](const auto& work, std::uint64_t at_once) {
    return [&, work, at_once](double seconds) {
      return bench::repeat(seconds, {0, at_once}, [&] {
        for (std::uint64_t i = 0; i < at_once; ++i) work();
      });
    };
  };
  const auto open = [&](Access access) { bench::value_of(context.open(name(), {.access = access})); };
  const auto check_content = [&](double) -> Json {
    std::fill_n(memory.bytes().begin(), file_bytes, std::byte{0x5a});
    const std::string& one = name();
    replace(context, one, memory);
    const std::string expected = bench::checksum_of(memory.bytes().first(file_bytes));
    std::array<std::byte, file_bytes> content{};
    const int descriptor = ::open(one.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0 || ::pread(descriptor, content.data(), file_bytes, 0) < 0) bench::fail_errno("read " + one);
    ::close(descriptor);
    return {{"checksum", bench::checksum_of(content)}, {"expected", expected}};
  };
  constexpr std::uint64_t opens = 100, replacements = 4;
  bench::converse(
      {{"version", penstock::version()}, {"file_system", bench::value_of(context.open(names[0])).info().file_system}},
      {{"read", repeat([&] { open(Access::read); }, opens)},
       {"plain-read", repeat([&] { open_plain(name(), O_RDONLY); }, opens)},
       {"write", repeat([&] { open(Access::write); }, opens)},
       {"plain-write", repeat([&] { open_plain(name(), O_RDWR); }, opens)},
       {"replace", repeat([&] { replace(context, name(), memory); }, replacements)},
       {"plain-replace", repeat([&] { replace_plain(name(), memory.bytes().first(file_bytes)); }, replacements)},
       {"check", check_content}});
}

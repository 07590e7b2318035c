// The engines that every conformance test runs over. A new engine is one line here, and writes no test of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engines/fault/engine.h"
#include "engines/nvme/engine.h"
#include "engines/posix/engine.h"
#include "engines/uring/engine.h"
#include "support/picky_engine.h"
#include "support/support.h"

namespace penstock::test {

// How tests make the stores of an engine and look at them, past the engine. Each store has a path of its own in a
// temporary folder, and as it stands here it is the file there. An engine whose stores are not files says how they are
// named, written and read. Stores of a fixed size may be larger than a test asks for; the bytes beyond are not looked
// at.
struct Stores {
  std::string scheme = {};  // with its colon, as it stands before a name; none: paths
  std::function<std::string(const std::string& path)> name_of = [](const std::string& path) { return path; };
  std::function<void(const std::string& path, std::span<const std::byte> bytes)> write = write_file;
  // False where there can't be a store of this size.
  std::function<bool(const std::string& path, std::uint64_t size_bytes)> write_zeros = write_sparse_file;
  std::function<std::vector<std::byte>(const std::string& path)> read = [](const auto& path) {
    return read_file(path);
  };
  // Whether they grow, shrink, are replaced and sit in the page cache as files do. The tests of that leave others out.
  bool are_files = true;
  // Whether the engine reaches what tests have in the way of memory: the tests of routes leave others out.
  bool in_reach = true;
  OpenOptions to_write = {.access = Access::write};
};

struct EngineCase {
  std::string name;
  std::function<std::unique_ptr<engine::Engine>()> make;
  Stores stores = {};
};

// Namespaces of a controller on the PCI bus, if PENSTOCK_CONFORMANCE_NVME names one (nvme_cases.cc); or nothing.
std::vector<EngineCase> nvme_cases();

inline std::vector<EngineCase> engine_cases() {
  using engine::HostReach;
  std::vector<EngineCase> cases{
      {"posix", [] { return posix::make_engine(); }},
      {"uring", [] { return uring::make_engine(); }},
      // Without faults a wrapped engine must behave as the engine itself, by whatever name its stores are opened.
      {"fault_over_posix", [] { return fault::make_engine(posix::make_engine(), {}); }, {.scheme = "file:"}},
      {"fault_over_uring", [] { return fault::make_engine(uring::make_engine(), {}); }},
      // A namespace behind a controller in software, which keeps its blocks in the file.
      {"soft_nvme",
       [] { return nvme::make_soft_engine(posix::make_engine()); },
       {.scheme = "soft-nvme:", .are_files = false}},
  };
  // Engines that can't reach all memory of the host, or lend theirs. Their threads are those of posix.
  const auto picky = [](PickyEngine::Rules rules) { return [rules] { return std::make_unique<PickyEngine>(rules); }; };
  if (!under_thread_sanitizer) {
    cases.push_back({"told_of_memory", picky({.host = HostReach::attached}), {.in_reach = false}});
    cases.push_back({"own_memory", picky({.host = HostReach::own}), {.in_reach = false}});
    cases.push_back({"lent_memory", picky({.lends = true})});
  }
  for (EngineCase& one : nvme_cases()) cases.push_back(std::move(one));
  return cases;
}

inline std::vector<EngineCase> file_engine_cases() {
  auto cases = engine_cases();
  std::erase_if(cases, [](const EngineCase& one) { return !one.stores.are_files || !one.stores.in_reach; });
  return cases;
}

inline void PrintTo(const EngineCase& engine_case, std::ostream* out) {
  *out << engine_case.name;
}

}  // namespace penstock::test

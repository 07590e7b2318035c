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
#include "support/support.h"

namespace penstock::test {

// How tests make the stores of an engine and look at them, past the engine. Each store has a path of its own in a
// temporary folder, and as it stands here it is the file there. An engine with a scheme says how it names what stands
// at a path; one whose stores are not files also says how they are written and read.
struct Stores {
  std::function<std::string(const std::string& path)> name_of = [](const std::string& path) { return path; };
  std::function<void(const std::string& path, std::span<const std::byte> bytes)> write = write_file;
  // False where there can't be a store of this size.
  std::function<bool(const std::string& path, std::uint64_t size_bytes)> write_zeros = write_sparse_file;
  std::function<std::vector<std::byte>(const std::string& path)> read = [](const auto& path) {
    return read_file(path);
  };
  // Whether they grow, shrink, are replaced and sit in the page cache as files do. The tests of that leave others out.
  bool are_files = true;
};

struct EngineCase {
  std::string name;
  std::function<std::unique_ptr<engine::Engine>()> make;
  Stores stores = {};
};

inline std::vector<EngineCase> engine_cases() {
  const Stores by_uri{.name_of = [](const std::string& path) { return "file:" + path; }};
  const Stores soft_nvme{.name_of = [](const std::string& path) { return "soft-nvme:" + path; }, .are_files = false};
  return {
      {"posix", [] { return posix::make_engine(); }},
      {"uring", [] { return uring::make_engine(); }},
      // Without faults a wrapped engine must behave as the engine itself, by whatever name its stores are opened.
      {"fault_over_posix", [] { return fault::make_engine(posix::make_engine(), {}); }, by_uri},
      {"fault_over_uring", [] { return fault::make_engine(uring::make_engine(), {}); }},
      // A namespace behind a controller in software, which keeps its blocks in the file.
      {"soft_nvme", [] { return nvme::make_soft_engine(posix::make_engine()); }, soft_nvme},
  };
}

inline std::vector<EngineCase> file_engine_cases() {
  auto cases = engine_cases();
  std::erase_if(cases, [](const EngineCase& engine_case) { return !engine_case.stores.are_files; });
  return cases;
}

inline void PrintTo(const EngineCase& engine_case, std::ostream* out) {
  *out << engine_case.name;
}

}  // namespace penstock::test

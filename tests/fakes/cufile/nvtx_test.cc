// What a profiler sees of requests, by a profiler of ours: NVTX loads it with the first range of the process.
#include <dlfcn.h>

#include <cstdlib>
#include <span>

#include "support/built.h"
#include "support/support.h"

namespace penstock {
namespace {

template <typename Result>
Result ask(void* profiler, const char* function) {
  return reinterpret_cast<Result (*)()>(::dlsym(profiler, function))();
}

TEST(Nvtx, ranges_are_the_requests_of_a_context_that_has_them_on) {
  const std::string library = test::built("fakes/nvtx/libnvtx.so");
  void* const profiler = ::dlopen(library.c_str(), RTLD_NOW);
  if (profiler == nullptr) GTEST_SKIP() << "built without the headers of NVTX: " << ::dlerror();
  ::setenv("NVTX_INJECTION64_PATH", library.c_str(), 1);
  const auto begun = [&] { return ask<unsigned long long>(profiler, "fake_nvtx_begun"); };
  const auto ended = [&] { return ask<unsigned long long>(profiler, "fake_nvtx_ended"); };
  test::TemporaryFolder folder;
  const std::string name = folder.path("data");
  test::write_file(name, test::content(1, 0, 100'000));
  for (const bool on : {false, true}) {
    {
      Context context = Context::create({.lanes = 1, .nvtx = on}).value();
      const Store store = context.open(name).value();
      const Buffer memory = context.allocate(Domain::host(), 100'000).value();
      const Range range{.store = &store, .memory = memory.region()};
      for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(context.submit(Direction::read, std::span(&range, 1)).value().wait(), Outcome::done);
      }
    }
    EXPECT_EQ(begun(), on ? 3U : 0U);
    EXPECT_EQ(ended(), begun());
  }
  EXPECT_EQ(std::string(ask<const char*>(profiler, "fake_nvtx_last_text")), "penstock read of 100000 bytes, " + name);
}

}  // namespace
}  // namespace penstock

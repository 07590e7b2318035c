// A release of cuFile that has nothing but what is required.
#include "engines/cufile/library.h"
#include "engines/cufile/store.h"
#include "fakes/cufile/support.h"

namespace penstock::cufile {
namespace {

class OldCuFile : public WithFakes {};

TEST_F(OldCuFile, works_without_optional_calls) {
  constexpr std::size_t size = 64 << 10;
  const std::string name = folder_.write_pattern("a", size);
  cufile_.set_mode(fake_cufile_gds);
  machine_.with_nvidia_fs();
  const auto engine = make_engine({machine_.root()});
  const auto library = Library::acquire().value();
  EXPECT_EQ(library->version(), 0);
  EXPECT_FALSE(library->api().has_batches());
  EXPECT_EQ(library->api().use_count, nullptr);
  EXPECT_NE(library->api().driver_close, nullptr);  // by its first name

  const auto store = engine->open(name, {}).value();
  // The fallback can't be forbidden, and nobody counts: so nothing is claimed.
  EXPECT_EQ(store->device_route(), Route::cufile_unknown);
  const DeviceMemory memory(size);
  const auto queue = engine->make_queue({.depth = 16, .threads = 2}).value();
  std::vector<engine::Op> ops;
  for (std::size_t i = 0; i < 16; ++i) {
    ops.push_back({.path = engine::Path::device,
                   .store = store.get(),
                   .offset = i * 4096,
                   .length = 4096,
                   .memory = memory.data() + i * 4096,
                   .cookie = i});
  }
  ASSERT_EQ(queue->submit(ops), ops.size());
  for (const auto& [cookie, done] : collect(*queue, ops.size())) {
    EXPECT_EQ(done.bytes, 4096U);
    EXPECT_EQ(done.route, Route::cufile_unknown);
  }
  EXPECT_TRUE(files::has_pattern(memory.content().data(), 0, size));
}

}  // namespace
}  // namespace penstock::cufile

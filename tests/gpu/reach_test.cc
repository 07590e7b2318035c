// Bytes between GPU memory and engines that can't reach all memory of the host, or lend theirs.
#include "engines/nvme/engine.h"
#include "gpu/gpu_test.h"
#include "support/picky_engine.h"

namespace penstock::test {
namespace {

struct ReachCase {
  std::string name;
  std::function<std::unique_ptr<engine::Engine>(cuda::Device& gpu)> make;
  std::string scheme = {};
};

std::function<std::unique_ptr<engine::Engine>(cuda::Device&)> picky(engine::HostReach host, bool lends = false,
                                                                    bool pins = false) {
  return [=](cuda::Device& gpu) {
    return std::make_unique<PickyEngine>(
        PickyEngine::Rules{.host = host, .lends = lends, .gpu = pins ? &gpu : nullptr});
  };
}

class Reach : public GpuTest, public testing::WithParamInterface<ReachCase> {
 protected:
  Context make_context() {
    engine::Table table;
    table.push_back(GetParam().make(gpu()));
    options_.lanes = 2;
    options_.storage_chunk_bytes = 64 << 10;
    options_.staging_slot_bytes = 256 << 10;
    return ContextBuilder::build(std::move(table), options_).value();
  }
  std::string name() const { return GetParam().scheme + folder_.path("file"); }
};
INSTANTIATE_TEST_SUITE_P(
    Over, Reach,
    testing::Values(ReachCase{"told_of_memory", picky(engine::HostReach::attached)},
                    ReachCase{"own_memory", picky(engine::HostReach::own)},
                    ReachCase{"lent_memory", picky(engine::HostReach::any, true)},
                    ReachCase{"own_and_lent_memory", picky(engine::HostReach::own, true)},
                    ReachCase{"lent_memory_that_the_gpu_knows", picky(engine::HostReach::any, true, true)},
                    ReachCase{"soft_nvme", [](cuda::Device&) { return nvme::make_soft_engine(posix::make_engine()); },
                              "soft-nvme:"}),
    [](const auto& instance) { return instance.param.name; });

TEST_P(Reach, every_alignment_arrives_on_the_gpu_and_is_written_from_there) {
  constexpr std::size_t size = 3 * mib;
  for (const std::size_t offset : {std::size_t{0}, std::size_t{1}, std::size_t{4096}, std::size_t{70'001}}) {
    const std::size_t length = size - offset - offset % 3;
    write_file(folder_.path("file"), content(1, 0, size));
    evict(folder_.path("file"));
    Context context = make_context();
    Store store = context.open(name(), {.access = Access::write}).value();
    const Buffer memory = context.allocate(Domain::cuda(0), size).value();
    const Region region = memory.region().part(offset % 5, length);
    const Report read = context.read(store, offset, region);
    ASSERT_TRUE(read.ok()) << read.error->message;
    EXPECT_TRUE(holds_content(bytes_of(region), 1, offset));
    EXPECT_EQ(read.routes[static_cast<std::size_t>(Route::direct)] +
                  read.routes[static_cast<std::size_t>(Route::cached)] +
                  read.routes[static_cast<std::size_t>(Route::buffered)],
              0U)
        << "those are routes to the host";

    fill(region, content(2, offset, length));
    const Report written = context.write(store, offset, region);
    ASSERT_TRUE(written.ok()) << written.error->message;
    const auto file = read_file(folder_.path("file"));
    ASSERT_EQ(file.size(), size);
    const std::span<const std::byte> all(file);
    EXPECT_TRUE(holds_content(all.first(offset), 1, 0));
    EXPECT_TRUE(holds_content(all.subspan(offset, length), 2, offset));
    EXPECT_TRUE(holds_content(all.subspan(offset + length), 1, offset + length));
  }
}

}  // namespace
}  // namespace penstock::test

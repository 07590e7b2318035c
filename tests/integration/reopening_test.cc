// Stores that only one may write at a time, closed and opened again.
#include <gtest/gtest.h>

#include <vector>

#include "api/context_builder.h"
#include "engines/nvme/engine.h"
#include "nvme/ram_backend.h"
#include "support/support.h"

namespace penstock::test {
namespace {

TEST(Reopening, finds_free_what_was_just_closed) {
  nvme::Settings settings;
  settings.description = {.name = "nvme",
                          .summary = "",
                          .schemes = {"nvme"},
                          .sleeps_in_kernel = true,
                          .host = engine::HostReach::attached};
  settings.probe = [] { return engine::Probe{.available = true}; };
  settings.connect = nvme::connect_pci;
  settings.reach = [](const std::string& name) -> Result<std::unique_ptr<nvme::Transport>> {
    return std::unique_ptr<nvme::Transport>(std::make_unique<nvme::SoftController>(
        std::make_unique<nvme::RamBackend>(1 << 20), nvme::SoftShape{.name = name, .serial = "SERIAL"}));
  };
  engine::Table table;
  table.push_back(nvme::make_engine(std::move(settings)));
  Options options;
  options.lanes = 2;
  Context context = ContextBuilder::build(std::move(table), options).value();
  std::vector<std::byte> memory(512 << 10);
  for (int i = 0; i < (under_thread_sanitizer ? 20 : 100); ++i) {
    auto store = context.open(
        "nvme:0000:01:00.0",
        {.access = Access::write, .allow_block_device_write = true, .serial = "SERIAL", .writable_blocks = 2048});
    ASSERT_TRUE(store.ok()) << i << ": " << store.error().message;
    ASSERT_TRUE(context.write(*store, 0, Region::host(memory.data(), memory.size())).ok());
  }
}

}  // namespace
}  // namespace penstock::test

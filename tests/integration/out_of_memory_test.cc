// Without memory public calls give Code::out_of_memory: no exception comes out, nothing ends the process, and what is
// there goes on working.
#include <gtest/gtest.h>

#include <filesystem>

#include "integration/allocations.h"
#include "penstock/models.h"
#include "support/support.h"

namespace penstock::test {
namespace {

using Which = FailingAllocation::Which;

Code code_of(const Report& report) {
  return report.ok() ? Code::ok : report.error->code;
}
template <typename Value>
Code code_of(const Result<Value>& result) {
  return result ? Code::ok : result.error().code;
}

class WithoutMemory : public testing::TestWithParam<Which> {
 protected:
  static constexpr std::size_t size_bytes = 2 << 20;

  void SetUp() override {
    write_file(path_, content(1, 0, size_bytes));
    store_ = context_.open(path_).value();
    read_all();  // what is made once is made
    const TensorToSave tensor{.name = "a", .shape = {size_bytes}, .memory = memory_.region()};
    ASSERT_TRUE(save_safetensors(context_, model_path_, {&tensor, 1}, {.durable = false, .checksums = true}).ok());
  }

  void read_all() {
    ASSERT_TRUE(context_.read(store_, 0, memory_.region()).ok());
    EXPECT_TRUE(holds_content(memory_.bytes(), 1, 0));
  }

  // Has each allocation that the action takes fail, one after the other. It gives a code.
  template <typename Action>
  void try_every_allocation(Action action) {
    constexpr std::uint64_t most = 20'000;
    std::uint64_t refused = 0;
    for (std::uint64_t after = 0;; ++after) {
      ASSERT_LT(after, most);
      Code code = Code::internal;
      bool happened = false;
      {
        const FailingAllocation failing(after, GetParam());
        code = action();
        happened = failing.happened();
      }
      if (!happened) {
        EXPECT_EQ(code, Code::ok);
        break;
      }
      // Some things can be done without.
      EXPECT_TRUE(code == Code::out_of_memory || code == Code::ok) << "after " << after << ": " << code_name(code);
      refused += code == Code::out_of_memory ? 1 : 0;
    }
    EXPECT_GT(refused, 0U);
    read_all();
  }

  TemporaryFolder folder_;
  const std::string path_ = folder_.path("file");
  const std::string model_path_ = folder_.path("model.safetensors");
  Context context_ = Context::create({.lanes = 2}).value();
  Buffer memory_ = context_.allocate(Domain::host(), size_bytes).value();
  Store store_;
};

INSTANTIATE_TEST_SUITE_P(Allocations, WithoutMemory, testing::Values(Which::one, Which::all),
                         [](const auto& which) { return which.param == Which::one ? "one_fails" : "all_fail"; });

TEST_P(WithoutMemory, a_context_is_refused) {
  try_every_allocation([] { return code_of(Context::create({.lanes = 2})); });
}

TEST_P(WithoutMemory, a_store_is_not_opened) {
  try_every_allocation([&] { return code_of(context_.open(path_)); });
}

TEST_P(WithoutMemory, no_buffer_is_given) {
  try_every_allocation([&] { return code_of(context_.allocate(Domain::host(), 4096)); });
}

TEST_P(WithoutMemory, reads_are_refused_or_done) {
  for (const std::size_t length : {std::size_t{4096}, size_bytes}) {
    const RequestOptions by_lanes{.as_opened = true};
    try_every_allocation([&] { return code_of(context_.read(store_, 0, memory_.region().part(0, length), by_lanes)); });
  }
}

TEST_P(WithoutMemory, short_cached_reads_are_done) {
  ASSERT_TRUE(context_.read(store_, 0, memory_.region().part(0, 4096)).ok());  // what is made once is made
  const FailingAllocation failing(0, GetParam());
  for (int i = 0; i < 3; ++i) {
    const Report report = context_.read(store_, 0, memory_.region().part(0, 4096));
    EXPECT_TRUE(report.ok());
    EXPECT_EQ(report.routes[static_cast<std::size_t>(Route::cached)], 4096U);
  }
  EXPECT_FALSE(failing.happened());
}

TEST_P(WithoutMemory, records_are_appended_or_refused) {
  const Kinds kinds = Kinds::create(context_, folder_.path("records.bin")).value();
  const Kind kind = kinds.add({.name = "kind", .capacity = 30'000, .record_bytes = 16}).value();
  ASSERT_TRUE(kinds.append(kind.id, memory_.region().part(0, 16)).ok());
  std::uint64_t records = 1;
  try_every_allocation([&] {
    const auto first = kinds.append(kind.id, memory_.region().part(0, 16));
    if (first) {
      EXPECT_EQ(*first, records++) << "what was refused does not count";
    }
    return code_of(first);
  });
  EXPECT_EQ(Kinds::open(context_, folder_.path("records.bin"))->find("kind")->records, records);
  EXPECT_EQ(kinds.find("kind")->records, records);
}

TEST_P(WithoutMemory, packed_models_are_saved_or_refused) {
  const std::string path = folder_.path("packed.safetensors");
  const TensorToSave tensor{
      .name = "a", .dtype = DType::bf16, .shape = {1 << 17}, .memory = memory_.region().part(0, 1 << 18)};
  std::vector<std::byte> zeros(1 << 18);
  const TensorToSave zero{
      .name = "z", .dtype = DType::bf16, .shape = {1 << 17}, .memory = Region::host(zeros.data(), zeros.size())};
  const TensorToSave both[] = {tensor, zero};
  try_every_allocation(
      [&] { return code_of(save_safetensors(context_, path, both, {.durable = false, .packed = true})); });
  EXPECT_TRUE(Model::open(path).ok());
}

TEST_P(WithoutMemory, requests_are_refused_or_done) {
  for (const std::size_t length : {std::size_t{4096}, size_bytes}) {
    try_every_allocation([&] {
      const Range range{&store_, 0, memory_.region().part(0, length)};
      const Result<Ticket> ticket = context_.submit(Direction::read, {&range, 1});
      if (!ticket) return ticket.error().code;
      const Outcome outcome = ticket->wait();
      return outcome == Outcome::done ? Code::ok : outcome == Outcome::failed ? Code::out_of_memory : Code::internal;
    });
  }
}

TEST_P(WithoutMemory, buffers_that_engines_know_are_freed) {
  for (const bool is_attached : {false, true}) {
    for (std::uint64_t after = 0; after < 20; ++after) {
      const Domain domain = is_attached ? Domain::host() : Domain::pinned();  // what is pinned is attached
      Buffer buffer = context_.allocate(domain, 1 << 20).value();
      ASSERT_TRUE(!is_attached || context_.attach(buffer.region()).ok());
      ASSERT_TRUE(context_.read(store_, 0, buffer.region()).ok());
      const Region region = buffer.region();
      {
        const FailingAllocation failing(after, GetParam());
        EXPECT_TRUE(!is_attached || context_.detach(region).ok());
        buffer = Buffer();
      }
      EXPECT_FALSE(context_.detach(region).ok());
    }
  }
  read_all();
}

TEST_P(WithoutMemory, contexts_are_closed) {
  for (std::uint64_t after = 0; after < 20; ++after) {
    auto context = std::make_unique<Context>(Context::create({.lanes = 2}).value());
    {
      const Store store = context->open(path_).value();
      for (const std::size_t length : {std::size_t{4096}, size_bytes}) {
        ASSERT_TRUE(context->read(store, 0, memory_.region().part(0, length)).ok());
      }
    }
    const FailingAllocation failing(after, GetParam());
    context.reset();
  }
}

TEST_P(WithoutMemory, a_model_is_not_opened) {
  try_every_allocation([&] { return code_of(Model::open(model_path_)); });
}

TEST_P(WithoutMemory, a_model_is_not_loaded_or_checked) {
  const Model model = Model::open(model_path_).value();
  try_every_allocation([&] {
    const TensorPart part{.tensor = 0, .memory = memory_.region()};
    Result<Loading> loading = load(context_, model, {&part, 1});
    if (!loading) return loading.error().code;
    loading->wait();
    return Code::ok;
  });
  try_every_allocation([&] { return code_of(check_model(context_, model)); });
}

TEST_P(WithoutMemory, nothing_is_saved_and_nothing_is_lost) {
  const TensorToSave tensor{.name = "b", .shape = {size_bytes}, .memory = memory_.region()};
  const std::string path = folder_.path("saved.safetensors");
  try_every_allocation(
      [&] { return code_of(save_safetensors(context_, path, {&tensor, 1}, {.durable = false, .checksums = true})); });
  EXPECT_EQ(Model::open(path)->tensors().size(), 1U);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path("")), {}), 3)
      << "no unfinished file is left";
}

}  // namespace
}  // namespace penstock::test

// Models in GPU memory: loaded, and saved from there.
#include <cstring>

#include "gpu/gpu_test.h"

namespace penstock::test {
namespace {

class GpuModels : public GpuTest {
 protected:
  static constexpr std::uint64_t rows = 700, columns = 3000;

  // Two tensors of bytes, saved from the host.
  Model make_model(Context& context) {
    matrix_ = content(1, 0, rows * columns);
    vector_ = content(2, 0, 12'345);
    const TensorToSave tensors[] = {
        {"matrix", DType::u8, {rows, columns}, Region::host(matrix_.data(), matrix_.size())},
        {"vector", DType::u8, {vector_.size()}, Region::host(vector_.data(), vector_.size())}};
    const Result<Report> saved = save_safetensors(context, folder_.path("model.safetensors"), tensors);
    EXPECT_TRUE(saved.ok()) << saved.error().message;
    return Model::open(folder_.path("model.safetensors")).value();
  }

  std::vector<std::byte> matrix_, vector_;
};

TEST_F(GpuModels, every_tensor_goes_to_its_place) {
  Context context = make_context();
  const Model model = make_model(context);
  const Placement placement = place(model);
  const Buffer memory = context.allocate(Domain::cuda(0), placement.size_bytes).value();
  std::vector<TensorPart> parts;
  for (std::uint32_t i = 0; i < 2; ++i) {
    parts.push_back({.tensor = i, .memory = memory.region().part(placement.offsets[i], model.tensors()[i].size_bytes)});
  }
  const Loading loading = load(context, model, parts).value();
  loading.wait();
  ASSERT_TRUE(loading.report().ok()) << loading.report().transfer.error->message;
  EXPECT_TRUE(same_bytes(bytes_of(parts[model.find("matrix").value()].memory), matrix_));
  EXPECT_TRUE(same_bytes(bytes_of(parts[model.find("vector").value()].memory), vector_));
}

TEST_F(GpuModels, columns_arrive_however_they_are_read) {
  Context context = make_context();
  const Model model = make_model(context);
  const std::vector<Interval> intervals = {{100, 160}, {2000, 2999}};
  std::vector<std::byte> wanted;
  for (std::uint64_t row = 0; row < rows; ++row) {
    for (const Interval& interval : intervals) {
      wanted.insert(wanted.end(), matrix_.begin() + static_cast<std::ptrdiff_t>(row * columns + interval.begin),
                    matrix_.begin() + static_cast<std::ptrdiff_t>(row * columns + interval.end));
    }
  }
  for (const Columns columns_read : {Columns::pieces, Columns::whole, Columns::automatic}) {
    const Buffer memory = context.allocate(Domain::cuda(0), wanted.size()).value();
    const TensorPart part{
        .tensor = model.find("matrix").value(), .dimension = 1, .intervals = intervals, .memory = memory.region()};
    const Loading loading = load(context, model, {&part, 1}, {.columns = columns_read}).value();
    loading.wait();
    ASSERT_TRUE(loading.report().ok()) << loading.report().transfer.error->message;
    EXPECT_TRUE(same_bytes(bytes_of(memory.region()), wanted));
    EXPECT_TRUE(columns_read != Columns::whole || loading.report().read_bytes > wanted.size());
  }
}

TEST_F(GpuModels, rows_that_do_not_fit_each_other_are_refused) {
  Context context = make_context();
  const Buffer memory = context.allocate(Domain::cuda(0), 1000).value();
  std::vector<std::byte> here(1000);
  const Region host = Region::host(here.data(), here.size());
  const RowsCopy longer{.to = {memory.region(), 100, 300}, .from = {host, 100, 450}};
  EXPECT_EQ(copy_rows({&longer, 1}).error().code, Code::invalid_argument);
  const RowsCopy empty{.to = {memory.region(), 0, 0}, .from = {host, 0, 0}};
  EXPECT_EQ(copy_rows({&empty, 1}).error().code, Code::invalid_argument);
}

TEST_F(GpuModels, are_saved_with_checksums_of_the_bytes_that_are_there) {
  Context context = make_context();
  const std::vector<std::byte> bytes = content(3, 0, 9 << 20);
  const Buffer memory = context.allocate(Domain::cuda(0), bytes.size()).value();
  fill(memory.region(), bytes);
  const TensorToSave tensor{"a", DType::u8, {bytes.size()}, memory.region()};
  const Result<Report> saved = save_safetensors(context, folder_.path("saved"), {&tensor, 1}, {.checksums = true});
  ASSERT_TRUE(saved.ok()) << saved.error().message;
  const Model model = Model::open(folder_.path("saved")).value();
  EXPECT_TRUE(
      same_bytes(read_file(folder_.path("saved"), model.tensors()[0].offset, model.tensors()[0].size_bytes), bytes));
  EXPECT_EQ(check_model(context, model).value()[0].verdict, CheckedFile::Verdict::right);
}

}  // namespace
}  // namespace penstock::test

// Models in GPU memory: loaded, and saved from there.
#include <cstring>

#include "gpu/gpu_test.h"
#include "penstock/cuda.h"
#include "services/packed/test_values.h"

namespace penstock::test {
namespace {

class GpuModels : public GpuTest {
 protected:
  static constexpr std::uint64_t rows = 700, columns = 3000;

  // Two tensors of bytes, saved from the host.
  Model make_model(const Context& context) {
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

TEST_F(GpuModels, packed_ones_are_saved_from_there_and_decoded_there_whole_and_in_parts) {
  struct Packed {
    const char* name;
    DType dtype;
    packed::Kind kind;
  };
  constexpr Packed all[] = {{"bf16", DType::bf16, packed::Kind::bf16},
                            {"f16", DType::f16, packed::Kind::f16},
                            {"f32", DType::f32, packed::Kind::f32},
                            {"e4m3", DType::f8_e4m3, packed::Kind::f8_e4m3},
                            {"e5m2", DType::f8_e5m2, packed::Kind::f8_e5m2}};
  constexpr std::uint64_t height = 300, width = 1000;
  Context context = make_context();
  std::vector<std::vector<std::byte>> values;
  std::vector<Buffer> buffers;
  std::vector<TensorToSave> tensors;
  for (const Packed& one : all) {
    const bool is_byte = packed::division_of(one.kind).value_bytes == 1;
    const auto pattern = is_byte ? packed::Pattern::one_in_each_tile : packed::Pattern::normal;
    values.push_back(packed::make_values(one.kind, pattern, height * width, 7));
    buffers.push_back(context.allocate(Domain::cuda(0), values.back().size()).value());
    fill(buffers.back().region(), values.back());
    tensors.push_back({one.name, one.dtype, {height, width}, buffers.back().region()});
  }
  const Result<Report> saved = save_safetensors(context, folder_.path("packed"), tensors, {.packed = true});
  ASSERT_TRUE(saved.ok()) << saved.error().message;
  const Model model = Model::open(folder_.path("packed")).value();
  const std::uint64_t launches = fake_ ? fake_->calls("cuLaunchKernel") : 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    SCOPED_TRACE(all[i].name);
    const std::uint32_t tensor = model.find(all[i].name).value();
    EXPECT_EQ(model.tensors()[tensor].packing, "planes");
    const std::uint64_t value_bytes = values[i].size() / (height * width);
    const std::vector<Interval> intervals = {{3, 10}, {500, 999}};
    std::vector<std::byte> columns_of;
    for (std::uint64_t row = 0; row < height; ++row) {
      for (const Interval& interval : intervals) {
        const auto begin = values[i].begin() + static_cast<std::ptrdiff_t>(row * width * value_bytes);
        columns_of.insert(columns_of.end(), begin + static_cast<std::ptrdiff_t>(interval.begin * value_bytes),
                          begin + static_cast<std::ptrdiff_t>(interval.end * value_bytes));
      }
    }
    const std::vector<std::byte> rows_of(values[i].begin() + static_cast<std::ptrdiff_t>(71 * width * value_bytes),
                                         values[i].begin() + static_cast<std::ptrdiff_t>(299 * width * value_bytes));
    const Buffer whole = context.allocate(Domain::cuda(0), values[i].size()).value();
    const Buffer some_columns = context.allocate(Domain::cuda(0), columns_of.size()).value();
    const Buffer some_rows = context.allocate(Domain::cuda(0), rows_of.size()).value();
    const TensorPart parts[] = {
        {.tensor = tensor, .memory = whole.region()},
        {.tensor = tensor, .dimension = 1, .intervals = intervals, .memory = some_columns.region()},
        {.tensor = tensor, .dimension = 0, .intervals = {{71, 299}}, .memory = some_rows.region()}};
    const auto loading = load(context, model, parts);
    ASSERT_TRUE(loading.ok()) << loading.error().message;
    loading->wait();
    ASSERT_TRUE(loading->report().ok()) << loading->report().transfer.error->message;
    EXPECT_TRUE(same_bytes(bytes_of(whole.region()), values[i]));
    EXPECT_TRUE(same_bytes(bytes_of(some_columns.region()), columns_of));
    EXPECT_TRUE(same_bytes(bytes_of(some_rows.region()), rows_of));
  }
  if (fake_ && can_unpack(Domain::cuda(0))) {
    EXPECT_GE(fake_->calls("cuLaunchKernel"), launches + 2 * values.size());
  }
}

}  // namespace
}  // namespace penstock::test

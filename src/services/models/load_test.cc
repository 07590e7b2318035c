#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>
#include <vector>

#include "penstock/models.h"
#include "services/models/test_model.h"

namespace penstock::models {
namespace {

// Tensors of bytes that count from 0 on, in the order of the file.
class ModelLoad : public ModelTest {
 protected:
  struct Shaped {
    std::string name;
    std::vector<std::uint64_t> shape;
  };

  // Comes again after 64 KiB.
  static std::string content_of(const Shaped& tensor) {
    std::string content(1 << 16, '\0');
    for (std::size_t i = 0; i < content.size(); ++i) {
      content[i] = static_cast<char>((i * 7 + tensor.name.size()) ^ (i >> 8));
    }
    return content;
  }

  std::string write_model(const std::string& name, const std::vector<Shaped>& tensors) {
    std::string json, data;
    for (const Shaped& tensor : tensors) {
      std::uint64_t size = 1;
      std::string shape;
      for (const std::uint64_t length : tensor.shape) {
        size *= length;
        shape += (shape.empty() ? "" : ",") + std::to_string(length);
      }
      json += (json.empty() ? "{\"" : ",\"") + tensor.name + R"(":{"dtype":"U8","shape":[)" + shape +
              R"(],"data_offsets":[)" + std::to_string(data.size()) + "," + std::to_string(data.size() + size) + "]}";
      const std::string content = content_of(tensor);
      for (; size > content.size(); size -= content.size()) data += content;
      data += content.substr(0, size);
    }
    data_ = data;
    return write(name, safetensors_file(json + "}", data));
  }

  // What stands in the file for a part, byte by byte.
  std::string expected(const Model& model, const TensorPart& part) const {
    const TensorInfo& tensor = model.tensors()[part.tensor];
    const std::string all = data_.substr(tensor.offset - model.files()[0].data_offset, tensor.size_bytes);
    if (part.intervals.empty()) return all;
    std::uint64_t inner = 1, outer = 1;
    for (std::size_t i = 0; i < part.dimension; ++i) outer *= tensor.shape[i];
    for (std::size_t i = part.dimension + 1; i < tensor.shape.size(); ++i) inner *= tensor.shape[i];
    std::string wanted;
    for (std::uint64_t row = 0; row < outer; ++row) {
      for (const Interval& interval : part.intervals) {
        for (std::uint64_t i = interval.begin; i < interval.end; ++i) {
          wanted += all.substr((row * tensor.shape[part.dimension] + i) * inner, inner);
        }
      }
    }
    return wanted;
  }

  // Loads the parts into strings that are as large as they should be, and compares.
  LoadReport check(const Model& model, std::vector<TensorPart> parts, const LoadOptions& options = {}) {
    std::vector<std::string> places;
    for (const TensorPart& part : parts) {
      places.emplace_back(part_bytes(model.tensors()[part.tensor], part.dimension, part.intervals).value(), '\0');
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts[i].memory = Region::host(places[i].data(), places[i].size());
    }
    Result<Loading> loading = load(context_, model, parts, options);
    EXPECT_TRUE(loading.ok()) << loading.error().message;
    loading->wait();
    EXPECT_TRUE(loading->ended());
    const LoadReport report = loading->report();
    EXPECT_TRUE(report.ok()) << (report.transfer.error ? report.transfer.error->message : "");
    EXPECT_EQ(loading->bytes_done(), loading->bytes_wanted());
    for (std::size_t i = 0; i < parts.size(); ++i) EXPECT_TRUE(places[i] == expected(model, parts[i])) << "part " << i;
    return report;
  }

  // On a busy machine operations take their time to come home.
  Context context_ =
      Context::create({.lanes = 2, .deadlines = {.cancel_grace_seconds = 5, .close_seconds = 10}}).value();
  std::string data_;
};

TEST_F(ModelLoad, every_tensor_goes_to_its_place) {
  const Model model =
      Model::open(write_model("m", {{"a", {}}, {"bb", {1000, 3}}, {"c", {0}}, {"d", {3 << 20}}})).value();
  std::vector<TensorPart> parts;
  for (std::uint32_t i = 0; i < model.tensors().size(); ++i) parts.push_back({.tensor = i});
  const LoadReport report = check(model, parts);
  EXPECT_EQ(report.wanted_bytes, data_.size());
  EXPECT_EQ(report.read_bytes, data_.size());
  EXPECT_GT(report.seconds, 0);
}

TEST_F(ModelLoad, a_model_in_any_store_is_loaded) {
  const std::string file = write_model("m", {{"a", {5, 7}}, {"b", {3000}}});
  ASSERT_TRUE(context_.add_scheme("made", [&](std::string_view name, const OpenOptions&) {
    const std::string content = (std::ostringstream() << std::ifstream(path(std::string(name))).rdbuf()).str();
    return context_.open(
        Recipe{std::string(name), content.size(), [content](std::uint64_t offset, std::span<std::byte> memory) {
                 content.copy(reinterpret_cast<char*>(memory.data()), memory.size(), offset);
                 return Status();
               }});
  }));
  for (const std::string& name : {"soft-nvme:" + file, "file:" + file, file, std::string("made:m")}) {
    const Result<Model> model = Model::open(context_, name);
    ASSERT_TRUE(model.ok()) << model.error().message;
    EXPECT_EQ(model->files()[0].path, name == "file:" + file ? file : name);
    EXPECT_EQ(model->files()[0].size_bytes, std::filesystem::file_size(file));
    EXPECT_EQ(model->files()[0].kept_open != nullptr, name.ends_with(file) && !name.starts_with("soft"));
    check(*model, {{.tensor = 0}, {.tensor = 1}, {.tensor = 0, .dimension = 1, .intervals = {{1, 3}}}});
    check(*model, {{.tensor = 0, .dimension = 1, .intervals = {{1, 3}}}}, {.columns = Columns::whole});
    const auto mapped = MappedFile::map(context_, model->files()[0]);
    ASSERT_TRUE(mapped.ok()) << mapped.error().message;
    EXPECT_TRUE(model->files()[0].kept_open || !mapped->has_value());
  }
}

TEST_F(ModelLoad, a_model_at_the_front_of_a_device_ends_with_its_last_tensor) {
  const std::string file = write_model("disk", {{"a", {5, 7}}, {"b", {3000}}});
  const std::uint64_t size_bytes = std::filesystem::file_size(file);
  std::filesystem::resize_file(file, 1 << 20);
  EXPECT_FALSE(Model::open(context_, file).ok());  // a file is not longer than what is in it
  const Result<Model> model = Model::open(context_, "soft-nvme:" + file);
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(model->files()[0].size_bytes, size_bytes);
  check(*model, {{.tensor = 0}, {.tensor = 1}});
}

TEST_F(ModelLoad, a_store_that_was_modified_since_is_refused_by_its_name) {
  const std::string name = "soft-nvme:" + write_model("m", {{"a", {100}}});
  const Result<Model> model = Model::open(context_, name);
  ASSERT_TRUE(model.ok()) << model.error().message;
  write_model("m", {{"a", {101}}});
  std::string memory(100, '\0');
  const TensorPart part{.memory = Region::host(memory.data(), memory.size())};
  const Result<Loading> loading = load(context_, *model, {&part, 1});
  ASSERT_FALSE(loading.ok());
  EXPECT_EQ(loading.error().code, Code::changed);
  EXPECT_TRUE(loading.error().message.starts_with(name)) << loading.error().message;
}

TEST_F(ModelLoad, nothing_is_a_load_too) {
  const Model model = Model::open(write_model("m", {{"a", {0}}})).value();
  check(model, {});
  check(model, {{.tensor = 0}});
}

TEST_F(ModelLoad, several_files_are_one_load) {
  const std::string files[] = {write("x", one_tensor("a", 5000, 'a')), write("y", one_tensor("b", 70'000, 'b'))};
  const Model model = Model::open(files).value();
  const Placement placement = place(model);
  EXPECT_EQ(placement.offsets, (std::vector<std::uint64_t>{0, 5120}));
  const Placement other = place(model, std::vector<std::uint32_t>{1, 0});
  EXPECT_EQ(other.offsets, (std::vector<std::uint64_t>{0, 70'144}));
  EXPECT_EQ(other.size_bytes, placement.size_bytes);
  std::string memory(placement.size_bytes, '\0');
  std::vector<TensorPart> parts;
  for (std::uint32_t i = 0; i < 2; ++i) {
    parts.push_back(
        {.tensor = i, .memory = Region::host(memory.data() + placement.offsets[i], model.tensors()[i].size_bytes)});
  }
  const Loading loading = load(context_, model, parts).value();
  loading.wait();
  ASSERT_TRUE(loading.report().ok());
  EXPECT_TRUE(memory.substr(0, 5000) == std::string(5000, 'a'));
  EXPECT_TRUE(memory.substr(5120, 70'000) == std::string(70'000, 'b'));
}

TEST_F(ModelLoad, intervals_of_rows_are_read_exactly) {
  const Model model = Model::open(write_model("m", {{"a", {100, 30, 7}}})).value();
  const LoadReport report = check(model, {{.tensor = 0, .dimension = 0, .intervals = {{90, 99}, {3, 20}, {20, 21}}}});
  EXPECT_EQ(report.read_bytes, report.wanted_bytes);
}

TEST_F(ModelLoad, blocks_that_a_disk_gives_beside_rows_are_counted) {
  const Model model = Model::open(write_model("m", {{"a", {64, 9000}}})).value();
  context_ = Context::create({.cache = Cache::bypass, .lanes = 1}).value();
  const LoadReport report = check(model, {{.tensor = 0, .dimension = 0, .intervals = {{3, 4}}}});
  if (report.transfer.routes[static_cast<std::size_t>(Route::direct)] == 0) GTEST_SKIP() << "no direct reads here";
  constexpr std::uint64_t block = 4096;
  const std::uint64_t begin = model.tensors()[0].offset + 3 * 9000, end = begin + 9000;
  EXPECT_EQ(report.wanted_bytes, 9000U);
  EXPECT_GT(report.read_bytes, report.wanted_bytes);
  EXPECT_LE(report.read_bytes, (end + block - 1) / block * block - begin / block * block);
  EXPECT_EQ(report.transfer.bytes, 9000U) << "what arrived";
}

TEST_F(ModelLoad, columns_are_the_same_however_they_are_read) {
  const Model model = Model::open(write_model("m", {{"a", {300, 40, 9}}, {"bb", {1000, 64}}, {"ccc", {5000}}})).value();
  const std::vector<TensorPart> parts = {{.tensor = 0, .dimension = 1, .intervals = {{30, 40}, {0, 3}, {2, 5}}},
                                         {.tensor = 0, .dimension = 2, .intervals = {{8, 9}}},
                                         {.tensor = 1, .dimension = 1, .intervals = {{16, 32}}},
                                         {.tensor = 2}};
  const LoadReport pieces = check(model, parts, {.columns = Columns::pieces});
  EXPECT_EQ(pieces.read_bytes, pieces.wanted_bytes);
  const LoadReport whole = check(model, parts, {.columns = Columns::whole});
  EXPECT_GT(whole.read_bytes, whole.wanted_bytes);
  EXPECT_LT(whole.read_bytes, data_.size() + 300 * 40 * 9) << "each part reads its tensor at most once";
  check(model, parts, {.columns = Columns::automatic});
}

TEST_F(ModelLoad, columns_of_more_than_a_window_go_through_it) {
  const Model model = Model::open(write_model("m", {{"a", {1400, 1000, 60}}})).value();
  const LoadReport report =
      check(model, {{.tensor = 0, .dimension = 1, .intervals = {{10, 15}, {700, 701}}}}, {.columns = Columns::whole});
  EXPECT_GT(report.read_bytes, 64U << 20);
}

TEST_F(ModelLoad, an_end_is_announced_once_also_for_columns) {
  const Model model = Model::open(write_model("m", {{"a", {100, 100}}, {"b", {100}}})).value();
  for (const Columns columns : {Columns::pieces, Columns::whole}) {
    std::atomic<int> ends = 0;
    LoadOptions options{.columns = columns};
    options.request.on_end = [&](const Report& report) { ends += report.ok() ? 1 : 100; };
    check(model, {{.tensor = 0, .dimension = 1, .intervals = {{5, 6}}}, {.tensor = 1}}, options);
    for (int i = 0; i < 500 && ends == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(ends, 1);
  }
}

TEST_F(ModelLoad, a_file_that_has_changed_is_refused_by_name) {
  const std::string file = write_model("m", {{"a", {100}}});
  const Model model = Model::open(file).value();
  std::string memory(100, '\0');
  const TensorPart part{.tensor = 0, .memory = Region::host(memory.data(), memory.size())};
  write_model("m", {{"a", {100}}, {"b", {100}}});
  const Result<Loading> loading = load(context_, model, {&part, 1});
  ASSERT_FALSE(loading.ok());
  EXPECT_EQ(loading.error().code, Code::changed);
  EXPECT_NE(loading.error().message.find(file), std::string::npos);
  std::filesystem::remove(file);
  EXPECT_EQ(load(context_, model, {&part, 1}).error().code, Code::changed);
}

TEST_F(ModelLoad, a_file_that_was_replaced_renamed_or_removed_is_read_as_it_was) {
  const std::string file = write_model("m", {{"a", {1000, 3000}}, {"bb", {100}}});
  const Model model = Model::open(file).value();
  const std::vector<TensorPart> parts = {
      {.tensor = 0}, {.tensor = 0, .dimension = 1, .intervals = {{7, 9}}}, {.tensor = 1}};
  const std::string data = data_;
  const auto check_all = [&] {
    data_ = data;
    for (const Columns columns : {Columns::pieces, Columns::whole}) check(model, parts, {.columns = columns});
    const auto mapped = MappedFile::map(context_, model.files()[0]);
    ASSERT_TRUE(mapped.ok()) << mapped.error().message;
    if (!*mapped) return;  // the kernel does not report what is cached
    EXPECT_TRUE(std::string_view(reinterpret_cast<char*>((*mapped)->data()) + model.files()[0].data_offset,
                                 data_.size()) == data_);
  };
  std::filesystem::rename(write_model("new", {{"a", {7}}}), file);
  check_all();
  std::filesystem::remove(file);
  check_all();
}

TEST_F(ModelLoad, a_file_that_was_renamed_and_modified_is_refused_by_the_name_that_it_was_opened_by) {
  const std::string file = write_model("m", {{"a", {100}}});
  const Model model = Model::open(file).value();
  std::filesystem::rename(file, path("elsewhere"));
  std::filesystem::resize_file(path("elsewhere"), 150);
  std::string memory(100, '\0');
  const TensorPart part{.tensor = 0, .memory = Region::host(memory.data(), memory.size())};
  const Result<Loading> loading = load(context_, model, {&part, 1});
  ASSERT_FALSE(loading.ok());
  EXPECT_EQ(loading.error().code, Code::changed);
  EXPECT_TRUE(loading.error().message.starts_with(file + ": the file was modified")) << loading.error().message;
}

TEST_F(ModelLoad, files_are_read_by_name_where_few_descriptors_are_left) {
  struct rlimit old = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  const std::string file = write_model("m", {{"a", {100}}});
  const struct rlimit low = {64, old.rlim_max};
  std::vector<Model> models;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  for (int i = 0; i < 30; ++i) models.push_back(Model::open(file).value());
  ::setrlimit(RLIMIT_NOFILE, &old);
  const Model& last = models.back();
  EXPECT_EQ(last.files()[0].kept_open, nullptr);
  check(last, {{.tensor = 0}});
  std::filesystem::rename(write_model("new", {{"a", {7}}}), file);
  std::string memory(100, '\0');
  const TensorPart part{.tensor = 0, .memory = Region::host(memory.data(), memory.size())};
  const Result<Loading> refused = load(context_, last, {&part, 1});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::changed);
  EXPECT_NE(refused.error().hint.find("ulimit -n"), std::string::npos);
}

// While it lives, the process may have this many descriptors beside those that it has.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t more) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    rlim_t used = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++used;
    const struct rlimit low = {used + more, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  struct rlimit before_ = {};
};

// Files with one tensor each, whose bytes are the same in no two neighbours.
class ManyFiles : public ModelLoad {
 protected:
  static constexpr std::size_t count = 200, size_bytes = 3000;

  ManyFiles() {
    for (std::size_t i = 0; i < count; ++i) {
      const std::string json =
          "{\"t" + std::to_string(i) + R"(":{"dtype":"U8","shape":[100,30],"data_offsets":[0,3000]}})";
      names_.push_back(write(std::to_string(i), safetensors_file(json, std::string(size_bytes, fill_of(i)))));
    }
    // Lanes have what they need, and keep it.
    const Store store = context_.open(names_[0]).value();
    std::string memory(size_bytes, '\0');
    EXPECT_TRUE(context_.read(store, 0, Region::host(memory.data(), memory.size())).ok());
  }

  static char fill_of(std::size_t file) { return static_cast<char>('0' + file % 61); }

  std::vector<TensorPart> parts_of(std::string& memory, std::vector<Interval> intervals = {}) const {
    const std::size_t part_size = intervals.empty() ? size_bytes : 100 * (intervals[0].end - intervals[0].begin);
    memory.assign(count * part_size, '\0');
    std::vector<TensorPart> parts;
    for (std::uint32_t i = 0; i < count; ++i) {
      parts.push_back({.tensor = i,
                       .dimension = intervals.empty() ? 0U : 1U,
                       .intervals = intervals,
                       .memory = Region::host(memory.data() + i * part_size, part_size)});
    }
    return parts;
  }

  // Loads all tensors, or columns of them.
  LoadReport load_all(const Model& model, std::vector<Interval> intervals = {}, const LoadOptions& options = {}) {
    std::string memory;
    const std::vector<TensorPart> parts = parts_of(memory, std::move(intervals));
    Result<Loading> loading = load(context_, model, parts, options);
    EXPECT_TRUE(loading.ok()) << loading.error().message;
    loading->wait();
    const LoadReport report = loading->report();
    EXPECT_TRUE(report.ok()) << (report.transfer.error ? report.transfer.error->message : "");
    EXPECT_EQ(loading->bytes_done(), memory.size());
    EXPECT_EQ(report.wanted_bytes, memory.size());
    for (std::size_t i = 0; i < memory.size(); ++i) {
      const std::size_t file = i / (memory.size() / count);
      if (memory[i] != fill_of(file)) return ADD_FAILURE() << "byte " << i << " of file " << file, report;
    }
    return report;
  }

  std::vector<std::string> names_;
};

TEST_F(ManyFiles, are_loaded_with_fewer_descriptors_than_files) {
  const FewDescriptors few(100);
  const Model model = Model::open(names_).value();
  load_all(model);
  load_all(model);
}

TEST_F(ManyFiles, give_columns_with_fewer_descriptors_than_files) {
  const FewDescriptors few(100);
  const Model model = Model::open(names_).value();
  for (const Columns how : {Columns::automatic, Columns::pieces, Columns::whole}) {
    load_all(model, {{5, 20}}, {.columns = how});
  }
}

TEST_F(ManyFiles, are_loaded_one_after_the_other_with_hardly_any_descriptors) {
  const Model model = Model::open(names_).value();
  const FewDescriptors few(6);
  load_all(model);
}

TEST_F(ManyFiles, that_change_between_waves_are_refused) {
  const FewDescriptors few(100);
  const Model model = Model::open(names_).value();
  std::filesystem::resize_file(names_.back(), 10);
  std::string memory;
  const std::vector<TensorPart> parts = parts_of(memory);
  Result<Loading> loading = load(context_, model, parts);
  ASSERT_TRUE(loading.ok()) << loading.error().message;
  loading->wait();
  const LoadReport report = loading->report();
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.transfer.error->code, Code::changed);
  EXPECT_NE(report.transfer.error->message.find(names_.back()), std::string::npos);
}

TEST_F(ManyFiles, tell_their_end_once_and_can_be_cancelled) {
  const FewDescriptors few(100);
  const Model model = Model::open(names_).value();
  std::atomic<int> ended = 0;
  load_all(model, {}, {.request = {.on_end = [&](const Report& report) { ended += report.ok() ? 1 : 100; }}});
  while (ended == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(ended, 1);
  std::string memory;
  const std::vector<TensorPart> parts = parts_of(memory);
  Loading loading = load(context_, model, parts).value();
  loading.cancel();
  EXPECT_TRUE(loading.ended());
}

TEST_F(ManyFiles, are_refused_in_stream_order_where_they_can_not_all_be_open) {
  const FewDescriptors few(100);
  const Model model = Model::open(names_).value();
  std::string memory;
  const std::vector<TensorPart> parts = parts_of(memory);
  const Result<Loading> refused = load(context_, model, parts, {.request = {.stream = CudaStream{}}});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().hint.find("ulimit -n"), std::string::npos);
}

TEST_F(ModelLoad, memory_of_another_size_is_refused_by_name) {
  const Model model = Model::open(write_model("m", {{"a", {100}}})).value();
  std::string memory(100, '\0');
  const TensorPart large{.tensor = 0, .memory = Region::host(memory.data(), 99)};
  EXPECT_NE(load(context_, model, {&large, 1}).error().message.find("memory of 99 bytes for a part of 100"),
            std::string::npos);
  const TensorPart missing{.tensor = 1, .memory = Region::host(memory.data(), 100)};
  EXPECT_EQ(load(context_, model, {&missing, 1}).error().code, Code::invalid_argument);
}

TEST_F(ModelLoad, a_cached_file_is_mapped_and_what_is_written_there_stays_here) {
  const std::string path = write_model("m", {{"a", {3 << 20}}, {"bb", {20 << 20}}});
  const Model model = Model::open(path).value();
  if (!context_.open(path)->cached_bytes(0, 1)) GTEST_SKIP() << "the kernel does not report what is cached";
  {
    const Result<std::optional<MappedFile>> mapped = MappedFile::map(context_, model.files()[0]);
    ASSERT_TRUE(mapped.ok() && *mapped);
    const MappedFile& file = **mapped;
    ASSERT_EQ(file.size_bytes(), model.files()[0].size_bytes);
    std::vector<MappedFile::Piece> pieces;
    for (const TensorInfo& tensor : model.tensors()) pieces.push_back({tensor.offset, tensor.size_bytes});
    context_.reset_statistics();
    file.populate(context_, pieces);
    file.populate(context_, {});
    const Statistics statistics = context_.statistics();
    ASSERT_EQ(statistics.routes.size(), 1U);
    EXPECT_EQ(statistics.routes[0].engine, "mmap");
    EXPECT_EQ(statistics.routes[0].route, Route::mapped);
    EXPECT_EQ(statistics.routes[0].bytes, data_.size());
    EXPECT_EQ(statistics.routes[0].operations, 1U);
    char* const data = reinterpret_cast<char*>(file.data()) + model.files()[0].data_offset;
    EXPECT_TRUE(std::string_view(data, data_.size()) == data_);
    data[5] ^= 1;
  }
  EXPECT_EQ(check(model, {{.tensor = 0}, {.tensor = 1}}).read_bytes, data_.size());

  Context bypassing = Context::create({.cache = Cache::bypass}).value();
  EXPECT_FALSE(MappedFile::map(bypassing, model.files()[0])->has_value());
  write_model("m", {{"a", {3 << 20}}});
  EXPECT_EQ(MappedFile::map(context_, model.files()[0]).error().code, Code::changed);
}

TEST_F(ModelLoad, has_one_deadline_for_all_that_it_reads) {
  // A hundred windows: each takes much less time than all may, and all take much more.
  constexpr std::uint64_t rows = 8192, row_bytes = 1 << 20;
  const std::string file =
      write("m", safetensors_file(R"({"a":{"dtype":"U8","shape":[8192,1048576],"data_offsets":[0,)" +
                                      std::to_string(rows * row_bytes) + "]}}",
                                  ""));
  std::filesystem::resize_file(file, std::filesystem::file_size(file) + rows * row_bytes);
  const Model model = Model::open(file).value();
  Context context = Context::create({.lanes = 1, .deadlines = {.request_seconds = 0.25}}).value();
  std::string memory(2 * rows, '\0');
  const TensorPart part{.tensor = 0,
                        .dimension = 1,
                        .intervals = {{0, 1}, {row_bytes - 1, row_bytes}},
                        .memory = Region::host(memory.data(), memory.size())};
  Loading loading = load(context, model, {&part, 1}, {.columns = Columns::whole}).value();
  loading.wait();
  ASSERT_FALSE(loading.report().ok());
  EXPECT_EQ(loading.report().transfer.error->code, Code::timed_out);
}

TEST_F(ModelLoad, has_no_time_for_a_deadline_that_has_passed) {
  const Model model = Model::open(write_model("m", {{"a", {100, 100}}})).value();
  std::string memory(200, '\0');
  const TensorPart part{
      .tensor = 0, .dimension = 1, .intervals = {{0, 2}}, .memory = Region::host(memory.data(), memory.size())};
  for (const Columns columns : {Columns::pieces, Columns::whole}) {
    for (const double spent : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
      LoadOptions options{.columns = columns};
      options.request.deadline_seconds = spent;
      const Loading loading = load(context_, model, {&part, 1}, options).value();
      loading.wait();
      ASSERT_FALSE(loading.report().ok());
      EXPECT_EQ(loading.report().transfer.error->code, Code::timed_out);
    }
  }
}

TEST_F(ModelLoad, fills_a_buffer_that_is_destroyed_meanwhile_and_then_lets_it_go) {
  const Model model = Model::open(write_model("m", {{"a", {4096, 8192}}})).value();
  for (const Columns columns : {Columns::pieces, Columns::whole}) {
    Buffer memory = context_.allocate(Domain::host(), 4096 * 100).value();
    const TensorPart part{.tensor = 0, .dimension = 1, .intervals = {{0, 100}}, .memory = memory.region()};
    const Loading loading = load(context_, model, {&part, 1}, {.columns = columns}).value();
    memory = Buffer();
    loading.wait();
    EXPECT_TRUE(loading.report().ok());
    EXPECT_EQ(hold_memory(part.memory), nullptr) << "nobody holds it any more";
  }
}

TEST_F(ModelLoad, that_was_moved_from_has_ended_as_failed) {
  const Model model = Model::open(write_model("m", {{"a", {100}}})).value();
  std::string memory(100, '\0');
  const TensorPart part{.tensor = 0, .memory = Region::host(memory.data(), memory.size())};
  Loading loading = load(context_, model, {&part, 1}).value();
  Loading moved = std::move(loading);
  EXPECT_TRUE(loading.ended());
  EXPECT_EQ(loading.bytes_done(), 0U);
  EXPECT_EQ(loading.bytes_wanted(), 0U);
  EXPECT_TRUE(loading.wait_for(std::chrono::hours(1)));
  loading.wait();
  loading.cancel();
  EXPECT_EQ(loading.report().transfer.error->code, Code::invalid_argument);
  moved.wait();
  EXPECT_TRUE(moved.report().ok());
}

TEST_F(ModelLoad, is_cancelled_however_it_reads) {
  const Model model = Model::open(write_model("m", {{"a", {4096, 8192}}})).value();
  std::string memory(4096 * 100, '\0');
  for (const Columns columns : {Columns::pieces, Columns::whole}) {
    const TensorPart part{
        .tensor = 0, .dimension = 1, .intervals = {{0, 100}}, .memory = Region::host(memory.data(), memory.size())};
    Loading loading = load(context_, model, {&part, 1}, {.columns = columns}).value();
    loading.cancel();
    EXPECT_TRUE(loading.ended());
    const LoadReport report = loading.report();
    EXPECT_TRUE(report.ok() || report.transfer.error->code == Code::cancelled);
  }
}

}  // namespace
}  // namespace penstock::models

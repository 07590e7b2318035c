// Packed chunks that a GPU decodes, good ones, lying ones and truncated ones: it agrees with the CPU bit by bit, and
// whatever they say, it writes nowhere else. Over the fake driver the code of the kernels runs lane by lane.
#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <string>

#include "gpu/gpu_test.h"
#include "penstock/cuda.h"
#include "services/packed/codec.h"
#include "services/packed/test_values.h"
#include "services/packed/unpack.h"

namespace penstock::test {
namespace {

using packed::Fault;
using packed::Kind;
using Bytes = std::vector<std::byte>;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int tensor_count = 300;
constexpr int damaged_count = 300;
#else
constexpr int tensor_count = 10'000;
constexpr int damaged_count = 3'000;
#endif

constexpr std::byte untouched{0x5a};
constexpr std::size_t guard_bytes = 256;

template <typename T>
T number_at(const Bytes& bytes, std::size_t at) {
  T number;
  std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}
template <typename T>
void put_number(Bytes& bytes, std::size_t at, T number) {
  std::memcpy(bytes.data() + at, &number, sizeof number);
}

// Chunks of a tensor, and what is wanted of their values.
struct Case {
  Kind kind = Kind::bf16;
  std::uint32_t first_chunk = 0;
  std::uint32_t last_values = 0;
  std::vector<Bytes> chunks;
  Bytes values;
  std::uint64_t skip = 0;
  std::uint64_t bytes = 0;
  std::uint64_t misaligned = 0;
  std::string text;  // what it is

  std::uint64_t value_bytes() const { return packed::division_of(kind).value_bytes; }
  std::uint32_t values_of(std::size_t chunk) const {
    return chunk + 1 == chunks.size() ? last_values : packed::chunk_values;
  }
  std::size_t stored_bytes() const {
    std::size_t sum = 0;
    for (const Bytes& chunk : chunks) sum += chunk.size();
    return sum;
  }
  // What each chunk is by the CPU, whose bytes go to `memory`.
  std::vector<Fault> by_cpu(Bytes& memory) const {
    memory.assign(bytes, untouched);
    std::vector<Fault> faults;
    const std::uint64_t chunk_bytes = packed::chunk_values * value_bytes();
    for (std::uint32_t i = 0; i < chunks.size(); ++i) {
      const std::uint64_t begin = std::max<std::uint64_t>(skip, i * chunk_bytes);
      const std::uint64_t end = std::min(skip + bytes, i * chunk_bytes + values_of(i) * value_bytes());
      packed::WantedBytes wanted;
      if (begin < end) wanted = {begin - i * chunk_bytes, std::span(memory).subspan(begin - skip, end - begin)};
      faults.push_back(
          packed::decode_chunk(packed::best_kernels(), kind, chunks[i], {first_chunk + i, values_of(i)}, wanted));
    }
    return faults;
  }
};

Case make_case(std::mt19937_64& random) {
  Case made;
  made.kind = packed::kinds[random() % packed::kinds.size()];
  const packed::Pattern pattern = packed::patterns[random() % packed::patterns.size()];
  const bool is_long = random() % 20 == 0;
  const std::size_t count = is_long ? 1 + random() % (2 * packed::chunk_values + 5000) : 1 + random() % 4000;
  made.values = packed::make_values(made.kind, pattern, count, random());
  made.first_chunk = static_cast<std::uint32_t>(random() % 1000);
  const std::size_t chunk_bytes = packed::chunk_values * made.value_bytes();
  for (std::size_t begin = 0; begin < made.values.size(); begin += chunk_bytes) {
    const std::size_t length = std::min(chunk_bytes, made.values.size() - begin);
    const auto number = made.first_chunk + static_cast<std::uint32_t>(made.chunks.size());
    packed::encode_chunk(packed::best_kernels(), made.kind, number, std::span(made.values).subspan(begin, length),
                         made.chunks.emplace_back());
    made.last_values = static_cast<std::uint32_t>(length / made.value_bytes());
  }
  if (random() % 2 == 0) made.skip = random() % count * made.value_bytes();
  made.bytes = made.values.size() - made.skip;
  if (random() % 2 == 0) made.bytes = (1 + random() % (made.bytes / made.value_bytes())) * made.value_bytes();
  if (random() % 3 == 0) made.misaligned = random() % 16 * made.value_bytes();
  made.text = std::string(packed::kind_name(made.kind)) + ", pattern " + std::to_string(static_cast<int>(pattern)) +
              ", " + std::to_string(count) + " values, from byte " + std::to_string(made.skip) + " " +
              std::to_string(made.bytes) + " bytes, misaligned by " + std::to_string(made.misaligned);
  return made;
}

// Makes one of the chunks lie, in ways that get past some of the checks.
void damage(Case& victim, std::mt19937_64& random) {
  Bytes& chunk = victim.chunks[random() % victim.chunks.size()];
  const std::size_t bytes_at = 4;
  const std::size_t exceptions_at = 16;
  const std::size_t dictionary_at = 32;
  const auto header = packed::ChunkHeader{.bytes = number_at<std::uint32_t>(chunk, bytes_at),
                                          .values = number_at<std::uint32_t>(chunk, 8),
                                          .form = static_cast<packed::Form>(chunk[12]),
                                          .code_bits = static_cast<std::uint8_t>(chunk[13]),
                                          .exceptions = number_at<std::uint32_t>(chunk, exceptions_at)};
  const packed::ChunkSections sections = packed::sections_of(victim.kind, header);
  const auto any_bit = [&] { return std::byte{1} << random() % 8; };
  const auto way = random() % 8;
  victim.text += ", damaged in way " + std::to_string(way);
  switch (way) {
    case 0:
      chunk[random() % packed::header_bytes] ^= any_bit();
      break;
    case 1:
      chunk[random() % chunk.size()] ^= any_bit();
      break;
    case 2: {  // cut off, and says so or not
      const std::size_t units = chunk.size() / packed::chunk_alignment;
      chunk.resize((units == 1 ? 1 : 1 + random() % (units - 1)) * packed::chunk_alignment);
      if (random() % 2 == 0) put_number(chunk, bytes_at, static_cast<std::uint32_t>(chunk.size()));
      break;
    }
    case 3: {  // fewer exceptions than codes, or more than there are
      packed::ChunkHeader other = header;
      other.exceptions = static_cast<std::uint32_t>(random() % (header.exceptions + 100));
      chunk.resize(packed::sections_of(victim.kind, other).end);
      put_number(chunk, bytes_at, static_cast<std::uint32_t>(chunk.size()));
      put_number(chunk, exceptions_at, other.exceptions);
      break;
    }
    case 4:
      if (sections.bases < sections.exceptions && sections.exceptions <= chunk.size()) {
        const std::size_t tile = random() % packed::tiles_of(header.values);
        put_number(chunk, sections.bases + 2 * tile, static_cast<std::uint16_t>(random()));
      }
      break;
    case 5:
      for (std::size_t i = packed::header_bytes; i < chunk.size(); ++i) chunk[i] = static_cast<std::byte>(random());
      break;
    case 6:
      for (std::size_t i = 0; i < packed::dictionary_size; ++i) {
        chunk[dictionary_at + i] = static_cast<std::byte>(random());
      }
      break;
    default: {  // other codes than the sections are for, as long as the whole
      packed::ChunkHeader other = header;
      other.form = packed::Form::planes;
      other.code_bits = static_cast<std::uint8_t>(random() % 5);
      if (other.code_bits == 0) other.exceptions = 0;
      chunk.resize(packed::sections_of(victim.kind, other).end, std::byte{0xff});
      put_number(chunk, bytes_at, static_cast<std::uint32_t>(chunk.size()));
      put_number(chunk, exceptions_at, other.exceptions);
      chunk[12] = std::byte{1};
      chunk[13] = static_cast<std::byte>(other.code_bits);
    }
  }
}

class Unpacking : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (driver_ == nullptr) return;
    context_.emplace(make_context());
    ASSERT_TRUE(context_->prepare(Domain::cuda(0)).ok());
    if (!can_unpack(Domain::cuda(0))) GTEST_SKIP() << "there are no kernels";
    stream_ = make_stream(cuda::cu_stream_non_blocking);
  }
  void TearDown() override {
    if (stream_ != nullptr) driver_->api().stream_destroy(stream_);
    GpuTest::TearDown();
  }
  void wait_for_all() {
    const cuda::Current current(gpu());
    ASSERT_EQ(driver_->api().stream_synchronize(stream_), cuda::cu_success);
  }

  // Decodes all of them by one launch each, and compares.
  void compare(const std::vector<Case>& cases) {
    struct Place {
      std::size_t stored = 0;
      std::size_t memory = 0;
    };
    std::vector<Place> places;
    Bytes stored;
    std::size_t memory_bytes = guard_bytes;
    for (const Case& one : cases) {
      places.push_back({stored.size(), memory_bytes + one.misaligned});
      for (const Bytes& chunk : one.chunks) stored.insert(stored.end(), chunk.begin(), chunk.end());
      memory_bytes += (one.misaligned + one.bytes + 2 * guard_bytes) / guard_bytes * guard_bytes;
    }
    const Buffer source = context_->allocate(Domain::cuda(0), stored.size()).value();
    const Buffer memory = context_->allocate(Domain::cuda(0), memory_bytes).value();
    const Buffer words = context_->allocate(Domain::pinned(), cases.size() * sizeof(std::uint32_t)).value();
    fill(source.region(), stored);
    fill(memory.region(), Bytes(memory_bytes, untouched));
    std::memset(words.data(), 0, words.size_bytes());
    const std::uint64_t status = gpu_address(Domain::cuda(0), words.data()).value();
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const Case& one = cases[i];
      UnpackRun run;
      run.stored = reinterpret_cast<std::uint64_t>(source.data()) + places[i].stored;
      run.memory = reinterpret_cast<std::uint64_t>(memory.data()) + places[i].memory;
      run.memory_bytes = one.bytes;
      run.skip_bytes = one.skip;
      run.status = status + i * sizeof(std::uint32_t);
      run.type = static_cast<PackedType>(one.kind);
      run.first_chunk = one.first_chunk;
      run.count = static_cast<std::uint32_t>(one.chunks.size());
      run.last_values = one.last_values;
      for (std::uint32_t c = 0; c < run.count; ++c) {
        run.starts[c + 1] =
            run.starts[c] + static_cast<std::uint32_t>(one.chunks[c].size() / UnpackRun::chunk_unit_bytes);
      }
      const Status launched = launch_unpack(Domain::cuda(0), {stream_}, run);
      ASSERT_TRUE(launched.ok()) << one.text << ": " << launched.error().message;
    }
    wait_for_all();
    const Bytes found = bytes_of(memory.region());
    std::size_t guarded_from = 0;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      std::uint32_t word = 0;
      std::memcpy(&word, words.data() + i * sizeof word, sizeof word);
      const std::span<const std::byte> got = std::span(found).subspan(places[i].memory, cases[i].bytes);
      expect_agreement(cases[i], word, got);
      expect_untouched(std::span(found).subspan(guarded_from, places[i].memory - guarded_from), cases[i]);
      guarded_from = places[i].memory + cases[i].bytes;
      if (HasFailure()) return;
    }
    expect_untouched(std::span(found).subspan(guarded_from), cases.back());
  }

  void expect_agreement(const Case& one, std::uint32_t word, std::span<const std::byte> found) {
    Bytes expected;
    const std::vector<Fault> faults = one.by_cpu(expected);
    const bool is_good = std::ranges::all_of(faults, [](Fault fault) { return fault == Fault::none; });
    if (is_good) {
      EXPECT_EQ(word, 0U) << one.text;
      EXPECT_TRUE(same_bytes(found, expected)) << one.text;
      ++good_;
      return;
    }
    ++bad_;
    ASSERT_NE(word, 0U) << one.text;
    const std::uint32_t chunk = unpack_chunk(word);
    ASSERT_LT(chunk, faults.size()) << one.text;
    EXPECT_EQ(static_cast<int>(unpack_reason(word)), static_cast<int>(faults[chunk])) << one.text;
    ++faults_[static_cast<std::size_t>(faults[chunk])];
  }
  static void expect_untouched(std::span<const std::byte> bytes, const Case& near) {
    EXPECT_TRUE(all_are(bytes, untouched)) << near.text;
  }

  void compare_many(int count, bool are_damaged, std::uint64_t seed) {
    constexpr int batch = 200;
    std::mt19937_64 random(seed);
    for (int done = 0; done < count && !HasFailure(); done += batch) {
      std::vector<Case> cases;
      for (int i = 0; i < std::min(batch, count - done); ++i) {
        cases.push_back(make_case(random));
        if (are_damaged) damage(cases.back(), random);
      }
      compare(cases);
    }
  }

  std::optional<Context> context_;
  cuda::CuStream stream_ = nullptr;
  int good_ = 0;
  int bad_ = 0;
  std::array<int, 4> faults_{};  // by what they are
};

TEST_F(Unpacking, gives_back_every_bit_of_ten_thousand_tensors) {
  compare_many(tensor_count, false, 21);
  EXPECT_EQ(good_, tensor_count);
}

TEST_F(Unpacking, finds_what_the_cpu_finds_in_chunks_that_lie) {
  compare_many(damaged_count, true, 22);
  // Some damage is none: bits that nobody reads, or what was there before.
  EXPECT_GT(bad_, damaged_count / 2);
  EXPECT_GT(good_, 0);
  for (const Fault fault : {Fault::header, Fault::exceptions, Fault::checksum}) {
    EXPECT_GT(faults_[static_cast<std::size_t>(fault)], damaged_count / 50) << packed::fault_text(fault);
  }
}

TEST_F(Unpacking, refuses_runs_that_do_not_fit_themselves) {
  const Buffer memory = context_->allocate(Domain::cuda(0), 1 << 20).value();
  UnpackRun good;
  good.stored = reinterpret_cast<std::uint64_t>(memory.data());
  good.memory = good.stored + (512 << 10);
  good.status = good.stored + (768 << 10);
  good.type = PackedType::bf16;
  good.count = 2;
  good.last_values = 100;
  good.starts[1] = 10;
  good.starts[2] = 20;
  good.memory_bytes = (65536 + 100) * 2;
  const auto refused = [&](auto change) {
    UnpackRun run = good;
    change(run);
    const Status status = launch_unpack(Domain::cuda(0), {stream_}, run);
    return !status.ok() && status.error().code == Code::invalid_argument;
  };
  EXPECT_TRUE(refused([](UnpackRun& run) { run.type = PackedType{0}; }));
  EXPECT_TRUE(refused([](UnpackRun& run) { run.type = PackedType{6}; }));
  EXPECT_TRUE(refused([](UnpackRun& run) { run.count = 0; }));
  EXPECT_TRUE(refused([](UnpackRun& run) { run.count = UnpackRun::chunks_most + 1; }));
  EXPECT_TRUE(refused([](UnpackRun& run) { run.last_values = 0; }));
  EXPECT_TRUE(refused([](UnpackRun& run) { run.last_values = 65537; }));
  EXPECT_TRUE(refused([](UnpackRun& run) { run.starts[0] = 1; }));
  EXPECT_TRUE(refused([](UnpackRun& run) { run.starts[2] = 10; }));
  EXPECT_TRUE(refused([](UnpackRun& run) { run.starts[2] = UINT32_MAX; }));
  EXPECT_TRUE(refused([](UnpackRun& run) { run.memory_bytes += 2; }));
  EXPECT_TRUE(refused([](UnpackRun& run) { run.skip_bytes = 2; }));
  EXPECT_TRUE(refused([](UnpackRun& run) { run.skip_bytes = UINT64_MAX - 1; }));
  EXPECT_TRUE(refused([](UnpackRun& run) { run.memory_bytes -= 1; }));
  EXPECT_TRUE(refused([](UnpackRun& run) { run.memory += 1; }));
  EXPECT_TRUE(refused([](UnpackRun& run) { run.stored += 8; }));
  EXPECT_TRUE(refused([](UnpackRun& run) { run.status += 2; }));
  EXPECT_EQ(launch_unpack(Domain::host(), {stream_}, good).error().code, Code::invalid_argument);
  EXPECT_FALSE(can_unpack(Domain::host()));
}

// A packed tensor in a file, from the first chunk on.
struct PackedFile {
  PackedFile(Kind kind, std::size_t count, const std::string& path)
      : values(packed::make_values(kind, packed::Pattern::normal, count, 5)) {
    packed::TensorIndex index{.kind = kind, .values = count, .bytes = 0, .starts = {}};
    bytes.resize(packed::index_bytes(count));
    const std::size_t chunk_bytes = std::size_t{packed::chunk_values} * packed::division_of(kind).value_bytes;
    for (std::size_t begin = 0; begin < values.size(); begin += chunk_bytes) {
      index.starts.push_back(static_cast<std::uint32_t>(bytes.size() / packed::chunk_alignment));
      packed::encode_chunk(packed::best_kernels(), kind, static_cast<std::uint32_t>(begin / chunk_bytes),
                           std::span(values).subspan(begin, std::min(chunk_bytes, values.size() - begin)), bytes);
    }
    index.starts.push_back(static_cast<std::uint32_t>(bytes.size() / packed::chunk_alignment));
    index.bytes = packed::round_up(bytes.size(), packed::tensor_alignment);
    unpack = std::make_shared<packed::Unpack>("layer.weight", index, 0);
    write_file(path, bytes);
  }
  // `stored` has to live as long as the ranges.
  std::vector<Range> ranges(const Store& store, std::uint64_t begin, Region memory, std::uint64_t slot_bytes,
                            std::vector<Stored>& stored) const {
    const auto runs = unpack->runs(begin, memory.size_bytes, {.stored_bytes = slot_bytes});
    std::vector<Range> ranges;
    stored.reserve(runs.size());
    std::uint64_t done = 0;
    for (const packed::ChunkRun& run : runs) {
      stored.push_back({unpack, run.stored_bytes, begin + done});
      ranges.push_back({&store, run.offset, memory.part(done, run.bytes), &stored.back()});
      done += run.bytes;
    }
    return ranges;
  }

  Bytes values;
  Bytes bytes;
  std::shared_ptr<packed::Unpack> unpack;
};

class UnpackedOnGpu : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (driver_ == nullptr) return;
    options_.lanes = 4;
    options_.staging_slot_bytes = 1 << 20;
  }
};

TEST_F(UnpackedOnGpu, parts_of_a_tensor_come_through_lanes_with_and_without_scratch_memory) {
  for (const Kind kind : {Kind::bf16, Kind::f32}) {
    const PackedFile file(kind, 12 * packed::chunk_values + 777, folder_.path("file"));
    const std::uint64_t all = file.values.size();
    for (const std::uint64_t budget_bytes : {std::uint64_t{0}, all + (1 << 20)}) {
      options_.device_budget_bytes = budget_bytes;
      Context context = make_context();
      const Store store = context.open(folder_.path("file")).value();
      const Buffer memory = context.allocate(Domain::cuda(0), all).value();
      for (const auto& [begin, bytes] : {std::pair<std::uint64_t, std::uint64_t>{0, all}, {131'072 + 4, 1'000'000}}) {
        fill(memory.region(), Bytes(all, untouched));
        std::vector<Stored> stored;
        const std::vector<Range> ranges =
            file.ranges(store, begin, memory.region().part(0, bytes), options_.staging_slot_bytes, stored);
        const Report report = context.transfer(Direction::read, ranges);
        ASSERT_TRUE(report.ok()) << report.error->message;
        EXPECT_EQ(report.bytes, bytes);
        const Bytes found = bytes_of(memory.region());
        EXPECT_TRUE(same_bytes(std::span(found).first(bytes), std::span(file.values).subspan(begin, bytes)));
        EXPECT_TRUE(all_are(std::span(found).subspan(bytes), untouched));
      }
    }
  }
}

TEST_F(UnpackedOnGpu, damage_fails_its_range_alone_and_names_tensor_and_place) {
  PackedFile file(Kind::bf16, 20 * packed::chunk_values, folder_.path("file"));
  const std::uint64_t place = file.unpack->index().offset(13);
  file.bytes[place + 5000] ^= std::byte{4};
  write_file(folder_.path("file"), file.bytes);
  Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), file.values.size()).value();
  std::vector<Stored> stored;
  const std::vector<Range> ranges = file.ranges(store, 0, memory.region(), options_.staging_slot_bytes, stored);
  const Report report = context.transfer(Direction::read, ranges);
  ASSERT_EQ(report.outcome, Outcome::failed);
  EXPECT_EQ(report.failure_count, 1U);
  const std::string& text = report.error->message;
  EXPECT_NE(text.find("tensor \"layer.weight\": chunk 13 of 20, at byte " + std::to_string(place)), std::string::npos)
      << text;
  const Bytes found = bytes_of(memory.region());
  const std::size_t chunk_bytes = packed::chunk_values * 2;
  EXPECT_TRUE(same_bytes(std::span(found).first(5 * chunk_bytes), std::span(file.values).first(5 * chunk_bytes)));
}

TEST_F(UnpackedOnGpu, the_cpu_does_it_where_there_are_no_kernels_or_a_stream_waits) {
  const PackedFile file(Kind::bf16, 3 * packed::chunk_values, folder_.path("file"));
  Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), file.values.size()).value();
  ASSERT_TRUE(context.prepare(Domain::cuda(0)).ok());
  std::vector<Stored> stored;
  const std::vector<Range> ranges = file.ranges(store, 0, memory.region(), options_.staging_slot_bytes, stored);
  const std::uint64_t launches = fake_ ? fake_->calls("cuLaunchKernel") : 0;
  const Ticket ticket =
      context.submit(Direction::read, ranges, {.stream = CudaStream{make_stream(cuda::cu_stream_non_blocking)}})
          .value();
  ASSERT_EQ(ticket.wait(), Outcome::done);
  EXPECT_TRUE(same_bytes(bytes_of(memory.region()), file.values));
  if (fake_) {
    EXPECT_EQ(fake_->calls("cuLaunchKernel"), launches);
  }
}

}  // namespace
}  // namespace penstock::test

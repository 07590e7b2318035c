// bench_packed: chunks of packed weights, encoded and decoded by one CPU, with their checksums. The weights are
// normally distributed; they and their chunks are longer than the caches of a core.
#include <algorithm>
#include <string>
#include <vector>

#include "arguments.h"
#include "penstock/checksum.h"
#include "rounds.h"
#include "services/packed/codec.h"
#include "services/packed/test_values.h"

namespace {

using bench::Json;
namespace packed = penstock::packed;

class Weights {
 public:
  Weights(packed::Kind kind, std::size_t bytes) : kind_(kind) {
    const std::size_t value_bytes = packed::division_of(kind).value_bytes;
    chunk_bytes_ = packed::chunk_values * value_bytes;
    const std::size_t chunks = std::max<std::size_t>(1, bytes / chunk_bytes_);
    values_ = packed::make_values(kind, packed::Pattern::normal, chunks * packed::chunk_values, 1);
    decoded_.resize(values_.size());
    chunks_.resize(chunks);
    encode_all();
  }

  double ratio() const {
    std::size_t stored = 0;
    for (const auto& chunk : chunks_) stored += chunk.size();
    return static_cast<double>(stored) / static_cast<double>(values_.size());
  }

  Json encode(double seconds) {
    return repeat(seconds, [&] { encode_all(); });
  }
  Json decode(double seconds) {
    return repeat(seconds, [&] { decode_all(); });
  }
  Json check(double) {
    decode_all();
    penstock::Checksum came, expected;
    came.add(decoded_);
    expected.add(values_);
    return {{"checksum", came.hex()}, {"expected", expected.hex()}};
  }

 private:
  template <typename Work>
  Json repeat(double seconds, const Work& work) const {
    const double begin = bench::now(), cpu = bench::cpu_seconds();
    std::uint64_t bytes = 0;
    do {
      work();
      bytes += values_.size();
    } while (bench::now() - begin < seconds);
    return {{"bytes", bytes}, {"seconds", bench::now() - begin}, {"cpu_seconds", bench::cpu_seconds() - cpu}};
  }

  void encode_all() {
    for (std::size_t i = 0; i < chunks_.size(); ++i) {
      chunks_[i].clear();
      packed::encode_chunk(packed::best_kernels(), kind_, static_cast<std::uint32_t>(i),
                           std::span(values_).subspan(i * chunk_bytes_, chunk_bytes_), chunks_[i]);
    }
  }
  void decode_all() {
    for (std::size_t i = 0; i < chunks_.size(); ++i) {
      const packed::Fault fault = packed::decode_chunk(
          packed::best_kernels(), kind_, chunks_[i], {static_cast<std::uint32_t>(i), packed::chunk_values},
          {.skip = 0, .memory = std::span(decoded_).subspan(i * chunk_bytes_, chunk_bytes_), .is_part_of_much = true});
      if (fault != packed::Fault::none) bench::fail(std::string(packed::fault_text(fault)));
    }
  }

  packed::Kind kind_;
  std::size_t chunk_bytes_ = 0;
  std::vector<std::byte> values_, decoded_;
  std::vector<std::vector<std::byte>> chunks_;
};

}  // namespace

int main(int argc, char** argv) {
  bench::Arguments arguments("Packs and unpacks made-up weights, and tells the speed.");
  std::string type = "BF16";
  std::size_t bytes = 64 << 20;
  arguments.add("TYPE", type);
  arguments.add("--bytes", bytes);
  arguments.parse(argc, argv);
  const auto kind = packed::kind_from_name(type);
  if (!kind) bench::fail("no codec packs " + type);
  Weights weights(*kind, bytes);
  bench::converse({{"kernels", packed::best_kernels().name}, {"ratio", weights.ratio()}},
                  {{"encode", [&](double seconds) { return weights.encode(seconds); }},
                   {"decode", [&](double seconds) { return weights.decode(seconds); }},
                   {"check", [&](double seconds) { return weights.check(seconds); }}});
  return 0;
}

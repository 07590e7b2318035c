// Runs every fuzz target over its corpus and over seeded mutations of it, without libFuzzer.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "fuzz/targets.h"
#include "support/built.h"

namespace penstock::fuzz {
namespace {

constexpr int mutations = 8'000;  // scripts/soak.sh fuzz tries millions

std::vector<std::string> corpus_of(const Target& target) {
  const auto folder = test::built("tests/fuzz/corpus/" + std::string(target.name));
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());  // the same order everywhere, so that a seed reproduces
  std::vector<std::string> inputs;
  for (const auto& path : files) {
    std::ifstream file(path, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return inputs;
}

class Mutator {
 public:
  Mutator(const std::vector<std::string>& corpus, std::uint64_t seed) : corpus_(corpus), random_(seed) {}

  std::string next() {
    std::string input = corpus_[below(corpus_.size())];
    for (std::size_t step = below(6); step < 6; ++step) change(input);
    return input;
  }

 private:
  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(random_() % limit); }

  void change(std::string& input) {
    constexpr std::string_view telling = std::string_view("\0%{}[]\":,/\\-+.0189eE \n\xff", 23);
    const std::size_t at = below(input.size() + 1);
    switch (below(5)) {
      case 0:
        input.insert(at, 1, telling[below(telling.size())]);
        break;
      case 1:
        input.erase(at, below(8) + 1);
        break;
      case 2:
        if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << below(8)));
        break;
      case 3:
        input.insert(at, input.substr(below(input.size() + 1), below(16)));
        break;
      default: {
        const std::string& other = corpus_[below(corpus_.size())];
        input.insert(at, other, below(other.size() + 1), below(32));
      }
    }
  }

  const std::vector<std::string>& corpus_;
  std::mt19937_64 random_;
};

class FuzzReplay : public testing::TestWithParam<Target> {};

TEST_P(FuzzReplay, holds_over_the_corpus) {
  const auto corpus = corpus_of(GetParam());
  ASSERT_FALSE(corpus.empty());
  for (const std::string& input : corpus) EXPECT_EQ(GetParam().run(input), "") << testing::PrintToString(input);
}

TEST_P(FuzzReplay, holds_over_mutations) {
  const auto corpus = corpus_of(GetParam());
  ASSERT_FALSE(corpus.empty());
  Mutator mutator(corpus, 1);
  for (int index = 0; index < mutations; ++index) {
    const std::string input = mutator.next();
    ASSERT_EQ(GetParam().run(input), "") << "mutation " << index << ": " << testing::PrintToString(input);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzReplay, testing::ValuesIn(targets),
                         [](const auto& target) { return std::string(target.param.name); });

}  // namespace
}  // namespace penstock::fuzz

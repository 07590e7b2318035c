// HostWarp: the warp of cuda/unpack.h on a CPU: a Word is an array of what 32 lanes have. So the fake driver runs the
// code of the kernel itself.
//
// Every access is an access of the process: whatever lies outside the memory that it was given, a sanitizer sees.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>

#include "cuda/unpack.h"

namespace fake_cuda {

struct HostWarp {
  static constexpr std::uint32_t lanes = penstock::cuda::lane_count;

  template <typename T>
  struct Of {
    std::array<T, lanes> of{};

    Of() = default;
    explicit Of(T same) { of.fill(same); }

    template <typename Function>
    static auto each(Function function) {
      Of<decltype(function(0U))> result;
      for (std::uint32_t lane = 0; lane < lanes; ++lane) result.of[lane] = function(lane);
      return result;
    }
    friend Of operator+(const Of& a, const Of& b) {
      return each([&](auto i) { return T(a.of[i] + b.of[i]); });
    }
    friend Of operator+(const Of& a, T b) { return a + Of(b); }
    friend Of operator-(const Of& a, const Of& b) {
      return each([&](auto i) { return T(a.of[i] - b.of[i]); });
    }
    friend Of operator*(const Of& a, T b) {
      return each([&](auto i) { return T(a.of[i] * b); });
    }
    friend Of operator&(const Of& a, const Of& b) {
      return each([&](auto i) { return T(std::bit_and<>()(a.of[i], b.of[i])); });
    }
    friend Of operator|(const Of& a, const Of& b) {
      return each([&](auto i) { return T(std::bit_or<>()(a.of[i], b.of[i])); });
    }
    friend Of operator~(const Of& a) {
      return each([&](auto i) { return T(~a.of[i]); });
    }
    friend Of operator!(const Of& a) {
      return each([&](auto i) { return T(!a.of[i]); });
    }
    friend Of operator<<(const Of& a, std::uint32_t by) {
      return each([&](auto i) { return T(a.of[i] << by); });
    }
    friend Of operator<<(const Of& a, const Of& by) {
      return each([&](auto i) { return T(a.of[i] << by.of[i]); });
    }
    friend Of operator>>(const Of& a, std::uint32_t by) {
      return each([&](auto i) { return T(a.of[i] >> by); });
    }
    friend Of<bool> operator!=(const Of& a, const Of& b) {
      return each([&](auto i) { return a.of[i] != b.of[i]; });
    }
    friend Of<bool> operator<(const Of& a, const Of& b) {
      return each([&](auto i) { return a.of[i] < b.of[i]; });
    }
  };
  using Word = Of<std::uint32_t>;
  using Long = Of<std::uint64_t>;
  using Flag = Of<bool>;

  static Word lane() {
    return Word::each([](std::uint32_t i) { return i; });
  }
  static bool any(const Flag& flag) {
    for (const bool one : flag.of) {
      if (one) return true;
    }
    return false;
  }
  static Word choose(const Flag& flag, const Word& yes, const Word& no) {
    return Word::each([&](auto i) { return flag.of[i] ? yes.of[i] : no.of[i]; });
  }
  static Word bytes_by(const Word& first, const Word& second, const Word& nibbles_of) {
    return Word::each([&](auto i) {
      const std::uint64_t bytes = std::uint64_t{second.of[i]} << 32 | first.of[i];
      std::uint32_t result = 0;
      for (std::uint32_t byte = 0; byte < 4; ++byte) {
        const std::uint32_t nibble = nibbles_of.of[i] >> 4 * byte & 0xf;
        auto chosen = static_cast<std::uint8_t>(bytes >> 8 * (nibble & 7));
        if ((nibble & 8) != 0) chosen = (chosen & 0x80) != 0 ? 0xff : 0;  // as the instruction does
        result |= std::uint32_t{chosen} << 8 * byte;
      }
      return result;
    });
  }
  static Word ones(const Word& word) {
    return Word::each([&](auto i) { return static_cast<std::uint32_t>(std::popcount(word.of[i])); });
  }
  // What the instruction gives for none is -1; nobody uses it.
  static Word lowest(const Word& word) {
    return Word::each(
        [&](auto i) { return word.of[i] == 0 ? ~0U : static_cast<std::uint32_t>(std::countr_zero(word.of[i])); });
  }
  static std::uint32_t of_lane(const Word& word, std::uint32_t lane) { return word.of[lane]; }
  static Word sum_before(const Word& word) {
    Word sum;
    for (std::uint32_t i = 1; i < lanes; ++i) sum.of[i] = sum.of[i - 1] + word.of[i - 1];
    return sum;
  }
  static std::uint64_t sum(const Long& word) {
    std::uint64_t sum = 0;
    for (const std::uint64_t one : word.of) sum += one;
    return sum;
  }
  static Long multiply_add(const Word& a, const Word& b, const Long& c) {
    return Long::each([&](auto i) { return std::uint64_t{a.of[i]} * b.of[i] + c.of[i]; });
  }

  static penstock::cuda::ChunkHeader header(const std::uint8_t* from) {
    penstock::cuda::ChunkHeader header;
    std::memcpy(&header, from, sizeof header);
    return header;
  }
  static std::uint32_t load_16(const std::uint8_t* from) {
    std::uint16_t number = 0;
    std::memcpy(&number, from, sizeof number);
    return number;
  }
  static Word load_8_if(const Flag& flag, const std::uint8_t* from, const Word& at) {
    return Word::each([&](auto i) { return flag.of[i] ? std::uint32_t{from[at.of[i]]} : 0U; });
  }
  static Word load(const std::uint8_t* from, const Word& at) {
    return Word::each([&](auto i) { return word_at(from + at.of[i]); });
  }
  template <int count>
  static void load(const std::uint8_t* from, const Word& at, Word* words) {
    for (int i = 0; i < count; ++i) words[i] = load(from + 4 * i, at);
  }
  template <int count>
  static void load_if(const Flag& flag, const std::uint8_t* from, const Word& at, Word* words) {
    for (int w = 0; w < count; ++w) {
      words[w] = Word::each([&](auto i) { return flag.of[i] ? word_at(from + at.of[i] + 4 * w) : 0U; });
    }
  }
  template <int count>
  static void load_keys(const Word& at, Word* words) {
    static constexpr auto keys = penstock::cuda::ChecksumKeys::make();
    load<count>(reinterpret_cast<const std::uint8_t*>(keys.word), at, words);
  }
  template <int count>
  static void store(std::uint64_t to, const Word& at, const Word* words) {
    for (std::uint32_t lane = 0; lane < lanes; ++lane) {
      for (int i = 0; i < count; ++i) {
        std::memcpy(reinterpret_cast<std::uint8_t*>(to) + at.of[lane] + 4 * i, &words[i].of[lane], 4);
      }
    }
  }
  template <std::uint32_t bytes>
  static void store_value_if(const Flag& flag, std::uint64_t to, const Word& at, const Word& value) {
    for (std::uint32_t lane = 0; lane < lanes; ++lane) {
      if (flag.of[lane]) std::memcpy(reinterpret_cast<std::uint8_t*>(to + at.of[lane]), &value.of[lane], bytes);
    }
  }

 private:
  static std::uint32_t word_at(const std::uint8_t* from) {
    std::uint32_t word = 0;
    std::memcpy(&word, from, sizeof word);
    return word;
  }
};

}  // namespace fake_cuda

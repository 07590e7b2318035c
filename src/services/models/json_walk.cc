#include "services/models/json_walk.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "services/models/contents.h"
#include "services/models/utf8.h"

namespace penstock::models {
namespace {

using Kind = JsonEvent::Kind;

constexpr std::size_t depth_limit = 8;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// The keys of an object that is open. Most objects have few; for the many of the outermost one there is a table, open
// and at most half full.
class Keys {
 public:
  void clear() {
    few_.clear();
    table_.clear();
    count_ = 0;
  }
  // False: it is there already.
  bool add(std::string_view key) {
    constexpr std::size_t few = 8;
    if (table_.empty() && few_.size() < few) {
      if (std::ranges::find(few_, key) != few_.end()) return false;
      few_.push_back(key);
      return true;
    }
    if (2 * count_ >= table_.size()) grow();
    return insert(key);
  }

 private:
  bool insert(std::string_view key) {
    std::size_t place = std::hash<std::string_view>{}(key) & (table_.size() - 1);
    for (; table_[place].data() != nullptr; place = (place + 1) & (table_.size() - 1)) {
      if (table_[place] == key) return false;
    }
    table_[place] = key;
    ++count_;
    return true;
  }
  void grow() {
    const std::vector<std::string_view> others =
        std::exchange(table_, std::vector<std::string_view>(std::max<std::size_t>(64, 4 * table_.size())));
    count_ = 0;
    for (const std::string_view key : others.empty() ? few_ : others) {
      if (key.data() != nullptr) insert(key);
    }
  }

  std::vector<std::string_view> few_;
  std::vector<std::string_view> table_;  // none in it: without data; a power of two
  std::size_t count_ = 0;                // in the table
};

void append_utf8(std::string& text, std::uint32_t point) {
  const auto add = [&](std::uint32_t byte) { text += static_cast<char>(byte); };
  if (point < 0x80) {
    add(point);
  } else if (point < 0x800) {
    add(0xc0 | point >> 6);
    add(0x80 | (point & 0x3f));
  } else if (point < 0x10000) {
    add(0xe0 | point >> 12);
    add(0x80 | (point >> 6 & 0x3f));
    add(0x80 | (point & 0x3f));
  } else {
    add(0xf0 | point >> 18);
    add(0x80 | (point >> 12 & 0x3f));
    add(0x80 | (point >> 6 & 0x3f));
    add(0x80 | (point & 0x3f));
  }
}

// What a text may hold as it is: everything of ASCII but its end, escapes and control characters.
bool is_plain(unsigned char c) {
  return c >= ' ' && c < 0x80 && c != '"' && c != '\\';
}

// The same of eight bytes at once: the first one that is not plain has its highest bit set in the result, and none
// before it. Subtracting from all bytes sets that bit of those that are too small, and of none before the first of
// them, since only then one borrows from the next.
std::uint64_t not_plain(std::uint64_t word) {
  constexpr std::uint64_t ones = 0x0101010101010101, high = 0x80 * ones;
  const auto below = [](std::uint64_t bytes, std::uint64_t least) { return (bytes - least * ones) & ~bytes; };
  return (word | below(word, ' ') | below(word ^ '"' * ones, 1) | below(word ^ '\\' * ones, 1)) & high;
}

const char* skip_plain(const char* at, const char* end) {
  static_assert(std::endian::native == std::endian::little);
  for (std::uint64_t word = 0; end - at >= 8; at += sizeof word) {
    std::memcpy(&word, at, sizeof word);
    if (const std::uint64_t found = not_plain(word); found != 0) return at + std::countr_zero(found) / 8;
  }
  return std::find_if_not(at, end, is_plain);
}

// Every function begins at `at_`, moves it past what it takes, and returns false where that is not there.
class Walker {
 public:
  Walker(std::string_view json, const JsonVisitor& visitor)
      : begin_(json.data()), end_(json.data() + json.size()), visitor_(visitor) {}

  Status walk() {
    const bool whole = value(0, false) && (skip_space(), at_ == end_);
    if (whole) return {};
    if (!problem_.empty()) return broken(problem_);
    return broken("it is not valid JSON from byte " + std::to_string(at_ - begin_) + " on");
  }

 private:
  bool refuse(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }
  bool visit(JsonEvent event) {
    event.path = path_;
    JsonProblem problem = visitor_(event);
    return !problem || refuse(std::move(*problem));
  }

  std::string_view left() const { return {at_, static_cast<std::size_t>(end_ - at_)}; }
  char peek() const { return at_ != end_ ? *at_ : '\0'; }
  bool take(char c) {
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }
  bool take_word(std::string_view word) {
    if (!left().starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  void skip_space() {
    if (peek() > ' ') return;
    while (peek() == ' ' || peek() == '\n' || peek() == '\t' || peek() == '\r') ++at_;
  }

  bool value(std::size_t depth, bool in_array) {
    skip_space();
    switch (peek()) {
      case '{':
        return object(depth, in_array);
      case '[':
        return array(depth, in_array);
      case '"': {
        std::string_view taken;
        return text(taken) && visit({.kind = Kind::string, .in_array = in_array, .text = taken});
      }
      case 't':
        return take_word("true") && visit({.kind = Kind::other, .in_array = in_array});
      case 'f':
        return take_word("false") && visit({.kind = Kind::other, .in_array = in_array});
      case 'n':
        return take_word("null") && visit({.kind = Kind::other, .in_array = in_array});
      default:
        return number(in_array);
    }
  }

  bool object(std::size_t depth, bool in_array) {
    if (!visit({.kind = Kind::object, .in_array = in_array})) return false;
    if (depth == depth_limit) return refuse("it is nested too deeply");
    keys_[depth].clear();
    path_.emplace_back();
    if (!take('{')) return false;
    skip_space();
    if (!take('}')) {
      do {
        if (!member(depth)) return false;
      } while (take(','));
      if (!take('}')) return false;
    }
    path_.pop_back();
    return visit({.kind = Kind::object_end, .in_array = in_array});
  }

  bool member(std::size_t depth) {
    std::string_view key;
    skip_space();
    if (!text(key)) return false;
    if (!keys_[depth].add(key)) return refuse("the key " + in_quotes(key) + " is there twice");
    path_.back() = key;
    skip_space();
    if (!take(':') || !value(depth + 1, false)) return false;
    skip_space();
    return true;
  }

  bool array(std::size_t depth, bool in_array) {
    if (!visit({.kind = Kind::array, .in_array = in_array})) return false;
    if (depth == depth_limit) return refuse("it is nested too deeply");
    if (!take('[')) return false;
    skip_space();
    if (take(']')) return true;
    do {
      if (!value(depth + 1, true)) return false;
      skip_space();
    } while (take(','));
    return take(']');
  }

  bool digits() {
    const char* const begin = at_;
    while (is_digit(peek())) ++at_;
    return at_ != begin;
  }

  bool number(bool in_array) {
    bool is_whole = !take('-');
    const char* const begin = at_;
    std::uint64_t value = 0;
    for (; is_digit(peek()); ++at_) {
      is_whole = is_whole && !__builtin_mul_overflow(value, std::uint64_t{10}, &value) &&
                 !__builtin_add_overflow(value, static_cast<std::uint64_t>(*at_ - '0'), &value);
    }
    const bool leads_with_zero = at_ - begin > 1 && *begin == '0';
    if (at_ == begin || leads_with_zero) return false;
    if (take('.')) {
      is_whole = false;
      if (!digits()) return false;
    }
    if (take('e') || take('E')) {
      is_whole = false;
      if (!take('+')) (void)take('-');
      if (!digits()) return false;
    }
    return visit({.kind = is_whole ? Kind::number : Kind::other, .in_array = in_array, .number = is_whole ? value : 0});
  }

  // A view of the JSON itself, unless something in it is escaped.
  bool text(std::string_view& value) {
    if (!take('"')) return false;
    std::string* decoded = nullptr;
    const char* begin = at_;  // of what is not in `decoded`
    for (;;) {
      at_ = skip_plain(at_, end_);
      if (at_ == end_) return false;
      const auto c = static_cast<unsigned char>(*at_);
      if (c == '"') break;
      if (c < ' ') return false;
      if (c == '\\') {
        if (decoded == nullptr) decoded = &decoded_.emplace_back();
        decoded->append(begin, at_);
        ++at_;
        if (!escaped(*decoded)) return false;
        begin = at_;
      } else {
        const std::size_t length = utf8_length(left());
        if (length == 0) return false;
        at_ += length;
      }
    }
    value = {begin, at_};
    ++at_;
    if (decoded != nullptr) value = decoded->append(value);
    return true;
  }

  bool escaped(std::string& decoded) {
    constexpr std::string_view letters = "\"\\/bfnrt", meanings = "\"\\/\b\f\n\r\t";
    if (take('u')) return escaped_point(decoded);
    if (at_ == end_) return false;
    const std::size_t which = letters.find(*at_);
    if (which == std::string_view::npos) return false;
    decoded += meanings[which];
    ++at_;
    return true;
  }

  bool hex(std::uint32_t& value) {
    value = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = peek();
      const int digit = is_digit(c)            ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return false;
      value = value << 4 | static_cast<std::uint32_t>(digit);
    }
    return true;
  }

  // Points above 0xffff are written as two surrogates, which mean nothing alone.
  bool escaped_point(std::string& decoded) {
    std::uint32_t point = 0;
    if (!hex(point)) return false;
    if (point >= 0xdc00 && point < 0xe000) return false;
    if (point >= 0xd800 && point < 0xdc00) {
      std::uint32_t low = 0;
      if (!take('\\') || !take('u') || !hex(low) || low < 0xdc00 || low >= 0xe000) return false;
      point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00);
    }
    append_utf8(decoded, point);
    return true;
  }

  const char* const begin_;
  const char* const end_;
  const JsonVisitor& visitor_;
  const char* at_ = begin_;
  std::vector<std::string_view> path_;
  std::array<Keys, depth_limit> keys_;  // by depth
  std::deque<std::string> decoded_;     // texts with escapes; their addresses stay
  std::string problem_;
};

}  // namespace

Status walk_json(std::string_view json, const JsonVisitor& visit) {
  return Walker(json, visit).walk();
}

}  // namespace penstock::models

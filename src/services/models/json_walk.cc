#include "services/models/json_walk.h"

#include <array>
#include <deque>
#include <unordered_set>
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

// The keys of an object that is open. Most objects have few.
class Keys {
 public:
  void clear() {
    few_.clear();
    many_.clear();
  }
  // False: it is there already.
  bool add(std::string_view key) {
    constexpr std::size_t few = 8;
    if (many_.empty() && few_.size() < few) {
      for (const std::string_view other : few_) {
        if (other == key) return false;
      }
      few_.push_back(key);
      return true;
    }
    if (many_.empty()) many_.insert(few_.begin(), few_.end());
    return many_.insert(key).second;
  }

 private:
  std::vector<std::string_view> few_;
  std::unordered_set<std::string_view> many_;
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

// Every function begins at `at_`, moves it past what it takes, and returns false where that is not there.
class Walker {
 public:
  Walker(std::string_view json, const JsonVisitor& visitor) : json_(json), visitor_(visitor) {}

  Status walk() {
    const bool whole = value(0, false) && (skip_space(), at_ == json_.size());
    if (whole) return {};
    if (!problem_.empty()) return broken(problem_);
    return broken("it is not valid JSON from byte " + std::to_string(at_) + " on");
  }

 private:
  bool refuse(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }
  bool visit(JsonEvent event) {
    event.path = path_;
    std::string problem = visitor_(event);
    return problem.empty() || refuse(std::move(problem));
  }

  char peek() const { return at_ < json_.size() ? json_[at_] : '\0'; }
  bool take(char c) {
    if (peek() != c || at_ == json_.size()) return false;
    ++at_;
    return true;
  }
  bool take_word(std::string_view word) {
    if (json_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  void skip_space() {
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
    const std::size_t begin = at_;
    while (is_digit(peek())) ++at_;
    return at_ != begin;
  }

  bool number(bool in_array) {
    const std::size_t begin = at_;
    bool is_whole = !take('-');
    const bool leads_with_zero = peek() == '0';
    const std::size_t first_digit = at_;
    if (!digits() || (leads_with_zero && at_ - first_digit > 1)) return false;
    if (take('.')) {
      is_whole = false;
      if (!digits()) return false;
    }
    if (take('e') || take('E')) {
      is_whole = false;
      if (!take('+')) (void)take('-');
      if (!digits()) return false;
    }
    std::uint64_t value = 0;
    for (const char c : json_.substr(begin, is_whole ? at_ - begin : 0)) {
      is_whole = is_whole && !__builtin_mul_overflow(value, std::uint64_t{10}, &value) &&
                 !__builtin_add_overflow(value, static_cast<std::uint64_t>(c - '0'), &value);
    }
    return visit({.kind = is_whole ? Kind::number : Kind::other, .in_array = in_array, .number = is_whole ? value : 0});
  }

  // A view of the JSON itself, unless something in it is escaped.
  bool text(std::string_view& value) {
    if (!take('"')) return false;
    std::string* decoded = nullptr;
    std::size_t begin = at_;  // of what is not in `decoded`
    for (;;) {
      if (at_ == json_.size()) return false;
      const auto c = static_cast<unsigned char>(json_[at_]);
      if (c == '"') break;
      if (c < ' ') return false;
      if (c == '\\') {
        if (decoded == nullptr) decoded = &decoded_.emplace_back();
        decoded->append(json_.substr(begin, at_ - begin));
        ++at_;
        if (!escaped(*decoded)) return false;
        begin = at_;
      } else if (c < 0x80) {
        ++at_;
      } else {
        const std::size_t length = utf8_length(json_.substr(at_));
        if (length == 0) return false;
        at_ += length;
      }
    }
    value = json_.substr(begin, at_ - begin);
    ++at_;
    if (decoded != nullptr) value = decoded->append(value);
    return true;
  }

  bool escaped(std::string& decoded) {
    constexpr std::string_view letters = "\"\\/bfnrt", meanings = "\"\\/\b\f\n\r\t";
    if (take('u')) return escaped_point(decoded);
    if (at_ == json_.size()) return false;
    const std::size_t which = letters.find(json_[at_]);
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

  const std::string_view json_;
  const JsonVisitor& visitor_;
  std::size_t at_ = 0;
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

#include "services/models/json_reader.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <functional>
#include <utility>

#include "base/keyed_hash.h"
#include "services/models/contents.h"
#include "services/models/utf8.h"

namespace penstock::models {
namespace {

constexpr std::uint32_t is_decoded = 1U << 31;  // of a Place: it is not in the JSON

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

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

}  // namespace

void JsonReader::Keys::clear() {
  few_.clear();
  table_.clear();
  count_ = 0;
}

bool JsonReader::Keys::add(std::string_view text, const JsonReader& reader) {
  constexpr std::size_t few = 8;
  const Key key{text, reader.place_of(text)};
  if (table_.empty() && few_.size() < few) {
    if (std::ranges::find(few_, text, &Key::text) != few_.end()) return false;
    few_.push_back(key);
    return true;
  }
  if (2 * count_ >= table_.size()) grow();
  const Entry entry = entry_of(key);
  Entry& found = find(entry.hash, [&](Place place) { return reader.text_at(place) == text; });
  if (found.place != 0) return false;
  found = entry;
  ++count_;
  return true;
}

JsonReader::Keys::Entry JsonReader::Keys::entry_of(const Key& key) {
  return {key.place, static_cast<std::uint32_t>(keyed_hash(key.text))};
}

template <typename IsSame>
JsonReader::Keys::Entry& JsonReader::Keys::find(std::uint32_t hash, IsSame is_same) {
  std::size_t at = hash & (table_.size() - 1);
  while (table_[at].place != 0 && (table_[at].hash != hash || !is_same(table_[at].place))) {
    at = (at + 1) & (table_.size() - 1);
  }
  return table_[at];
}

void JsonReader::Keys::grow() {
  const std::size_t size = std::max({std::size_t{64}, 2 * table_.size(), std::bit_ceil(2 * expected_)});
  const std::vector<Entry> others = std::exchange(table_, std::vector<Entry>(size));
  const auto add_other = [&](const Entry& other) { find(other.hash, [](Place) { return false; }) = other; };
  for (const Key& key : few_) add_other(entry_of(key));
  count_ += few_.size();
  few_.clear();
  for (const Entry& other : others) {
    if (other.place != 0) add_other(other);
  }
}

JsonReader::Place JsonReader::place_of(std::string_view text) const {
  const bool in_json = std::less_equal<>()(begin_, text.data()) && std::less<>()(text.data(), end_);
  return in_json ? static_cast<Place>(text.data() - begin_) : is_decoded | static_cast<Place>(decoded_.size() - 1);
}

// In the JSON it ends before the next quote, since nothing in it is escaped.
std::string_view JsonReader::text_at(Place place) const {
  if ((place & is_decoded) != 0) return decoded_[place & ~is_decoded];
  const std::string_view text(begin_ + place, static_cast<std::size_t>(end_ - begin_) - place);
  return text.substr(0, text.find('"'));
}

bool JsonReader::fail(std::string problem) {
  problem_ = std::move(problem);
  return false;
}

Status JsonReader::end(bool taken) {
  if (!problem_.empty()) return broken(problem_);
  skip_space();
  if (taken && at_ == end_) return {};
  return broken("it is not valid JSON from byte " + std::to_string(at_ - begin_) + " on");
}

JsonReader::Kind JsonReader::next() {
  skip_space();
  switch (peek()) {
    case '{':
      return Kind::object;
    case '[':
      return Kind::array;
    case '"':
      return Kind::string;
    case 't':
    case 'f':
    case 'n':
      return Kind::other;
    default:
      return is_digit(peek()) || peek() == '-' ? Kind::number : Kind::none;
  }
}

bool JsonReader::skip() {
  const std::size_t kept = decoded_.size();
  const bool skipped = skip_value();
  decoded_.resize(kept);  // nobody was given the others
  return skipped;
}

bool JsonReader::skip_value() {
  switch (next()) {
    case Kind::object:
      return object([&](std::string_view) { return skip(); });
    case Kind::array:
      return array([&] { return skip(); });
    case Kind::string: {
      std::string_view text;
      return string(text);
    }
    case Kind::number: {
      std::optional<std::uint64_t> value;
      return number(value);
    }
    case Kind::other:
      return word("true") || word("false") || word("null");
    case Kind::none:
      break;
  }
  return false;
}

bool JsonReader::open(char c) {
  skip_space();
  if (depth_ == depth_limit) return fail("it is nested too deeply");
  if (!take(c)) return false;
  ++depth_;
  return true;
}

bool JsonReader::key(std::string_view& key) {
  if (!string(key)) return false;
  if (!keys_[depth_ - 1].add(key, *this)) return fail("the key " + in_quotes(key) + " appears twice");
  return close(':');
}

bool JsonReader::word(std::string_view word) {
  if (!left().starts_with(word)) return false;
  at_ += word.size();
  return true;
}

bool JsonReader::digits() {
  const char* const begin = at_;
  while (is_digit(peek())) ++at_;
  return at_ != begin;
}

bool JsonReader::number(std::optional<std::uint64_t>& value) {
  skip_space();
  bool is_whole = !take('-');
  std::uint64_t whole = 0;
  const auto [end_of_digits, error] = std::from_chars(at_, end_, whole);
  if (error == std::errc::result_out_of_range) is_whole = false;
  const char* const begin = std::exchange(at_, end_of_digits);
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
  value = is_whole ? std::optional(whole) : std::nullopt;
  return true;
}

// A view of the JSON itself, unless something in it is escaped.
bool JsonReader::string(std::string_view& text) {
  skip_space();
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
  text = {begin, at_};
  ++at_;
  if (decoded != nullptr) text = decoded->append(text);
  return true;
}

bool JsonReader::escaped(std::string& decoded) {
  constexpr std::string_view letters = "\"\\/bfnrt", meanings = "\"\\/\b\f\n\r\t";
  if (take('u')) return escaped_point(decoded);
  if (at_ == end_) return false;
  const std::size_t which = letters.find(*at_);
  if (which == std::string_view::npos) return false;
  decoded += meanings[which];
  ++at_;
  return true;
}

bool JsonReader::hex(std::uint32_t& value) {
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
bool JsonReader::escaped_point(std::string& decoded) {
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

}  // namespace penstock::models

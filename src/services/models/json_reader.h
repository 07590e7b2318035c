// JsonReader: reads JSON (RFC 8259) value by value, without building it: a header of 100 MB costs what its reader
// keeps, the texts with escapes that it was given, and the keys of the objects that are open. Refuses what readers
// disagree about (a key twice, text that is not UTF-8) and what only an attack needs (depth). Headers of models with
// many tensors are megabytes, and nothing can be read before they are: a general parser takes longer over them than the
// tensors take.
//
//   JsonReader json(R"({"a": 1})");
//   Status status = json.end(json.object([&](std::string_view key) { return json.number(numbers[key]); }));
//
// Every function takes the next value and returns true, or returns false where it is not that: then all is over, and
// `end` says what is wrong.
//
// Thread safety: one thread's. Lifetime: the JSON outlives it, and it outlives the texts that it gave out.
// REQUIRES: the JSON has less than 2^31 bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/result.h"

namespace penstock::models {

class JsonReader {
 public:
  explicit JsonReader(std::string_view json) : JsonReader(json, json.size() / usual_member_bytes) {}
  // With so many members in the outermost object, perhaps.
  JsonReader(std::string_view json, std::size_t members) : begin_(json.data()), end_(json.data() + json.size()) {
    keys_[0].expect(members);
  }

  enum class Kind : std::uint8_t {
    object,
    array,
    string,
    number,
    other,  // a boolean, or null
    none,   // nothing that JSON has
  };
  // What begins here.
  Kind next();
  // Whether this does, or nothing that JSON has: whoever takes it will find out.
  bool may_be(Kind kind) {
    const Kind found = next();
    return found == kind || found == Kind::none;
  }

  bool string(std::string_view& text);
  // Nothing for a number that is not whole, negative, or above 2^64 - 1.
  bool number(std::optional<std::uint64_t>& value);
  bool skip();
  // `take_member` is given the key, and takes the value.
  template <typename TakeMember>
  bool object(TakeMember take_member) {
    if (!open('{')) return false;
    keys_[depth_ - 1].clear();
    if (!close('}')) {
      do {
        std::string_view key;
        if (!this->key(key) || !take_member(key)) return false;
      } while (more());
      if (!close('}')) return false;
    }
    --depth_;
    return true;
  }
  // `take_element` takes the value.
  template <typename TakeElement>
  bool array(TakeElement take_element) {
    if (!open('[')) return false;
    if (!close(']')) {
      do {
        if (!take_element()) return false;
      } while (more());
      if (!close(']')) return false;
    }
    --depth_;
    return true;
  }

  // What is not taken yet, for whoever takes a whole value by hand, up to what he leaves.
  std::string_view left() const { return {at_, static_cast<std::size_t>(end_ - at_)}; }
  bool leave(std::string_view left) {
    at_ = left.data();
    return true;
  }

  // For what is JSON, but not what it should be.
  bool fail(std::string problem);
  // After the outermost value, which was taken or not: nothing else may be there.
  Status end(bool taken);

 private:
  static constexpr std::size_t depth_limit = 8;
  static constexpr std::size_t usual_member_bytes = 100;

  // Where a text is that was given out: in the JSON, or among the texts with escapes. 0: nowhere.
  using Place = std::uint32_t;
  // REQUIRES: it is the last text that was given out.
  Place place_of(std::string_view text) const;
  std::string_view text_at(Place place) const;

  // The keys of an object that is open. Most objects have few; for the many of the outermost one there is a table, open
  // and at most half full. It has their hashes, since their texts lie all over the JSON.
  class Keys {
   public:
    void clear();
    // So many, perhaps. For one object alone: it may be much more than that has.
    void expect(std::size_t count) { expected_ = count; }
    // False: it is there already.
    bool add(std::string_view key, const JsonReader& reader);

   private:
    struct Key {
      std::string_view text;
      Place place = 0;
    };
    struct Entry {
      Place place = 0;
      std::uint32_t hash = 0;
    };
    static Entry entry_of(const Key& key);
    // Where the hash would be: there it is, or nothing is.
    template <typename IsSame>
    Entry& find(std::uint32_t hash, IsSame is_same);
    void grow();

    std::vector<Key> few_;
    std::vector<Entry> table_;  // a power of two
    std::size_t count_ = 0;     // in the table
    std::size_t expected_ = 0;
  };

  char peek() const { return at_ != end_ ? *at_ : '\0'; }
  bool take(char c) {
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }
  void skip_space() {
    while (peek() == ' ' || peek() == '\n' || peek() == '\t' || peek() == '\r') ++at_;
  }
  bool close(char c) {
    skip_space();
    return take(c);
  }
  bool more() { return close(','); }
  bool open(char c);
  bool key(std::string_view& key);
  bool skip_value();
  bool word(std::string_view word);
  bool digits();
  bool escaped(std::string& decoded);
  bool escaped_point(std::string& decoded);
  bool hex(std::uint32_t& value);

  const char* const begin_;
  const char* const end_;
  const char* at_ = begin_;
  std::size_t depth_ = 0;
  std::array<Keys, depth_limit> keys_;  // by depth
  std::deque<std::string> decoded_;     // texts with escapes; their addresses stay
  std::string problem_;
};

}  // namespace penstock::models

#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>

#include "base/out_of_memory.h"
#include "penstock/layers.h"

namespace penstock {
namespace {

constexpr std::uint64_t rows_most = 1 << 16;  // of a tensor that is cut

std::vector<std::string_view> parts_of(std::string_view name) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    parts.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// One part of a name. "*" is any text.
bool matches(std::string_view pattern, std::string_view text) {
  std::size_t star = std::string_view::npos;
  std::size_t resume = 0;
  std::size_t p = 0;
  std::size_t t = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  return std::ranges::all_of(pattern.substr(p), [](char each) { return each == '*'; });
}

bool match_all(std::span<const std::string_view> pattern, std::span<const std::string_view> parts) {
  return pattern.size() <= parts.size() &&
         std::ranges::equal(pattern, parts.first(pattern.size()),
                            [](std::string_view one, std::string_view part) { return matches(one, part); });
}

std::optional<std::uint64_t> number_in(std::string_view part) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
  if (error != std::errc() || end != part.data() + part.size()) return std::nullopt;
  return number;
}

std::string join(std::span<const std::string_view> parts) {
  std::string name;
  for (const std::string_view part : parts) {
    if (!name.empty()) name += '.';
    name += part;
  }
  return name;
}

struct Pattern {
  std::string_view text;
  std::vector<std::string_view> prefix;
  std::vector<std::string_view> cut;  // behind the slash
  bool found = false;
};

// Numbers in a name count as numbers, so that layer 10 comes behind layer 9.
struct Key {
  bool is_rest = false;  // without a number
  std::vector<std::tuple<std::string, std::uint64_t>> parts;
  std::uint64_t row = 0;  // of a tensor that is cut, from 1

  auto operator<=>(const Key&) const = default;
};

Key key_of(std::span<const std::string_view> parts, std::uint64_t row = 0) {
  Key key{.is_rest = true, .row = row};
  for (const std::string_view part : parts) {
    const auto number = number_in(part);
    key.is_rest = key.is_rest && !number;
    key.parts.emplace_back(number ? std::string() : std::string(part), number.value_or(0));
  }
  return key;
}

class Grouping {
 public:
  explicit Grouping(std::span<const std::string> patterns) {
    for (const std::string& text : patterns) {
      const std::string_view view = text;
      const std::size_t slash = view.find('/');
      Pattern pattern{.text = view, .prefix = parts_of(view.substr(0, slash))};
      if (slash != std::string_view::npos) pattern.cut = parts_of(view.substr(slash + 1));
      patterns_.push_back(std::move(pattern));
    }
  }

  Status add(const TensorInfo& tensor, std::uint32_t number) {
    const std::vector<std::string_view> parts = parts_of(tensor.name);
    for (Pattern& pattern : patterns_) {
      if (!match_all(pattern.prefix, parts)) continue;
      const auto prefix = std::span(parts).first(pattern.prefix.size());
      const auto rest = std::span(parts).subspan(pattern.prefix.size());
      if (pattern.cut.empty()) {
        pattern.found = true;
        put(key_of(prefix), join(prefix), {number, std::nullopt});
        return {};
      }
      if (rest.size() != pattern.cut.size() || !match_all(pattern.cut, rest) || tensor.shape.empty()) continue;
      pattern.found = true;
      if (tensor.shape.front() > rows_most) {
        return Error{Code::invalid_argument, 0,
                     "tensor \"" + tensor.name + "\" has " + std::to_string(tensor.shape.front()) +
                         " rows, which are too many for a group each",
                     "cut only tensors with a row for each expert, at most " + std::to_string(rows_most)};
      }
      for (std::uint64_t row = 0; row < tensor.shape.front(); ++row) {
        put(key_of(prefix, row + 1), join(prefix) + "/" + std::to_string(row), {number, Interval{row, row + 1}});
      }
      return {};
    }
    const auto numbered =
        std::ranges::find_if(parts, [](std::string_view part) { return number_in(part).has_value(); });
    const auto count = numbered != parts.end() ? static_cast<std::size_t>(numbered - parts.begin()) + 1
                                               : std::max<std::size_t>(parts.size() - 1, 1);
    const auto prefix = std::span(parts).first(count);
    put(key_of(prefix), join(prefix), {number, std::nullopt});
    return {};
  }

  Result<std::vector<TensorGroup>> take() {
    for (const Pattern& pattern : patterns_) {
      if (!pattern.found) {
        return Error{Code::not_found, 0, "no tensor matches the pattern \"" + std::string(pattern.text) + "\"",
                     "\"*\" stands for text without a dot; penstock inspect lists the names"};
      }
    }
    std::vector<TensorGroup> groups;
    groups.reserve(groups_.size());
    for (auto& [key, group] : groups_) groups.push_back(std::move(group));
    return groups;
  }

 private:
  void put(const Key& key, std::string name, GroupTensor tensor) {
    TensorGroup& group = groups_[key];
    group.name = std::move(name);
    group.tensors.push_back(tensor);
  }

  std::vector<Pattern> patterns_;
  std::map<Key, TensorGroup> groups_;
};

}  // namespace

Result<std::vector<TensorGroup>> layer_groups(const Model& model, std::span<const std::string> patterns) {
  return or_out_of_memory([&]() -> Result<std::vector<TensorGroup>> {
    Grouping grouping(patterns);
    for (std::uint32_t i = 0; i < model.tensors().size(); ++i) {
      if (Status status = grouping.add(model.tensors()[i], i); !status) return std::move(status).error();
    }
    return grouping.take();
  });
}

}  // namespace penstock

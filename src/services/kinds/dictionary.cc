#include "services/kinds/dictionary.h"

#include <algorithm>
#include <bit>
#include <span>
#include <unordered_set>
#include <utility>

#include "services/models/contents.h"
#include "services/models/json_reader.h"
#include "services/models/json_text.h"
#include "services/models/utf8.h"

namespace penstock::kinds {
namespace {

using models::in_quotes;
using models::JsonReader;

constexpr std::string_view schema_name = "penstock.kinds/";
constexpr std::string_view schema_version = "1";
constexpr std::uint64_t kinds_most = 100'000;
constexpr std::uint64_t name_bytes_most = 255;
// Programs that read the dictionary may count with signed numbers.
constexpr std::uint64_t number_most = INT64_MAX;
constexpr std::uint64_t block_bytes_most = 1 << 20;

constexpr std::string_view dictionary_hint = "correct the dictionary";

Error wrong(std::string message, std::string hint = std::string(dictionary_hint)) {
  return {Code::invalid_argument, 0, std::move(message), std::move(hint)};
}

// `allowed` is what the hint adds: what a value may be.
Error about(const Kind& kind, const std::string& problem, const std::string& allowed = "") {
  return wrong("kind " + in_quotes(kind.name) + ": " + problem,
               std::string(dictionary_hint) + (allowed.empty() ? "" : ": " + allowed));
}

constexpr const char* one_of_them = "give one of them";
constexpr const char* ends_below = "a range ends below byte 9223372036854775808";

std::string all_types() {
  std::string names;
  for (std::size_t i = 0; i <= static_cast<std::size_t>(DType::u64); ++i) {
    names += (i == 0 ? "" : ", ") + std::string(dtype_name(static_cast<DType>(i)));
  }
  return names;
}

std::uint64_t end_of(const Kind& kind) {
  return kind.start_byte + kind.length_bytes;
}

Status check_name(std::string_view name) {
  const auto refuse = [&](const std::string& problem) {
    return wrong("the name " + in_quotes(name) + " of a kind " + problem, "choose another name");
  };
  if (name.empty()) return refuse("is empty");
  if (name.size() > name_bytes_most) return refuse("has more than 255 bytes");
  if (!models::is_utf8(name)) return wrong("the name of a kind is not UTF-8", "choose another name");
  if (std::ranges::any_of(name, [](unsigned char c) { return c < ' ' || c == 0x7f; })) {
    return wrong("the name of a kind has control characters", "choose another name");
  }
  if (name.front() == ' ' || name.back() == ' ') return refuse("begins or ends with a blank");
  if (std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; })) {
    return refuse("is a number, as ids are");
  }
  return {};
}

Status check_type(const Kind& kind) {
  if (kind.type.empty()) {
    return kind.shape.empty()
               ? Status()
               : about(kind, "it has a shape, and no type that it would be a shape of", "give a type too");
  }
  const auto dtype = dtype_from_name(kind.type);
  if (!dtype) return about(kind, "its type " + in_quotes(kind.type) + " is not known", "types are " + all_types());
  if (kind.shape.size() > models::dimension_limit) {
    return about(kind, "its shape has more than 64 dimensions", "give at most 64");
  }
  const auto bytes = models::tensor_bytes(*dtype, kind.shape);
  if (!bytes) return about(kind, bytes.error().message, "a record has whole bytes, and fewer than 2^63");
  if (*bytes == kind.record_bytes) return {};
  return about(kind,
               "its type and shape take " + std::to_string(*bytes) + " bytes, and a record has " +
                   std::to_string(kind.record_bytes),
               "give records of " + std::to_string(*bytes) + " bytes, or another shape");
}

// By itself.
Status check_kind(const Kind& kind) {
  if (Status status = check_name(kind.name); !status) return status;
  if (kind.id == 0) return about(kind, "its id is 0, and ids begin with 1");
  if (kind.record_bytes == 0) return about(kind, "its records have no bytes");
  if (kind.record_bytes > kind.length_bytes) {
    return about(kind,
                 "its range of " + std::to_string(kind.length_bytes) + " bytes has no room for a record of " +
                     std::to_string(kind.record_bytes),
                 "give room for at least one");
  }
  if (kind.start_byte > number_most || kind.length_bytes > number_most - kind.start_byte) {
    return about(kind, "its range ends beyond 2^63 bytes", ends_below);
  }
  if (kind.records > kind.capacity()) {
    return about(
        kind,
        "it counts " + std::to_string(kind.records) + " records, and has room for " + std::to_string(kind.capacity()),
        "give at most " + std::to_string(kind.capacity()));
  }
  return check_type(kind);
}

// REQUIRES: by start.
Status check_together(std::span<const Kind> kinds) {
  if (kinds.size() > kinds_most) return wrong("there are more than 100000 kinds", "use several dictionaries");
  std::unordered_set<std::uint32_t> ids;
  std::unordered_set<std::string_view> names;
  const Kind* before = nullptr;
  for (const Kind& kind : kinds) {
    if (!ids.insert(kind.id).second) {
      return about(kind, "another has its id, " + std::to_string(kind.id), "choose an id that no other kind has");
    }
    if (!names.insert(kind.name).second) return wrong("two kinds have the name " + in_quotes(kind.name));
    if (before != nullptr && end_of(*before) > kind.start_byte) {
      return wrong("kinds " + in_quotes(before->name) + " and " + in_quotes(kind.name) + " overlap: one ends at byte " +
                       std::to_string(end_of(*before)) + ", the other begins at " + std::to_string(kind.start_byte),
                   std::string(dictionary_hint) + ": choose a place where no other kind is");
    }
    before = &kind;
  }
  return {};
}

class Reader {
 public:
  explicit Reader(std::string_view json) : json_(json) {}

  Result<Dictionary> read() {
    const bool taken = json_.may_be(Type::object) ? json_.object([&](std::string_view key) { return take_member(key); })
                                                  : json_.fail("it must be an object, {…}");
    const Status status = json_.end(taken);
    if (unsupported_) return *unsupported_;
    if (!status) return wrong("the dictionary is not right: " + status.error().message);
    if (!has_schema_) return wrong("the dictionary has no schema, " + in_quotes("penstock.kinds/1"));
    if (!has_kinds_) return wrong("the dictionary has no list of kinds");
    return finish();
  }

 private:
  using Type = JsonReader::Kind;

  struct Draft {
    Kind kind;
    std::optional<std::uint64_t> id, start_byte, start_lba, length_bytes, record_bytes, records;
    bool has_name = false;
    std::string problem;  // the first with a member
  };

  // The name of a kind may come behind what is wrong with it, so that is told when all is read; without a kind, at
  // once.
  bool refuse(Draft* draft, std::string problem) {
    if (draft == nullptr) return json_.fail(std::move(problem));
    if (draft->problem.empty()) draft->problem = std::move(problem);
    return true;
  }
  bool refuse_next(Draft* draft, std::string problem) { return refuse(draft, std::move(problem)) && json_.skip(); }

  bool take_member(std::string_view key) {
    if (key == "schema") return take_schema();
    if (key == "block_bytes") return take_number(key, block_bytes_);
    if (key == "device_bytes") return take_number(key, dictionary_.device_bytes);
    if (key == "last_id") return take_number(key, last_id_);
    if (key == "kinds") {
      has_kinds_ = true;
      if (!json_.may_be(Type::array)) return json_.fail("its kinds are not a list");
      return json_.array([&] { return take_kind(); });
    }
    return json_.fail("it has an unknown member, " + in_quotes(key));
  }

  bool take_schema() {
    std::string_view text;
    if (!json_.may_be(Type::string)) return json_.fail("its schema is not a string");
    if (!json_.string(text)) return false;
    has_schema_ = true;
    if (!text.starts_with(schema_name)) return json_.fail("its schema is " + in_quotes(text));
    if (text.substr(schema_name.size()) == schema_version) return true;
    unsupported_ = Error{Code::unsupported, 0,
                         "the dictionary has the schema " + in_quotes(text) + ", and this library knows " +
                             in_quotes("penstock.kinds/1"),
                         "use a newer Penstock"};
    return json_.fail("it is of another version");
  }

  bool take_kind() {
    if (drafts_.size() == kinds_most) return json_.fail("it has more than 100000 kinds");
    if (!json_.may_be(Type::object)) {
      return json_.fail("kind " + std::to_string(drafts_.size() + 1) + " of its list is not an object");
    }
    Draft& draft = drafts_.emplace_back();
    return json_.object([&](std::string_view key) { return take_member_of(draft, key); });
  }

  bool take_member_of(Draft& draft, std::string_view key) {
    if (key == "id") return take_number(key, draft.id, &draft);
    if (key == "start_byte") return take_number(key, draft.start_byte, &draft);
    if (key == "start_lba") return take_number(key, draft.start_lba, &draft);
    if (key == "length_bytes") return take_number(key, draft.length_bytes, &draft);
    if (key == "record_bytes") return take_number(key, draft.record_bytes, &draft);
    if (key == "records") return take_number(key, draft.records, &draft);
    if (key == "shape") return take_shape(draft);
    if (key == "name" || key == "type") {
      std::string_view text;
      if (!json_.may_be(Type::string)) return refuse_next(&draft, "its " + std::string(key) + " is not a string");
      if (!json_.string(text)) return false;
      draft.has_name |= key == "name";
      (key == "name" ? draft.kind.name : draft.kind.type) = text;
      return true;
    }
    return refuse_next(&draft, "it has an unknown member, " + in_quotes(key));
  }

  bool take_number(std::string_view key, std::optional<std::uint64_t>& number, Draft* draft = nullptr) {
    if (!json_.may_be(Type::number)) return refuse_next(draft, "its " + std::string(key) + " is not a number");
    if (!json_.number(number)) return false;
    if (number && *number <= number_most) return true;
    return refuse(draft, "its " + std::string(key) + " is not a whole number from 0 to 2^63 - 1");
  }

  bool take_shape(Draft& draft) {
    if (!json_.may_be(Type::array)) return refuse_next(&draft, "its shape is not a list");
    std::vector<std::uint64_t>& shape = draft.kind.shape;
    return json_.array([&] {
      std::optional<std::uint64_t> length;
      if (!take_number("shape", length, &draft)) return false;
      if (shape.size() == models::dimension_limit) return refuse(&draft, "its shape has more than 64 dimensions");
      shape.push_back(length.value_or(0));
      return true;
    });
  }

  // What only makes sense once all is known: block_bytes may come last.
  Result<Dictionary> finish() {
    dictionary_.block_bytes = block_bytes_.value_or(dictionary_.block_bytes);
    if (!std::has_single_bit(dictionary_.block_bytes) || dictionary_.block_bytes > block_bytes_most) {
      return wrong("block_bytes is " + std::to_string(dictionary_.block_bytes) + ", which no block has",
                   "choose a power of two up to 1048576");
    }
    if (last_id_.value_or(0) > UINT32_MAX) return wrong("last_id is above 4294967295");
    dictionary_.last_id = static_cast<std::uint32_t>(last_id_.value_or(0));
    for (Draft& draft : drafts_) {
      if (!draft.has_name || draft.kind.name.empty()) {
        const auto place = static_cast<std::size_t>(&draft - drafts_.data()) + 1;
        return wrong("kind " + std::to_string(place) +
                     " of the list: " + (draft.problem.empty() ? "it has no name" : draft.problem));
      }
      if (Status status = finish_kind(draft); !status) return std::move(status).error();
      dictionary_.last_id = std::max(dictionary_.last_id, draft.kind.id);
      dictionary_.kinds.push_back(std::move(draft.kind));
    }
    std::ranges::sort(dictionary_.kinds, {}, &Kind::start_byte);
    if (Status status = check_together(dictionary_.kinds); !status) return std::move(status).error();
    return std::move(dictionary_);
  }

  Status finish_kind(Draft& draft) const {
    Kind& kind = draft.kind;
    if (!draft.problem.empty()) return about(kind, draft.problem);
    if (!draft.id || !draft.length_bytes || !draft.record_bytes || !draft.records) {
      return about(kind, "it needs id, length_bytes, record_bytes and records");
    }
    if (draft.start_byte.has_value() == draft.start_lba.has_value()) {
      return about(kind, "it needs one of start_byte and start_lba");
    }
    if (*draft.id > UINT32_MAX) return about(kind, "its id is above 4294967295");
    kind.id = static_cast<std::uint32_t>(*draft.id);
    kind.starts_at_lba = draft.start_lba.has_value();
    if (kind.starts_at_lba) {
      if (!block_bytes_) return about(kind, "it starts at an LBA, and the dictionary has no block_bytes");
      if (__builtin_mul_overflow(*draft.start_lba, *block_bytes_, &kind.start_byte)) {
        return about(kind, "its range ends beyond 2^63 bytes");
      }
    } else {
      kind.start_byte = *draft.start_byte;
    }
    kind.length_bytes = *draft.length_bytes;
    kind.record_bytes = *draft.record_bytes;
    kind.records = *draft.records;
    return check_kind(kind);
  }

  JsonReader json_;
  Dictionary dictionary_;
  std::optional<std::uint64_t> block_bytes_, last_id_;
  std::vector<Draft> drafts_;
  std::optional<Error> unsupported_;
  bool has_schema_ = false;
  bool has_kinds_ = false;
};

// Behind all that must not be touched, or in the first gap.
Result<std::uint64_t> place(const Dictionary& dictionary, std::uint64_t length_bytes, std::uint64_t behind_bytes) {
  std::uint64_t at = behind_bytes;
  const auto round_up = [](std::uint64_t byte) {
    return (byte + placed_at_multiples_of - 1) / placed_at_multiples_of * placed_at_multiples_of;
  };
  for (const Kind& kind : dictionary.kinds) {
    const std::uint64_t begin = round_up(at);
    if (begin <= kind.start_byte && kind.start_byte - begin >= length_bytes) return begin;
    at = std::max(at, end_of(kind));
  }
  if (at > number_most - placed_at_multiples_of) return wrong("there is no room behind the last kind", "remove one");
  return round_up(at);
}

Result<Kind> draft_of(const Dictionary& dictionary, const NewKind& wanted) {
  Kind kind{.id = wanted.id,
            .name = wanted.name,
            .record_bytes = wanted.record_bytes,
            .type = wanted.type,
            .shape = wanted.shape,
            .records = wanted.records};
  if (Status status = check_name(kind.name); !status) return std::move(status).error();
  if (dictionary.find(kind.name) != nullptr) {
    return wrong("there is a kind " + in_quotes(kind.name) + " already", "choose another name");
  }
  if (wanted.id == 0 && dictionary.last_id == UINT32_MAX)
    return wrong("no id is left above all others", "choose an id");
  if (wanted.id == 0) kind.id = dictionary.last_id + 1;
  if (kind.record_bytes == 0) {
    const auto dtype = dtype_from_name(kind.type);
    if (!dtype) {
      return kind.type.empty() ? about(kind, "neither the size of a record nor its type is given", one_of_them)
                               : Error(check_type(kind).error());
    }
    const auto bytes = models::tensor_bytes(*dtype, kind.shape);
    if (!bytes) return Error(check_type(kind).error());
    if (*bytes == 0) return about(kind, "a record of this shape has no bytes", "give lengths of at least 1");
    kind.record_bytes = *bytes;
  }
  kind.length_bytes = wanted.length_bytes;
  if (kind.length_bytes == 0 && __builtin_mul_overflow(wanted.capacity, kind.record_bytes, &kind.length_bytes)) {
    return about(kind, "so many records are more bytes than any store has", ends_below);
  }
  if (wanted.length_bytes != 0 && wanted.capacity != 0) {
    return about(kind, "both a length in bytes and a capacity in records are given", one_of_them);
  }
  if (kind.length_bytes == 0) return about(kind, "its capacity and its length are 0, or not given", one_of_them);
  return kind;
}

}  // namespace

const Kind* Dictionary::find(std::uint32_t id) const {
  const auto found = std::ranges::find(kinds, id, &Kind::id);
  return found == kinds.end() ? nullptr : &*found;
}

const Kind* Dictionary::find(std::string_view name) const {
  const auto found = std::ranges::find(kinds, name, &Kind::name);
  return found == kinds.end() ? nullptr : &*found;
}

Result<Dictionary> parse(std::string_view json) {
  if (json.size() > dictionary_bytes_most) return wrong("the dictionary has more than 64 MiB", "use several");
  return Reader(json).read();
}

Result<std::string> to_text(const Dictionary& dictionary) {
  using models::json_of;
  std::string text = "{\n  \"schema\": \"penstock.kinds/1\",\n  \"block_bytes\": ";
  text += std::to_string(dictionary.block_bytes) + ",\n";
  if (dictionary.device_bytes) text += "  \"device_bytes\": " + std::to_string(*dictionary.device_bytes) + ",\n";
  const auto is_last = [&](const Kind& kind) { return kind.id == dictionary.last_id; };
  if (dictionary.last_id != 0 && std::ranges::none_of(dictionary.kinds, is_last)) {
    text += "  \"last_id\": " + std::to_string(dictionary.last_id) + ",\n";
  }
  text += "  \"kinds\": [";
  for (const Kind& kind : dictionary.kinds) {
    const std::uint64_t start = kind.starts_at_lba ? kind.start_byte / dictionary.block_bytes : kind.start_byte;
    text += &kind == &dictionary.kinds.front() ? "\n    " : ",\n    ";
    text += R"({"id":)" + std::to_string(kind.id) + R"(,"name":)" + json_of(kind.name);
    text += (kind.starts_at_lba ? R"(,"start_lba":)" : R"(,"start_byte":)") + std::to_string(start);
    text += R"(,"length_bytes":)" + std::to_string(kind.length_bytes);
    text += R"(,"record_bytes":)" + std::to_string(kind.record_bytes);
    if (!kind.type.empty()) text += R"(,"type":)" + json_of(kind.type);
    if (!kind.shape.empty()) text += R"(,"shape":)" + json_of(kind.shape);
    text += R"(,"records":)" + std::to_string(kind.records) + "}";
  }
  text += dictionary.kinds.empty() ? "]\n}\n" : "\n  ]\n}\n";
  if (text.size() > dictionary_bytes_most) return wrong("the dictionary would have more than 64 MiB", "use several");
  return text;
}

bool is_device(const StoreInfo& store) {
  return store.kind == StoreKind::block_device || store.file_system == "nvme";
}

Status check_store(const Dictionary& dictionary, const StoreInfo& store) {
  if (dictionary.device_bytes && (!is_device(store) || *dictionary.device_bytes != store.size_bytes)) {
    return wrong("the dictionary is of a device of " + std::to_string(*dictionary.device_bytes) + " bytes, and " +
                     store.name + " has " + std::to_string(store.size_bytes),
                 "give the device that the dictionary is of");
  }
  if (is_device(store) && store.block_bytes != 0 && dictionary.block_bytes != store.block_bytes) {
    return wrong("the dictionary counts blocks of " + std::to_string(dictionary.block_bytes) + " bytes, and " +
                     store.name + " has blocks of " + std::to_string(store.block_bytes),
                 "give the device that the dictionary is of");
  }
  for (const Kind& kind : dictionary.kinds) {
    if (end_of(kind) <= store.size_bytes) continue;
    return Error{Code::out_of_range, 0,
                 "kind " + in_quotes(kind.name) + " ends at byte " + std::to_string(end_of(kind)) + ", and " +
                     store.name + " has " + std::to_string(store.size_bytes),
                 "the store was cut, or the dictionary is of another one"};
  }
  return {};
}

namespace {

Result<std::size_t> try_add(Dictionary& dictionary, const NewKind& wanted, std::uint64_t behind_bytes) {
  auto kind = draft_of(dictionary, wanted);
  if (!kind) return std::move(kind).error();
  if (wanted.start_byte != NewKind::anywhere && wanted.start_lba != NewKind::anywhere) {
    return about(*kind, "both start_byte and start_lba are given", one_of_them);
  }
  if (wanted.start_lba != NewKind::anywhere) {
    kind->starts_at_lba = true;
    if (__builtin_mul_overflow(wanted.start_lba, dictionary.block_bytes, &kind->start_byte)) {
      return about(*kind, "its range ends beyond 2^63 bytes", ends_below);
    }
  } else if (wanted.start_byte != NewKind::anywhere) {
    kind->start_byte = wanted.start_byte;
  } else {
    const auto start = place(dictionary, kind->length_bytes, behind_bytes);
    if (!start) return start.error();
    kind->start_byte = *start;
  }
  if (Status status = check_kind(*kind); !status) return std::move(status).error();
  std::vector<Kind> kinds = dictionary.kinds;
  const std::uint32_t id = kind->id;
  kinds.push_back(std::move(*kind));
  std::ranges::sort(kinds, {}, &Kind::start_byte);
  if (Status status = check_together(kinds); !status) return std::move(status).error();
  dictionary.kinds = std::move(kinds);
  dictionary.last_id = std::max(dictionary.last_id, id);
  return static_cast<std::size_t>(dictionary.find(id) - dictionary.kinds.data());
}

}  // namespace

Result<std::size_t> add(Dictionary& dictionary, const NewKind& wanted, std::uint64_t behind_bytes) {
  auto added = try_add(dictionary, wanted, behind_bytes);
  if (added || !added.error().hint.starts_with(dictionary_hint)) return added;
  // The same checks as for a dictionary, but what is wrong was just given.
  Error error = std::move(added).error();
  error.hint.erase(0, dictionary_hint.size() + std::string_view(": ").size());
  return error;
}

}  // namespace penstock::kinds

// Everything that parses text from outside, as functions of bytes that must hold whatever the bytes are. Each returns
// what is wrong, or an empty string. fuzz_main.cc runs one under libFuzzer; replay_test.cc runs all in every build.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/cgroup.h"
#include "core/uri.h"
#include "files/mount.h"
#include "penstock/domain.h"
#include "penstock/options.h"
#include "services/kinds/dictionary.h"
#include "services/models/gguf.h"
#include "services/models/resolve.h"
#include "services/models/safetensors.h"
#include "services/packed/codec.h"
#include "services/rows/npy.h"
#include "services/tuning/text.h"

namespace penstock::fuzz {

inline std::string options(std::string_view text) {
  const auto parsed = Options::from_json(text);
  if (!parsed) {
    if (parsed.error().code != Code::invalid_argument) return "a refusal with another code than invalid_argument";
    return parsed.error().message.empty() ? "a refusal without a message" : "";
  }
  if (!parsed->validate()) return "accepted, but not valid";
  const auto again = Options::from_json(parsed->to_json());
  if (!again || *again != *parsed) return "does not come back from JSON";
  if (!parsed->resolved(Machine{}).validate()) return "resolved, but not valid";
  return "";
}

inline std::string uri(std::string_view text) {
  constexpr std::array<std::string_view, 3> schemes = {"file", "nvme", "s3+http"};
  const auto parsed = core::parse_uri(text, schemes);
  if (!parsed) {
    const Code code = parsed.error().code;
    if (code != Code::invalid_argument && code != Code::unknown_scheme) return "a refusal with an unexpected code";
    return parsed.error().hint.empty() ? "a refusal without a hint" : "";
  }
  if (parsed->name.empty() || parsed->name.find('\0') != std::string::npos) return "a name that no system call takes";
  if (parsed->name.size() > text.size()) return "a name longer than its URI";
  for (const std::string_view scheme : schemes) {
    if (parsed->scheme == scheme) return "";
  }
  return "a scheme that is not registered";
}

inline std::string domain(std::string_view text) {
  const auto parsed = Domain::parse(text);
  if (!parsed) return parsed.error().code == Code::invalid_argument ? "" : "a refusal with an unexpected code";
  const auto again = Domain::parse(parsed->name());
  return again && *again == *parsed ? "" : "does not come back from its name";
}

// The input is the text of /proc/self/cgroup, a zero byte, and the text of /proc/self/mountinfo.
inline std::string cgroup(std::string_view text) {
  const std::string_view process = text.substr(0, text.find('\0'));
  const std::string_view mountinfo = process.size() == text.size() ? text : text.substr(process.size() + 1);
  for (const char* controller : {"cpu", "memory"}) {
    for (const std::string& folder : core::cgroup_folders(process, mountinfo, controller)) {
      if (folder.find("/..") != std::string::npos && mountinfo.find("..") == std::string_view::npos) {
        return "a folder outside the mount";
      }
    }
  }
  if (const auto cpus = core::parse_cpu_max(text); cpus && !(*cpus > 0)) return "a limit of no CPUs";
  if (const auto bytes = core::parse_memory_limit(text); bytes && *bytes == 0) return "a limit of no memory";
  return "";
}

inline std::string mounts(std::string_view text) {
  for (const files::Mount& mount : files::parse_mountinfo(text)) {
    if (mount.point.empty()) return "a mount without a place";
  }
  for (const files::SwapArea& swap : files::parse_swaps(text)) {
    if (swap.name.empty()) return "a swap without a name";
  }
  return "";
}

inline std::string tuning(std::string_view text) {
  const auto parsed = penstock::tuning::parse(text);
  if (!parsed) {
    if (parsed.error().code != Code::invalid_argument) return "a refusal with another code than invalid_argument";
    return parsed.error().message.empty() ? "a refusal without a message" : "";
  }
  for (const Tuning& each : *parsed) {
    if (!each.options.validate()) return "accepted, but not valid";
  }
  const auto written = penstock::tuning::format(*parsed);
  if (!written) return "can't be written again";
  const auto again = penstock::tuning::parse(*written);
  return again && *again == *parsed ? "" : "does not come back";
}

// What both parsers of models promise: tensors in order, within the file, on no other, as large as their shapes.
inline std::string check_contents(const models::Contents& contents, std::uint64_t file_bytes) {
  std::uint64_t end = contents.data_offset;
  for (const TensorInfo& tensor : contents.tensors) {
    if (tensor.offset < end) return "a tensor on another, or on the header";
    if (tensor.offset > file_bytes || tensor.stored_bytes > file_bytes - tensor.offset) return "a tensor past the end";
    if (tensor.packing.empty() && tensor.stored_bytes != tensor.size_bytes) return "a plain tensor of another size";
    const auto bytes = models::tensor_bytes(tensor.dtype, tensor.shape);
    if (!bytes || *bytes != tensor.size_bytes) return "a tensor of another size than its shape";
    end = tensor.offset + tensor.stored_bytes;
  }
  return "";
}

inline std::string check_refusal(const Error& error) {
  if (error.code != Code::invalid_argument && error.code != Code::truncated && error.code != Code::unsupported) {
    return "a refusal with an unexpected code";
  }
  return error.message.empty() || error.hint.empty() ? "a refusal without a message or a hint" : "";
}

inline std::string safetensors_header(std::string_view json, std::uint64_t file_bytes) {
  const auto contents = models::parse_safetensors(json, file_bytes);
  return contents ? check_contents(*contents, file_bytes) : check_refusal(contents.error());
}

// The input is a file. A change in its header nearly always makes its length wrong, so that is mended too.
inline std::string safetensors(std::string_view file) {
  const auto length = models::safetensors_header_bytes(file, file.size());
  const std::string problem =
      length ? safetensors_header(file.substr(models::safetensors_length_bytes, *length), file.size())
             : check_refusal(length.error());
  const std::size_t last = file.rfind('}');
  if (!problem.empty() || last == std::string_view::npos || last < models::safetensors_length_bytes) return problem;
  return safetensors_header(file.substr(models::safetensors_length_bytes, last + 1 - models::safetensors_length_bytes),
                            file.size());
}

// As another parser sees it.
inline bool is_text(const std::string& text) {
  const auto replaced = nlohmann::json::parse(
      nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), nullptr, false);
  return replaced == text;
}

inline std::string gguf(std::string_view file) {
  const auto contents = models::parse_gguf(file);
  if (!contents) return check_refusal(contents.error());
  for (const auto& [key, value] : contents->metadata) {
    if (!is_text(key) || !is_text(value.text())) return "metadata that is no text";
  }
  for (const TensorInfo& tensor : contents->tensors) {
    if (!is_text(tensor.name)) return "a name that is no text";
  }
  return check_contents(*contents, file.size());
}

inline std::string model_index(std::string_view text) {
  const auto index = models::parse_index(text);
  if (!index) return check_refusal(index.error());
  // Another parser reads the same, unless it fails for a number that it can't hold.
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const bool has_large_number = text.find_first_of("eE") != std::string_view::npos || text.size() > 300;
  if (json.is_discarded()) return has_large_number ? "" : "accepted, but not valid JSON";
  for (const auto& [tensor, file] : index->weights) {
    if (json["weight_map"][tensor] != index->files.at(file)) return "another file than the text says";
  }
  if (json["weight_map"].size() != index->weights.size()) return "another number of tensors than the text says";
  for (const std::string& file : index->files) {
    const bool stays = !file.empty() && file != "." && file != ".." &&
                       file.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
    if (!stays) return "a name that leaves the directory";
  }
  return index->weights.empty() ? "an index of nothing" : "";
}

// The input is a file. A change in its header nearly always makes its length wrong, so that is mended too.
inline std::string npy(std::string_view file) {
  const auto check = [](std::string_view bytes) -> std::string {
    // As long as any header tells: what it says of the data is then its own matter.
    constexpr std::uint64_t file_bytes = std::uint64_t{1} << 40;
    const auto array = rows::parse_npy(bytes, file_bytes);
    if (!array) return check_refusal(array.error());
    if (array->data_offset > bytes.size()) return "data within the header";
    if (array->data_bytes > file_bytes - array->data_offset) return "data past the end";
    std::uint64_t size = array->element_bytes;
    for (const std::uint64_t length : array->shape) size *= length;
    return size == array->data_bytes ? "" : "another size than its shape";
  };
  if (const std::string problem = check(file); !problem.empty()) return problem;
  const std::size_t last = file.rfind('}');
  if (last == std::string_view::npos || last < 10) return "";
  std::string mended(file.substr(0, last + 1));
  mended.replace(0, 8, std::string_view("\x93NUMPY\x01\0", 8));
  mended[8] = static_cast<char>((mended.size() - 10) & 0xff);
  mended[9] = static_cast<char>((mended.size() - 10) >> 8 & 0xff);
  return check(mended);
}

// A chunk, with a number of values that it may have, into memory with guards around it, by all decoders that run here.
inline std::string packed_chunk(packed::Kind kind, std::string_view chunk, std::uint32_t values) {
  constexpr std::size_t guard = 64;
  const std::size_t bytes = std::size_t{values} * packed::division_of(kind).value_bytes;
  std::string first;
  std::optional<packed::Fault> first_fault;
  for (const packed::Kernels* kernels : packed::kernels_here()) {
    std::string memory(bytes + 2 * guard, 'g');
    const auto out = std::as_writable_bytes(std::span(memory)).subspan(guard, bytes);
    const packed::Fault fault =
        packed::decode_chunk(*kernels, kind, std::as_bytes(std::span(chunk)), {0, values}, {0, out});
    if (memory.substr(0, guard) + memory.substr(guard + bytes) != std::string(2 * guard, 'g')) {
      return "written outside of the destination";
    }
    if (first_fault.value_or(fault) != fault) return "two decoders judge otherwise";
    if (first_fault == packed::Fault::none && memory != first) return "two decoders decode otherwise";
    if (!first_fault) first = std::move(memory);
    first_fault = fault;
  }
  return "";
}

// The input is the number of a type, a number of values in two bytes, and a chunk. A change nearly always makes its
// length or its checksum wrong, so it is tried as it is and with its length mended.
inline std::string packed_tensor(std::string_view input) {
  if (input.size() < 3) return "";
  const packed::Kind kind = packed::kinds[static_cast<unsigned char>(input[0]) % packed::kinds.size()];
  const std::uint32_t values = 1 + (static_cast<unsigned char>(input[1]) |
                                    static_cast<std::uint32_t>(static_cast<unsigned char>(input[2])) << 8);
  std::string chunk(input.substr(3));
  const auto index = packed::read_index(std::as_bytes(std::span(chunk)), {kind, values, 4096});
  if (!index && (index.error().message.empty() || index.error().hint.empty()))
    return "a refusal without a message or a hint";
  if (std::string problem = packed_chunk(kind, chunk, values); !problem.empty()) return problem;
  if (chunk.size() < 64) return "";
  chunk.resize(chunk.size() / 64 * 64);
  for (int i = 0; i < 4; ++i) {
    chunk[4 + i] = static_cast<char>(chunk.size() >> (8 * i));
    chunk[8 + i] = static_cast<char>(values >> (8 * i));
  }
  return packed_chunk(kind, chunk, values);
}

inline std::string kinds(std::string_view text) {
  const auto parsed = penstock::kinds::parse(text);
  if (!parsed) return check_refusal(parsed.error());
  std::uint64_t end = 0;
  for (const Kind& kind : parsed->kinds) {
    if (kind.start_byte < end) return "a kind on another";
    end = kind.start_byte + kind.length_bytes;
    if (end < kind.start_byte || end > INT64_MAX) return "a kind that ends nowhere";
    if (kind.id == 0 || kind.record_bytes == 0 || kind.records > kind.capacity()) return "a kind that can't be";
    if (kind.name.empty() || !is_text(kind.name)) return "a name that is no text";
  }
  const auto written = penstock::kinds::to_text(*parsed);
  if (!written) return "can't be written again";
  const auto again = penstock::kinds::parse(*written);
  return again && again->kinds == parsed->kinds && again->device_bytes == parsed->device_bytes ? ""
                                                                                               : "does not come back";
}

struct Target {
  std::string_view name;  // also of its folder in corpus/
  std::string (*run)(std::string_view);
};
inline constexpr Target targets[] = {
    {"options", options},         {"uri", uri},       {"domain", domain},           {"cgroup", cgroup},
    {"mounts", mounts},           {"tuning", tuning}, {"safetensors", safetensors}, {"gguf", gguf},
    {"model_index", model_index}, {"npy", npy},       {"packed", packed_tensor},    {"kinds", kinds},
};

}  // namespace penstock::fuzz

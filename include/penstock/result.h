// Result<T>: a value or an Error. Asking for the one that is missing is a programming error and ends the process.
//
// Thread safety: as T. Calls that return a Result don't throw: if memory runs out, they return Code::out_of_memory.
// Calls that return plain values then throw std::bad_alloc. If one of your callbacks throws, the process ends with a
// message that names it.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>
#include <variant>

#include "penstock/error.h"

namespace penstock {

[[noreturn]] inline void fail_value_access(const Error& error) {
  std::fprintf(stderr, "penstock: value of a failed Result: %s\n", error.message.c_str());
  std::abort();
}

[[noreturn]] inline void fail_error_access() {
  std::fprintf(stderr, "penstock: error of a Result or Status that is ok: ask ok() first\n");
  std::abort();
}

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & { return check_value(), std::get<0>(state_); }
  const T& value() const& { return check_value(), std::get<0>(state_); }
  T&& value() && { return check_value(), std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  // REQUIRES: !ok()
  // NOLINTNEXTLINE(clang-analyzer-core.uninitialized.UndefReturn): it is looked at first
  const Error& error() const& { return check_error(), *std::get_if<1>(&state_); }
  Error&& error() && { return check_error(), std::move(*std::get_if<1>(&state_)); }

 private:
  void check_value() const {
    if (!ok()) fail_value_access(error());
  }
  void check_error() const {
    if (ok()) fail_error_access();
  }
  std::variant<T, Error> state_;
};

// Success without a value, or an Error.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::move(error)) {}

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  // REQUIRES: !ok()
  const Error& error() const& { return check_error(), *error_; }
  Error&& error() && { return check_error(), std::move(*error_); }

 private:
  void check_error() const {
    if (ok()) fail_error_access();
  }
  std::optional<Error> error_;
};

}  // namespace penstock

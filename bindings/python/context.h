// The Context as Python has it, and the reads that it starts.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "abandoned.h"
#include "gil.h"
#include "penstock/context.h"
#include "penstock/models.h"

namespace penstock::python {

// The GIL guards it.
class PythonContext {
 public:
  explicit PythonContext(const std::string& options_json);
  PythonContext(const PythonContext&) = delete;
  PythonContext& operator=(const PythonContext&) = delete;
  ~PythonContext() {
    if (context_) let_go_of_what_came_home(context_);
  }

  // Raises once the Context is closed.
  std::shared_ptr<Context> get() const;
  // To be cancelled by close; false where that has been already.
  [[nodiscard]] bool add(std::weak_ptr<Loading> load);
  // Whether it was closed, for whoever may outlive it.
  std::shared_ptr<const std::atomic<bool>> closed() const { return closed_; }
  // Without it, loads go on, and keep the Context until they end.
  void close();

 private:
  static void let_go(Context* context);

  std::shared_ptr<Context> context_;  // shared: another thread may be inside a call when one closes it
  std::vector<std::weak_ptr<Loading>> loads_;
  const std::shared_ptr<std::atomic<bool>> closed_ = std::make_shared<std::atomic<bool>>(false);
};

// Lets go of it without the GIL, which it has then: closing may wait for a server.
class HeldStore : public Store {
 public:
  explicit HeldStore(Store store) : Store(std::move(store)) {}
  HeldStore(HeldStore&&) = default;
  HeldStore& operator=(HeldStore&&) = delete;
  ~HeldStore() {
    if (!*this) return;
    const WithoutGil released;
    static_cast<Store&>(*this) = Store();
  }
};

[[noreturn]] void raise_closed();

// Requests that a thread may carry out by itself, without asking whether it is interrupted: on a disk of this machine
// nothing can interrupt it anyway.
inline bool is_brief(Locality locality, std::uint64_t size_bytes) {
  constexpr std::uint64_t brief_bytes = 128 << 10;
  return size_bytes <= brief_bytes && !is_remote(locality);
}

// Requests that need not report their progress.
inline bool is_soon_over(Locality locality, std::uint64_t size_bytes) {
  constexpr std::uint64_t soon_over_bytes = 64 << 20;
  return size_bytes <= soon_over_bytes && !is_remote(locality);
}

// Names of files as Python has them: bytes.
inline std::string to_string(const nanobind::bytes& bytes) {
  return {bytes.c_str(), bytes.size()};
}

void define_context(nanobind::module_& module);

}  // namespace penstock::python

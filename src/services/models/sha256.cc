#include "services/models/sha256.h"

#include <dlfcn.h>

#include <array>

namespace penstock::models {
namespace {

struct Library {
  void* (*context_new)() = nullptr;
  void (*context_free)(void*) = nullptr;
  const void* (*sha256)() = nullptr;
  int (*begin)(void*, const void*, void*) = nullptr;
  int (*update)(void*, const void*, std::size_t) = nullptr;
  int (*end)(void*, unsigned char*, unsigned*) = nullptr;
  std::string problem;
};

// Stays loaded: libcrypto does not like to be closed.
const Library& library() {
  static const Library loaded = [] {
    Library made;
    void* const handle = ::dlopen("libcrypto.so.3", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      made.problem = "there is no libcrypto.so.3 (OpenSSL) to compute SHA-256 with";
      return made;
    }
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
      if (function == nullptr) made.problem = std::string("libcrypto.so.3 has no ") + name;
    };
    find(made.context_new, "EVP_MD_CTX_new");
    find(made.context_free, "EVP_MD_CTX_free");
    find(made.sha256, "EVP_sha256");
    find(made.begin, "EVP_DigestInit_ex");
    find(made.update, "EVP_DigestUpdate");
    find(made.end, "EVP_DigestFinal_ex");
    return made;
  }();
  return loaded;
}

}  // namespace

struct Sha256::State {
  void* context = library().context_new();
  bool good = context != nullptr && library().begin(context, library().sha256(), nullptr) == 1;

  ~State() { library().context_free(context); }
};

Result<Sha256> Sha256::create() {
  if (!library().problem.empty()) return Error{Code::unsupported, 0, library().problem, "install OpenSSL 3"};
  auto state = std::make_unique<State>();
  if (!state->good) return Error{Code::unsupported, 0, "libcrypto refuses SHA-256", ""};
  return Sha256(std::move(state));
}

Sha256::Sha256(std::unique_ptr<State> state) : state_(std::move(state)) {}
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;
Sha256::~Sha256() = default;

void Sha256::add(std::span<const std::byte> bytes) {
  state_->good = state_->good && library().update(state_->context, bytes.data(), bytes.size()) == 1;
}

std::string Sha256::hex() {
  std::array<unsigned char, 64> digest{};
  unsigned length = 0;
  state_->good = state_->good && library().end(state_->context, digest.data(), &length) == 1;
  if (!state_->good || length > digest.size()) return {};
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (unsigned i = 0; i < length; ++i) {
    text += digits[digest[i] >> 4];
    text += digits[digest[i] & 15];
  }
  return text;
}

}  // namespace penstock::models

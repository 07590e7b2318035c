// For tests: a descriptor that does not close for long, as one of a file whose server does not answer.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <utility>

#include "base/unique_fd.h"

namespace penstock::files {

// Reads nothing, so that who has sent it something waits in close(2) while it lives.
class SilentPeer {
 public:
  SilentPeer() {
    lingering_ = connect();
    constexpr linger wait{.l_onoff = 1, .l_linger = 60};
    if (::setsockopt(lingering_.get(), SOL_SOCKET, SO_LINGER, &wait, sizeof(wait)) != 0) lingering_ = UniqueFd();
    constexpr std::array<char, 65536> bytes{};
    while (::send(lingering_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
    }
  }

  // Nothing where there is no network at all.
  UniqueFd take_descriptor() { return std::move(lingering_); }

 private:
  UniqueFd connect() {
    sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (::bind(own_.get(), any, length) != 0 || ::listen(own_.get(), 1) != 0 ||
        ::getsockname(own_.get(), any, &length) != 0) {
      return {};
    }
    UniqueFd made(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(made.get(), any, length) != 0) return {};
    own_ = UniqueFd(::accept4(own_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    return made;
  }

  UniqueFd lingering_;
  UniqueFd own_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};  // closed first
};

}  // namespace penstock::files

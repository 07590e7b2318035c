// Tally: what the requests of one round moved, by which routes, and where their time went.
//
// Thread safety: one thread at a time.
#pragma once

#include <penstock/penstock.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "rounds.h"

namespace bench {

// The value, or the end of the program with the reason.
template <typename T>
T value_of(penstock::Result<T> result) {
  if (!result.ok()) fail(result.error().message + " (" + result.error().hint + ")");
  return std::move(result).value();
}

inline penstock::Context context_with(std::uint32_t lanes) {
  penstock::Options options;
  options.lanes = lanes;
  return value_of(penstock::Context::create(options));
}

inline std::string checksum_of(std::span<const std::byte> bytes) {
  penstock::Checksum checksum;
  checksum.add(bytes);
  return checksum.hex();
}

// What one call of the work moves.
struct Amount {
  std::uint64_t bytes = 0;
  std::uint64_t operations = 0;
};

// Calls it, once at least, until that much time was spent.
template <typename Work>
Json repeat(double seconds, Amount amount, Work work) {
  const double start = now();
  const double cpu_start = cpu_seconds();
  std::uint64_t calls = 0;
  do {
    work();
    ++calls;
  } while (now() - start < seconds);
  return {{"bytes", calls * amount.bytes},
          {"operations", calls * amount.operations},
          {"seconds", now() - start},
          {"cpu_seconds", cpu_seconds() - cpu_start}};
}

class Tally {
 public:
  Tally() : cpu_start_(cpu_seconds()) {}

  void add(const penstock::Report& report) {
    if (!report.ok()) {
      fail("a request ended as " + std::string(penstock::outcome_name(report.outcome)) + ": " +
           (report.error ? report.error->message : "no error given"));
    }
    bytes_ += report.bytes;
    ++requests_;
    storage_seconds_ += report.storage_seconds;
    copy_seconds_ += report.copy_seconds;
    for (std::size_t i = 0; i < penstock::route_count; ++i) routes_[i] += report.routes[i];
    if (requests_ == 1) {
      description_ = {{"engine", report.engine},
                      {"reason", report.reason},
                      {"limit", std::string(penstock::limit_name(report.limit))}};
    }
  }

  // For many small requests: waits, and looks no closer than a caller in a hurry would.
  void add_bytes_of(const penstock::Ticket& ticket) {
    if (ticket.wait() != penstock::Outcome::done) add(ticket.report());
    bytes_ += ticket.bytes_done();
    ++unreported_requests_;
  }

  Json json(double seconds, std::uint64_t operations) const {
    Json result = description_;
    result["bytes"] = bytes_;
    result["requests"] = requests_ + unreported_requests_;
    result["operations"] = operations;
    result["seconds"] = seconds;
    result["cpu_seconds"] = cpu_seconds() - cpu_start_;
    result["lanes_waited_for_storage_seconds"] = storage_seconds_;
    result["lanes_waited_for_copies_seconds"] = copy_seconds_;
    for (std::size_t i = 0; i < penstock::route_count; ++i) {
      if (routes_[i] == 0) continue;
      result["routes"][std::string(penstock::route_name(static_cast<penstock::Route>(i)))] = routes_[i];
    }
    return result;
  }

 private:
  double cpu_start_;
  std::uint64_t bytes_ = 0;
  std::uint64_t requests_ = 0;
  std::uint64_t unreported_requests_ = 0;
  double storage_seconds_ = 0;
  double copy_seconds_ = 0;
  penstock::RouteBytes routes_{};
  Json description_;
};

}  // namespace bench

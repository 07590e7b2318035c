#include "services/tiers/leases.h"

#include <fcntl.h>

#include <cerrno>
#include <csignal>
#include <utility>

#include "base/descriptors.h"

namespace penstock::tiers {
namespace {

Error in_use(const std::string& path) {
  return {Code::in_use, EAGAIN, path + " is open for writing",
          "close it, or let go of its Store; until then it stays on its tier"};
}

}  // namespace

Result<Leases> Leases::take(const PathBeneath& path, const Tree& tree) {
  Leases leases;
  if (tree.files > most_files || (tree.files > 1 && tree.files > free_descriptors() / 4)) return leases;
  for (const Entry& entry : tree.entries) {
    if (entry.kind != Entry::Kind::file) continue;
    const PathBeneath whole = path / entry.name;
    auto opened = open_entry(whole, entry);
    if (!opened) return std::move(opened).error();
    UniqueFd file = std::move(*opened);
    // The kernel tells by a signal. Nobody waits for it; this one is ignored where nobody asked for it.
    if (::fcntl(file.get(), F_SETSIG, SIGURG) != 0) continue;
    if (::fcntl(file.get(), F_SETLEASE, F_RDLCK) != 0) {
      if (errno == EAGAIN) return in_use(whole.text());
      continue;
    }
    static_cast<void>(::fcntl(file.get(), F_SETOWN, 0));
    leases.leased_.push_back({std::move(file), whole.text()});
  }
  return leases;
}

std::vector<UniqueFd> Leases::take_files() {
  std::vector<UniqueFd> files;
  for (Leased& one : leased_) files.push_back(std::move(one.file));
  leased_.clear();
  return files;
}

Status Leases::check() const {
  for (const Leased& one : leased_) {
    if (::fcntl(one.file.get(), F_GETLEASE) != F_RDLCK) return in_use(one.path);
  }
  return {};
}

}  // namespace penstock::tiers

#include "abandoned.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace nb = nanobind;

namespace penstock::python {
namespace {

struct Kept {
  std::weak_ptr<Context> context;
  nb::object memory;
};

// Outlives the interpreter, and what is in it does so too.
std::vector<Kept>& all_kept() {
  static auto* const kept = new std::vector<Kept>;
  return *kept;
}

}  // namespace

void keep_abandoned(std::weak_ptr<Context> context, nb::object memory) {
  all_kept().push_back({std::move(context), std::move(memory)});
}

void let_go_of_what_came_home(const std::shared_ptr<Context>& context) {
  std::vector<Kept>& kept = all_kept();
  if (kept.empty() || context->statistics().quarantined_bytes != 0) return;
  const auto home = std::ranges::partition(
      kept, [&](const Kept& each) { return each.context.owner_before(context) || context.owner_before(each.context); });
  // Objects that go may call Python, and that calls this again.
  std::vector<Kept> gone(std::make_move_iterator(home.begin()), std::make_move_iterator(home.end()));
  kept.erase(home.begin(), home.end());
}

}  // namespace penstock::python

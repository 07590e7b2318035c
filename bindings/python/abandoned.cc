#include "abandoned.h"

#include <algorithm>
#include <iterator>
#include <new>
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
  memory.inc_ref();  // without room in the list it stays for good
  try {
    all_kept().push_back({std::move(context), memory});
    memory.dec_ref();
  } catch (const std::bad_alloc&) {
  }
}

void let_go_of_what_came_home(const std::shared_ptr<Context>& context) {
  std::vector<Kept>& kept = all_kept();
  if (kept.empty()) return;
  const auto is_of_another = [&](const Kept& each) {
    return each.context.owner_before(context) || context.owner_before(each.context);
  };
  std::vector<Kept> gone;  // objects that go may call Python, and that calls this again
  try {
    if (context->statistics().quarantined_bytes != 0) return;
    gone.reserve(kept.size());
  } catch (const std::bad_alloc&) {  // the next call tries again
    return;
  }
  const auto home = std::ranges::partition(kept, is_of_another);
  gone.assign(std::make_move_iterator(home.begin()), std::make_move_iterator(home.end()));
  kept.erase(home.begin(), home.end());
}

}  // namespace penstock::python

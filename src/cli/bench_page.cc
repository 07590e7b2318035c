#include "bench.h"

// src/cli/bench_page.html, embedded by the build.
extern "C" const char penstock_bench_template[];

namespace penstock::cli {

namespace {

// JSON within a script element: nothing in it may look like markup. Strings stay what they are.
std::string embed(const Json& value) {
  std::string safe;
  for (const char c : value.dump(-1, ' ', false, Json::error_handler_t::replace)) {
    switch (c) {
      case '<':
        safe += "\\u003c";
        break;
      case '>':
        safe += "\\u003e";
        break;
      case '&':
        safe += "\\u0026";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

}  // namespace

std::string bench_page(const Json& bench) {
  constexpr std::string_view place = "@BENCH@";
  std::string page = penstock_bench_template;
  const std::size_t at = page.find(place);
  return page.replace(at, place.size(), embed(bench));
}

}  // namespace penstock::cli

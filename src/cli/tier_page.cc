#include "tier_page.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "output.h"
#include "tier.h"

namespace penstock::cli {

namespace {

constexpr double picture_width = 900;
constexpr double bar_height = 46;
constexpr double row_height = 96;

// As text of HTML and of attributes. Names need not be UTF-8.
std::string escaped(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '&':
        safe += "&amp;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        safe += static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) == 0x7f ? '?' : c;
    }
  }
  // The writer of JSON knows what is UTF-8; the rest becomes a replacement mark.
  const std::string quoted = Json(safe).dump(-1, ' ', false, Json::error_handler_t::replace);
  return Json::parse(quoted).get<std::string>();
}

std::string number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f", value);
  return text.data();
}

// The hotter, the redder.
const char* colour_of(const UnitInfo& unit) {
  return unit.in_doubt ? "#777" : unit.heat >= 100 ? "#d1495b" : unit.heat >= 10 ? "#edae49" : "#4f8fc0";
}

std::string rectangle(double x, double y, double width, const char* colour, const std::string& title) {
  return "<rect x=\"" + number(x) + "\" y=\"" + number(y) + "\" width=\"" + number(std::max(width, 0.5)) +
         "\" height=\"" + number(bar_height) + "\" fill=\"" + colour +
         "\" stroke=\"#fff\" stroke-width=\"0.5\"><title>" + escaped(title) + "</title></rect>\n";
}

std::string line(double x, double y, const std::string& title) {
  return "<line x1=\"" + number(x) + "\" x2=\"" + number(x) + "\" y1=\"" + number(y - 4) + "\" y2=\"" +
         number(y + bar_height + 4) + "\" stroke=\"#222\" stroke-dasharray=\"3 2\"><title>" + escaped(title) +
         "</title></line>\n";
}

std::string bar_of(const TierInfo& tier, const std::vector<UnitInfo>& units, double y) {
  const double scale = tier.capacity_bytes == 0 ? 0 : picture_width / static_cast<double>(tier.capacity_bytes);
  std::string text = "<text x=\"0\" y=\"" + number(y - 10) + "\">" + escaped(tier.name) + "  " + escaped(tier.path) +
                     "  " + format_bytes(tier.used_bytes) + " of " + format_bytes(tier.capacity_bytes) + ", " +
                     tier::count_of_units(tier.units) + (tier.problem ? "  " + escaped(tier.problem->message) : "") +
                     "</text>\n";
  text += "<rect x=\"0\" y=\"" + number(y) + "\" width=\"" + number(picture_width) + "\" height=\"" +
          number(bar_height) + "\" fill=\"#eee\"/>\n";
  double x = 0;
  std::uint64_t shown = 0;
  for (const UnitInfo& unit : units) {
    if (unit.tier != tier.name) continue;
    const double width = std::min(static_cast<double>(unit.size_bytes) * scale, picture_width - x);
    text += rectangle(x, y, width, colour_of(unit),
                      unit.name + ", " + format_bytes(unit.size_bytes) + ", heat " + number(unit.heat));
    x += width;
    shown += unit.size_bytes;
  }
  if (tier.used_bytes > shown) {
    const double width = std::min(static_cast<double>(tier.used_bytes - shown) * scale, picture_width - x);
    text += rectangle(x, y, width, "#a8c4d9", "other units, " + format_bytes(tier.used_bytes - shown));
  }
  text += line(tier.low_water * picture_width, y, "low water mark");
  return text + line(tier.high_water * picture_width, y, "high water mark");
}

}  // namespace

std::string tier_page(const std::vector<TierInfo>& tiers, const std::vector<UnitInfo>& largest) {
  std::vector<UnitInfo> units = largest;
  std::ranges::stable_sort(units, std::greater<>(), &UnitInfo::heat);
  const double height = row_height * static_cast<double>(tiers.size()) + 40;
  std::string page =
      "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Tiers</title>\n"
      "<style>body{font:14px system-ui,sans-serif;margin:2em}svg text{font:13px system-ui,sans-serif}</style>\n"
      "<h1>Tiers</h1>\n<p>Each piece is a unit, the hottest first: red from heat 100, yellow from 10, blue below, grey "
      "in doubt. Dashed lines are the water marks. " +
      escaped(utc_now()) + "</p>\n<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"" +
      number(picture_width + 2) + "\" height=\"" + number(height) + "\">\n";
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    page += bar_of(tiers[i], units, 30 + row_height * static_cast<double>(i));
  }
  return page + "</svg>\n</html>\n";
}

}  // namespace penstock::cli

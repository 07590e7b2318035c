// penstock engines: the table of engines, and whether each works here.
#include <cstdlib>

#include "common.h"
#include "engine_list.h"
#include "output.h"

namespace penstock::cli {

namespace {

std::string_view state_name(Condition::State state) {
  switch (state) {
    case Condition::State::met:
      return "met";
    case Condition::State::missing:
      return "missing";
    case Condition::State::unknown:
      break;
  }
  return "unknown";
}

Exit run(const OutputFlags& flags) {
  const Output output(flags);
  // An override that names an engine which does not work here must not keep the list from saying so.
  unsetenv("PENSTOCK_ENGINE");
  const Result<Context> context = Context::create();
  if (!context.ok()) return output.fail(context.error());
  if (output.json()) {
    output.object({{"schema", "penstock.engines/1"}, {"engines", engines_json(context->engines())}});
  } else {
    print_engines(output, context->engines());
  }
  return Exit::ok;
}

}  // namespace

Json conditions_json(const std::vector<Condition>& conditions) {
  Json list = Json::array();
  for (const Condition& condition : conditions) {
    list.push_back({{"name", condition.name},
                    {"state", state_name(condition.state)},
                    {"detail", condition.detail},
                    {"remedy", condition.remedy}});
  }
  return list;
}

void print_condition(const Output& output, const Condition& condition) {
  const bool met = condition.state == Condition::State::met;
  const Mark mark = met ? Mark::good : condition.state == Condition::State::missing ? Mark::bad : Mark::unknown;
  output.item(mark, condition.name + (condition.detail.empty() ? "" : ": " + condition.detail));
  output.detail(condition.remedy);
}

Json engines_json(const std::vector<EngineInfo>& engines) {
  Json list = Json::array();
  for (const EngineInfo& engine : engines) {
    list.push_back({{"name", engine.name},
                    {"available", engine.available},
                    {"summary", engine.summary},
                    {"schemes", engine.schemes},
                    {"reason", engine.reason},
                    {"remedy", engine.remedy},
                    {"device_route", engine.device_route ? Json(route_name(*engine.device_route)) : Json()},
                    {"conditions", conditions_json(engine.conditions)}});
  }
  return list;
}

void print_engines(const Output& output, const std::vector<EngineInfo>& engines) {
  for (const EngineInfo& engine : engines) {
    output.heading(std::string(output.mark(engine.available ? Mark::good : Mark::bad)) + " " + engine.name + ": " +
                   engine.summary);
    std::string schemes;
    for (const std::string& scheme : engine.schemes) schemes += (schemes.empty() ? "" : ", ") + scheme;
    output.field("schemes", schemes);
    if (!engine.reason.empty()) output.field(engine.available ? "note" : "why not", engine.reason);
    if (!engine.remedy.empty()) output.field("remedy", engine.remedy);
    if (engine.device_route) {
      const bool by_request = engine.device_route == Route::cufile_compat;
      output.field("to GPUs", std::string(route_name(*engine.device_route)) + (by_request ? ", only on request" : ""));
    }
    for (const Condition& condition : engine.conditions) print_condition(output, condition);
  }
}

Command add_engines(CLI::App& tool) {
  auto flags = std::make_shared<OutputFlags>();  // shared by the parser's options and by run
  CLI::App* parser = tool.add_subcommand("engines", "List the engines and whether they work here");
  parser->add_flag("--json", flags->json, "print one JSON object");
  parser->footer(
      "Examples:\n"
      "  penstock engines\n"
      "  penstock engines --json");
  return {parser, [flags] { return run(*flags); }};
}

}  // namespace penstock::cli

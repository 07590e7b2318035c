#include "tiers.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "context.h"
#include "errors.h"
#include "gil.h"
#include "penstock/tiers.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

// The last handle stops threads, so it goes without the GIL.
class PythonTiers {
 public:
  explicit PythonTiers(Tiers tiers) : tiers_(std::move(tiers)) {}
  PythonTiers(PythonTiers&&) = default;
  PythonTiers& operator=(PythonTiers&&) = delete;
  ~PythonTiers() { close(); }

  Tiers& get() { return tiers_; }
  void close() {
    const WithoutGil released;
    { const Tiers closing = std::move(tiers_); }
  }

 private:
  Tiers tiers_;
};

// A call of the library without the GIL; raises its error.
template <typename Call>
auto call(PythonTiers& self, Call what) {
  Tiers tiers = self.get();  // another thread may close it meanwhile
  auto result = without_gil([&] {
    auto answer = what(tiers);
    { const Tiers gone = std::move(tiers); }
    return answer;
  });
  if constexpr (std::is_same_v<decltype(result), Status>) {
    check(result);
  } else {
    return value_or_raise(std::move(result));
  }
}

TiersOptions options_of(const nb::bytes& catalog, double wait_seconds, double flush_seconds) {
  return {.catalog = to_string(catalog), .wait_seconds = wait_seconds, .flush_seconds = flush_seconds};
}

PythonTiers open_tiers(const nb::bytes& catalog, double wait_seconds, double flush_seconds) {
  const TiersOptions options = options_of(catalog, wait_seconds, flush_seconds);
  return PythonTiers(value_or_raise(without_gil([&] { return Tiers::open(options); })));
}

// The configuration as JSON; empty: the usual tiers.
PythonTiers create_tiers(const std::string& json, bool adopt, const nb::bytes& catalog, double wait_seconds,
                         double flush_seconds) {
  const TiersOptions options = options_of(catalog, wait_seconds, flush_seconds);
  return PythonTiers(value_or_raise(without_gil([&]() -> Result<Tiers> {
    Tiers::Configuration configuration;
    if (json.empty()) {
      auto usual = Tiers::usual_tiers();
      if (!usual) return std::move(usual).error();
      configuration.tiers = std::move(*usual);
    } else {
      auto parsed = Tiers::parse_configuration(json);
      if (!parsed) return std::move(parsed).error();
      configuration = std::move(*parsed);
    }
    for (NewTier& tier : configuration.tiers) tier.adopt = adopt;
    return Tiers::create(configuration.tiers, configuration.policy, options);
  })));
}

nb::object path_object(const std::string& path) {
  return nb::steal(PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size())));
}

nb::object text_or_none(const std::string& text) {
  return text.empty() ? nb::none() : nb::object(nb::str(text.c_str(), text.size()));
}

nb::dict to_dict(const TierInfo& tier) {
  nb::dict result;
  result["name"] = tier.name;
  result["path"] = path_object(tier.path);
  result["capacity_bytes"] = tier.capacity_bytes;
  result["used_bytes"] = tier.used_bytes;
  result["free_bytes"] = tier.free_bytes;
  result["units"] = tier.units;
  result["low_water"] = tier.low_water;
  result["high_water"] = tier.high_water;
  result["from_heat"] = tier.from_heat;
  result["read_only"] = tier.read_only;
  result["read_bytes_per_second"] = tier.read_bytes_per_second;
  result["write_bytes_per_second"] = tier.write_bytes_per_second;
  result["gpu_direct"] = text_or_none(tier.gpu_direct);
  result["problem"] = tier.problem ? nb::object(nb::cast(tier.problem->message)) : nb::none();
  return result;
}

nb::dict to_dict(const UnitInfo& unit) {
  nb::dict result;
  result["name"] = path_object(unit.name);
  result["kind"] = std::string(unit_kind_name(unit.kind));
  result["tier"] = unit.tier;
  result["path"] = path_object(unit.path);
  result["size_bytes"] = unit.size_bytes;
  result["files"] = unit.files;
  result["checksum"] = text_or_none(unit.checksum);
  result["accesses"] = unit.accesses;
  result["heat"] = unit.heat;
  result["accessed_at"] = unit.accessed_at;
  result["moved_at"] = unit.moved_at;
  result["pinned"] = text_or_none(unit.pinned);
  result["moving_to"] = text_or_none(unit.moving_to);
  result["moved_bytes"] = unit.moved_bytes;
  result["in_doubt"] = unit.in_doubt;
  return result;
}

nb::dict to_dict(const PlannedMove& move) {
  nb::dict result;
  result["name"] = path_object(move.name);
  result["source"] = move.from;
  result["target"] = move.to;
  result["size_bytes"] = move.size_bytes;
  result["heat"] = move.heat;
  result["reason"] = move.reason;
  return result;
}

nb::dict to_dict(const TierPlacement& placement) {
  nb::dict result;
  result["tier"] = placement.tier;
  result["reason"] = placement.reason;
  return result;
}

nb::dict to_dict(const MoveReport& report) {
  nb::dict result;
  result["units"] = report.units;
  result["bytes"] = report.bytes;
  result["resumed_bytes"] = report.resumed_bytes;
  result["seconds"] = report.seconds;
  result["busy"] = report.busy;
  nb::list failures;
  for (const MoveFailure& failure : report.failures) {
    failures.append(nb::make_tuple(path_object(failure.name), failure.error.message));
  }
  result["failures"] = failures;
  result["failure_count"] = report.failure_count;
  return result;
}

nb::dict to_dict(const TierFinding& finding) {
  nb::dict result;
  result["name"] = path_object(finding.name);
  result["path"] = path_object(finding.path);
  result["text"] = finding.text;
  result["repaired"] = finding.repaired;
  result["harmless"] = finding.harmless;
  return result;
}

nb::dict to_dict(const CheckReport& report) {
  nb::dict result;
  result["units"] = report.units;
  result["bytes"] = report.bytes;
  nb::list findings;
  for (const TierFinding& finding : report.findings) findings.append(to_dict(finding));
  result["findings"] = findings;
  return result;
}

template <typename Values>
nb::list to_list(const Values& values) {
  nb::list result;
  for (const auto& value : values) result.append(to_dict(value));
  return result;
}

const char* step_name(MoveStep step) {
  switch (step) {
    case MoveStep::copying:
      return "copying";
    case MoveStep::verifying:
      return "verifying";
    case MoveStep::done:
      return "done";
    case MoveStep::paused:
      return "paused";
    case MoveStep::failed:
      break;
  }
  return "failed";
}

// A move that Python watches: it is told how far it is, and ends it by an exception, also that of ctrl-C. The callbacks
// run on the calling thread or on another one.
class Watched {
 public:
  Watched(std::uint64_t bytes_per_second, nb::object progress) : progress_(std::move(progress)) {
    options_.bytes_per_second = bytes_per_second;
    options_.keep_going = [this] { return keep_going(); };
    if (!progress_.is_none()) options_.on_progress = [this](const MoveProgress& now) { tell(now); };
  }

  const MoveOptions& options() const { return options_; }
  // What a callback raised.
  void raise_again() {
    if (raised_) std::rethrow_exception(std::exchange(raised_, nullptr));
  }

 private:
  bool keep_going() {
    const WithGil acquired;
    if (!raised_ && PyErr_CheckSignals() != 0) note();
    return raised_ == nullptr;
  }

  void tell(const MoveProgress& now) {
    const WithGil acquired;
    if (raised_) return;
    try {
      progress_(path_object(std::string(now.name)), std::string(now.from), std::string(now.to), step_name(now.step),
                now.bytes, now.total_bytes);
    } catch (nb::python_error&) {
      raised_ = std::current_exception();
    }
  }

  void note() {
    try {
      throw nb::python_error();
    } catch (nb::python_error&) {
      raised_ = std::current_exception();
    }
  }

  nb::object progress_;
  MoveOptions options_;
  std::exception_ptr raised_;  // guarded by the GIL
};

template <typename Move>
auto watched(PythonTiers& self, std::uint64_t bytes_per_second, nb::object progress, Move move) {
  Watched watch(bytes_per_second, std::move(progress));
  Tiers tiers = self.get();
  auto result = without_gil([&] {
    auto answer = move(tiers, watch.options());
    { const Tiers gone = std::move(tiers); }
    return answer;
  });
  watch.raise_again();
  return result;
}

nb::dict report_or_raise(Result<MoveReport>&& moved) {
  const MoveReport report = value_or_raise(std::move(moved));
  if (report.error) raise(*report.error);
  return to_dict(report);
}

NewTier one_tier(const std::string& json, bool adopt) {
  auto configuration = value_or_raise(Tiers::parse_configuration(json));
  if (configuration.tiers.size() != 1) raise({Code::invalid_argument, 0, "this is not one tier", "give one"});
  NewTier tier = std::move(configuration.tiers.front());
  tier.adopt = adopt;
  return tier;
}

}  // namespace

void define_tiers(nb::module_& module) {
  const auto name = nb::arg("name");
  nb::class_<PythonTiers>(module, "Tiers")
      .def("close", &PythonTiers::close)
      .def("catalog", [](PythonTiers& self) { return path_object(self.get().catalog()); })
      .def("tiers", [](PythonTiers& self) { return to_list(call(self, [](Tiers& t) { return t.tiers(); })); })
      .def(
          "add_tier",
          [](PythonTiers& self, const std::string& json, const std::string& behind, bool first, bool adopt) {
            NewTier tier = one_tier(json, adopt);
            tier.first = first;
            call(self, [&](Tiers& t) { return t.add_tier(tier, behind); });
          },
          nb::arg("json"), nb::arg("behind"), nb::arg("first"), nb::arg("adopt"))
      .def(
          "remove_tier",
          [](PythonTiers& self, const std::string& tier) { call(self, [&](Tiers& t) { return t.remove_tier(tier); }); },
          name)
      .def(
          "probe",
          [](PythonTiers& self, const std::string& tier) { call(self, [&](Tiers& t) { return t.probe(tier); }); }, name)
      .def(
          "import_unit",
          [](PythonTiers& self, const nb::bytes& unit, bool checksum) {
            call(self, [&, text = to_string(unit)](Tiers& t) { return t.import(text, checksum); });
          },
          name, nb::arg("checksum"))
      .def(
          "import_all",
          [](PythonTiers& self, const std::string& tier, const nb::bytes& below) {
            return to_dict(call(self, [&, text = to_string(below)](Tiers& t) { return t.import_all(tier, text); }));
          },
          nb::arg("tier"), nb::arg("below"))
      .def(
          "add",
          [](PythonTiers& self, const nb::bytes& path, const nb::bytes& unit, const std::string& tier,
             std::uint64_t bytes_per_second, nb::object progress) {
            check(watched(self, bytes_per_second, std::move(progress),
                          [&, from = to_string(path), text = to_string(unit)](Tiers& t, const MoveOptions& options) {
                            return t.add(from, text, tier, options);
                          }));
          },
          nb::arg("path"), name, nb::arg("tier"), nb::arg("bytes_per_second"), nb::arg("progress").none())
      .def(
          "remove",
          [](PythonTiers& self, const nb::bytes& unit) {
            call(self, [text = to_string(unit)](Tiers& t) { return t.remove(text); });
          },
          name)
      .def(
          "forget",
          [](PythonTiers& self, const nb::bytes& unit) {
            call(self, [text = to_string(unit)](Tiers& t) { return t.forget(text); });
          },
          name)
      .def(
          "pin",
          [](PythonTiers& self, const nb::bytes& unit, const std::string& tier) {
            call(self, [&, text = to_string(unit)](Tiers& t) { return t.pin(text, tier); });
          },
          name, nb::arg("tier"))
      .def(
          "units",
          [](PythonTiers& self, const std::string& tier, const nb::bytes& prefix, const nb::bytes& after,
             std::uint64_t limit) {
            const UnitFilter filter{tier, to_string(prefix), to_string(after), limit};
            return to_list(call(self, [&](Tiers& t) { return t.list(filter); }));
          },
          nb::arg("tier"), nb::arg("prefix"), nb::arg("after"), nb::arg("limit"))
      .def(
          "find",
          [](PythonTiers& self, const nb::bytes& unit) {
            return to_dict(call(self, [text = to_string(unit)](Tiers& t) { return t.find(text); }));
          },
          name)
      .def(
          "path_of",
          [](PythonTiers& self, const nb::bytes& unit) {
            return path_object(call(self, [text = to_string(unit)](Tiers& t) { return t.path_of(text); }));
          },
          name)
      .def(
          "place",
          [](PythonTiers& self, std::uint64_t size_bytes) {
            return to_dict(call(self, [&](Tiers& t) { return t.place(size_bytes); }));
          },
          nb::arg("size_bytes"))
      .def(
          "why",
          [](PythonTiers& self, const nb::bytes& unit) {
            return to_dict(call(self, [text = to_string(unit)](Tiers& t) { return t.why(text); }));
          },
          name)
      .def("plan", [](PythonTiers& self) { return to_list(call(self, [](Tiers& t) { return t.plan(); }).moves); })
      .def(
          "move",
          [](PythonTiers& self, const nb::bytes& unit, const std::string& tier, std::uint64_t bytes_per_second,
             nb::object progress) {
            return report_or_raise(watched(self, bytes_per_second, std::move(progress),
                                           [&, text = to_string(unit)](Tiers& t, const MoveOptions& options) {
                                             return t.move(text, tier, options);
                                           }));
          },
          name, nb::arg("tier"), nb::arg("bytes_per_second"), nb::arg("progress").none())
      .def(
          "auto_tier",
          [](PythonTiers& self, const nb::bytes& unit, std::uint64_t bytes_per_second, nb::object progress) {
            return to_dict(value_or_raise(watched(self, bytes_per_second, std::move(progress),
                                                  [text = to_string(unit)](Tiers& t, const MoveOptions& options) {
                                                    return t.auto_tier(text, options);
                                                  })));
          },
          name, nb::arg("bytes_per_second"), nb::arg("progress").none())
      .def(
          "rebalance",
          [](PythonTiers& self, std::uint64_t bytes_per_second, nb::object progress) {
            return report_or_raise(watched(self, bytes_per_second, std::move(progress),
                                           [](Tiers& t, const MoveOptions& options) { return t.rebalance(options); }));
          },
          nb::arg("bytes_per_second"), nb::arg("progress").none())
      .def(
          "start_mover",
          [](PythonTiers& self, double interval_seconds, std::uint64_t bytes_per_second) {
            const MoveOptions options{.bytes_per_second = bytes_per_second};
            call(self, [&](Tiers& t) { return t.start_mover(interval_seconds, options); });
          },
          nb::arg("interval_seconds"), nb::arg("bytes_per_second"))
      .def("stop_mover", [](PythonTiers& self) { call(self, [](Tiers& t) { return t.stop_mover(); }); })
      .def(
          "set_paused",
          [](PythonTiers& self, bool paused) { call(self, [&](Tiers& t) { return t.set_paused(paused); }); },
          nb::arg("paused"))
      .def("paused", [](PythonTiers& self) { return call(self, [](Tiers& t) { return t.paused(); }); })
      .def("recover", [](PythonTiers& self) { return to_list(call(self, [](Tiers& t) { return t.recover(); })); })
      .def(
          "check",
          [](PythonTiers& self, bool bytes, bool strays) {
            Watched watch(0, nb::none());
            const CheckOptions options{.bytes = bytes, .strays = strays, .keep_going = watch.options().keep_going};
            Tiers tiers = self.get();
            auto report = without_gil([&] {
              auto answer = tiers.check(options);
              { const Tiers gone = std::move(tiers); }
              return answer;
            });
            watch.raise_again();
            return to_dict(value_or_raise(std::move(report)));
          },
          nb::arg("bytes"), nb::arg("strays"))
      .def("flush", [](PythonTiers& self) { call(self, [](Tiers& t) { return t.flush(); }); })
      .def("to_prometheus", [](PythonTiers& self) { return call(self, [](Tiers& t) { return t.to_prometheus(); }); })
      .def(
          "serve",
          [](PythonTiers& self, const nb::object& context, const std::string& scheme) {
            const auto held = nb::cast<PythonContext&>(context).get();
            call(self, [&](Tiers& t) { return t.serve(*held, scheme); });
          },
          nb::arg("context"), nb::arg("scheme"));
  module.def("open_tiers", &open_tiers, nb::arg("catalog"), nb::arg("wait_seconds"), nb::arg("flush_seconds"));
  module.def("create_tiers", &create_tiers, nb::arg("json"), nb::arg("adopt"), nb::arg("catalog"),
             nb::arg("wait_seconds"), nb::arg("flush_seconds"));
}

}  // namespace penstock::python

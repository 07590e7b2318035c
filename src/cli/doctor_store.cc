#include <algorithm>
#include <cstring>

#include "doctor.h"
#include "interrupt.h"

namespace penstock::cli {

namespace {

constexpr std::uint64_t sample_bytes = 256 << 20;
constexpr double sample_seconds = 1;

Result<Report> measure(Context& context, const Store& store, Domain to) {
  const std::uint64_t size =
      std::min({sample_bytes, store.info().size_bytes, std::max<std::uint64_t>(context.machine().memory_bytes / 4, 1)});
  Result<Buffer> buffer = context.allocate(to, size);
  if (!buffer.ok()) return buffer.error();
  // The first touch of fresh memory is the kernel's cost, not the store's; the first use of a GPU is the driver's.
  if (to.host_accessible()) {
    std::memset(buffer->data(), 0, buffer->size_bytes());
  } else if (Status ready = context.prepare(to); !ready.ok()) {
    return ready.error();
  }

  const Range range{.store = &store, .offset = 0, .memory = buffer->region()};
  Result<Ticket> ticket = context.submit(Direction::read, {&range, 1});
  if (!ticket.ok()) return ticket.error();
  const Stopwatch stopwatch;
  while (!ticket->wait_for(std::chrono::milliseconds(50))) {
    if (interrupted() || stopwatch.seconds() > sample_seconds) ticket->cancel();
  }
  Report report = ticket->report();
  if (interrupted()) return interrupted_error();
  if (report.outcome == Outcome::failed) return *report.error;
  return report;
}

}  // namespace

Result<Patient> examine(Context& context, const std::string& path, Domain to) {
  Result<Store> store = context.open(path);
  if (!store.ok()) return store.error();
  Patient patient{.info = store->info(), .explanation = context.explain(*store), .to = to};
  if (patient.info.size_bytes == 0) return patient;
  Result<Report> sample = measure(context, *store, to);
  if (!sample.ok()) return sample.error();
  patient.sample = std::move(*sample);
  return patient;
}

Route main_route(const Report& sample) {
  return static_cast<Route>(std::max_element(sample.routes.begin(), sample.routes.end()) - sample.routes.begin());
}

Json sample_json(const Patient& patient) {
  if (!patient.sample) return {};
  const Report& sample = *patient.sample;
  return {{"to", patient.to.name()},
          {"bytes", sample.bytes},
          {"seconds", sample.seconds},
          {"gb_per_s", rate(sample.bytes, sample.seconds) / 1e9},
          {"routes", routes_json(sample.routes)},
          {"engine", sample.engine},
          {"reason", sample.reason},
          {"limit", limit_name(sample.limit)},
          {"storage_seconds", sample.storage_seconds},
          {"copy_seconds", sample.copy_seconds},
          {"cpu_seconds", sample.cpu_seconds}};
}

Json patient_json(const Patient& patient) {
  const StoreInfo& info = patient.info;
  return {
      {"name", info.name},
      {"kind", store_kind_name(info.kind)},
      {"locality", locality_name(info.locality)},
      {"file_system", info.file_system},
      {"size_bytes", info.size_bytes},
      {"block_bytes", info.block_bytes},
      {"alignments",
       {{"offset", info.alignments.offset}, {"memory", info.alignments.memory}, {"optimal", info.alignments.optimal}}},
      {"direct", info.direct},
      {"page_cache", info.page_cache},
      {"mappable", info.mappable},
      {"explanation", patient.explanation},
      {"sample", sample_json(patient)}};
}

void print_patient(const Output& output, const Patient& patient) {
  const StoreInfo& info = patient.info;
  output.section(info.name);
  output.field("kind", std::string(store_kind_name(info.kind)) + " on " + info.file_system + " (" +
                           std::string(locality_name(info.locality)) + ")");
  output.field("size", format_bytes(info.size_bytes) + ", blocks of " + std::to_string(info.block_bytes));
  output.field("direct", info.direct ? "yes, offsets aligned to " + std::to_string(info.alignments.offset) +
                                           ", memory to " + std::to_string(info.alignments.memory)
                                     : "no");
  output.field("page cache", info.page_cache ? "yes" : "no");
  output.field("mappable", info.mappable ? "yes" : "no");
  output.field("served", patient.explanation);
  if (!patient.sample) return;
  output.field("sample", format_bytes(patient.sample->bytes) + " to " + patient.to.name() + " in " +
                             format_seconds(patient.sample->seconds) + ": " + format_routes(patient.sample->routes));
  output.field("reason", patient.sample->reason);
  output.field("limit", format_limit(*patient.sample));
}

}  // namespace penstock::cli

#include <sstream>

#include "doctor.h"

namespace penstock::cli {

Findings machine_findings(const Machine& machine, const Options& options) {
  Findings findings;
  if (machine.lockable_bytes < options.pinned_budget_bytes) {
    findings.push_back({"only " + format_bytes(machine.lockable_bytes) + " of memory may be locked, less than the " +
                            format_bytes(options.pinned_budget_bytes) + " of pinned_budget_bytes",
                        "raise the limit: ulimit -l, or --ulimit memlock=-1 for a container"});
  }
  if (!machine.cachestat) {
    findings.push_back({"the kernel does not tell what is in the page cache of files of others",
                        "a kernel from 6.5 on has cachestat; containers may have to allow it"});
  }
  if (!machine.transparent_huge_pages) {
    findings.push_back({"transparent huge pages are off, so large buffers cost more to set up",
                        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"});
  }
  return findings;
}

Json machine_json(const Machine& machine) {
  const bool limited = machine.lockable_bytes != UINT64_MAX;
  return {{"kernel", machine.kernel},
          {"architecture", machine.architecture},
          {"usable_cpus", machine.usable_cpus},
          {"page_bytes", machine.page_bytes},
          {"memory_bytes", machine.memory_bytes},
          {"lockable_bytes", limited ? Json(machine.lockable_bytes) : Json()},
          {"transparent_huge_pages", machine.transparent_huge_pages},
          {"cachestat", machine.cachestat}};
}

void print_machine(const Output& output, const Machine& machine) {
  const bool limited = machine.lockable_bytes != UINT64_MAX;
  output.section("machine");
  output.field("kernel", machine.kernel + ", " + machine.architecture);
  output.field("usable CPUs", std::to_string(machine.usable_cpus));
  output.field("memory", format_bytes(machine.memory_bytes) + ", pages of " + std::to_string(machine.page_bytes));
  output.field("lockable", limited ? format_bytes(machine.lockable_bytes) : "no limit");
  output.field("huge pages", machine.transparent_huge_pages ? "yes" : "no");
  output.field("cachestat", machine.cachestat ? "yes" : "no");
}

// As JSON, so that it can be changed and handed to --options.
void print_options(const Output& output, const Options& options) {
  output.section("options");
  std::istringstream text(options.to_json(2));
  for (std::string line; std::getline(text, line);) output.heading(line);
}

}  // namespace penstock::cli

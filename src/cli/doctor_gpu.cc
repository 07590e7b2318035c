#include <algorithm>
#include <cstdio>

#include "doctor.h"

namespace penstock::cli {

namespace {

std::string compute_capability(const Gpu& gpu) {
  return std::to_string(gpu.compute_major) + "." + std::to_string(gpu.compute_minor);
}

// CUDA counts 13000 for 13.0.
std::string cuda_version(const Gpu& gpu) {
  return std::to_string(gpu.driver_cuda_version / 1000) + "." + std::to_string(gpu.driver_cuda_version % 1000 / 10);
}

int numa_node(const SeenGpu& seen) {
  return seen.gpu.numa_node >= 0 || !seen.bus ? seen.gpu.numa_node : seen.bus->numa_node;
}

Json node_json(int node) {
  return node >= 0 ? Json(node) : Json();
}

std::string format_speed(const PciLink& link) {
  char text[32];
  std::snprintf(text, sizeof text, "%g GT/s", link.gigatransfers_per_second);
  return text;
}

std::string format_bus(const PciDevice& bus) {
  std::string text = bus.address + ", " + format_link(awake_link(bus));
  if (bus.link.gigatransfers_per_second > 0 &&
      bus.link.gigatransfers_per_second < bus.link_max.gigatransfers_per_second) {
    text += ", slowed down to " + format_speed(bus.link) + " while idle";
  }
  if (!bus.driver.empty()) text += ", driver " + bus.driver;
  return text;
}

std::string format_bar(const SeenGpu& seen) {
  if (!seen.bus || seen.bus->bar_bytes == 0) return "unknown: /sys does not show it";
  const bool whole = seen.bus->bar_bytes >= seen.gpu.memory_bytes;
  return format_bytes(seen.bus->bar_bytes) + (whole ? ", all of its memory" : ", a part of its memory");
}

Json link_json(const PciLink& link) {
  return {
      {"gt_per_s", link.gigatransfers_per_second}, {"width", link.width}, {"gb_per_s", link.bytes_per_second() / 1e9}};
}

Json gpu_json(const SeenGpu& seen) {
  const Gpu& gpu = seen.gpu;
  return {{"domain", gpu.domain.name()},
          {"name", gpu.name},
          {"pci_address", gpu.pci_address},
          {"memory_bytes", gpu.memory_bytes},
          {"compute_capability", compute_capability(gpu)},
          {"copy_engines", gpu.copy_engines},
          {"numa_node", node_json(numa_node(seen))},
          {"cuda_version", cuda_version(gpu)},
          {"kernels", gpu.kernels},
          {"gpu_direct_rdma", gpu.gpu_direct_rdma},
          {"dma_buf", gpu.dma_buf},
          {"bar1_bytes", seen.bus && seen.bus->bar_bytes != 0 ? Json(seen.bus->bar_bytes) : Json()},
          {"bus", seen.bus ? bus_json(*seen.bus) : Json()}};
}

}  // namespace

std::string format_link(const PciLink& link) {
  if (link.bytes_per_second() <= 0) return "a link of unknown speed";
  return format_speed(link) + " x " + std::to_string(link.width) + ": " + format_rate(link.bytes_per_second());
}

PciLink awake_link(const PciDevice& gpu) {
  return {std::max(gpu.link.gigatransfers_per_second, gpu.link_max.gigatransfers_per_second),
          gpu.link.width > 0 ? gpu.link.width : gpu.link_max.width};
}

std::optional<Finding> lanes_finding(const std::string& name, const PciDevice& device) {
  const int now = device.link.width, all = device.link_max.width;
  if (now <= 0 || now >= all) return std::nullopt;
  const double factor = static_cast<double>(all) / now;
  return Finding{
      name + " runs on " + std::to_string(now) + " of its " + std::to_string(all) + " PCIe lanes",
      "check that its slot has all lanes, and how the firmware divides them",
      {"its link could carry " + format_rate(awake_link(device).bytes_per_second() * factor) + " instead of " +
           format_rate(awake_link(device).bytes_per_second()) + ", which matters where nothing else is slower",
       factor}};
}

Gpus look_for_gpus(const std::string& sysfs) {
  Gpus gpus;
  Result<std::vector<Gpu>> listed = list_gpus();
  if (!listed.ok()) {
    gpus.none = listed.error();
    return gpus;
  }
  for (Gpu& gpu : *listed) {
    Result<PciDevice> bus = describe_pci(gpu.pci_address, sysfs);
    gpus.seen.push_back({std::move(gpu), bus.ok() ? std::optional(std::move(*bus)) : std::nullopt});
  }
  return gpus;
}

Findings gpu_findings(const Gpus& gpus) {
  Findings findings;
  for (const auto& [gpu, bus] : gpus.seen) {
    const std::string name = gpu.domain.name();
    if (bus) {
      if (auto finding = lanes_finding(name, *bus)) findings.push_back(std::move(*finding));
    }
    if (!gpu.kernels) {
      findings.push_back({name + ": Penstock's kernels are missing or don't fit, so many small pieces take longer",
                          "build Penstock with nvcc; kernels need compute capability 7.5 or newer",
                          {"large pieces: none; many small ones: several times", {}}});
    }
  }
  return findings;
}

Json bus_json(const PciDevice& device) {
  return {{"address", device.address},
          {"root", device.root},
          {"bridges", device.bridges},
          {"driver", device.driver},
          {"numa_node", node_json(device.numa_node)},
          {"link", link_json(device.link)},
          {"link_max", link_json(device.link_max)}};
}

Json gpus_json(const Gpus& gpus) {
  Json list = Json::array();
  for (const SeenGpu& seen : gpus.seen) list.push_back(gpu_json(seen));
  return list;
}

void print_gpus(const Output& output, const Gpus& gpus) {
  output.section("GPUs");
  if (gpus.none) {
    output.field("none", gpus.none->message);
    if (!gpus.none->hint.empty()) output.field("", gpus.none->hint);
  }
  for (const SeenGpu& seen : gpus.seen) {
    const Gpu& gpu = seen.gpu;
    const int node = numa_node(seen);
    output.field(gpu.domain.name(), gpu.name + ", " + format_bytes(gpu.memory_bytes) + ", compute capability " +
                                        compute_capability(gpu) + ", " + std::to_string(gpu.copy_engines) +
                                        (gpu.copy_engines == 1 ? " copy engine" : " copy engines"));
    output.field("bus", (seen.bus ? format_bus(*seen.bus) : gpu.pci_address + ", which /sys does not show") +
                            (node >= 0 ? ", node " + std::to_string(node) : ""));
    output.field("BAR1", format_bar(seen));
    output.field("driver", "CUDA " + cuda_version(gpu) + ", GPUDirect RDMA " + (gpu.gpu_direct_rdma ? "yes" : "no") +
                               ", dma-buf " + (gpu.dma_buf ? "yes" : "no"));
    output.field("our kernels", gpu.kernels ? "built in" : "not built in, or they don't fit this GPU");
  }
}

}  // namespace penstock::cli

// SoftController: a complete NVMe controller in software, as a Transport; see soft_device.h for what it does.
//
// Thread safety: any thread; the controller is a thread of its own. Lifetime: as Transport. A backend that hangs keeps
// what it uses after the SoftController is gone, until it comes back.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "nvme/soft_device.h"
#include "nvme/transport.h"

namespace penstock::nvme {

class SoftController : public Transport {
 public:
  SoftController(std::unique_ptr<BlockBackend> backend, SoftShape shape, SoftFaults faults = {});
  ~SoftController() override;
  SoftController(const SoftController&) = delete;
  SoftController& operator=(const SoftController&) = delete;

  const std::string& name() const override { return device_->shape().name; }
  Registers registers() override { return device_->registers(); }
  Result<std::uint64_t> map(std::byte* data, std::size_t size_bytes) override;
  void unmap(std::uint64_t address, std::size_t size_bytes) override { device_->unmap(address, size_bytes); }
  std::uint32_t interrupts() const override { return device_->interrupts(); }
  Result<int> interrupt(std::uint32_t vector) override;
  // Code::timed_out if its backend does not end what it has: memory may still be read and written.
  Status isolate() override;

  std::vector<std::string> breaches() const { return device_->breaches(); }
  SoftCounters counters() const { return device_->counters(); }

 private:
  bool stop();

  const std::shared_ptr<SoftDevice> device_;
  std::mutex stop_mutex_;
  std::thread thread_;
};

}  // namespace penstock::nvme

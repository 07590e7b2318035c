// Selftest: the driver against a controller that nobody else uses, reading only. Trial: the driver against a controller
// in software that misbehaves, reading and writing, every byte compared.
//
// Thread safety: from any thread, for a Transport that is the caller's alone.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "nvme/controller.h"
#include "penstock/nvme.h"

namespace penstock::nvme {

NvmeController describe(Controller& controller);
NvmeRegisters read_registers(Transport& transport, const ControllerOptions& options = {});
std::vector<NvmeCheck> run_selftest(Transport& transport, const ControllerOptions& options = {},
                                    const std::function<bool()>& keep_going = {});
Result<NvmeTrialReport> run_trial(const NvmeTrial& trial);

}  // namespace penstock::nvme

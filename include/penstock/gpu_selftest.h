// test_gpu_io: whether kernels of a GPU read a store rightly by themselves (penstock/device.cuh).
//
// Thread safety: any thread. Lifetime: a function.
#pragma once

#include <vector>

#include "penstock/context.h"
#include "penstock/nvme.h"

namespace penstock {

// Has the GPU read a block, a batch of blocks at random, a layer of up to 64 MiB and elements of an array, and compares
// every byte with what the Context reads. Nothing is written. Code::no_device without a GPU, Code::unsupported in a
// library that was built without nvcc, Code::out_of_range for a store that has not even one block of 512 bytes.
PENSTOCK_EXPORT Result<std::vector<NvmeCheck>> test_gpu_io(const Context& context, const Store& store,
                                                           Domain gpu = Domain::cuda(0));

}  // namespace penstock

// The cufile engine: between files and GPU memory by NVIDIA's cuFile, which goes straight where the machine has
// GPUDirect Storage. It serves Path::device alone; docs/cufile.md says what it needs and how it tells the truth.
#pragma once

#include <memory>
#include <string>

#include "engine/engine.h"

namespace penstock::cufile {

struct Settings {
  std::string root = "/";  // where the diagnosis looks for /proc, /sys and /run; tests bring trees of their own
};

std::unique_ptr<engine::Engine> make_engine(const Settings& settings = {});

}  // namespace penstock::cufile

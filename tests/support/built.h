// What the build has made beside this executable. Paths are found when they are needed, since what is compiled into a
// test must be the same in every clone, for ccache.
#pragma once

#include <filesystem>
#include <string>

namespace penstock::test {

// "fakes/cuda/libcuda.so.1"; executables are in bin.
inline std::string built(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / name;
}

}  // namespace penstock::test

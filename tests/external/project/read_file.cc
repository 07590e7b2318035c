// Writes a file with the standard library, reads it through Penstock, compares.
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "penstock/penstock.h"

namespace {

int fail(const penstock::Error& error) {
  std::fprintf(stderr, "%s\n%s\n", error.message.c_str(), error.hint.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const char* path = argv[1];
  std::string expected;
  for (int i = 0; i < 100'003; ++i) expected += static_cast<char>(i * 31 + i / 256);
  std::ofstream(path, std::ios::binary) << expected;

  auto context = penstock::Context::create();
  if (!context) return fail(context.error());
  auto file = context->open(path);
  if (!file) return fail(file.error());
  auto memory = context->allocate(penstock::Domain::host(), file->info().size_bytes);
  if (!memory) return fail(memory.error());
  const auto report = context->read(*file, 0, memory->region());
  if (!report.ok()) return fail(*report.error);

  const bool same =
      report.bytes == expected.size() && std::memcmp(memory->data(), expected.data(), expected.size()) == 0;
  std::printf("%llu bytes, %s\n", static_cast<unsigned long long>(report.bytes), same ? "as written" : "different");
  return same ? 0 : 1;
}

// Reads a whole file into memory and says which way the bytes came, and why.
#include <cstdio>

#include "penstock/penstock.h"

int fail(const penstock::Error& error) {
  std::fprintf(stderr, "%s\n%s\n", error.message.c_str(), error.hint.c_str());
  return 1;
}

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: %s FILE\n", argv[0]), 2;

  auto context = penstock::Context::create();
  if (!context) return fail(context.error());
  auto file = context->open(argv[1]);
  if (!file) return fail(file.error());
  auto memory = context->allocate(penstock::Domain::host(), file->info().size_bytes);
  if (!memory) return fail(memory.error());

  const penstock::Report report = context->read(*file, 0, memory->region());
  if (!report.ok()) return fail(*report.error);

  std::printf("%zu bytes in %.3f s\n", memory->size_bytes(), report.seconds);
  for (std::size_t i = 0; i < penstock::route_count; ++i) {
    const auto route = penstock::route_name(static_cast<penstock::Route>(i));
    if (report.routes[i] != 0) std::printf("%s: %llu bytes\n", route.data(), 0ULL + report.routes[i]);
  }
  std::printf("%s\n", report.reason.c_str());
  return 0;
}

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
  auto memory = context->allocate(penstock::Domain::host(), file->info().size_bytes);  // or Domain::cuda(0)
  if (!memory) return fail(memory.error());

  const penstock::Report report = context->read(*file, 0, memory->region());
  if (!report.ok()) return fail(*report.error);
  std::puts(report.to_string().c_str());
  return 0;
}

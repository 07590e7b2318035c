// Writes a file that appears under its name only when it is complete, then reads it in blocks with several requests
// alive at a time, each block in use while the next ones are on their way.
#include <array>
#include <cstdio>
#include <cstring>
#include <utility>

#include "penstock/penstock.h"

namespace {

constexpr std::size_t block_bytes = 256 << 10;
constexpr std::size_t block_count = 100;
constexpr std::size_t live = 8;  // requests at a time

int fail(const penstock::Error& error) {
  std::fprintf(stderr, "%s\n%s\n", error.message.c_str(), error.hint.c_str());
  return 1;
}

// The byte that a whole block is made of.
int pattern(std::size_t block) {
  return static_cast<int>(block * 37 % 251);
}

penstock::Status write_blocks(const penstock::Context& context, const char* path) {
  auto file = context.open(path, {.access = penstock::Access::replace, .size_bytes = block_count * block_bytes});
  if (!file) return file.error();
  auto memory = context.allocate(penstock::Domain::host(), block_bytes);
  if (!memory) return memory.error();
  for (std::size_t block = 0; block < block_count; ++block) {
    std::memset(memory->data(), pattern(block), block_bytes);
    const auto report = context.write(*file, block * block_bytes, memory->region());
    if (!report.ok()) return *report.error;
  }
  return file->commit();  // synced, and only now under its name
}

penstock::Status read_blocks(const penstock::Context& context, const char* path, std::size_t& right) {
  auto file = context.open(path);
  if (!file) return file.error();
  auto memory = context.allocate(penstock::Domain::host(), live * block_bytes);
  if (!memory) return memory.error();

  // Requests hold the Buffer that they fill: what still runs when this returns early writes to no one else's memory.
  std::array<penstock::Ticket, live> tickets;
  const auto slot = [&](std::size_t block) { return memory->region().part(block % live * block_bytes, block_bytes); };
  const auto submit = [&](std::size_t block) -> penstock::Status {
    const penstock::Range range{&*file, block * block_bytes, slot(block)};
    auto ticket = context.submit(penstock::Direction::read, {&range, 1});
    if (!ticket) return ticket.error();
    tickets[block % live] = std::move(*ticket);
    return {};
  };

  for (std::size_t block = 0; block < live; ++block) {
    if (auto status = submit(block); !status) return status;
  }
  for (std::size_t block = 0; block < block_count; ++block) {
    const penstock::Ticket& ticket = tickets[block % live];
    if (ticket.wait() != penstock::Outcome::done) return *ticket.report().error;
    const auto expected = static_cast<std::byte>(pattern(block));
    const std::byte* bytes = slot(block).data;
    right += bytes[0] == expected && std::memcmp(bytes, bytes + 1, block_bytes - 1) == 0;
    if (block + live < block_count) {
      if (auto status = submit(block + live); !status) return status;
    }
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: %s FILE, which is replaced\n", argv[0]), 2;
  auto context = penstock::Context::create();
  if (!context) return fail(context.error());

  std::size_t right = 0;
  if (auto status = write_blocks(*context, argv[1]); !status) return fail(status.error());
  if (auto status = read_blocks(*context, argv[1], right); !status) return fail(status.error());

  std::printf("%zu of %zu blocks are right\n%s\n", right, block_count, context->statistics().to_json(2).c_str());
  return right == block_count ? 0 : 1;
}

// What runs inside the guest: our driver against a controller that others wrote, through VFIO and an IOMMU.
//
//   nvme_exercise sweep ADDRESS MODEL        reads and writes of every length and alignment, on many queues
//   nvme_exercise store ADDRESS SERIAL MODEL the same disk as a store of a Context, by bytes
//   nvme_exercise media ADDRESS BLOCK        a block that can't be read, and its neighbours that can
//   nvme_exercise ladder ADDRESS             writes that take too long
//   nvme_exercise isolation ADDRESS          a controller that is cut off with commands in flight
//   nvme_exercise hammer ADDRESS             writes until it is killed
//
// MODEL becomes what the first 8 MiB of the disk must hold, to be compared with the disk itself from outside. Hammer
// keeps to the last MiB. Exits 0 if all went well, else says what did not.
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "nvme/io_queue.h"
#include "nvme/vfio_transport.h"
#include "penstock/penstock.h"

namespace penstock {
namespace {

using nvme::Io;
using nvme::IoKind;

constexpr std::uint64_t model_bytes = 8 << 20;
constexpr std::uint64_t hammer_bytes = 1 << 20;

[[noreturn]] void fail(const std::string& what) {
  std::printf("wrong: %s\n", what.c_str());
  std::exit(1);
}

void expect(bool good, const std::string& what) {
  if (!good) fail(what);
}

template <typename T>
T take(Result<T> result) {
  if (!result) fail(result.error().message + " (" + result.error().hint + ")");
  return std::move(result).value();
}

void save(const std::vector<std::byte>& model, const char* file) {
  std::ofstream(file, std::ios::binary)
      .write(reinterpret_cast<const char*>(model.data()), static_cast<std::streamsize>(model.size()));
}

std::vector<std::byte> load(const char* file) {
  std::vector<std::byte> model(model_bytes);
  std::ifstream(file, std::ios::binary).read(reinterpret_cast<char*>(model.data()), model_bytes);
  return model;
}

void fill(std::mt19937_64& random, std::byte* data, std::size_t size) {
  for (std::size_t at = 0; at < size; at += 8) {
    const std::uint64_t word = random();
    std::memcpy(data + at, &word, std::min<std::size_t>(8, size - at));
  }
}

// A controller of its own, with its first namespace writable between two bounds.
struct Disk {
  explicit Disk(const std::string& address, const nvme::ControllerOptions& options = {})
      : transport(take(nvme::VfioTransport::open(address))),
        controller(take(nvme::Controller::open(*transport, options))) {
    space.info = take(controller->find_namespace(1));
  }
  void allow(std::uint64_t offset, std::uint64_t length) {
    space.first_writable = offset / space.info.block_bytes;
    space.writable_blocks = length / space.info.block_bytes;
  }

  std::unique_ptr<nvme::Transport> transport;
  std::unique_ptr<nvme::Controller> controller;
  nvme::Namespace space;
};

nvme::IoDone run(nvme::IoQueue& queue, const Io& io) {
  expect(queue.submit({&io, 1}) == 1, "an idle queue takes no operation");
  nvme::IoDone done;
  while (queue.poll({&done, 1}) == 0) {
    // Bounded, for an interrupt may have been acknowledged with that of an operation before.
    pollfd descriptor{queue.interrupt().value_or(-1), POLLIN, 0};
    ::poll(&descriptor, 1, 10);
    queue.after_sleep();
  }
  return done;
}

void run_well(nvme::IoQueue& queue, const Io& io) {
  const nvme::IoDone done = run(queue, io);
  if (done.code == Code::ok && (io.kind == IoKind::flush || done.bytes == io.length)) return;
  fail("an operation of kind " + std::to_string(static_cast<int>(io.kind)) + " at " + std::to_string(io.offset) +
       " of " + std::to_string(io.length) + " bytes: " + std::string(code_name(done.code)) + ", " +
       std::to_string(done.bytes) + " bytes");
}

// One thread's share of the disk, on a queue of its own.
class Sweep {
 public:
  Sweep(Disk& disk, std::uint64_t offset, std::span<std::byte> model, std::uint64_t seed)
      : disk_(disk),
        offset_(offset),
        model_(model),
        random_(seed),
        queue_(take(disk.controller->make_queue())),
        memory_(take(nvme::DmaMemory::create(*disk.transport, 2 * half))) {}

  void run_all() {
    const std::uint64_t block = disk_.space.info.block_bytes;
    const std::uint64_t mdts = disk_.controller->info().max_transfer_bytes;
    // Every length over the first pages, then around each power of two, and beyond what one command can move.
    std::vector<std::uint64_t> lengths;
    for (std::uint64_t length = block; length <= 5 * 4096; length += block) lengths.push_back(length);
    for (std::uint64_t length = 8 * 4096; length <= 4 * mdts; length *= 2) {
      for (const std::uint64_t near : {length - block, length, length + block}) lengths.push_back(near);
    }
    fill_all();
    for (const std::uint64_t length : lengths) {
      if (length > longest) continue;
      for (const std::uint64_t place :
           {std::uint64_t{0}, std::uint64_t{4}, std::uint64_t{4092}, random_() % 1024 * 4}) {
        write_and_read(length, place);
      }
    }
    zero_and_deallocate(block);
    sleep_for_interrupt(block);
    run_well(*queue_, {.kind = IoKind::flush, .space = &disk_.space});
    compare_all();
  }

 private:
  static constexpr std::uint64_t longest = 1 << 20;  // divides a share
  static constexpr std::uint64_t guard = 64;
  static constexpr std::uint64_t half = longest + 8192;

  Io io(IoKind kind, std::uint64_t at, std::uint64_t length, std::uint64_t place) const {
    return {kind, &disk_.space, offset_ + at, length, memory_.address() + place, 0};
  }
  std::uint64_t random_place(std::uint64_t length) {
    const std::uint64_t block = disk_.space.info.block_bytes;
    return random_() % ((model_.size() - length) / block + 1) * block;
  }

  void fill_all() {
    for (std::uint64_t at = 0; at < model_.size(); at += longest) {
      fill(random_, memory_.data(), longest);
      std::memcpy(model_.data() + at, memory_.data(), longest);
      run_well(*queue_, io(IoKind::write, at, longest, 0));
    }
  }

  void write_and_read(std::uint64_t length, std::uint64_t place) {
    const std::uint64_t at = random_place(length);
    fill(random_, memory_.data() + place, length);
    std::memcpy(model_.data() + at, memory_.data() + place, length);
    run_well(*queue_, io(IoKind::write, at, length, place));
    // Bytes around the memory must stay as they are.
    const std::uint64_t back = half + guard + random_() % 1024 * 4;
    const std::byte* const got = memory_.data() + back;
    std::memset(memory_.data() + back - guard, 0x5a, guard);
    std::memset(memory_.data() + back + length, 0x5a, guard);
    run_well(*queue_, io(IoKind::read, at, length, back));
    expect(std::memcmp(got, model_.data() + at, length) == 0, "other bytes came back, " + std::to_string(length));
    const auto untouched = [](std::byte byte) { return byte == std::byte{0x5a}; };
    expect(std::all_of(got - guard, got, untouched) && std::all_of(got + length, got + length + guard, untouched),
           "bytes beside the memory of a read were changed");
  }

  void zero_and_deallocate(std::uint64_t block) {
    const std::uint64_t length = model_.size() / 4 / block * block;
    const std::uint64_t at = random_place(length);
    run_well(*queue_, io(IoKind::deallocate, at, length, 0));
    run_well(*queue_, io(IoKind::zero, at, length, 0));
    std::memset(model_.data() + at, 0, length);
  }

  // With nobody polling, the interrupt must come by itself.
  void sleep_for_interrupt(std::uint64_t block) {
    expect(queue_->interrupt().has_value(), "the controller has no interrupt for a queue");
    for (int round = 0; round < 20; ++round) {
      const Io read = io(IoKind::read, random_place(block), block, 0);
      expect(queue_->submit({&read, 1}) == 1, "an idle queue takes no operation");
      nvme::IoDone done;
      do {
        pollfd descriptor{*queue_->interrupt(), POLLIN, 0};
        expect(::poll(&descriptor, 1, 5000) == 1, "no interrupt came");
        queue_->after_sleep();  // it may be that of an operation before
      } while (queue_->poll({&done, 1}) == 0);
      expect(done.code == Code::ok, "a read failed");
    }
  }

  void compare_all() {
    for (std::uint64_t at = 0; at < model_.size(); at += longest) {
      run_well(*queue_, io(IoKind::read, at, longest, 0));
      expect(std::memcmp(memory_.data(), model_.data() + at, longest) == 0, "the disk differs from what was written");
    }
  }

  Disk& disk_;
  const std::uint64_t offset_;
  const std::span<std::byte> model_;
  std::mt19937_64 random_;
  std::unique_ptr<nvme::IoQueue> queue_;
  nvme::DmaMemory memory_;
};

void sweep(const std::string& address, const char* model_file) {
  Disk disk(address);
  disk.allow(0, model_bytes);
  std::vector<std::byte> model(model_bytes);
  constexpr std::uint64_t queues = 8;
  constexpr std::uint64_t share = model_bytes / queues;
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < queues; ++i) {
    threads.emplace_back([&disk, &model, i] {
      const std::span<std::byte> mine(model.data() + i * share, share);
      Sweep one(disk, i * share, mine, i + 1);
      one.run_all();
    });
  }
  for (std::thread& thread : threads) thread.join();
  // Every queue that the controller has, at once.
  std::vector<std::unique_ptr<nvme::IoQueue>> all;
  for (std::uint32_t i = 0; i < disk.controller->info().io_queues; ++i)
    all.push_back(take(disk.controller->make_queue()));
  expect(!disk.controller->make_queue().ok(), "there are more queues than the controller said");
  auto memory = take(nvme::DmaMemory::create(*disk.transport, 4096));
  for (auto& queue : all) run_well(*queue, {IoKind::read, &disk.space, 0, 4096, memory.address(), 0});
  const Io outside{IoKind::write, &disk.space, model_bytes, 4096, memory.address(), 0};
  expect(run(*all[0], outside).code == Code::read_only, "a write outside of the window was not refused");
  expect(disk.controller->resets() == 0, "the controller had to be reset");
  std::printf("%zu queues, commands of up to %llu bytes, blocks of %u\n", all.size(),
              0ULL + disk.controller->info().max_transfer_bytes, disk.space.info.block_bytes);
  save(model, model_file);
}

void check_refusals(const Context& context, const std::string& name, OpenOptions options) {
  const auto refused = [&](const OpenOptions& wrong, Code code, const char* what) {
    const auto store = context.open(name, wrong);
    expect(!store.ok() && store.error().code == code, std::string("not refused as it should be: ") + what);
  };
  OpenOptions wrong = options;
  wrong.serial.clear();
  refused(wrong, Code::read_only, "writing without a serial number");
  wrong = options;
  wrong.serial = "another";
  refused(wrong, Code::invalid_argument, "writing to a disk with another serial number");
  wrong = options;
  wrong.writable_blocks = 0;
  refused(wrong, Code::read_only, "writing without a window");
  wrong = options;
  wrong.first_writable_block = 1ULL << 40;
  refused(wrong, Code::out_of_range, "a window past the end");
  wrong = options;
  wrong.allow_block_device_write = false;
  refused(wrong, Code::read_only, "writing without the word for it");
  expect(context.open(name + "7").error().code == Code::not_found, "a namespace that is not there was opened");
}

void store(const std::string& address, const std::string& serial, const char* model_file) {
  std::vector<std::byte> model = load(model_file);
  Context context = take(Context::create());
  const std::string name = "nvme:" + address + "/1";
  const Store reader = take(context.open(name));
  const OpenOptions options{.access = Access::write,
                            .allow_block_device_write = true,
                            .serial = serial,
                            .writable_blocks = model_bytes / reader.info().block_bytes};
  check_refusals(context, name, options);
  const Store writer = take(context.open(name, options));  // a second store on the same controller
  std::mt19937_64 random(7);
  for (const Domain domain : {Domain::pinned(), Domain::host()}) {
    Buffer buffer = take(context.allocate(domain, 2 << 20));
    for (int round = 0; round < 60; ++round) {
      const std::uint64_t length = 1 + random() % (round % 6 == 0 ? 1'500'000 : 20'000);
      const std::uint64_t at = random() % (model_bytes - length);
      const std::uint64_t place = random() % 4096;
      const Region memory{buffer.region().data + place, length, domain};
      fill(random, memory.data, length);
      std::memcpy(model.data() + at, memory.data, length);
      const Report wrote = context.write(writer, at, memory, {.durable = round % 10 == 0});
      expect(wrote.ok(), "a write of " + std::to_string(length) + " bytes failed");
      std::memset(memory.data, 0, length);
      expect(context.read(reader, at, memory).ok(), "a read failed");
      expect(std::memcmp(memory.data, model.data() + at, length) == 0, "other bytes came back through a store");
    }
    const Region outside{buffer.region().data, 4096, domain};
    expect(!context.write(writer, model_bytes, outside).ok(), "a write outside of the window went through");
  }
  Buffer all = take(context.allocate(Domain::pinned(), model_bytes));
  expect(context.read(reader, 0, all.region()).ok(), "a long read failed");
  expect(std::memcmp(all.region().data, model.data(), model_bytes) == 0, "the disk differs from what was written");
  save(model, model_file);
}

void media(const std::string& address, std::uint64_t bad_block) {
  Disk disk(address);
  auto queue = take(disk.controller->make_queue());
  auto memory = take(nvme::DmaMemory::create(*disk.transport, 64 << 10));
  const std::uint64_t block = disk.space.info.block_bytes;
  const auto read = [&](std::uint64_t first, std::uint64_t count) {
    return run(*queue, {IoKind::read, &disk.space, first * block, count * block, memory.address(), 0});
  };
  constexpr std::int32_t unrecovered_read = 0x10281;
  for (int round = 0; round < 3; ++round) {
    const nvme::IoDone done = read(bad_block, 1);
    expect(done.code == Code::io_error && done.system_error == unrecovered_read,
           "a bad block: " + std::string(code_name(done.code)) + ", " + std::to_string(done.system_error));
    expect(read(bad_block - 1, 1).code == Code::ok && read(bad_block + 1, 1).code == Code::ok,
           "a block beside a bad one can't be read");
  }
  expect(disk.controller->resets() == 0, "the controller was reset for a bad block");
}

// A controller that takes half a second for each write, which is too long: its queue is deleted and made again. QEMU
// answers that only when the writes have ended, so they may come back as done. None is lost, none comes twice.
void ladder(const std::string& address) {
  constexpr std::uint64_t writes = 4;
  nvme::ControllerOptions options;
  options.command_time = std::chrono::milliseconds(300);
  Disk disk(address, options);
  disk.allow(0, disk.space.info.size_bytes());
  auto queue = take(disk.controller->make_queue());
  auto memory = take(nvme::DmaMemory::create(*disk.transport, 64 << 10));
  for (std::uint64_t i = 0; i < writes; ++i) {
    const Io io{IoKind::write, &disk.space, i * 4096, 4096, memory.address(), i};
    expect(queue->submit({&io, 1}) == 1, "a queue takes no more");
  }
  std::uint64_t seen = 0;
  std::uint64_t late = 0;
  for (std::uint64_t i = 0; i < writes; ++i) {
    nvme::IoDone done;
    while (queue->poll({&done, 1}) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    expect((seen >> done.cookie & 1) == 0, "an operation came back twice");
    seen |= 1ULL << done.cookie;
    if (done.code == Code::ok) continue;
    expect(done.system_error == EAGAIN, "a write that took too long is not to be retried");
    ++late;
  }
  run_well(*queue, {IoKind::read, &disk.space, 0, 4096, memory.address(), 0});
  std::printf("%llu of %llu writes are to be retried, after %u resets; the queue works again\n", 0ULL + late,
              0ULL + writes, disk.controller->resets());
}

// Cut off with commands in flight, and started anew.
void isolation(const std::string& address) {
  Disk disk(address);
  disk.allow(0, disk.space.info.size_bytes());
  auto queue = take(disk.controller->make_queue());
  auto memory = take(nvme::DmaMemory::create(*disk.transport, 64 << 10));
  for (std::uint64_t i = 0; i < 3; ++i) {
    const Io io{IoKind::write, &disk.space, i * 4096, 4096, memory.address(), i};
    expect(queue->submit({&io, 1}) == 1, "a queue takes no more");
  }
  expect(disk.transport->isolate().ok(), "the controller could not be cut off");
  expect(!disk.transport->map(memory.data(), 4096).ok(), "memory was mapped for a controller that was cut off");
  std::_Exit(0);  // what is in flight never comes back
}

[[noreturn]] void hammer(const std::string& address) {
  Disk disk(address);
  const std::uint64_t first = disk.space.info.size_bytes() - hammer_bytes;
  disk.allow(first, hammer_bytes);
  auto queue = take(disk.controller->make_queue());
  auto memory = take(nvme::DmaMemory::create(*disk.transport, hammer_bytes));
  for (std::uint64_t round = 0;; ++round) {
    for (std::uint64_t at = 0; at < hammer_bytes; at += 64 << 10) {
      const Io io{
          round % 2 == 0 ? IoKind::write : IoKind::read, &disk.space, first + at, 64 << 10, memory.address() + at, 0};
      queue->submit({&io, 1});
    }
    nvme::IoDone done;
    while (queue->in_flight() > 4) queue->poll({&done, 1});
    if (round == 10) {
      std::printf("hammering\n");
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace penstock

int main(int count, char** arguments) {
  const std::vector<std::string> words(arguments + 1, arguments + count);
  if (words.size() == 3 && words[0] == "sweep") {
    penstock::sweep(words[1], arguments[3]);
  } else if (words.size() == 4 && words[0] == "store") {
    penstock::store(words[1], words[2], arguments[4]);
  } else if (words.size() == 3 && words[0] == "media") {
    penstock::media(words[1], std::stoull(words[2]));
  } else if (words.size() == 2 && words[0] == "ladder") {
    penstock::ladder(words[1]);
  } else if (words.size() == 2 && words[0] == "isolation") {
    penstock::isolation(words[1]);
  } else if (words.size() == 2 && words[0] == "hammer") {
    penstock::hammer(words[1]);
  } else {
    std::fprintf(stderr, "see the top of nvme_exercise.cc\n");
    return 2;
  }
  return 0;
}

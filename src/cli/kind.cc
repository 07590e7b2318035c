// penstock kind: the dictionary of a store's records, and records of it.
#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <iterator>

#include "apart.h"
#include "bytes_out.h"
#include "interrupt.h"
#include "model_names.h"
#include "output.h"
#include "source.h"
#include "transfer.h"

namespace penstock::cli {

namespace {

struct KindFlags {
  std::string store, dictionary, kind, source, out;
  std::string to = "host";
  NewKind added;
  std::string shape;
  std::optional<std::uint64_t> start, lba, record, length;
  std::uint64_t index = 0;
  std::uint64_t count = 1;
  bool allow_device_write = false;
  std::string serial;
  std::vector<std::uint64_t> window;
  ContextFlags context;
  OutputFlags output;
};

Error kind_usage(std::string message, std::string hint) {
  return {.code = Code::invalid_argument, .message = std::move(message), .hint = std::move(hint)};
}

// Names the option, where the library speaks of a path.
Error with_kind_options(Error error) {
  if (error.hint == "give the path of the dictionary") error.hint += ": --at FILE";
  return error;
}

KindsOptions kinds_options(const KindFlags& flags) {
  return {.dictionary = flags.dictionary,
          .writing = {.allow_block_device_write = flags.allow_device_write,
                      .serial = flags.serial,
                      .first_writable_block = flags.window.empty() ? 0 : flags.window[0],
                      .writable_blocks = flags.window.empty() ? 0 : flags.window[1]}};
}

std::optional<std::uint64_t> whole(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// By its id, or by its name, which is never a number.
Result<Kind> find_kind(const Kinds& kinds, const std::string& text) {
  const auto id = whole(text);
  auto found = id && *id <= UINT32_MAX ? kinds.find(static_cast<std::uint32_t>(*id)) : kinds.find(text);
  if (found.ok() || found.error().code != Code::not_found) return found;
  std::vector<std::string> names;
  for (const Kind& kind : kinds.list()) names.push_back(kind.name);
  return Error{.code = Code::not_found,
               .message = "there is no kind " + (id ? "with the id " + text : "\"" + text + "\""),
               .hint = names.empty() ? "add one: penstock kind add" : "there are " + list_of(names)};
}

Result<std::vector<std::uint64_t>> parse_shape(std::string_view text) {
  std::vector<std::uint64_t> shape;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(','));
    const auto length = whole(word);
    if (!length) return kind_usage("\"" + std::string(word) + "\" is not a dimension", "write a shape as 4,16");
    shape.push_back(*length);
    text.remove_prefix(std::min(text.size(), word.size() + 1));
  }
  return shape;
}

std::string type_text(const Kind& kind) {
  if (kind.type.empty()) return "bytes";
  std::string text = kind.type;
  for (std::size_t i = 0; i < kind.shape.size(); ++i) text += (i == 0 ? " " : "x") + std::to_string(kind.shape[i]);
  return text;
}

Json kind_json(const Kinds& kinds, const Kind& kind) {
  return {{"id", kind.id},
          {"name", kind.name},
          {"start_byte", kind.start_byte},
          {"start_lba", kind.starts_at_lba ? Json(kind.start_byte / kinds.block_bytes()) : Json()},
          {"length_bytes", kind.length_bytes},
          {"record_bytes", kind.record_bytes},
          {"type", kind.type.empty() ? Json() : Json(kind.type)},
          {"shape", kind.shape},
          {"records", kind.records},
          {"capacity", kind.capacity()}};
}

Json kinds_json(const Kinds& kinds, const std::vector<Kind>& told) {
  Json list = Json::array();
  for (const Kind& kind : told) list.push_back(kind_json(kinds, kind));
  return {{"schema", "penstock.kind/1"},
          {"store", kinds.store()},
          {"dictionary", kinds.dictionary()},
          {"block_bytes", kinds.block_bytes()},
          {"kinds", std::move(list)},
          {"append", Json()},
          {"read", Json()}};
}

void print_kind(const Output& output, const Kinds& kinds, const Kind& kind) {
  output.heading(kind.name);
  output.field("id", std::to_string(kind.id));
  output.field("type", type_text(kind) + ", " + count_of(kind.record_bytes, "byte") + " a record");
  output.field("records", std::to_string(kind.records) + " of " + std::to_string(kind.capacity()) + "  " +
                              output.bar(static_cast<double>(kind.records) / static_cast<double>(kind.capacity())));
  output.field("place",
               "bytes " + std::to_string(kind.start_byte) + " to " +
                   std::to_string(kind.start_byte + kind.length_bytes) +
                   (kind.starts_at_lba ? ", from LBA " + std::to_string(kind.start_byte / kinds.block_bytes()) : ""));
}

void print_kinds(const Output& output, const Kinds& kinds, const std::vector<Kind>& list) {
  output.heading(kinds.store());
  output.field("dictionary", kinds.dictionary());
  if (list.empty()) return output.field("kinds", "none yet; add one: penstock kind add");
  std::vector<std::vector<std::string>> rows = {{"id", "name", "type", "record", "records", "room", "start", "full"}};
  for (const Kind& kind : list) {
    rows.push_back({std::to_string(kind.id), kind.name, type_text(kind), format_bytes(kind.record_bytes),
                    std::to_string(kind.records), std::to_string(kind.capacity()), std::to_string(kind.start_byte),
                    output.bar(static_cast<double>(kind.records) / static_cast<double>(kind.capacity()))});
  }
  output.table(rows);
}

// What every verb begins with; `use` does the rest.
template <typename Use>
Exit with_kinds(const KindFlags& flags, Use use) {
  const Output output(flags.output);
  Result<Context> context = make_context(flags.context);
  if (!context.ok()) return output.fail(context.error());
  const Result<Kinds> kinds = Kinds::open(*context, flags.store, kinds_options(flags));
  if (!kinds.ok()) return output.fail(with_kind_options(kinds.error()));
  return use(*context, *kinds, output);
}

template <typename Use>
Exit with_kind(const KindFlags& flags, Use use) {
  return with_kinds(flags, [&](const Context& context, const Kinds& kinds, const Output& output) {
    const Result<Kind> kind = find_kind(kinds, flags.kind);
    return kind.ok() ? use(context, kinds, *kind, output) : output.fail(kind.error());
  });
}

Exit create_kinds(const KindFlags& flags) {
  const Output output(flags.output);
  Result<Context> context = make_context(flags.context);
  if (!context.ok()) return output.fail(context.error());
  const Result<Kinds> kinds = Kinds::create(*context, flags.store, kinds_options(flags));
  if (!kinds.ok()) return output.fail(with_kind_options(kinds.error()));
  if (output.json()) {
    output.object(kinds_json(*kinds, {}));
  } else {
    print_kinds(output, *kinds, {});
  }
  return Exit::ok;
}

Exit add_kind_to(const KindFlags& flags) {
  NewKind added = flags.added;
  const auto shape = parse_shape(flags.shape);
  if (!shape.ok()) return Output(flags.output).fail(shape.error());
  added.shape = *shape;
  if (flags.start == NewKind::anywhere) {
    return Output(flags.output)
        .fail(kind_usage("--start: " + std::to_string(NewKind::anywhere) + " is no place in a store",
                         "choose at most " + std::to_string(NewKind::anywhere - 1)));
  }
  added.start_byte = flags.start.value_or(NewKind::anywhere);
  added.start_lba = flags.lba.value_or(NewKind::anywhere);
  added.record_bytes = flags.record.value_or(0);
  added.length_bytes = flags.length.value_or(0);
  return with_kinds(flags, [&](const Context&, const Kinds& kinds, const Output& output) {
    const Result<Kind> kind = kinds.add(added);
    if (!kind.ok()) return output.fail(kind.error());
    if (output.json()) {
      output.object(kinds_json(kinds, {*kind}));
    } else {
      print_kind(output, kinds, *kind);
    }
    return Exit::ok;
  });
}

Exit list_kinds(const KindFlags& flags) {
  return with_kinds(flags, [&](const Context&, const Kinds& kinds, const Output& output) {
    if (output.json()) {
      output.object(kinds_json(kinds, kinds.list()));
    } else {
      print_kinds(output, kinds, kinds.list());
    }
    return Exit::ok;
  });
}

Exit show_kind(const KindFlags& flags) {
  return with_kind(flags, [&](const Context&, const Kinds& kinds, const Kind& kind, const Output& output) {
    if (output.json()) {
      output.object(kinds_json(kinds, {kind}));
    } else {
      print_kind(output, kinds, kind);
    }
    return Exit::ok;
  });
}

// Opening has checked it.
Exit check_kinds(const KindFlags& flags) {
  return with_kinds(flags, [&](const Context&, const Kinds& kinds, const Output& output) {
    if (output.json()) {
      output.object(kinds_json(kinds, kinds.list()));
    } else {
      output.item(Mark::good,
                  count_of(kinds.list().size(), "kind") + ": none overlaps another, all lie in " + kinds.store());
    }
    return Exit::ok;
  });
}

Exit remove_kind(const KindFlags& flags) {
  return with_kind(flags, [&](const Context&, const Kinds& kinds, const Kind& kind, const Output& output) {
    if (const Status status = kinds.remove(kind.id); !status.ok()) return output.fail(status.error());
    if (output.json()) {
      output.object(kinds_json(kinds, kinds.list()));
    } else {
      output.verdict(kind.name + " is no kind any more; its bytes are where they were");
    }
    return Exit::ok;
  });
}

// Records in memory, one piece behind the other.
struct RecordsInMemory {
  std::vector<Buffer> pieces;
  std::uint64_t size_bytes = 0;
};

Result<Buffer> read_whole_store(const Context& context, const std::string& name) {
  Result<Store> store = context.open(name);
  if (!store.ok()) return store.error();
  const std::uint64_t bytes = store->info().size_bytes;
  if (const Status room = check_room(Domain::host(), bytes, "append it in parts"); !room.ok()) return room.error();
  if (bytes == 0) return Buffer();
  Result<Buffer> memory = context.allocate(Domain::host(), bytes);
  if (!memory.ok()) return memory;
  const Range range{.store = &*store, .offset = 0, .memory = memory->region()};
  Result<Ticket> ticket = context.submit(Direction::read, {&range, 1});
  if (!ticket.ok()) return ticket.error();
  const Report report = await(std::move(*ticket));
  if (!report.ok()) return *report.error;
  return memory;
}

// Until the end, or until there is more than the kind or the memory has room for.
Result<RecordsInMemory> read_stream(const Context& context, Source& stream, const Kind& kind, const std::string& name) {
  constexpr std::uint64_t least_piece_bytes = 8 << 20;
  constexpr std::uint64_t most_piece_bytes = 1 << 30;
  const std::uint64_t wanted = (kind.capacity() - kind.records) * kind.record_bytes;
  const std::uint64_t memory_bytes = Machine::available_memory_bytes();
  RecordsInMemory records;
  while (true) {
    if (interrupted()) return interrupted_error();
    const std::uint64_t read = records.size_bytes;
    if (read == wanted) {
      std::byte one{};
      const auto more = stream.fill(Region::host(&one, 1));
      if (!more.ok()) return more.error();
      if (*more == 0) return records;
      return Error{.code = Code::no_space,
                   .message = "kind \"" + kind.name + "\" has room for " +
                              count_of(kind.capacity() - kind.records, "more record") + ", and " + name + " has more",
                   .hint = "add a kind with a larger capacity"};
    }
    // Pieces of whole records: each is a part to append.
    const std::uint64_t usual = std::clamp(read / 4, least_piece_bytes, most_piece_bytes);
    const std::uint64_t free_bytes = memory_bytes - std::min(memory_bytes, read);
    const std::uint64_t most = std::min(free_bytes, wanted - read);
    const std::uint64_t piece_bytes =
        std::min(std::max(usual, kind.record_bytes), most) / kind.record_bytes * kind.record_bytes;
    if (piece_bytes == 0) {
      return Error{.code = Code::out_of_memory,
                   .message = name + " has more than the " + format_bytes(memory_bytes) + " of memory available",
                   .hint = "append it in parts"};
    }
    Result<Buffer> piece = context.allocate(Domain::host(), piece_bytes);
    if (!piece.ok()) return piece.error();
    // A little at a time, so that an interrupt is noticed.
    std::uint64_t filled = 0;
    for (bool ended = false; !ended && filled < piece_bytes;) {
      if (interrupted()) return interrupted_error();
      const std::uint64_t step = std::min(least_piece_bytes, piece_bytes - filled);
      const auto got = stream.fill(Region::host(piece->data() + filled, step));
      if (!got.ok()) return got.error();
      filled += *got;
      ended = *got < step;
    }
    records.size_bytes += filled;
    if (filled == piece_bytes) {
      records.pieces.push_back(std::move(*piece));
      continue;
    }
    if (records.size_bytes % kind.record_bytes != 0) {
      return kind_usage("kind \"" + kind.name + "\" has records of " + count_of(kind.record_bytes, "byte") +
                            ", and the " + std::to_string(records.size_bytes) + " bytes of " + name +
                            " are no whole records",
                        "append whole records");
    }
    if (filled != 0) {
      Result<Buffer> last = context.allocate(Domain::host(), filled);
      if (!last.ok()) return last.error();
      std::memcpy(last->data(), piece->data(), filled);
      records.pieces.push_back(std::move(*last));
    }
    return records;
  }
}

// All of it: records count together or not at all.
Result<RecordsInMemory> read_source(const Context& context, const std::string& name, const Kind& kind) {
  Result<std::unique_ptr<Source>> stream = open_stream(name, std::nullopt);
  if (!stream.ok()) return stream.error();
  if (*stream != nullptr) return read_stream(context, **stream, kind, name == "-" ? "standard input" : name);
  Result<Buffer> whole = read_whole_store(context, name);
  if (!whole.ok()) return whole.error();
  RecordsInMemory records{{}, whole->size_bytes()};
  records.pieces.push_back(std::move(*whole));
  return records;
}

Exit append_records(const KindFlags& flags) {
  return with_kind(flags, [&](const Context& context, const Kinds& kinds, const Kind& kind, const Output& output) {
    const Result<RecordsInMemory> records = read_source(context, flags.source, kind);
    if (!records.ok()) return output.fail(records.error());
    if (interrupted()) return output.fail(interrupted_error());
    const Stopwatch stopwatch;
    std::vector<RecordsAppend> parts;
    for (const Buffer& piece : records->pieces) parts.push_back({kind.id, piece.region()});
    if (parts.empty()) parts.push_back({kind.id, Region()});
    const auto first = kinds.append(parts, [] { return !interrupted(); });
    if (!first.ok()) {
      Error error = first.error();
      if (error.code == Code::cancelled) {
        error = interrupted_error();
        error.message += "; no record was appended";
      }
      std::error_code ignored;  // of stores that are no files
      if (error.code == Code::read_only && !flags.allow_device_write &&
          !std::filesystem::is_regular_file(flags.store, ignored)) {
        error.hint = "add --allow-device-write";
      }
      return output.fail(error);
    }
    const std::uint64_t count = records->size_bytes / kind.record_bytes;
    const double seconds = stopwatch.seconds();
    if (output.json()) {
      Json result = kinds_json(kinds, {*kinds.find(kind.id)});
      result["append"] = {
          {"index", first->front()}, {"count", count}, {"bytes", records->size_bytes}, {"seconds", seconds}};
      output.object(result);
    } else {
      output.verdict(count_of(count, "record") + ", from " + std::to_string(first->front()) + " on, durable after " +
                     format_seconds(seconds));
    }
    return Exit::ok;
  });
}

Result<penstock::Loaded> load_records(const Context& context, const Kinds& kinds, const Kind& kind,
                                      const Records& wanted, Domain domain) {
  std::uint64_t bytes = 0;
  // More than there can be is not allocated first: that is the error.
  if (__builtin_mul_overflow(wanted.count, kind.record_bytes, &bytes) || bytes > kind.length_bytes) bytes = 0;
  penstock::Loaded loaded;
  if (bytes != 0) {
    Result<Buffer> allocated = context.allocate(domain, bytes);
    if (!allocated.ok()) return allocated.error();
    loaded.buffer = std::move(*allocated);
  }
  const RecordsRead read{wanted, loaded.buffer.region()};
  Result<Ticket> ticket = kinds.submit({&read, 1});
  if (!ticket.ok()) return ticket.error();
  loaded.report = await(std::move(*ticket));
  if (!loaded.report.ok()) return *loaded.report.error;
  return loaded;
}

Exit read_records(const KindFlags& flags) {
  return with_kind(flags, [&](const Context& context, const Kinds& kinds, const Kind& kind, const Output& output) {
    const Result<Domain> domain = Domain::parse(flags.to);
    if (!domain.ok()) return output.fail(domain.error());
    const Status apart =
        check_apart({"--out", flags.out}, {{kinds.store(), kinds.dictionary()}, {flags.context.options}});
    if (!apart.ok()) return output.fail(apart.error());
    const Result<BytesOut> bytes_out = BytesOut::to(flags.out);
    if (!bytes_out.ok()) return output.fail(bytes_out.error());
    const Records wanted{.kind = kind.id, .index = flags.index, .count = flags.count};
    if (kind.records >= flags.count) {  // else that is the error
      const Status room = check_room(*domain, flags.count * kind.record_bytes, "ask for fewer");
      if (!room.ok()) return output.fail(room.error());
    }
    const Result<penstock::Loaded> loaded = load_records(context, kinds, kind, wanted, *domain);
    if (!loaded.ok()) return output.fail(loaded.error());
    const Status written = bytes_out->write(context, loaded->buffer.region());
    if (!written.ok()) return output.fail(written.error());
    const Report& report = loaded->report;
    if (output.json()) {
      Json result = kinds_json(kinds, {kind});
      result["read"] = {{"index", flags.index},  {"count", flags.count},      {"to", flags.to},
                        {"bytes", report.bytes}, {"seconds", report.seconds}, {"routes", routes_json(report.routes)}};
      output.object(result);
    } else if (flags.out != "-") {
      output.verdict(count_of(flags.count, "record") + ", " + format_bytes(report.bytes) + " in " +
                     format_seconds(report.seconds));
      output.field("routes", format_routes(report.routes));
    }
    return Exit::ok;
  });
}

}  // namespace

Command add_kind(CLI::App& tool) {
  auto flags = std::make_shared<KindFlags>();  // shared by the parser's options and by run
  CLI::App* parser = tool.add_subcommand("kind", "Keep records of named kinds in a file or device, and read them");
  parser->require_subcommand(1);
  parser->footer(
      "Examples:\n"
      "  penstock kind create records.bin\n"
      "  penstock kind add records.bin users --type F32 --shape 16 --capacity 1000000\n"
      "  penstock kind append records.bin users new-users.bin\n"
      "  penstock kind read records.bin users 7 --count 3 --out three.bin\n"
      "  penstock kind list records.bin --json\n"
      "  penstock kind add soft-nvme:disk.img --at disk.json logs --lba 2048 --length 64MiB --record 128");
  struct Verb {
    CLI::App* parser;
    Exit (*run)(const KindFlags&);
  };
  auto verbs = std::make_shared<std::vector<Verb>>();
  const auto add = [&](const char* name, const char* help, Exit (*run)(const KindFlags&)) {
    CLI::App* verb = parser->add_subcommand(name, help);
    verb->add_option("STORE", flags->store, "the file, device or URI that has the records")->required();
    verb->add_option("--at", flags->dictionary, "the dictionary; default: STORE.kinds.json, beside a file")
        ->type_name("FILE");
    add_context_flags(*verb, flags->context);
    verb->add_flag("--json", flags->output.json, "print one JSON object");
    verb->add_flag("--quiet", flags->output.quiet, "print nothing but errors");
    verbs->push_back({verb, run});
    return verb;
  };
  const auto name_kind = [&](CLI::App* verb) {
    verb->add_option("KIND", flags->kind, "the name or the id of a kind")->required();
    return verb;
  };
  const auto permit = [&](CLI::App* verb) {
    verb->add_flag("--allow-device-write", flags->allow_device_write, "permit writing to a block device");
    verb->add_option("--serial", flags->serial, "for STORE nvme:ADDRESS: the serial number of its controller");
    verb->add_option("--window", flags->window, "for STORE nvme:ADDRESS: the first block that may change, and how many")
        ->expected(2)
        ->type_name("FIRST COUNT")
        ->transform(whole_number(0, UINT64_MAX));
  };
  add("create", "Make a dictionary without kinds, and the file if there is none", create_kinds);
  CLI::App* adding = add("add", "Add a kind, and make room for it", add_kind_to);
  adding->add_option("NAME", flags->added.name, "the name of the kind")->required();
  adding->add_option("--type", flags->added.type, "the type of an element: F32, BF16, I64, U8, …")->type_name("TYPE");
  adding->add_option("--shape", flags->shape, "the shape of a record, such as 4,16; default: one element")
      ->type_name("SHAPE");
  add_size(*adding, "--record", flags->record, "the size of a record; default: what type and shape say");
  adding->add_option("--capacity", flags->added.capacity, "how many records there is room for")
      ->type_name("N")
      ->transform(whole_number(0, UINT64_MAX));
  add_size(*adding, "--length", flags->length, "the room in bytes, instead of --capacity");
  add_size(*adding, "--start", flags->start, "where it begins; default: behind all else in a file, or in a gap");
  adding->add_option("--lba", flags->lba, "where it begins, in blocks")
      ->type_name("N")
      ->transform(whole_number(0, NewKind::anywhere - 1));
  adding->add_option("--id", flags->added.id, "its number; default: one above the highest")
      ->type_name("N")
      ->transform(whole_number(1, UINT32_MAX));
  adding->add_option("--records", flags->added.records, "how many records are there already")
      ->type_name("N")
      ->transform(whole_number(0, UINT64_MAX));
  add("list", "List the kinds, and how full they are", list_kinds);
  name_kind(add("show", "Show a kind", show_kind));
  CLI::App* appending = name_kind(add("append", "Append records, durably", append_records));
  appending->add_option("FROM", flags->source, "a file of whole records, or - for standard input")->required();
  permit(appending);
  CLI::App* reading = name_kind(add("read", "Read records that follow each other", read_records));
  reading->add_option("INDEX", flags->index, "the first record")->required()->transform(whole_number(0, UINT64_MAX));
  reading->add_option("--count", flags->count, "how many")
      ->capture_default_str()
      ->transform(whole_number(0, UINT64_MAX));
  reading->add_option("--to", flags->to, "host, pinned or cuda:N")->type_name("MEMORY")->capture_default_str();
  reading->add_option("--out", flags->out, "write them to this file, replaced if it is there; -: standard output")
      ->type_name("FILE")
      ->check(some_name());
  add("check", "Check the dictionary, by itself and against its store", check_kinds);
  name_kind(add("remove", "Take a kind out of the dictionary; its bytes stay", remove_kind));
  return {parser, [flags, verbs] {
            for (const Verb& verb : *verbs) {
              if (verb.parser->parsed()) return verb.run(*flags);
            }
            return Exit::usage;
          }};
}

}  // namespace penstock::cli

// penstock bench: how fast every way to a store is, beside what this machine can do at all.
#include "bench.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "apart.h"
#include "interrupt.h"
#include "scratch.h"
#include "transfer.h"

namespace penstock::cli {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t smallest_size_bytes = 1 << 20;
constexpr std::size_t result_limit_bytes = 64 << 20;
constexpr const char* bench_schema = "penstock.bench/1";

Error usage(std::string message, std::string hint) {
  return {.code = Code::invalid_argument, .message = std::move(message), .hint = std::move(hint)};
}

// A page that takes its name when it is complete. Made before anything is measured: that it can't be written must not
// be found out at the end.
class PageFile {
 public:
  static Result<PageFile> create(const std::string& path) {
    struct stat status {};
    if (stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
      return usage(path + " is not a file, so the page can't replace it", "name another with --html");
    }
    Result<Context> context = Context::create({.lanes = 1});
    if (!context.ok()) return context.error();
    std::error_code ignored;
    Result<Store> store = context->open(fs::absolute(path, ignored).string(), {.access = Access::replace});
    if (!store.ok()) return store.error();
    return PageFile(std::move(*context), std::move(*store));
  }

  Status write(std::string page) {
    const Report report = context_.write(store_, 0, Region::host(page.data(), page.size()));
    if (!report.ok()) return *report.error;
    return store_.commit();
  }

 private:
  PageFile(Context context, Store store) : context_(std::move(context)), store_(std::move(store)) {}
  Context context_;
  Store store_;
};

// What is read: the path itself, or a scratch file beside it.
struct Subject {
  std::string path;
  std::uint64_t size_bytes = 0;
  std::optional<Scratch> scratch{}, target{};
};

// Of a directory with a model, its largest file.
Result<std::string> model_file(const std::string& path) {
  std::error_code failed;
  if (!fs::is_directory(path, failed)) return path;
  std::string largest;
  std::uintmax_t largest_bytes = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, failed)) {
    const std::uintmax_t bytes = entry.path().extension() == ".safetensors" ? entry.file_size(failed) : 0;
    if (failed || bytes <= largest_bytes) continue;
    largest_bytes = bytes;
    largest = entry.path().string();
  }
  if (!largest.empty()) return largest;
  return usage(path + " holds no safetensors files to load", "name a model, or make one with `penstock sample`");
}

std::uint64_t free_bytes(const std::string& folder) {
  struct statvfs space {};
  return statvfs(folder.c_str(), &space) == 0 ? std::uint64_t{space.f_bavail} * space.f_frsize : 0;
}

Result<Subject> make_scratch(const BenchFlags& flags, const std::string& folder, std::uint64_t size) {
  if (!flags.size) size = std::min(size, free_bytes(folder) / 4 / smallest_size_bytes * smallest_size_bytes);
  if (size < smallest_size_bytes) {
    return Error{.code = Code::no_space,
                 .message = folder + " has too little room for a temporary file",
                 .hint = "free some space, or name an existing file"};
  }
  Subject subject{.size_bytes = size};
  for (auto* file : {&subject.scratch, &subject.target}) {
    if (file == &subject.target && !flags.write) break;
    Result<Scratch> made = Scratch::create(folder, size);
    if (!made.ok()) return made.error();
    file->emplace(std::move(*made));
  }
  subject.path = subject.scratch->path();
  return subject;
}

Result<Subject> find_subject(const BenchFlags& flags, Domain domain) {
  const std::string path = local_path(flags.path);
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return system_error(errno, "look at " + flags.path, "check the name");
  const std::uint64_t size = flags.size.value_or(std::min(default_measured_bytes, Machine::detect().memory_bytes / 8));
  if (Status room = check_room(domain, size, "choose a smaller --size"); !room.ok()) return room.error();
  if (S_ISDIR(status.st_mode) && !flags.peers) return make_scratch(flags, path, size);
  if (flags.write) {
    return usage("--write needs a directory: bench never writes to an existing file", "name its directory");
  }
  Result<std::string> file = flags.peers ? model_file(path) : path;
  if (!file.ok()) return file.error();
  return Subject{.path = std::move(*file), .size_bytes = size};
}

Result<Json> run_measurement(const BenchFlags& flags, Domain domain) {
  MeasureProgress progress(flags.output, "making ready");
  Result<Subject> subject = find_subject(flags, domain);
  if (!subject.ok()) return subject.error();
  const Result<Measured> measured = measure({.path = subject->path,
                                             .memory = domain,
                                             .size_bytes = subject->size_bytes,
                                             .seconds = flags.seconds,
                                             .write_path = subject->target ? subject->target->path() : "",
                                             .keep_going = [&] { return progress.keep_going(); },
                                             .on_step = [&](const std::string& step) { progress.say(step); }});
  if (!measured.ok()) return measured.error();
  Json bench = bench_json(*measured, {.path = flags.path,
                                      .to = domain,
                                      .scratch = subject->scratch.has_value(),
                                      .place = subject->scratch ? local_path(flags.path) : subject->path});
  if (subject->scratch) return bench;
  progress.say("packed tensors");
  Result<Json> packed = bench_packed({.path = subject->path,
                                      .to = domain,
                                      .size_bytes = subject->size_bytes,
                                      .seconds = flags.seconds / 10,
                                      .keep_going = [&] { return progress.keep_going(); }});
  if (!packed.ok()) return packed.error();
  bench["packed"] = std::move(*packed);
  return bench;
}

Result<Json> measure_all(const BenchFlags& flags) {
  const Result<Domain> domain = Domain::parse(flags.domain);
  if (!domain.ok()) return domain.error();
  Result<Json> bench = run_measurement(flags, *domain);
  if (!bench.ok() || !flags.peers) return bench;
  Result<Json> peers =
      compare_peers({.path = local_path(flags.path), .to = *domain, .python = flags.python, .output = flags.output});
  if (!peers.ok()) return peers.error();
  (*bench)["peers"] = std::move(*peers);
  return bench;
}

Result<Json> read_result(const std::string& path, std::initializer_list<const char*> schemas) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return system_error(errno, "read " + path, "check the name");
  std::string text(result_limit_bytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  // Printing what is nested takes stack for each level; a result has few.
  constexpr int max_depth = 32;
  const auto is_shallow = [](int depth, Json::parse_event_t, const Json&) { return depth < max_depth; };
  Json bench = text.size() > result_limit_bytes ? Json() : Json::parse(text, is_shallow, false);
  if (bench.is_object() && std::ranges::find(schemas, bench.value("schema", Json())) != schemas.end()) return bench;
  return usage(path + " is not a result of penstock bench", "name what `penstock bench --json` printed");
}

// Whatever is wrong with one row, the rest is still worth seeing.
std::optional<Error> find_wrong_bytes(const Json& bench) {
  for (const Json& race : bench.at("races")) {
    for (const Json& row : race.at("rows")) {
      if (row.at("bytes_right").get<bool>()) continue;
      return Error{.code = Code::io_error,
                   .message = "wrong bytes arrived: " + race.at("state").get<std::string>() + ", " +
                              row.at("name").get<std::string>(),
                   .hint = "please report this, with the output of penstock doctor --json"};
    }
  }
  return std::nullopt;
}

Exit show(const BenchFlags& flags, const Output& output, const Json& bench, std::optional<PageFile>& page) {
  // Read all of it before the first word: what somebody else wrote may be broken anywhere.
  print_bench(Output({.quiet = true}), bench);
  if (page) {
    if (Status written = page->write(bench_page(bench)); !written.ok()) return output.fail(written.error());
  }
  if (output.json()) {
    output.object(bench);
  } else {
    print_bench(output, bench);
    if (page) output.section("the page: " + flags.html);
  }
  const std::optional<Error> wrong = find_wrong_bytes(bench);
  if (!wrong) return Exit::ok;
  return output.json() ? exit_for(wrong->code) : output.fail(*wrong);
}

// The exit code says whether anything got worse.
Exit compare(const BenchFlags& flags, const Output& output) {
  std::vector<Json> results;
  for (const std::string& path : flags.compare) {
    Result<Json> result = read_result(path, {bench_schema, run_schema});
    if (!result.ok()) return output.fail(result.error());
    results.push_back(std::move(*result));
  }
  if (results[0].at("schema") != results[1].at("schema")) {
    return output.fail(
        usage("the two results come from different programs", "compare two results of the same program"));
  }
  try {
    const Json comparison = compare_results(results[0], results[1]);
    if (output.json()) output.object(comparison);
    print_comparison(output, comparison);
    return comparison.at("worse") == 0 ? Exit::ok : Exit::failed;
  } catch (const Json::exception& broken) {
    return output.fail(usage(std::string("one of the two is not a complete result: ") + broken.what(), ""));
  }
}

Exit run_layers(const BenchFlags& flags, const Output& output) {
  const Result<Json> result = bench_layers(flags);
  if (!result.ok()) return output.fail(interrupted() ? interrupted_error() : result.error());
  if (output.json()) {
    output.object(*result);
  } else {
    print_layers(output, *result);
  }
  return Exit::ok;
}

Exit run(const BenchFlags& flags) {
  const Output output(flags.output);
  if (flags.layers) return run_layers(flags, output);
  if (!flags.compare.empty()) return compare(flags, output);
  const Status apart = check_apart({"--html", flags.html}, {{flags.from.empty() ? flags.given : flags.from}, {}});
  if (!apart.ok()) return output.fail(apart.error());
  std::optional<PageFile> page;
  if (!flags.html.empty()) {
    Result<PageFile> made = PageFile::create(flags.html);
    if (!made.ok()) return output.fail(made.error());
    page.emplace(std::move(*made));
  }
  const Result<Json> bench = flags.from.empty() ? measure_all(flags) : read_result(flags.from, {bench_schema});
  if (!bench.ok()) return output.fail(interrupted() ? interrupted_error() : bench.error());
  try {
    return show(flags, output, *bench, page);
  } catch (const Json::exception& broken) {
    return output.fail(usage(flags.from + " is not a complete result of penstock bench: " + broken.what(), ""));
  }
}

}  // namespace

Command add_bench(CLI::App& tool) {
  auto flags = std::make_shared<BenchFlags>();  // shared by the parser's options and by run
  CLI::App* parser = tool.add_subcommand("bench", "Measure every route to a store beside the limits of this machine");
  auto* path = parser->add_option(
      "PATH", flags->path, "a large file or block device, which is only read; or a directory for a temporary file");
  add_measure_flags(*parser, *flags, "the most to load at a time; default: 1 GiB");
  auto* write = parser->add_flag("--write", flags->write, "also measure writes; PATH must be a directory");
  auto* peers =
      parser->add_flag("--peers", flags->peers, "also compare the loaders installed in a Python; PATH must be a model")
          ->excludes(write);
  parser->add_option("--python", flags->python, "that Python")
      ->type_name("PYTHON")
      ->capture_default_str()
      ->needs(peers);
  auto* html =
      parser->add_option("--html", flags->html, "write a page with charts")->type_name("FILE")->check(some_name());
  auto* from = parser->add_option("--from", flags->from, "measure nothing; show a result of --json")
                   ->type_name("FILE")
                   ->check(some_name())
                   ->excludes(path);
  auto* compare = parser->add_option("--compare", flags->compare, "measure nothing; compare two results, OLD and NEW")
                      ->type_name("FILE")
                      ->expected(2)
                      ->excludes(path)
                      ->excludes(from);
  auto* layers =
      parser->add_flag("--layers", flags->layers, "measure passes over the layers of a model; PATH is a model")
          ->needs(path)
          ->excludes(write)
          ->excludes(peers)
          ->excludes(html);
  add_size(*parser, "--budget", flags->budget,
           "layers: the memory to go through; default: a quarter of the model, but two groups")
      ->needs(layers);
  parser->add_option("--groups", flags->groups, "layers: a pattern that makes groups; may be repeated")
      ->type_name("PATTERN")
      ->needs(layers);
  parser->add_option("--compute-ms", flags->compute_ms, "layers: how long each group is in use")
      ->type_name("N")
      ->capture_default_str()
      ->check(number(0, 60'000))
      ->needs(layers);
  parser->callback([path, from, compare] {
    if (path->count() + from->count() + compare->count() == 0) {
      throw CLI::RequiredError("PATH, --from FILE or --compare OLD NEW");
    }
  });
  parser->footer(
      "Examples:\n"
      "  penstock bench weights.bin --to cuda:0 --html report.html\n"
      "  penstock bench /mnt/fast --write --seconds 60\n"
      "  penstock bench model.safetensors --peers --python venv/bin/python\n"
      "  penstock bench models/llama --layers --budget 4GiB --to cuda:0\n"
      "  penstock bench --from result.json --html report.html\n"
      "  penstock bench --compare old.json new.json");
  return {parser, [flags] {
            flags->given = flags->path;
            if (Status named = name_by_path(flags->path); !named.ok()) return Output(flags->output).fail(named.error());
            return run(*flags);
          }};
}

}  // namespace penstock::cli

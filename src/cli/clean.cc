// penstock clean: removes what writers that were killed have left.
#include <algorithm>
#include <iterator>

#include "interrupt.h"
#include "output.h"

namespace penstock::cli {

namespace {

struct CleanFlags {
  std::vector<std::string> folders;
  bool recursive = false;
  bool remote = false;
  bool dry_run = false;
  OutputFlags output;
};

// What is being written, or can't be told, is left as it should be.
bool failed(const Leftover& leftover) {
  return leftover.kept && leftover.kept->code != Code::in_use && leftover.kept->code != Code::unsupported;
}

std::string reason(const Leftover& leftover) {
  const Error& kept = *leftover.kept;
  return kept.message + (kept.hint.empty() ? "" : "; " + kept.hint);
}

// Before anything is removed.
Status check_folders(const CleanFlags& flags) {
  const CleanOptions only_open{.dry_run = true, .keep_going = [] { return false; }};
  for (const std::string& folder : flags.folders) {
    if (folder.starts_with("tier:")) {
      return Error{
          .code = Code::invalid_argument,
          .message = folder + " is a name of tiers, and clean takes folders",
          .hint =
              "`penstock tier check` clears up after killed movers and writers; a folder of that name is ./" + folder};
    }
    if (const auto opened = remove_leftovers(folder, only_open); !opened.ok()) return opened.error();
  }
  return {};
}

std::vector<Leftover> clean(const CleanFlags& flags) {
  const CleanOptions options{
      .recursive = flags.recursive, .dry_run = flags.dry_run, .remote = flags.remote, .keep_going = [] {
        return !interrupted();
      }};
  std::vector<Leftover> all;
  for (const std::string& folder : flags.folders) {
    if (interrupted()) break;
    Result<std::vector<Leftover>> found = remove_leftovers(folder, options);
    if (found.ok()) {
      std::ranges::move(*found, std::back_inserter(all));
    } else {
      all.push_back({folder, 0, found.error()});
    }
  }
  return all;
}

std::uint64_t freed_bytes(const std::vector<Leftover>& leftovers) {
  std::uint64_t bytes = 0;
  for (const Leftover& leftover : leftovers) bytes += leftover.kept ? 0 : leftover.bytes;
  return bytes;
}

std::optional<Error> problem_of(const std::vector<Leftover>& leftovers) {
  const auto first = std::ranges::find_if(leftovers, failed);
  return first == leftovers.end() ? std::nullopt : first->kept;
}

Json cleaned_json(const CleanFlags& flags, const std::vector<Leftover>& leftovers) {
  Json removed = Json::array(), kept = Json::array();
  for (const Leftover& leftover : leftovers) {
    Json entry = {{"path", leftover.path}, {"bytes", leftover.bytes}};
    if (leftover.kept) entry.update({{"code", code_name(leftover.kept->code)}, {"reason", reason(leftover)}});
    (leftover.kept ? kept : removed).push_back(std::move(entry));
  }
  return {{"schema", "penstock.clean/1"}, {"paths", flags.folders},          {"recursive", flags.recursive},
          {"dry_run", flags.dry_run},     {"bytes", freed_bytes(leftovers)}, {"removed", std::move(removed)},
          {"kept", std::move(kept)}};
}

void print_leftovers(const Output& output, const CleanFlags& flags, const std::vector<Leftover>& leftovers) {
  std::size_t removed = 0;
  for (const Leftover& leftover : leftovers) {
    if (leftover.kept) {
      output.heading("kept " + leftover.path + ": " + reason(leftover));
    } else {
      output.heading((flags.dry_run ? "would remove " : "removed ") + leftover.path + ", " +
                     format_bytes(leftover.bytes));
      ++removed;
    }
  }
  output.heading(std::to_string(removed) + (removed == 1 ? " leftover, " : " leftovers, ") +
                 format_bytes(freed_bytes(leftovers)) + (flags.dry_run ? " to free" : " freed"));
}

Exit run(const CleanFlags& flags) {
  const Output output(flags.output);
  if (Status status = check_folders(flags); !status.ok()) return output.fail(status.error());
  const std::vector<Leftover> leftovers = clean(flags);
  const std::optional<Error> problem = interrupted() ? interrupted_error() : problem_of(leftovers);
  if (output.json()) {
    Json object = cleaned_json(flags, leftovers);
    if (problem) object["error"] = error_json(*problem);
    output.object(object);
    return problem ? exit_for(problem->code) : Exit::ok;
  }
  print_leftovers(output, flags, leftovers);
  return problem ? output.fail(*problem) : Exit::ok;
}

}  // namespace

Command add_clean(CLI::App& tool) {
  auto flags = std::make_shared<CleanFlags>();  // shared by the parser's options and by run
  CLI::App* parser = tool.add_subcommand("clean", "Remove unfinished files that killed writers left behind");
  parser->add_option("DIR", flags->folders, "where to look for them")->required();
  parser->add_flag("--recursive", flags->recursive,
                   "also look in subfolders on the same file system; links are not followed");
  parser->add_flag("--dry-run", flags->dry_run, "list what would be removed, and remove nothing");
  parser->add_flag(
      "--remote", flags->remote,
      "also clean network and FUSE mounts whose locks other machines may not see; nothing may write there");
  parser->add_flag("--json", flags->output.json, "print one JSON object");
  parser->add_flag("--quiet", flags->output.quiet, "print nothing but errors");
  parser->footer(
      "Examples:\n"
      "  penstock clean models/ --dry-run\n"
      "  penstock clean /mnt/fast --recursive --json");
  return {parser, [flags] { return run(*flags); }};
}

}  // namespace penstock::cli

// penstock completion, penstock manual: texts about the tool, made from the definitions that parse its command line, so
// that they can't say anything else.
#include <CLI/App.hpp>
#include <CLI/Option.hpp>
#include <CLI/Validators.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <sstream>

#include "common.h"

namespace penstock::cli {

namespace {

constexpr std::array<std::string_view, 2> file_types = {"FILE", "DIR"};

std::vector<const CLI::App*> commands_of(const CLI::App& tool) {
  return tool.get_subcommands([](const CLI::App*) { return true; });
}

bool is_flag(const CLI::Option& option) {
  return option.get_items_expected_max() == 0;
}

std::vector<const CLI::Option*> named_options(const CLI::App& app) {
  return app.get_options([](const CLI::Option* option) { return !option->get_lnames().empty(); });
}
std::vector<const CLI::Option*> positionals(const CLI::App& app) {
  return app.get_options([](const CLI::Option* option) { return option->get_positional(); });
}

std::string name_of(const CLI::Option& option) {
  return "--" + option.get_lnames().front();
}

// "MODE" of "MODE:{auto,keep,bypass}".
std::string type_of(const CLI::Option& option) {
  return option.get_type_name().substr(0, option.get_type_name().find(':'));
}

// What can be completed: the words that are checked for, and the usual kinds of memory. All else is the user's to say.
std::string words_for(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (type == "DOMAIN") return "host pinned cuda:0";
  const std::size_t begin = type.find('{'), end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos) return "";
  std::string words = type.substr(begin + 1, end - begin - 1);
  std::ranges::replace(words, ',', ' ');
  return words;
}

bool takes_file(const CLI::Option& option) {
  return std::ranges::find(file_types, type_of(option)) != file_types.end();
}

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::string option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : named_options(command)) names.push_back(name_of(*option));
  return join(names);
}

std::string command_names(const CLI::App& tool) {
  std::vector<std::string> names;
  for (const CLI::App* command : commands_of(tool)) names.push_back(command->get_name());
  return join(names);
}

// The arms of a case statement for options that take a value: its words, files, or nothing.
void add_bash_values(const CLI::App& command, std::ostream& text) {
  for (const CLI::Option* option : named_options(command)) {
    if (is_flag(*option) || takes_file(*option)) continue;
    const std::string words = words_for(*option);
    text << "    '" << command.get_name() << " " << name_of(*option) << "')\n";
    if (!words.empty()) text << "      mapfile -t COMPREPLY < <(compgen -W '" << words << "' -- \"$current\")\n";
    text << "      return ;;\n";
  }
}

std::string bash_completion(const CLI::App& tool) {
  std::ostringstream text;
  text << "# bash completion for penstock, printed by: penstock completion bash\n"
          "_penstock() {\n"
          "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} options=\n"
          "  COMPREPLY=()\n"
          "  if ((COMP_CWORD == 1)); then\n"
          "    mapfile -t COMPREPLY < <(compgen -W '"
       << command_names(tool) << " --help --version' -- \"$current\")\n"
       << "    return\n"
          "  fi\n"
          "  case \"${COMP_WORDS[1]} $previous\" in\n";
  for (const CLI::App* command : commands_of(tool)) add_bash_values(*command, text);
  text << "  esac\n"
          "  case ${COMP_WORDS[1]} in\n";
  for (const CLI::App* command : commands_of(tool)) {
    text << "    " << command->get_name() << ") options='" << option_names(*command) << "' ;;\n";
  }
  text << "  esac\n"
          "  if [[ $current == -* ]]; then\n"
          "    mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$current\")\n"
          "  else\n"
          "    mapfile -t COMPREPLY < <(compgen -f -- \"$current\")\n"
          "  fi\n"
          "}\n"
          "complete -o filenames -F _penstock penstock\n";
  return text.str();
}

// Within single quotes, and within the brackets and colons of _arguments.
std::string zsh_quoted(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '\'') {
      result += "'\\''";
    } else {
      if (c == '[' || c == ']' || c == ':') result += '\\';
      result += c;
    }
  }
  return result;
}

std::string zsh_option(const CLI::Option& option) {
  std::string text = "'" + name_of(option) + "[" + zsh_quoted(option.get_description()) + "]";
  if (is_flag(option)) return text + "'";
  text += ":" + type_of(option) + ":";
  if (takes_file(option)) text += "_files";
  if (const std::string words = words_for(option); !words.empty()) text += "(" + zsh_quoted(words) + ")";
  return text + "'";
}

std::string zsh_completion(const CLI::App& tool) {
  std::ostringstream text;
  text << "#compdef penstock\n"
          "# zsh completion for penstock, printed by: penstock completion zsh\n"
          "_penstock() {\n"
          "  local -a commands=(\n";
  for (const CLI::App* command : commands_of(tool)) {
    text << "    '" << command->get_name() << ":" << zsh_quoted(command->get_description()) << "'\n";
  }
  text << "  )\n"
          "  if ((CURRENT == 2)); then\n"
          "    _describe command commands\n"
          "    return\n"
          "  fi\n"
          "  local command=$words[2]\n"
          "  shift words\n"
          "  ((CURRENT--))\n"
          "  case $command in\n";
  for (const CLI::App* command : commands_of(tool)) {
    text << "    " << command->get_name() << ")\n      _arguments \\\n";
    for (const CLI::Option* option : named_options(*command)) text << "        " << zsh_option(*option) << " \\\n";
    text << "        '*:file:_files' ;;\n";
  }
  text << "  esac\n"
          "}\n"
          "_penstock \"$@\"\n";
  return text.str();
}

// Within single quotes.
std::string fish_quoted(std::string_view text) {
  std::string result = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') result += '\\';
    result += c;
  }
  return result + "'";
}

// -x: takes a value, which is no file; -rF: takes a value, which is one.
std::string fish_option(const CLI::Option& option) {
  std::string text = "-l " + option.get_lnames().front();
  if (!is_flag(option)) text += takes_file(option) ? " -rF" : " -x";
  if (const std::string words = words_for(option); !words.empty()) text += " -a " + fish_quoted(words);
  return text + " -d " + fish_quoted(option.get_description());
}

std::string fish_completion(const CLI::App& tool) {
  std::ostringstream text;
  text << "# fish completion for penstock, printed by: penstock completion fish\n"
          "function __penstock_command --description 'Whether the command is this one; without a name: whether there "
          "is none'\n"
          "  set -l words (commandline -opc)\n"
          "  test \"$words[2]\" = \"$argv[1]\"\n"
          "end\n"
          "complete -c penstock -n __penstock_command -f\n"
          "complete -c penstock -n __penstock_command -l help\n"
          "complete -c penstock -n __penstock_command -l version\n";
  for (const CLI::App* command : commands_of(tool)) {
    text << "complete -c penstock -n __penstock_command -a " << command->get_name() << " -d "
         << fish_quoted(command->get_description()) << "\n";
    for (const CLI::Option* option : named_options(*command)) {
      text << "complete -c penstock -n '__penstock_command " << command->get_name() << "' " << fish_option(*option)
           << "\n";
    }
  }
  return text.str();
}

// man(7): a backslash and a dash mean something, and so does a dot or a quote at the beginning of a line.
std::string roff(std::string_view text) {
  std::string result;
  bool at_start = true;
  for (const char c : text) {
    if (at_start && (c == '.' || c == '\'')) result += "\\&";
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else {
      result += c;
    }
    at_start = c == '\n';
  }
  return result;
}

// "Examples:" and what comes after it, as it is.
void add_examples(const std::string& footer, std::ostream& page) {
  const std::size_t begin = footer.find('\n');
  if (begin == std::string::npos) return;
  page << ".PP\n.nf\n" << roff(std::string_view(footer).substr(begin + 1)) << "\n.fi\n";
}

void add_command(const CLI::App& command, std::ostream& page) {
  page << ".SS " << roff(command.get_name());
  for (const CLI::Option* option : positionals(command)) {
    const bool needed = option->get_required();
    page << " " << (needed ? "" : "[") << roff(option->get_name(true)) << (needed ? "" : "]");
  }
  page << "\n" << roff(command.get_description()) << ".\n";
  for (const CLI::Option* option : positionals(command)) {
    page << ".TP\n.I " << roff(option->get_name(true)) << "\n" << roff(option->get_description()) << "\n";
  }
  for (const CLI::Option* option : named_options(command)) {
    page << ".TP\n.B " << roff(name_of(*option));
    if (!is_flag(*option)) page << " \\fI" << roff(type_of(*option)) << "\\fR";
    page << "\n" << roff(option->get_description()) << "\n";
  }
  add_examples(command.get_footer(), page);
}

std::string manual(const CLI::App& tool) {
  std::ostringstream page;
  page << ".TH PENSTOCK 1 \"\" \"penstock " << version() << "\" \"User Commands\"\n"
       << ".SH NAME\npenstock \\- move bytes between storage and memory by the fastest route\n"
       << ".SH SYNOPSIS\n.B penstock\n.I COMMAND\n[\\fIOPTIONS\\fR] \\fIARGUMENTS\\fR\n"
       << ".SH DESCRIPTION\n"
       << roff(tool.get_description()) << "\n.SH COMMANDS\n";
  for (const CLI::App* command : commands_of(tool)) add_command(*command, page);
  page << ".SH EXIT STATUS\n";
  for (const ExitMeaning& exit : exit_meanings) {
    page << ".TP\n.B " << static_cast<int>(exit.code) << "\n" << roff(exit.meaning) << "\n";
  }
  page << ".SH ENVIRONMENT\n";
  for (const auto& [name, meaning] : environment_variables) {
    page << ".TP\n.B " << name << "\n" << roff(meaning) << "\n";
  }
  page << ".SH SEE ALSO\nThe pages in docs/ of Penstock: cli.md, tuning.md, options.md.\n";
  return page.str();
}

}  // namespace

Command add_completion(CLI::App& tool) {
  auto shell = std::make_shared<std::string>();  // shared by the parser's options and by run
  CLI::App* parser = tool.add_subcommand("completion", "Print completions for a shell");
  parser->add_option("SHELL", *shell, "bash, fish or zsh")
      ->required()
      ->type_name("SHELL")
      ->check(CLI::IsMember({"bash", "fish", "zsh"}));
  parser->footer(
      "Examples:\n"
      "  source <(penstock completion bash)\n"
      "  penstock completion fish | source\n"
      "  penstock completion zsh > \"${fpath[1]}/_penstock\"");
  return {parser, [shell, &tool] {
            const auto make = *shell == "bash" ? bash_completion : *shell == "fish" ? fish_completion : zsh_completion;
            std::fputs(make(tool).c_str(), stdout);
            return Exit::ok;
          }};
}

Command add_manual(CLI::App& tool) {
  CLI::App* parser = tool.add_subcommand("manual", "Print the manual page");
  parser->footer(
      "Examples:\n"
      "  penstock manual | man -l -");
  return {parser, [&tool] {
            std::fputs(manual(tool).c_str(), stdout);
            return Exit::ok;
          }};
}

}  // namespace penstock::cli

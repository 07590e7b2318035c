// The command line of a measuring program: the little of CLI11 that they need. Reading and compiling CLI11 takes longer
// than all of a program, so arguments.cc alone does.
//
// Thread safety: one thread. Lifetime: what arguments are written to outlives them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace bench {

// An argument that was added, to say more of it.
class Argument {
 public:
  explicit Argument(CLI::Option& option) : option_(&option) {}

  Argument required();
  Argument positive();
  Argument between(double least, double most);
  Argument one_of(const std::vector<std::string>& values);

 private:
  CLI::Option* option_;
};

// A program's arguments, or those of one of its commands. Names that begin with dashes are options, others have a
// place.
class Arguments {
 public:
  explicit Arguments(const std::string& summary);

  Argument add(const std::string& name, std::string& value, const std::string& summary = "");
  Argument add(const std::string& name, std::uint32_t& value, const std::string& summary = "");
  Argument add(const std::string& name, std::uint64_t& value, const std::string& summary = "");
  Argument add(const std::string& name, double& value, const std::string& summary = "");
  void add_flag(const std::string& name, bool& value, const std::string& summary = "");

  // Where there are commands, one must be given.
  Arguments add_command(const std::string& name, const std::string& summary = "");
  // The name of the one that was.
  std::string command() const;

  // Ends the program where it was asked for help, or where arguments are wrong, with a message that says which.
  void parse(int argc, char** argv);

 private:
  explicit Arguments(std::shared_ptr<CLI::App> app);

  std::shared_ptr<CLI::App> app_;  // CLI11 shares those of commands
};

}  // namespace bench

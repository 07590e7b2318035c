#include "arguments.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <utility>

namespace bench {

Argument Argument::required() {
  option_->required();
  return *this;
}

Argument Argument::positive() {
  option_->check(CLI::PositiveNumber);
  return *this;
}

Argument Argument::between(double least, double most) {
  option_->check(CLI::Range(least, most));
  return *this;
}

Argument Argument::one_of(const std::vector<std::string>& values) {
  option_->check(CLI::IsMember(values));
  return *this;
}

Arguments::Arguments(const std::string& summary) : app_(std::make_shared<CLI::App>(summary)) {}
Arguments::Arguments(std::shared_ptr<CLI::App> app) : app_(std::move(app)) {}

Argument Arguments::add(const std::string& name, std::string& value, const std::string& summary) {
  return Argument(*app_->add_option(name, value, summary));
}
Argument Arguments::add(const std::string& name, std::uint32_t& value, const std::string& summary) {
  return Argument(*app_->add_option(name, value, summary));
}
Argument Arguments::add(const std::string& name, std::uint64_t& value, const std::string& summary) {
  return Argument(*app_->add_option(name, value, summary));
}
Argument Arguments::add(const std::string& name, double& value, const std::string& summary) {
  return Argument(*app_->add_option(name, value, summary));
}
void Arguments::add_flag(const std::string& name, bool& value, const std::string& summary) {
  app_->add_flag(name, value, summary);
}

Arguments Arguments::add_command(const std::string& name, const std::string& summary) {
  app_->require_subcommand(1);
  return Arguments(app_->get_subcommand_ptr(app_->add_subcommand(name, summary)));
}

std::string Arguments::command() const {
  return app_->get_subcommands().front()->get_name();
}

void Arguments::parse(int argc, char** argv) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app_->exit(error));
  }
}

}  // namespace bench

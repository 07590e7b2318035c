#include "services/models/json_walk.h"

#include <nlohmann/json.hpp>
#include <unordered_set>
#include <vector>

#include "services/models/contents.h"

namespace penstock::models {
namespace {

constexpr std::size_t depth_limit = 8;

class Walker : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Walker(const JsonVisitor& visitor) : visitor_(visitor) {}

  const std::string& problem() const { return problem_; }

  bool null() override { return visit({.kind = JsonEvent::Kind::other}); }
  bool boolean(bool) override { return visit({.kind = JsonEvent::Kind::other}); }
  bool number_integer(number_integer_t) override { return visit({.kind = JsonEvent::Kind::other}); }
  bool number_float(number_float_t, const string_t&) override { return visit({.kind = JsonEvent::Kind::other}); }
  bool binary(binary_t&) override { return false; }
  bool number_unsigned(number_unsigned_t value) override {
    return visit({.kind = JsonEvent::Kind::number, .number = value});
  }
  bool string(string_t& value) override { return visit({.kind = JsonEvent::Kind::string, .text = value}); }

  bool start_object(std::size_t) override {
    if (!visit({.kind = JsonEvent::Kind::object}) || !open({.is_array = false})) return false;
    path_.emplace_back();
    return true;
  }
  bool key(string_t& name) override {
    if (!open_.back().keys.insert(name).second) return refuse("the key " + in_quotes(name) + " is there twice");
    path_.back() = name;
    return true;
  }
  bool end_object() override {
    open_.pop_back();
    path_.pop_back();
    return visit({.kind = JsonEvent::Kind::object_end});
  }
  bool start_array(std::size_t) override { return visit({.kind = JsonEvent::Kind::array}) && open({.is_array = true}); }
  bool end_array() override {
    open_.pop_back();
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return refuse("it is not valid JSON from byte " + std::to_string(position) + " on");
  }

 private:
  struct Container {
    bool is_array = false;
    std::unordered_set<std::string> keys = {};
  };

  bool refuse(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
    return false;
  }
  bool visit(JsonEvent event) {
    event.path = path_;
    event.in_array = !open_.empty() && open_.back().is_array;
    std::string problem = visitor_(event);
    return problem.empty() || refuse(std::move(problem));
  }
  bool open(Container container) {
    if (open_.size() == depth_limit) return refuse("it is nested too deeply");
    open_.push_back(std::move(container));
    return true;
  }

  const JsonVisitor& visitor_;
  std::vector<Container> open_;
  std::vector<std::string> path_;
  std::string problem_;
};

}  // namespace

Status walk_json(std::string_view json, const JsonVisitor& visit) {
  // The parser would take it for the end and not look at what follows.
  if (json.find('\0') != std::string_view::npos) return broken("there is a zero byte in the JSON");
  Walker walker(visit);
  if (nlohmann::json::sax_parse(json.begin(), json.end(), &walker)) return {};
  return broken(walker.problem().empty() ? "it is not valid JSON" : walker.problem());
}

}  // namespace penstock::models

#include "penstock/context.h"

#include <cstdlib>
#include <exception>
#include <filesystem>

#include "api/context_builder.h"
#include "api/session.h"
#include "base/out_of_memory.h"
#include "base/runs_callback.h"
#include "engines/modules.h"
#include "engines/table.h"
#include "local/backend.h"

namespace penstock {

namespace {

// `call` is given the backend, and returns a Result or a Status.
template <typename Call>
auto with_backend(const std::shared_ptr<client::Session>& session,
                  Call call) -> decltype(call(std::declval<client::Backend&>())) {
  if (session) return call(*session->backend);
  return Error{Code::invalid_argument, 0, "this Context is empty", "use one that Context::create returned"};
}

Report failed_report(Error error) {
  Report report;
  report.outcome = Outcome::failed;
  report.error = std::move(error);
  return report;
}

Result<Store> open_by_name(client::Backend& backend, std::string_view name, const OpenOptions& options) {
  auto store = backend.open(name, options);
  if (!store) return std::move(store).error();
  return client::Access::store(std::move(*store));
}

}  // namespace

Context::Context() = default;
Context::Context(std::shared_ptr<client::Session> session) : session_(std::move(session)) {}
Context::Context(const Context&) = default;
Context::Context(Context&&) noexcept = default;
Context& Context::operator=(const Context&) = default;
Context& Context::operator=(Context&&) noexcept = default;
Context::~Context() = default;

Result<Context> Context::create(const Options& options) {
  // The C library ends the process where there is no memory for the thread-local data of a library that was loaded
  // later, ours or the one that throws std::bad_alloc: so it is allocated now.
  [[maybe_unused]] volatile bool touched = runs_callback;
  [[maybe_unused]] volatile int made = std::uncaught_exceptions();  // or the compiler would leave it out
  return or_out_of_memory([&]() -> Result<Context> {
    Options chosen = options;
    if (const char* engine = ::secure_getenv("PENSTOCK_ENGINE"); engine != nullptr && *engine != '\0') {
      chosen.engine = engine;
    }
    if (const char* name = ::secure_getenv("PENSTOCK_PUBLISH"); name != nullptr && chosen.publish.empty()) {
      chosen.publish = name;
    }
    engine::Table table = engines::default_table();
    if (Status status = engines::add_modules(table, chosen.modules); !status) return std::move(status).error();
    return ContextBuilder::build(std::move(table), chosen);
  });
}

Result<Context> ContextBuilder::build(engine::Table table, const Options& options) {
  auto backend = local::make_backend(std::move(table), options);
  if (!backend) return std::move(backend).error();
  return client::Access::context(std::make_shared<client::Session>(std::move(*backend)));
}

void Context::close() const {
  if (session_) session_->backend->close();
}

Result<Store> Context::open(std::string_view name, const OpenOptions& options) const {
  return or_out_of_memory([&] {
    return with_backend(session_, [&](client::Backend& backend) -> Result<Store> {
      if (auto status = backend.usable(); !status) return std::move(status).error();
      if (auto resolved = session_->resolvers.open(name, options)) return std::move(*resolved);
      auto located = session_->resolvers.locate(name, options);
      if (!located) return open_by_name(backend, name, options);
      if (!*located) return std::move(*located).error();
      // An absolute path is never taken for a URI.
      std::error_code failed;
      const auto path = std::filesystem::absolute((*located)->path, failed);
      return open_by_name(backend, path.string(), (*located)->options);
    });
  });
}

Result<Store> Context::open(Recipe recipe) const {
  return with_backend(session_, [&](client::Backend& backend) -> Result<Store> {
    auto store = backend.open(std::move(recipe));
    if (!store) return std::move(store).error();
    return client::Access::store(std::move(*store));
  });
}

Status Context::add_scheme(std::string scheme, Resolver resolve) const {
  return or_out_of_memory([&] {
    return with_backend(session_, [&](client::Backend& backend) -> Status {
      if (auto status = backend.usable(); !status) return status;
      return session_->resolvers.add(std::move(scheme), std::move(resolve), backend.schemes());
    });
  });
}

Status Context::redirect(std::string scheme, Locator locate) const {
  return or_out_of_memory([&] {
    return with_backend(session_, [&](client::Backend& backend) -> Status {
      if (auto status = backend.usable(); !status) return status;
      return session_->resolvers.add(std::move(scheme), std::move(locate), backend.schemes());
    });
  });
}

Result<std::string> Context::path_of(std::string_view name) const {
  return or_out_of_memory([&] {
    return with_backend(session_, [&](client::Backend& backend) -> Result<std::string> {
      if (auto status = backend.usable(); !status) return std::move(status).error();
      auto located = session_->resolvers.locate(name, {});
      if (!located) return std::string(name);
      if (!*located) return std::move(*located).error();
      return std::move((*located)->path);
    });
  });
}

Result<Buffer> Context::allocate(Domain domain, std::size_t size_bytes) const {
  return with_backend(session_, [&](client::Backend& backend) { return backend.allocate(domain, size_bytes); });
}

Status Context::prepare(Domain domain) const {
  return with_backend(session_, [&](client::Backend& backend) { return backend.prepare(domain); });
}

Status Context::attach(Region memory) const {
  return with_backend(session_, [&](client::Backend& backend) { return backend.attach(memory); });
}

Status Context::detach(Region memory) const {
  return with_backend(session_, [&](client::Backend& backend) { return backend.detach(memory); });
}

namespace {

Report run(const std::shared_ptr<client::Session>& session, client::Operation operation, std::span<const Range> ranges,
           const RequestOptions& options) {
  if (session) return session->backend->run(operation, ranges, options);
  return failed_report({Code::invalid_argument, 0, "this Context is empty", "use one that Context::create returned"});
}

client::Operation operation_of(Direction direction) {
  return direction == Direction::read ? client::Operation::read : client::Operation::write;
}

}  // namespace

Report Context::read(const Store& store, std::uint64_t offset, Region memory, const RequestOptions& options) const {
  const Range range{&store, offset, memory};
  return run(session_, client::Operation::read, {&range, 1}, options);
}

Report Context::write(const Store& store, std::uint64_t offset, Region memory, const RequestOptions& options) const {
  const Range range{&store, offset, memory};
  return run(session_, client::Operation::write, {&range, 1}, options);
}

Result<Loaded> Context::read(std::string_view name, Extent extent, Domain domain, const RequestOptions& options) const {
  auto store = open(name);
  if (!store) return std::move(store).error();
  const auto size_bytes = store->size_bytes();
  if (!size_bytes) return size_bytes.error();
  const bool to_the_end = extent.length == Extent::to_the_end;
  if (extent.offset > *size_bytes || (!to_the_end && extent.length > *size_bytes - extent.offset)) {
    return Error{Code::out_of_range, 0,
                 std::string(name) + " has " + std::to_string(*size_bytes) + " bytes: the range does not exist",
                 "stay within the size of the store"};
  }
  auto buffer = allocate(domain, to_the_end ? *size_bytes - extent.offset : extent.length);
  if (!buffer) return std::move(buffer).error();
  Report report = read(*store, extent.offset, buffer->region(), options);
  if (!report.ok()) return *std::move(report.error);
  return Loaded{std::move(*buffer), std::move(report)};
}

Report Context::transfer(Direction direction, std::span<const Range> ranges, const RequestOptions& options) const {
  return run(session_, operation_of(direction), ranges, options);
}

Report Context::zero(const Store& store, std::uint64_t offset, std::uint64_t length,
                     const RequestOptions& options) const {
  const Range range{&store, offset, Region::host(nullptr, length)};
  return run(session_, client::Operation::zero, {&range, 1}, options);
}

Report Context::deallocate(const Store& store, std::uint64_t offset, std::uint64_t length,
                           const RequestOptions& options) const {
  const Range range{&store, offset, Region::host(nullptr, length)};
  return run(session_, client::Operation::deallocate, {&range, 1}, options);
}

Result<Ticket> Context::submit(Direction direction, std::span<const Range> ranges,
                               const RequestOptions& options) const {
  return with_backend(session_, [&](client::Backend& backend) -> Result<Ticket> {
    auto request = backend.submit(direction, ranges, options);
    if (!request) return std::move(request).error();
    return client::Access::ticket(std::move(*request));
  });
}

Result<Ticket> Context::submit(Direction direction, Domain gpu, RangeSource ranges,
                               const RequestOptions& options) const {
  return with_backend(session_, [&](client::Backend& backend) -> Result<Ticket> {
    auto request = backend.submit(direction, gpu, std::move(ranges), options);
    if (!request) return std::move(request).error();
    return client::Access::ticket(std::move(*request));
  });
}

Result<Standing> Context::stand_by(Direction direction, Domain gpu, RangeSource ranges,
                                   const RequestOptions& options) const {
  return with_backend(session_, [&](client::Backend& backend) -> Result<Standing> {
    auto request = backend.stand_by(direction, gpu, std::move(ranges), options);
    if (!request) return std::move(request).error();
    return client::Access::standing(std::move(*request));
  });
}

Result<std::uint64_t> Context::prefetch(std::span<const Range> ranges) const {
  return with_backend(session_, [&](client::Backend& backend) { return backend.prefetch(ranges); });
}

std::vector<EngineInfo> Context::engines() const {
  return session_ ? session_->backend->engines() : std::vector<EngineInfo>();
}

Result<Plan> Context::plan(const Store& store, Direction direction, Domain domain) const {
  return with_backend(session_, [&](client::Backend& backend) { return backend.plan(store, direction, domain); });
}

std::string Context::explain(const Store& store, Direction direction, Domain domain) const {
  const auto found = plan(store, direction, domain);
  return found ? found->text() : found.error().message;
}

const Options& Context::options() const {
  static const Options none;
  return session_ ? session_->backend->options() : none;
}

const Machine& Context::machine() const {
  static const Machine none;
  return session_ ? session_->backend->machine() : none;
}

Statistics Context::statistics() const {
  return session_ ? session_->backend->statistics() : Statistics();
}

void Context::count_mapped(std::uint64_t bytes, double seconds) const {
  if (session_) session_->backend->count_mapped(bytes, seconds);
}

Trace Context::trace(double since_seconds) const {
  return session_ ? session_->backend->trace(since_seconds) : Trace();
}

void Context::reset_statistics() const {
  if (session_) session_->backend->reset_statistics();
}

std::string_view version() {
  return PENSTOCK_VERSION;
}

}  // namespace penstock

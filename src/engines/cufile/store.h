// Store of the cufile engine: a FileStore whose O_DIRECT descriptor is registered with cuFile.
#pragma once

#include <memory>

#include "engines/cufile/diagnosis.h"
#include "engines/cufile/library.h"
#include "files/file_store.h"

namespace penstock::cufile {

class Store : public files::FileStore {
 public:
  // REQUIRES: `handle` is of file.direct.
  Store(files::OpenedFile&& file, std::shared_ptr<Library> library, CfHandle handle, Route route)
      : FileStore(std::move(file)), library_(std::move(library)), handle_(handle), route_(route) {}
  ~Store() override {
    // The descriptors go with the call: cuFile may look at them for as long as it lasts.
    static_cast<void>(
        library_->take_down("cuFileHandleDeregister", [handle = handle_, remove = library_->api().handle_deregister,
                                                       descriptors = give_descriptors()] { remove(handle); }));
  }

  CfHandle handle() const { return handle_; }
  // As expected from the settings: what the statistics have seen since may know better.
  Route expected_route() const { return route_; }
  // None while cuFile hangs in something.
  std::optional<Route> device_route() const override {
    return library_->is_stuck() ? std::nullopt : std::optional(library_->judge(route_));
  }
  // Not straight to a GPU that has no GPUDirect Storage; cuFile's fallback serves those too.
  std::optional<Route> device_route_to(const Gpu& gpu) const override {
    const auto route = device_route();
    const bool straight = route == Route::gds || route == Route::p2pdma;
    return straight && !has_gpudirect_storage(gpu.name) ? std::nullopt : route;
  }

 private:
  const std::shared_ptr<Library> library_;  // shared: the driver must stay open as long as a handle
  const CfHandle handle_;
  const Route route_;
};

}  // namespace penstock::cufile

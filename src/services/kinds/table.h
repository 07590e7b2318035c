// Table: the kinds of one store, as its dictionary was last read, and the store as it was opened then.
//
// Thread safety: any thread. Lifetime: the Context must outlive it.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/fork_guard.h"
#include "services/kinds/dictionary.h"

namespace penstock::kinds {

class WriterLock;

class Table {
 public:
  static Result<std::shared_ptr<Table>> create(const Context& context, const std::string& name,
                                               const KindsOptions& options);
  static Result<std::shared_ptr<Table>> open(const Context& context, const std::string& name,
                                             const KindsOptions& options);

  Table(const Context& context, std::string store, std::string path, KindsOptions options)
      : context_(context), store_(std::move(store)), path_(std::move(path)), options_(std::move(options)) {}

  // What was read at one time. It never changes.
  struct State {
    Dictionary dictionary;
    Store store;  // of a time at which the dictionary was there; not open: it could not be opened after a change
    std::unordered_map<std::uint32_t, const Kind*> by_id;
  };

  const Context& context() const { return context_; }
  const std::string& store_name() const { return store_; }
  const std::string& path() const { return path_; }
  std::shared_ptr<const State> state() const;
  Result<std::shared_ptr<const State>> refresh();

  // `which` is for the message: the name or the id.
  Result<Kind> find(const std::function<const Kind*(const State&)>& look, const std::function<std::string()>& which);
  Result<Kind> add(const NewKind& kind);
  Status remove(std::uint32_t kind);
  Result<std::vector<std::uint64_t>> append(std::span<const RecordsAppend> parts,
                                            const std::function<bool()>& keep_going);

  // Where records lie, and the state that says so.
  struct Placed {
    std::shared_ptr<const State> state;  // shared with the Table
    std::vector<Range> ranges;           // of the state's store
  };
  Result<Placed> place(std::span<const RecordsRead> reads);

 private:
  // By who has the lock of the dictionary at `path`.
  static Result<std::shared_ptr<Table>> create_locked(const Context& context, const std::string& store,
                                                      const std::string& path, const KindsOptions& options);
  Status check_process() const;
  static Result<Placed> place_in(std::shared_ptr<const State> state, std::span<const RecordsRead> reads);
  // The store follows the dictionary: whatever counts in there is in the store that is opened after it was read.
  Result<std::shared_ptr<const State>> load(Dictionary dictionary) const;
  void adopt(std::shared_ptr<const State> state);
  // By who has the lock: writes the dictionary, and lets readers see it.
  Status publish(Dictionary dictionary);
  Status publish(Dictionary dictionary, Store& written);
  Result<Store> open_for_writing(const OpenOptions& wanted, std::shared_ptr<WriterLock> lock = {}) const;
  Status make_room(const Kind& kind) const;

  const Context context_;
  const std::string store_;
  const std::string path_;
  const KindsOptions options_;
  ForkGuard fork_guard_;
  std::mutex refreshing_;     // so that what was read before a change does not take the place of what came after it
  mutable std::mutex mutex_;  // of the state
  std::shared_ptr<const State> state_;  // shared with readers
};

}  // namespace penstock::kinds

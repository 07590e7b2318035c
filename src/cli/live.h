// LiveText: a few lines on a terminal that are written again and again in the same place. Silent where nobody watches,
// or where the terminal can't move its cursor.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

namespace penstock::cli {

class LiveText {
 public:
  enum class End { erase, keep };
  LiveText(std::FILE* stream, End end);
  ~LiveText();
  LiveText(const LiveText&) = delete;
  LiveText& operator=(const LiveText&) = delete;

  bool visible() const { return visible_; }
  std::size_t columns() const;
  // Lines that are too long are cut, and so are those that there is no room for.
  void show(const std::vector<std::string>& lines);

 private:
  void go_to_top();

  std::FILE* stream_;
  End end_;
  bool visible_;
  std::size_t shown_ = 0;
};

}  // namespace penstock::cli

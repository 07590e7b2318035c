#include "live.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "output.h"

namespace penstock::cli {

namespace {

constexpr winsize usual_size = {.ws_row = 24, .ws_col = 80};

winsize size_of(int fd) {
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) != 0) return usual_size;
  if (size.ws_row == 0) size.ws_row = usual_size.ws_row;
  if (size.ws_col == 0) size.ws_col = usual_size.ws_col;
  return size;
}

bool can_move_cursor(int fd) {
  const char* terminal = ::secure_getenv("TERM");
  return isatty(fd) && terminal != nullptr && std::strcmp(terminal, "dumb") != 0;
}

}  // namespace

LiveText::LiveText(std::FILE* stream, End end)
    : stream_(stream), end_(end), visible_(can_move_cursor(fileno(stream))) {}

LiveText::~LiveText() {
  if (end_ == End::erase) go_to_top();
  std::fflush(stream_);
}

std::size_t LiveText::columns() const {
  return size_of(fileno(stream_)).ws_col;
}

void LiveText::go_to_top() {
  // ECMA-48: CUU moves up, ED erases what is below.
  if (shown_ != 0) std::fprintf(stream_, "\x1b[%zuA\r\x1b[J", shown_);
  shown_ = 0;
}

void LiveText::show(const std::vector<std::string>& lines) {
  if (!visible_) return;
  const winsize size = size_of(fileno(stream_));
  go_to_top();
  for (const std::string& line : lines) {
    if (shown_ + 1u >= size.ws_row) break;
    std::fprintf(stream_, "%s\n", cut_to(printable(line), size.ws_col).c_str());
    ++shown_;
  }
  std::fflush(stream_);
}

}  // namespace penstock::cli

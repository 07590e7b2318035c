// Waiting for those who write to a file just now.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>

namespace penstock {

// Until no call that writes is under way: such a call has changed the file's times already, so comparing them later
// would not tell of it. Only on ext4 and tmpfs: elsewhere that would wait for more, for servers, or until all is on the
// disk.
void await_writers(int fd, std::uint64_t size_bytes);
// The same where the file system is known to be one of these.
void await_write_lock(int fd, std::uint64_t size_bytes);

}  // namespace penstock

// In place of direct_reads.cc where liburing is missing: nothing comes.
#include "services/tiers/direct_reads.h"

namespace penstock::tiers {

struct DirectReads::Ring {};

DirectReads::DirectReads() = default;
DirectReads::~DirectReads() = default;

void DirectReads::run(std::span<Read>) {}

}  // namespace penstock::tiers

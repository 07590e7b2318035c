#include "penstock/domain.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

TEST(Domain, names_lead_back) {
  for (const Domain domain :
       {Domain::host(), Domain::pinned(), Domain::cuda(0), Domain::cuda(7), Domain::cuda(65535)}) {
    EXPECT_EQ(Domain::parse(domain.name()).value(), domain) << domain.name();
  }
  EXPECT_EQ(Domain::cuda(3).name(), "cuda:3");
}

TEST(Domain, cuda_alone_is_the_first_device) {
  EXPECT_EQ(Domain::parse("cuda").value(), Domain::cuda(0));
}

TEST(Domain, anything_else_is_refused_with_the_choices) {
  for (const char* text : {"", "Host", "host ", "pinned:0", "cuda:", "cuda:-1", "cuda:+1", "cuda: 1", "cuda:1x",
                           "cuda:65536", "cuda:99999999999999999999", "gpu"}) {
    const auto domain = Domain::parse(text);
    ASSERT_FALSE(domain.ok()) << text;
    EXPECT_EQ(domain.error().code, Code::invalid_argument);
    EXPECT_NE(domain.error().hint.find("pinned"), std::string::npos);
  }
}

TEST(Domain, only_cuda_memory_is_out_of_the_cpus_reach) {
  EXPECT_TRUE(Domain::host().host_accessible());
  EXPECT_TRUE(Domain::pinned().host_accessible());
  EXPECT_FALSE(Domain::cuda(0).host_accessible());
}

}  // namespace
}  // namespace penstock

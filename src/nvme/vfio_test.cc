#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "nvme/sysfs_test_support.h"
#include "nvme/vfio_answer.h"
#include "nvme/vfio_group.h"
#include "nvme/vfio_transport.h"

namespace penstock::nvme {
namespace {

// An answer of 64 bytes with capabilities at the offsets that are told.
class Capabilities : public testing::Test {
 protected:
  void put(std::uint32_t offset, std::uint16_t id, std::uint32_t next) {
    const vfio_info_cap_header header{.id = id, .version = 1, .next = next};
    std::memcpy(answer_.data() + offset, &header, sizeof header);
  }
  std::array<std::byte, 64> answer_{};
};

TEST_F(Capabilities, are_found_in_their_chain) {
  put(16, 1, 40);
  put(40, 3, 0);
  EXPECT_EQ(find_capability(answer_, 16, 1).data(), answer_.data() + 16);
  EXPECT_EQ(find_capability(answer_, 16, 3).size(), 24U);
  EXPECT_TRUE(find_capability(answer_, 16, 2).empty());
  EXPECT_TRUE(find_capability(answer_, 0, 1).empty()) << "there is no chain";
}

TEST_F(Capabilities, outside_of_the_answer_or_in_a_circle_are_none) {
  put(16, 1, 16);
  EXPECT_TRUE(find_capability(answer_, 16, 2).empty());
  put(16, 1, 60);
  EXPECT_TRUE(find_capability(answer_, 16, 2).empty()) << "the header would end behind the answer";
  EXPECT_TRUE(find_capability(answer_, 1000, 1).empty());
  std::uint64_t value = 0;
  EXPECT_TRUE(read_at(answer_, 56, value));
  EXPECT_FALSE(read_at(answer_, 57, value));
  EXPECT_FALSE(read_at(answer_, SIZE_MAX, value));
}

TEST(Interrupts, are_as_many_as_the_kernel_has) {
  std::vector<std::size_t> asked;
  const auto take_from = [&](int there_are) {
    asked.clear();
    return take_as_many(65, [&asked, there_are](std::size_t count) {
      asked.push_back(count);
      if (there_are <= 0) return there_are;
      return count <= static_cast<std::size_t>(there_are) ? 0 : there_are;
    });
  };
  EXPECT_EQ(take_from(100), 65U);
  EXPECT_EQ(take_from(17), 17U);
  EXPECT_EQ(asked, (std::vector<std::size_t>{65, 17}));
  EXPECT_EQ(take_from(-1), 0U) << "refused";
  EXPECT_EQ(take_as_many(65, [](std::size_t count) { return static_cast<int>(count); }), 0U) << "it makes no sense";
}

class AVfioGroup : public FakeSysfs {};

TEST_F(AVfioGroup, says_what_is_missing) {
  const VfioPlace place{"0000:01:00.0", "7", {}};
  const auto no_vfio = VfioGroup::open(place, root() / "dev");
  ASSERT_FALSE(no_vfio.ok());
  EXPECT_EQ(no_vfio.error().code, Code::not_found);
  EXPECT_NE(no_vfio.error().hint.find("modprobe vfio-pci"), std::string::npos);

  std::filesystem::create_directories(root() / "dev");
  write(root() / "dev/vfio", "");
  const auto no_group = VfioGroup::open(place, root() / "dev");
  EXPECT_NE(no_group.error().message.find("dev/7"), std::string::npos) << no_group.error().message;
  EXPECT_NE(no_group.error().hint.find("penstock nvme bind 0000:01:00.0"), std::string::npos);

  write(root() / "dev/7", "");
  EXPECT_EQ(VfioGroup::open(place, root() / "dev").error().code, Code::unsupported) << "plain files are no VFIO";
}

}  // namespace
}  // namespace penstock::nvme

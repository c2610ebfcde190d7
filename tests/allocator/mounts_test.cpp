// SPDX-License-Identifier: Apache-2.0
//
// Where an overlay writes, by lines as kernels and containers print them.
#include "platform/mounts.h"

#include <gtest/gtest.h>
#include <sys/sysmacros.h>

namespace tencache {
namespace {

constexpr const char* kMounts =
    "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
    "30 22 0:51 / /merged rw,relatime - overlay overlay "
    "rw,lowerdir=/a:/b,upperdir=/var/lib/upper,workdir=/var/lib/work\n"
    "31 22 0:52 / /odd rw shared:7 master:3 - overlay none "
    "rw,lowerdir=/a,upperdir=/with\\040blank\\054comma\\134,workdir=/w\n"
    "32 22 0:53 / /image ro - overlay overlay ro,lowerdir=/a:/b\n"
    "33 22 0:54 / /tmp rw - tmpfs tmpfs rw,upperdir=/not/an/overlay\n"
    "short line\n";

TEST(MountsTest, NamesTheUpperDirectory) {
  EXPECT_EQ(overlay_upper_directory(kMounts, makedev(0, 51)), "/var/lib/upper");
  EXPECT_EQ(overlay_upper_directory(kMounts, makedev(0, 52)), "/with blank,comma\\");
}

TEST(MountsTest, NamesNothingElse) {
  EXPECT_EQ(overlay_upper_directory(kMounts, makedev(0, 53)), std::nullopt);
  EXPECT_EQ(overlay_upper_directory(kMounts, makedev(0, 54)), std::nullopt);
  EXPECT_EQ(overlay_upper_directory(kMounts, makedev(8, 1)), std::nullopt);
  EXPECT_EQ(overlay_upper_directory(kMounts, makedev(0, 5)), std::nullopt);
  EXPECT_EQ(overlay_upper_directory("", makedev(0, 51)), std::nullopt);
}

TEST(MountsTest, ReadsThoseOfThisProcess) {
  EXPECT_NE(read_mounts().find(" / "), std::string::npos);
}

}  // namespace
}  // namespace tencache

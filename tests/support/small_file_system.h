// SPDX-License-Identifier: Apache-2.0
//
// SmallFileSystem: an ext4 of a few MiB in an image file, mounted on a fresh directory, for disks
// that are really full. It needs root and loop devices; is_mounted() tells whether mounting worked;
// a test skips itself where it did not.
#pragma once

#include <sys/mount.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/units.h"
#include "support/test_directory.h"

namespace tencache {

class SmallFileSystem {
 public:
  explicit SmallFileSystem(uint64_t bytes) {
    const std::string image = directory_.path() + "/image";
    const std::string quiet = " >/dev/null 2>&1";
    path_ = directory_.path() + "/mounted";
    // Without a journal and reserved blocks nearly all of the disk can be filled.
    const std::string make = "PATH=$PATH:/usr/sbin:/sbin mkfs.ext4 -q -F -m 0 -O ^has_journal " +
                             image + " " + std::to_string(bytes / kKiB) + "k" + quiet;
    is_mounted_ = mkdir(path_.c_str(), 0700) == 0 && std::system(make.c_str()) == 0 &&
                  std::system(("mount -o loop " + image + " " + path_ + quiet).c_str()) == 0;
  }
  ~SmallFileSystem() {
    if (is_mounted_) umount2(path_.c_str(), MNT_DETACH);
  }
  SmallFileSystem(const SmallFileSystem&) = delete;
  SmallFileSystem& operator=(const SmallFileSystem&) = delete;

  bool is_mounted() const { return is_mounted_; }
  const std::string& path() const { return path_; }

 private:
  TestDirectory directory_;
  std::string path_;
  bool is_mounted_ = false;
};

}  // namespace tencache

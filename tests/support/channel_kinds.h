// SPDX-License-Identifier: Apache-2.0
//
// The channels that suites run over, and a file for them.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>

#include "base/check.h"
#include "base/unique_fd.h"
#include "tier/io_channel.h"

namespace tencache {

struct ChannelKind {
  const char* name;
  bool is_uring;
  unsigned depth;
};

inline constexpr ChannelKind kChannelKinds[] = {{"uring_depth_1", true, 1},
                                                {"uring_depth_16", true, 16},
                                                {"threads_1", false, 1},
                                                {"threads_16", false, 16}};

inline std::string name_of_channel_kind(const ::testing::TestParamInfo<ChannelKind>& info) {
  return info.param.name;
}

inline Result<std::unique_ptr<IoChannel>> make_channel(const ChannelKind& kind, int fd) {
  if (kind.is_uring) return make_uring_channel(fd, kind.depth);
  return make_thread_channel(fd, kind.depth);
}

/// Makes a file without a name, which has O_DIRECT where the file system allows it.
inline UniqueFd make_file(const std::string& directory) {
  UniqueFd fd(open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  TENCACHE_CHECK(fd.is_valid(), "no file in %s", directory.c_str());
  const int flags = fcntl(fd.get(), F_GETFL);
  if (fcntl(fd.get(), F_SETFL, flags | O_DIRECT) != 0) printf("buffered: no O_DIRECT here\n");
  return fd;
}

}  // namespace tencache

// SPDX-License-Identifier: Apache-2.0
//
// What /proc/self/mountinfo tells of mounts. An overlay stands for several file systems and names
// only itself, so its mount options tell where files are written. The functions keep no state.
// Threads: any.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

namespace tencache {

/// The directory into which the overlay with this device number writes, as it was named when it was
/// mounted, maybe in another view of the machine, outside of this container. `mounts` is the text
/// of /proc/self/mountinfo. Returns nullopt where no such overlay is listed, or where it is
/// read-only.
std::optional<std::string> overlay_upper_directory(std::string_view mounts, dev_t device);

/// The text of /proc/self/mountinfo. Returns an empty string where it cannot be read.
std::string read_mounts();

}  // namespace tencache

// SPDX-License-Identifier: Apache-2.0
//
// Text from outside (a value, a path, a variable's name) as a message shows it.
#pragma once

#include <string>
#include <string_view>

namespace tencache {

/// The text on one line: control characters are escaped, so that no value moves a terminal's cursor
/// or looks like a further message. Of a long text the middle is left out and its length told, so
/// that the reason and the remedy, which follow, are still read.
std::string shown(std::string_view text);

}  // namespace tencache

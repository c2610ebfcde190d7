// SPDX-License-Identifier: Apache-2.0
//
// The dispatch keys at which kernels of the shim stand, and where their calls go on.
#pragma once

#include <c10/core/DispatchKeySet.h>

namespace tencache::shim {

// Kernels that stand before every device's own are registered for BackendSelect. Their calls go on
// with these keys.
inline constexpr c10::DispatchKeySet kBelowBackendSelect(c10::DispatchKeySet::FULL_AFTER,
                                                         c10::DispatchKey::BackendSelect);

}  // namespace tencache::shim

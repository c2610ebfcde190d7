// SPDX-License-Identifier: Apache-2.0
//
// Which sanitizers this build has. gcc defines a macro for each; clang answers __has_feature.
#pragma once

namespace tencache {

#if defined(__has_feature)
inline constexpr bool kHasThreadSanitizer = __has_feature(thread_sanitizer);
inline constexpr bool kHasAddressSanitizer = __has_feature(address_sanitizer);
#else
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kHasThreadSanitizer = true;
#else
inline constexpr bool kHasThreadSanitizer = false;
#endif
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kHasAddressSanitizer = true;
#else
inline constexpr bool kHasAddressSanitizer = false;
#endif
#endif
inline constexpr bool kHasSanitizer = kHasThreadSanitizer || kHasAddressSanitizer;

}  // namespace tencache

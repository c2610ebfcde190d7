// SPDX-License-Identifier: Apache-2.0
//
// Which sanitizer a suite is built with: under one everything takes many times as long, so that
// random tests do less.
#pragma once

namespace tencache {

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
inline constexpr bool kHasSanitizer = kHasThreadSanitizer || kHasAddressSanitizer;

}  // namespace tencache

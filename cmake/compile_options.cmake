# SPDX-License-Identifier: Apache-2.0
#
# tencache_compile_options: an interface target with the warnings, sanitizers and thread-safety
# analysis that our code is compiled with. guard/, preload/ and the emulated GPU's operators do
# without it. tencache_werror: the flag that makes warnings errors, or nothing, for those targets.
set(tencache_werror $<$<BOOL:${TENCACHE_WERROR}>:-Werror>)
add_library(tencache_compile_options INTERFACE)
target_compile_options(
  tencache_compile_options INTERFACE -Wall -Wextra -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor
                                     -Woverloaded-virtual ${tencache_werror})
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # gcc 12 sees an overlap in "literal" + std::string where there is none (gcc bug 105651).
  target_compile_options(tencache_compile_options INTERFACE -Wno-restrict)
endif()

if(TENCACHE_SANITIZE)
  # Frame pointers and line tables make reports readable. A finding ends the process.
  target_compile_options(tencache_compile_options
                         INTERFACE -fsanitize=${TENCACHE_SANITIZE} -fno-sanitize-recover=all
                                   -fno-omit-frame-pointer -g1)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Under sanitizers gcc no longer sees that optional members are empty, and calls them
    # uninitialized.
    target_compile_options(tencache_compile_options INTERFACE -Wno-maybe-uninitialized)
  endif()
  target_link_options(tencache_compile_options INTERFACE -fsanitize=${TENCACHE_SANITIZE})
  if("thread" IN_LIST TENCACHE_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # gcc warns that ThreadSanitizer does not see fences. Our fences order accesses that are
    # themselves atomic, so no race is missed or invented without them.
    target_compile_options(tencache_compile_options INTERFACE -Wno-tsan)
  endif()
endif()

if(TENCACHE_THREAD_SAFETY)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "TENCACHE_THREAD_SAFETY needs clang, not ${CMAKE_CXX_COMPILER_ID}: gcc ignores "
                        "the annotations. Configure with `cmake --preset clang`.")
  endif()
  # The beta part checks the lock order (acquired_before/after).
  target_compile_options(tencache_compile_options INTERFACE -Wthread-safety -Wthread-safety-beta)
endif()

# SPDX-License-Identifier: Apache-2.0
#
# With this toolchain file CMake compiles for aarch64 on another machine, with Debian's cross
# compiler. The libraries are in TENCACHE_AARCH64_ROOT, where `make test-aarch64` puts them; suites
# run under qemu's user mode.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++-12)

# CMake configures its tests of the compiler with this file, too, but without the cache. So it has
# to hand them this variable.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES TENCACHE_AARCH64_ROOT)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH ${TENCACHE_AARCH64_ROOT} /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
# cuda.h is pip's and lies outside these roots; it is the same for each processor.
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)
# qemu keeps a record of each page that a program reserves, and the core reserves terabytes of
# addresses where nothing limits it. So prlimit limits it to 64 GiB.
set(CMAKE_CROSSCOMPILING_EMULATOR prlimit --as=68719476736 qemu-aarch64-static -L /usr/aarch64-linux-gnu)

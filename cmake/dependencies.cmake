# SPDX-License-Identifier: Apache-2.0
#
# The core's libraries as targets: tencache::uring, and the header-only tencache::xxhash,
# tencache::json and tencache::cuda_headers. We link liburing's static archive if it is position
# independent, so that the installed library needs no system package at run time; otherwise we link
# the shared library.
find_package(Threads REQUIRED)

# tencache_add_headers(<name> <header> <Debian package>) adds the target tencache::<name> for one
# header.
function(tencache_add_headers name header package)
  find_path(TENCACHE_${name}_INCLUDE ${header})
  mark_as_advanced(TENCACHE_${name}_INCLUDE)
  if(NOT TENCACHE_${name}_INCLUDE)
    message(FATAL_ERROR "${header} was not found. On Debian and Ubuntu: apt-get install ${package}")
  endif()
  add_library(tencache::${name} INTERFACE IMPORTED GLOBAL)
  target_include_directories(tencache::${name} SYSTEM INTERFACE ${TENCACHE_${name}_INCLUDE})
endfunction()

# Sets `result` to whether `archive` can become part of a shared library.
function(tencache_archive_is_pic archive result)
  string(MAKE_C_IDENTIFIER "TENCACHE_PIC_${archive}" cached)
  if(NOT DEFINED ${cached})
    execute_process(
      COMMAND ${CMAKE_CXX_COMPILER} -shared -o ${CMAKE_BINARY_DIR}/CMakeFiles/pic_probe.so
              -Wl,--whole-archive ${archive} -Wl,--no-whole-archive
      RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
    if(status EQUAL 0)
      set(${cached} TRUE CACHE INTERNAL "")
    else()
      set(${cached} FALSE CACHE INTERNAL "")
    endif()
  endif()
  set(${result} ${${cached}} PARENT_SCOPE)
endfunction()

tencache_add_headers(xxhash xxhash.h libxxhash-dev)
tencache_add_headers(json nlohmann/json.hpp nlohmann-json3-dev)
tencache_add_headers(uring liburing.h liburing-dev)

find_library(TENCACHE_uring_ARCHIVE liburing.a)
find_library(TENCACHE_uring_SHARED liburing.so)
mark_as_advanced(TENCACHE_uring_ARCHIVE TENCACHE_uring_SHARED)
set(uring_library ${TENCACHE_uring_SHARED})
if(TENCACHE_uring_ARCHIVE)
  tencache_archive_is_pic(${TENCACHE_uring_ARCHIVE} archive_is_pic)
  if(archive_is_pic)
    set(uring_library ${TENCACHE_uring_ARCHIVE})
  endif()
endif()
if(NOT uring_library)
  message(FATAL_ERROR "liburing was not found. On Debian and Ubuntu: apt-get install liburing-dev")
endif()
message(STATUS "liburing: ${uring_library}")
target_link_libraries(tencache::uring INTERFACE ${uring_library})

# TENCACHE_CUDA_INCLUDE, the folder of cuda.h, may be given. Otherwise we take the one that pip
# installed (beside a torch for CUDA, or as a requirement of this build), or a toolkit's. If the
# folder that was given, or that an earlier configure found, has no cuda.h, we search again.
if(TENCACHE_CUDA_INCLUDE AND NOT EXISTS ${TENCACHE_CUDA_INCLUDE}/cuda.h)
  unset(TENCACHE_CUDA_INCLUDE CACHE)
endif()
if(NOT TENCACHE_CUDA_INCLUDE)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -c "import sysconfig; print(sysconfig.get_path('purelib'))"
    OUTPUT_VARIABLE packages OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  # cuda_runtime is CUDA 12's folder. CMake sorts what it globs, so CUDA 13's folder, which the
  # requirement of this build brings, is searched before it.
  file(GLOB from_pip ${packages}/nvidia/cuda_runtime/include ${packages}/nvidia/cu1*/include)
  find_path(TENCACHE_CUDA_INCLUDE cuda.h HINTS ${from_pip} ENV CUDA_HOME PATHS /usr/local/cuda/include
            PATH_SUFFIXES include)
  mark_as_advanced(TENCACHE_CUDA_INCLUDE)
endif()
set(cuda_remedy "Install NVIDIA's headers into the environment that builds, pip install 'nvidia-cuda-runtime>=13,<14', \
or name the folder of another cuda.h, -DTENCACHE_CUDA_INCLUDE=<folder>")
if(NOT TENCACHE_CUDA_INCLUDE)
  message(FATAL_ERROR "cuda.h was not found. ${cuda_remedy}")
endif()
file(STRINGS ${TENCACHE_CUDA_INCLUDE}/cuda.h cuda_version REGEX "^#define CUDA_VERSION [0-9]+")
string(REGEX REPLACE "[^0-9]" "" TENCACHE_CUDA_VERSION "${cuda_version}")
# Older versions lack names that the cuda backend uses: memory of a NUMA node, the newer
# cuGetProcAddress.
if(NOT TENCACHE_CUDA_VERSION GREATER_EQUAL 12020)
  message(FATAL_ERROR "${TENCACHE_CUDA_INCLUDE}/cuda.h is of CUDA version ${TENCACHE_CUDA_VERSION}; tencache needs "
                      "12.2 (12020) or newer. ${cuda_remedy}")
endif()
add_library(tencache::cuda_headers INTERFACE IMPORTED GLOBAL)
target_include_directories(tencache::cuda_headers SYSTEM INTERFACE ${TENCACHE_CUDA_INCLUDE})
message(STATUS "cuda.h: ${TENCACHE_CUDA_INCLUDE} (${TENCACHE_CUDA_VERSION})")

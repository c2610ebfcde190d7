# SPDX-License-Identifier: Apache-2.0
#
# The libraries of the core, as targets tencache::uring, tencache::xxhash and tencache::json. The
# static archive is taken where it is position independent, so that the installed library needs no
# system package at run time; else the shared one.
find_package(Threads REQUIRED)

# Whether `archive` may become part of a shared library. libnuma's, for one, may not.
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

# tencache_find_library(<name> <header> <Debian package>) makes the target tencache::<name>.
function(tencache_find_library name header package)
  find_path(TENCACHE_${name}_INCLUDE ${header})
  find_library(TENCACHE_${name}_ARCHIVE lib${name}.a)
  find_library(TENCACHE_${name}_SHARED lib${name}.so)
  mark_as_advanced(TENCACHE_${name}_INCLUDE TENCACHE_${name}_ARCHIVE TENCACHE_${name}_SHARED)
  set(library ${TENCACHE_${name}_SHARED})
  if(TENCACHE_${name}_ARCHIVE)
    tencache_archive_is_pic(${TENCACHE_${name}_ARCHIVE} is_pic)
    if(is_pic)
      set(library ${TENCACHE_${name}_ARCHIVE})
    endif()
  endif()
  if(NOT TENCACHE_${name}_INCLUDE OR NOT library)
    message(FATAL_ERROR "lib${name} with ${header} was not found. On Debian and Ubuntu: "
                        "apt-get install ${package}")
  endif()
  message(STATUS "${name}: ${library}")
  add_library(tencache::${name} INTERFACE IMPORTED GLOBAL)
  target_include_directories(tencache::${name} SYSTEM INTERFACE ${TENCACHE_${name}_INCLUDE})
  target_link_libraries(tencache::${name} INTERFACE ${library})
endfunction()

tencache_find_library(uring liburing.h liburing-dev)
tencache_find_library(xxhash xxhash.h libxxhash-dev)

find_path(TENCACHE_json_INCLUDE nlohmann/json.hpp)
mark_as_advanced(TENCACHE_json_INCLUDE)
if(NOT TENCACHE_json_INCLUDE)
  message(FATAL_ERROR "nlohmann/json.hpp was not found. On Debian and Ubuntu: "
                      "apt-get install nlohmann-json3-dev")
endif()
add_library(tencache::json INTERFACE IMPORTED GLOBAL)
target_include_directories(tencache::json SYSTEM INTERFACE ${TENCACHE_json_INCLUDE})

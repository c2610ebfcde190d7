# SPDX-License-Identifier: Apache-2.0
#
# tencache_check_sources(<list variable>) fails the configure if a .cpp file below the calling list
# file's folder is not in the list. A new file makes the next build configure again, so a forgotten
# source cannot pass unnoticed.
function(tencache_check_sources listed_variable)
  file(GLOB_RECURSE found CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} *.cpp)
  list(REMOVE_ITEM found ${${listed_variable}})
  if(found)
    list(JOIN found "\n  " names)
    message(FATAL_ERROR "not listed in ${CMAKE_CURRENT_SOURCE_DIR}/CMakeLists.txt:\n  ${names}\n"
                        "Add each name to ${listed_variable} there, in alphabetical order.")
  endif()
endfunction()

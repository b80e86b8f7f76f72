# SPDX-License-Identifier: Apache-2.0
# The preset `demo` compiles up to sixteen files as one (CMAKE_UNITY_BUILD). That halves the work, because shared
# includes are parsed once. tools/code_groups.py finds files of which no two define the same name. If that build reports
# a name that is ambiguous, rename one of the two.

# vrun_group_sources(TARGET SOURCES...): call it in the directory of the target.
function(vrun_group_sources target)
  if(NOT CMAKE_UNITY_BUILD)
    return()
  endif()
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tools/code_groups.py ${ARGN})
  execute_process(
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tools/code_groups.py ${CMAKE_UNITY_BUILD_BATCH_SIZE} ${ARGN}
    WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} OUTPUT_VARIABLE groups OUTPUT_STRIP_TRAILING_WHITESPACE
    COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE "\n" ";" groups "${groups}")
  foreach(source group IN ZIP_LISTS ARGN groups)
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
endfunction()

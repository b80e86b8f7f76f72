# SPDX-License-Identifier: Apache-2.0
# The functions with which modules declare their targets: vrun_library, vrun_binary, vrun_test.

include(Unity)
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)

add_library(vrun_flags INTERFACE)
target_include_directories(vrun_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
target_compile_options(vrun_flags INTERFACE
  -Wall -Wextra -Wconversion -Wno-sign-conversion -Wno-missing-field-initializers
  -fstack-protector-strong -fno-omit-frame-pointer)
target_compile_definitions(vrun_flags INTERFACE _GNU_SOURCE VRUN_VERSION="${PROJECT_VERSION}")
if(VRUN_SANITIZE)
  target_compile_options(vrun_flags INTERFACE -fsanitize=${VRUN_SANITIZE} -fno-sanitize-recover=undefined)
  target_link_options(vrun_flags INTERFACE -fsanitize=${VRUN_SANITIZE})
else()
  target_compile_definitions(vrun_flags INTERFACE $<$<NOT:$<CONFIG:Debug>>:_FORTIFY_SOURCE=2>)
  target_link_options(vrun_flags INTERFACE -Wl,-z,relro,-z,now)
endif()
if(VRUN_FUZZ)
  target_compile_options(vrun_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# Headers that nearly every file includes, parsed once: a file of this project compiles in a third of the time. Only
# <...> names, because they keep the path of this tree out of the precompiled header, so that ccache can reuse it in
# another tree.
set(vrun_precompiled
  <algorithm> <atomic> <chrono> <condition_variable> <cstdint> <cstring> <deque> <filesystem> <functional> <map> <memory> <mutex>
  <optional> <set> <span> <string> <string_view> <thread> <unordered_map> <unordered_set> <utility> <variant> <vector>
  <fmt/format.h> <tl/expected.hpp>)
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/precompiled.cc CONTENT "int main() { return 0; }\n")
# Code is compiled here in three ways: in a library, in a program, in a test.
add_library(vrun_precompiled_library OBJECT ${CMAKE_BINARY_DIR}/precompiled.cc)
add_executable(vrun_precompiled_binary EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/precompiled.cc)
foreach(kind library binary)
  target_link_libraries(vrun_precompiled_${kind} PRIVATE vrun_flags)
  target_precompile_headers(vrun_precompiled_${kind} PRIVATE ${vrun_precompiled})
endforeach()
# Test code is compiled with -O1, in two thirds of the time. The code under test is built as it is installed.
set(vrun_test_options $<$<CONFIG:RelWithDebInfo>:-O1>)
if(VRUN_TESTS)
  find_package(GTest REQUIRED)
  add_executable(vrun_precompiled_test EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/precompiled.cc)
  target_link_libraries(vrun_precompiled_test PRIVATE vrun_flags GTest::gtest GTest::gmock)
  target_compile_options(vrun_precompiled_test PRIVATE ${vrun_test_options})
  target_precompile_headers(vrun_precompiled_test PRIVATE ${vrun_precompiled} <gtest/gtest.h> <gmock/gmock.h>)
endif()

# vrun_library(NAME SOURCES a.cc ... DEPS other_lib ...): static library vrun_NAME.
function(vrun_library name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS" ${ARGN})
  add_library(vrun_${name} STATIC ${A_SOURCES})
  vrun_group_sources(vrun_${name} ${A_SOURCES})
  target_link_libraries(vrun_${name} PUBLIC vrun_flags ${A_DEPS})
  target_precompile_headers(vrun_${name} REUSE_FROM vrun_precompiled_library)
endfunction()

# vrun_binary(NAME [STATIC] SOURCES main.cc ... DEPS lib ...): an executable in build/bin. STATIC asks for a
# static-pie with no shared library at all (sanitizers exclude it, so a sanitized build links dynamically).
function(vrun_binary name)
  cmake_parse_arguments(A "STATIC" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${A_SOURCES})
  target_link_libraries(${name} PRIVATE vrun_flags ${A_DEPS})
  target_precompile_headers(${name} REUSE_FROM vrun_precompiled_binary)
  if(A_STATIC AND NOT VRUN_SANITIZE)
    target_link_options(${name} PRIVATE -static-pie)
  elseif(NOT VRUN_SANITIZE)
    target_link_options(${name} PRIVATE -static-libstdc++ -static-libgcc)
  endif()
endfunction()

# vrun_test(NAME SOURCES x_test.cc ... DEPS lib ... [TIMEOUT s] [LABELS l]): a GoogleTest binary run by ctest.
# Tests that need root, /dev/fuse or namespaces print SKIP with the reason where those are missing. ctest runs tests in
# parallel: each mounts in its own namespace and aborts no FUSE connection but its own.
function(vrun_test name)
  cmake_parse_arguments(A "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT VRUN_TESTS)
    return()
  endif()
  add_executable(${name} ${A_SOURCES})
  target_link_libraries(${name} PRIVATE vrun_flags ${A_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  target_compile_options(${name} PRIVATE ${vrun_test_options})
  target_precompile_headers(${name} REUSE_FROM vrun_precompiled_test)
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 60)
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${A_TIMEOUT} LABELS "${A_LABELS}")
  # Tests that may take long start early, and so do tests that mount, because they also wait.
  set(cost ${A_TIMEOUT})
  if("root" IN_LIST A_LABELS)
    math(EXPR cost "${cost} + 1000")
  endif()
  set_tests_properties(${name} PROPERTIES COST ${cost})
endfunction()

# SPDX-License-Identifier: Apache-2.0
# The helpers with which every module declares itself: vrun_library, vrun_binary, vrun_test.

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

# vrun_library(NAME SOURCES a.cc ... DEPS other_lib ...): static library vrun_NAME.
function(vrun_library name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS" ${ARGN})
  add_library(vrun_${name} STATIC ${A_SOURCES})
  target_link_libraries(vrun_${name} PUBLIC vrun_flags ${A_DEPS})
endfunction()

# vrun_binary(NAME [STATIC] SOURCES main.cc ... DEPS lib ...): an executable in build/bin. STATIC asks for a
# static-pie with no shared library at all (sanitizers exclude it, so a sanitized build links dynamically).
function(vrun_binary name)
  cmake_parse_arguments(A "STATIC" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${A_SOURCES})
  target_link_libraries(${name} PRIVATE vrun_flags ${A_DEPS})
  if(A_STATIC AND NOT VRUN_SANITIZE)
    target_link_options(${name} PRIVATE -static-pie)
  elseif(NOT VRUN_SANITIZE)
    target_link_options(${name} PRIVATE -static-libstdc++ -static-libgcc)
  endif()
endfunction()

# vrun_test(NAME SOURCES x_test.cc ... DEPS lib ... [TIMEOUT s] [LABELS l]): a GoogleTest binary run by ctest.
# Tests that need root, /dev/fuse or namespaces say SKIP with the reason where those are missing.
function(vrun_test name)
  cmake_parse_arguments(A "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT VRUN_TESTS)
    return()
  endif()
  find_package(GTest REQUIRED)
  add_executable(${name} ${A_SOURCES})
  target_link_libraries(${name} PRIVATE vrun_flags ${A_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  # What is tested is built as it is installed; the test itself only has to be compiled, in two thirds of the time.
  target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 60)
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${A_TIMEOUT} LABELS "${A_LABELS}")
endfunction()

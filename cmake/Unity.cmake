# SPDX-License-Identifier: Apache-2.0
# The preset `demo` compiles sixteen files at a time (CMAKE_UNITY_BUILD): half the work, since what they include is parsed
# once. Two such files cannot both have a name of their own in an unnamed namespace: where they do, one is listed here and
# compiled alone. "redefinition of ...::{anonymous}::NAME" in that build: give it another name, or list the file.
set(vrun_compiled_alone
  src/cli   # all of it: each command has its own Run, Validate and kOptions
  src/control/ops/submit.cc src/control/scheduler_config.cc
  src/home/apply_journal.cc src/home/digest_cache.cc src/home/kept_call.cc src/home/kept_pull.cc src/home/node_links.cc
  src/home/snapshots.cc src/home/trace_frames.cc src/home/watch_inotify.cc
  src/node/content_peers.cc src/node/kept_series.cc src/node/live_sender.cc src/node/s3_tier.cc
  src/sandbox/sandbox.cc
  src/sched/elastic.cc
  src/sim/core_policy.cc src/sim/outcome.cc src/sim/preemptive_policies.cc src/sim/queue_policies.cc
  src/sim/study.cc src/sim/trace.cc src/sim/virtual_clusters.cc
  src/snapshots/collection.cc src/snapshots/manifest.cc src/snapshots/oci_layout.cc
  src/store/small_object.cc src/store/unit_map.cc
  src/tree/graft.cc
  src/vfs/live_names.cc src/vfs/live_write.cc src/vfs/push_ahead.cc)

# vrun_compile_alone(SOURCES...): of a library's sources, those of the list. Call it in the directory of the library.
function(vrun_compile_alone)
  foreach(source IN LISTS ARGN)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} NORMALIZE OUTPUT_VARIABLE path)
    cmake_path(RELATIVE_PATH path BASE_DIRECTORY ${CMAKE_SOURCE_DIR})
    cmake_path(GET path PARENT_PATH directory)
    if(path IN_LIST vrun_compiled_alone OR directory IN_LIST vrun_compiled_alone)
      set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
  endforeach()
endfunction()

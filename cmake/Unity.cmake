# SPDX-License-Identifier: Apache-2.0
# The preset `demo` compiles sixteen files at a time (CMAKE_UNITY_BUILD). That halves the work, because shared includes
# are parsed once. Two such files cannot define the same name in an unnamed namespace; then one of them is listed here
# and compiled alone. If that build reports "redefinition of ...::{anonymous}::NAME", rename one, or list the file.
set(vrun_compiled_alone
  src/cli/base src/cli/host src/cli/request src/cli/run src/cli/ctl   # all of them: each command has its own Run, Validate and kOptions
  src/control/ops/submit.cc src/control/state/scheduler_config.cc
  src/home/apply/apply_journal.cc src/home/pack/digest_cache.cc src/home/clients/kept_call.cc src/home/clients/kept_pull.cc src/home/links/node_links.cc
  src/home/runs/snapshot_client.cc src/home/ahead/trace_frames.cc src/home/root/watch/watch_inotify.cc
  src/node/source/content_peers.cc src/node/carry/kept_series.cc src/node/views/live_sender.cc src/node/s3/s3_tier.cc
  src/sandbox/sandbox.cc
  src/sched/engine/elastic.cc
  src/sim/policies/core_policy.cc src/sim/report/outcome.cc src/sim/policies/preemptive_policies.cc src/sim/policies/queue_policies.cc
  src/sim/report/study.cc src/sim/replay/job_trace.cc src/sim/policies/virtual_clusters.cc
  src/snapshots/collection.cc src/snapshots/manifest.cc src/snapshots/oci_layout.cc
  src/store/small_object.cc src/store/format/unit_map.cc
  src/tree/graft.cc
  src/vfs/content/verifier.cc src/vfs/frozen/lazy_open.cc src/vfs/live/root/live_listing.cc
  src/vfs/live/root/live_names.cc src/vfs/live/content/live_writer.cc src/vfs/frozen/lazy_push_ahead.cc)

# vrun_compile_alone(SOURCES...): compiles alone those of a library's sources that are in the list. Call it in the
# directory of the library.
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

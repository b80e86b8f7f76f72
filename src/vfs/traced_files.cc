// SPDX-License-Identifier: Apache-2.0
#include "vfs/traced_files.h"

namespace vrun::vfs {

void TracedFiles::Add(const TraceTable& table) {
  std::lock_guard lock(mutex_);
  Traced& traced = tables_[table.id];
  active_ = true;
  if (traced.runs++ > 0) return;
  for (const std::vector<TraceRange>& frame : table.frames) {
    for (const TraceRange& range : frame) {
      traced.files[table.files[range.file].version].push_back({range.first, range.count});
    }
  }
}

void TracedFiles::Remove(const Digest& table) {
  {
    std::lock_guard lock(mutex_);
    const auto it = tables_.find(table);
    if (it == tables_.end() || --it->second.runs > 0) return;
    tables_.erase(it);
    active_ = !tables_.empty();
    if (active_) return;
  }
  std::shared_lock lock(listeners_mutex_);
  for (Listener* listener : listeners_) listener->TracesOver();
}

std::vector<TracedFiles::Range> TracedFiles::Of(const tree::FileVersion& version) const {
  std::lock_guard lock(mutex_);
  for (const auto& [id, traced] : tables_) {
    if (const auto it = traced.files.find(version); it != traced.files.end()) return it->second;
  }
  return {};
}

void TracedFiles::Listen(Listener* listener) {
  std::unique_lock lock(listeners_mutex_);
  listeners_.insert(listener);
}

void TracedFiles::Unlisten(Listener* listener) {
  std::unique_lock lock(listeners_mutex_);
  listeners_.erase(listener);
}

void TracedFiles::Arrived(const tree::FileVersion& version, Range range) {
  std::shared_lock lock(listeners_mutex_);
  for (Listener* listener : listeners_) listener->TraceArrived(version, range);
}

}  // namespace vrun::vfs

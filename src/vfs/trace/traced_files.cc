// SPDX-License-Identifier: Apache-2.0
#include "vfs/trace/traced_files.h"

namespace vrun::vfs {

void TracedFiles::Add(const TraceTable& table) {
  std::shared_lock listeners_lock(listeners_mutex_);
  std::vector<File> files;
  {
    MutexLock lock(mutex_);
    Traced& traced = tables_[table.id];
    active_ = true;
    if (traced.runs++ > 0) return;
    for (const std::vector<TraceRange>& frame : table.frames) {
      for (const TraceRange& range : frame) {
        const TraceTable::File& file = table.files[range.file];
        const auto [it, first] = traced.at.emplace(file.version, traced.files.size());
        if (first) traced.files.push_back({file.path, file.version, file.object_id, {}});
        traced.files[it->second].ranges.push_back({range.first, range.count});
      }
    }
    if (!listeners_.empty()) files = traced.files;
  }
  for (Listener* listener : listeners_) listener->TraceBegins(files);
}

void TracedFiles::Remove(const Digest& table) {
  {
    MutexLock lock(mutex_);
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
  MutexLock lock(mutex_);
  for (const auto& [id, traced] : tables_) {
    if (const auto it = traced.at.find(version); it != traced.at.end()) return traced.files[it->second].ranges;
  }
  return {};
}

void TracedFiles::Listen(Listener* listener) {
  std::unique_lock listeners_lock(listeners_mutex_);
  listeners_.insert(listener);
  MutexLock lock(mutex_);
  for (const auto& [id, traced] : tables_) listener->TraceBegins(traced.files);
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

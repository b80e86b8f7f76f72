// SPDX-License-Identifier: Apache-2.0
#include "home/ahead/traces.h"

#include <algorithm>
#include <utility>

#include "home/pack/digest_cache.h"
#include "home/root/tree_table.h"

namespace vrun::home {
namespace {

Error NotYours() { return Error(Code::kDenied, "traces: no run of this node"); }

}  // namespace

Traces::Traces(const TreeTable* trees, const ContentFiles* files, const DigestCache* digests,
               const std::string& directory)
    : trees_(trees),
      digests_(digests),
      store_(directory),
      frames_(files, directory.empty() ? "" : directory + "/frames") {}

void Traces::Expect(const Run& run) {
  MutexLock lock(mutex_);
  const auto [it, fresh] = runs_.try_emplace(run.job);
  if (!fresh && it->second.run.attempt == run.attempt) return;
  it->second.run = run;
  it->second.planned.reset();
  it->second.report.reset();
  if (!fresh) return;
  order_.push_back(run.job);
  if (order_.size() <= kMaxRuns) return;
  runs_.erase(order_.front());
  order_.pop_front();
}

void Traces::WhenReported(uint64_t job, std::function<void(const v1::IoReport&)> told) {
  std::optional<v1::IoReport> now;
  {
    MutexLock lock(mutex_);
    const auto it = runs_.find(job);
    if (it == runs_.end()) return;
    if (it->second.report && told)
      now = it->second.report;
    else
      it->second.told = std::exchange(told, nullptr);
  }
  if (now) told(*now);
}

Traces::Known* Traces::FindLocked(uint64_t job, uint32_t attempt, const std::string& token) {
  const auto it = runs_.find(job);
  if (it == runs_.end() || it->second.run.attempt != attempt || it->second.run.token.empty()) return nullptr;
  const std::string& ours = it->second.run.token;
  // Constant time, since it compares secrets.
  unsigned difference = ours.size() != token.size();
  for (size_t i = 0; i < std::min(ours.size(), token.size()); ++i) {
    difference |= static_cast<unsigned>(static_cast<unsigned char>(ours[i] ^ token[i]));
  }
  return difference == 0 ? &it->second : nullptr;
}

std::vector<std::string> Traces::Touched(const TraceSubject& subject) {
  MutexLock lock(store_mutex_);
  const auto trace = LoadLocked(subject);
  std::vector<std::string> paths;
  if (!trace) return paths;
  for (const Trace::File& file : trace->files) paths.push_back(file.path);
  return paths;
}

v1::TraceRecord Traces::Earlier(const TraceSubject& subject) {
  MutexLock lock(store_mutex_);
  const auto trace = LoadLocked(subject);
  return trace ? WriteTrace(*trace) : v1::TraceRecord();
}

std::optional<Trace> Traces::LoadLocked(const TraceSubject& subject) const {
  auto trace = store_.Load(subject.here);
  if (trace || subject.here == subject.key) return trace;
  trace = store_.Load(subject.key);
  if (trace) trace->partial = true;
  return trace;
}

void Traces::KeepLocked(const TraceSubject& subject, const Trace& trace, bool shared) {
  if (subject.here == subject.key) return MergeLocked(subject.key, store_.Load(subject.key), trace, shared);
  // A record of a warm node lacks what runs in other directories had already loaded there.
  auto earlier = trace.partial ? LoadLocked(subject) : store_.Load(subject.here);
  MergeLocked(subject.here, std::move(earlier), trace, shared);
  const Trace outside = TraceOutside(trace, subject.directory);
  if (!outside.ranges.empty()) MergeLocked(subject.key, store_.Load(subject.key), outside, shared);
}

void Traces::MergeLocked(const Digest& key, std::optional<Trace> earlier, const Trace& trace, bool shared) {
  if (!earlier) return store_.Save(key, trace);
  if (shared) return;
  const Trace merged = MergeTraces(*earlier, trace);
  if (merged.ranges != earlier->ranges || merged.files.size() != earlier->files.size() ||
      merged.partial != earlier->partial) {
    store_.Save(key, merged);
  }
}

Traces::PlannedPtr Traces::Plan(const Run& run) {
  std::optional<Trace> trace;
  if (run.elsewhere) {
    if (const auto kept = run.elsewhere->lock(); kept && !kept->earlier.ranges.empty()) trace = kept->earlier;
  } else {
    MutexLock lock(store_mutex_);
    trace = LoadLocked(run.subject);
  }
  const auto held = trees_->Find(run.tree);
  const auto rules = trees_->rules();
  if (!trace || !held || !rules) return nullptr;
  auto planned = std::make_shared<Planned>();
  v1::TraceTable& table = planned->table;
  table.set_tree(std::string(run.tree.view()));
  table.set_partial(trace->partial);
  // Maps files to this tree: leaves out those that it does not have or may not show, and cuts those that have become
  // shorter.
  std::vector<int> index(trace->files.size(), -1);
  std::vector<tree::FileVersion> versions(trace->files.size());
  for (size_t i = 0; i < trace->files.size(); ++i) {
    const std::string& path = trace->files[i].path;
    const auto entry = tree::Lookup(*held->snapshot, path);
    if (!entry || !entry->is_regular() || entry->size == 0 || rules->Denies(path, held->exposed)) continue;
    if (store::UnitBytes(entry->size) != store::UnitBytes(trace->files[i].size)) continue;
    versions[i] = entry->version();
    index[i] = table.file_size();
    v1::ResidentFile* file = table.add_file();
    file->set_path(path);
    file->mutable_version()->set_dev(versions[i].dev);
    file->mutable_version()->set_ino(versions[i].ino);
    file->mutable_version()->set_ctime_ns(versions[i].ctime_ns);
    file->mutable_version()->set_size(versions[i].size);
    if (auto known = digests_->Find(versions[i])) file->set_object_id(known->Encode());
  }
  std::vector<Trace::Range> ranges;
  for (Trace::Range range : trace->ranges) {
    if (index[range.file] < 0) continue;
    const uint64_t units = store::UnitCount(versions[range.file].size);
    if (range.first >= units) continue;
    range.count = std::min(range.count, units - range.first);
    ranges.push_back(range);
  }
  for (const auto& frame : PlanFrames(trace->files, ranges)) {
    FramePlan plan;
    for (const Trace::Range& range : frame) {
      table.add_range(static_cast<uint64_t>(index[range.file]));
      table.add_range(range.first);
      table.add_range(range.count);
      plan.parts.push_back({trace->files[range.file].path, versions[range.file], range.first, range.count});
    }
    plan.Name();
    table.add_frame(static_cast<uint32_t>(frame.size()));
    planned->frames.push_back(std::move(plan));
  }
  // The id of the burst is a digest of what its frames hold. It does not change when home learns the object id of a
  // file.
  std::string names;
  for (const FramePlan& frame : planned->frames) names += frame.id.view();
  planned->id = Sha256(names + std::string(run.tree.view()));
  table.set_id(std::string(planned->id.view()));
  return planned;
}

void Traces::KeepPlannedLocked(uint64_t job, const PlannedPtr& planned) {
  runs_.at(job).planned = planned;
  std::erase(planned_, job);
  planned_.push_back(job);
  for (auto it = planned_.begin(); planned_.size() > kMaxPlanned && it != planned_.end();) {
    const auto run = runs_.find(*it);
    if (run != runs_.end() && !run->second.report) {
      ++it;
      continue;
    }
    if (run != runs_.end()) run->second.planned.reset();
    it = planned_.erase(it);
  }
}

Result<v1::TraceTable> Traces::Table(const v1::ContentRequest::GetTrace& get) {
  Run run;
  {
    MutexLock lock(mutex_);
    const Known* known = FindLocked(get.job(), get.attempt(), get.token());
    if (known == nullptr) return NotYours();
    run = known->run;
  }
  const PlannedPtr planned = Plan(run);
  v1::TraceTable none;
  none.set_id(std::string(Digest().view()));
  if (!planned) return none;
  {
    MutexLock lock(mutex_);
    if (FindLocked(get.job(), get.attempt(), get.token()) != nullptr) KeepPlannedLocked(get.job(), planned);
  }
  const bool has = std::any_of(get.have().begin(), get.have().end(),
                               [&planned](const std::string& id) { return id == planned->id.view(); });
  if (!has) return planned->table;
  none.set_id(std::string(planned->id.view()));
  return none;
}

Result<v1::TraceFrame> Traces::Frame(const v1::ContentRequest::GetFrames& get, int n, Digest* name) {
  PlannedPtr planned;
  {
    MutexLock lock(mutex_);
    const Known* known = FindLocked(get.job(), get.attempt(), get.token());
    if (known == nullptr) return NotYours();
    planned = known->planned;
  }
  if (!planned || get.table() != planned->id.view()) return Error(Code::kAborted, "traces: not the table of this run");
  if (n >= get.frame_size() || get.frame(n) >= planned->frames.size()) {
    return Error(Code::kInvalid, "traces: no such frame");
  }
  *name = planned->frames[get.frame(n)].id;
  VRUN_ASSIGN(v1::TraceFrame frame, frames_.Get(planned->frames[get.frame(n)]));
  frame.set_index(get.frame(n));
  return frame;
}

Status Traces::Put(const v1::ContentRequest::PutTrace& put) {
  Run run;
  std::function<void(const v1::IoReport&)> told;
  {
    MutexLock lock(mutex_);
    Known* known = FindLocked(put.job(), put.attempt(), put.token());
    if (known == nullptr) return NotYours();
    if (known->report) return {};  // only the first report of a run counts
    run = known->run;
    known->report = put.report();
    told = std::exchange(known->told, nullptr);
  }
  if (run.elsewhere) {
    if (const auto kept = run.elsewhere->lock()) kept->put(put);
    return {};
  }
  auto trace = ReadTrace(put.record());
  if (!trace) {
    if (told) told(put.report());
    return Error(Code::kInvalid, "traces: the record is inconsistent");
  }
  std::erase_if(trace->ranges,
                [&](const Trace::Range& range) { return run.subject.Names(trace->files[range.file].path); });
  if (!trace->ranges.empty()) {
    MutexLock lock(store_mutex_);
    KeepLocked(run.subject, *trace, put.record().shared());
  }
  if (told) told(put.report());
  if (const PlannedPtr planned = Plan(run)) frames_.Prepare(planned->frames);
  return {};
}

}  // namespace vrun::home

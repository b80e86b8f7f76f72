// SPDX-License-Identifier: Apache-2.0
#include "vfs/live/tree/journaled_tree.h"

#include <cerrno>
#include <string>

#include "base/log.h"
#include "vfs/content/backend.h"
#include "vfs/content/file_cache.h"

namespace vrun::vfs {
namespace {

LiveSavedName SavedName(const LiveEntry& entry) {
  return {entry.node != nullptr ? entry.node->nodeid : 0, entry.cookie, entry.operation};
}

}  // namespace

TreeLock::~TreeLock() {
  const uint64_t told = tree_.WriteLocked();
  std::vector<LiveOperation> taken_back;
  if (tree_.journal_ == nullptr || !tree_.journal_->behind()) taken_back.swap(tree_.taken_back_);
  const auto dropped = tree_.TakeDropped();
  lock_.unlock();
  if (told > 0) tree_.stream_->Release(told);
}

Status JournaledTree::Begin(LiveJournal* journal, LiveStream* stream, LiveState* state, Backend& backend,
                            std::function<void(LiveFrame*)> in_checkpoint) {
  journal_ = journal;
  stream_ = stream;
  in_checkpoint_ = std::move(in_checkpoint);
  files_.SetJournal(journal);
  if (state != nullptr) VRUN_TRY(RestoreFrom(state, backend));
  const TreeLock lock(*this);
  Track();
  if (state == nullptr) {
    LiveState begin;
    begin.tree = home_tree_;
    frame_.Header(begin);
    Touch(root());
  }
  return {};
}

Status JournaledTree::RestoreFrom(LiveState* state, Backend& backend) {
  std::unordered_map<uint64_t, bool> wanted;  // by backing file
  for (const auto& [nodeid, file] : state->file_of) wanted[file] = true;
  for (const auto& [number, op] : state->operations) {
    if (op.content.file != 0) wanted[op.content.file] = true;
    if (op.content.aside != 0) wanted[op.content.aside] = true;
  }
  // Before any answer: the next server may find nothing else of what this one gives out.
  state->SkipNumbers();
  LiveFrame begun;
  begun.Header(*state);
  VRUN_TRY(journal_->Append(begun, LiveJournal::Of::kChange));
  VRUN_TRY(files_.Restore(state->next_file, [&](uint64_t id) { return wanted.contains(id); }));
  std::unordered_map<uint64_t, std::shared_ptr<LiveFile>> files;
  for (const auto& [id, saved] : state->files) {
    if (!wanted.contains(id)) continue;
    std::shared_ptr<FileContent> lower;
    if (saved.incomplete) lower = backend.files().Get(saved.lower, std::nullopt);
    if (auto file = LiveFile::Restore(files_, saved, std::move(lower))) files[id] = std::move(file);
  }
  for (auto& [number, op] : state->operations) {
    if (op.kind != LiveOperation::Kind::kPut) continue;
    const auto file = files.find(op.content.file);
    if (file != files.end()) op.version = file->second->RestoreVersion(op.content);
  }
  {
    MutexLock lock(mutex_);
    VRUN_TRY(Restore(state, files));
    told_changes_.emplace_back(state->next_operation - 1, changes());
  }
  stream_->Restore(std::move(state->operations), state->acknowledged, state->next_operation);
  return {};
}

void JournaledTree::SetHomeTreeLocked(const Digest& tree) {
  home_tree_ = tree;
  if (journal_ != nullptr) frame_.Header(NumbersLocked());
}

Digest JournaledTree::HomeTreeNow() const {
  MutexLock lock(mutex_);
  return home_tree_;
}

uint64_t JournaledTree::ChangesNow() const {
  MutexLock lock(mutex_);
  return changes();
}

size_t JournaledTree::SizeNow() const {
  MutexLock lock(mutex_);
  return size();
}

// --- under a lock ----------------------------------------------------------------------------------------------------

int JournaledTree::ChangeLocked(uint64_t bytes) {
  if (journal_ == nullptr) return 0;
  if (!journal_->TakesChange(bytes)) return ENOSPC;
  changing_ = true;
  return 0;
}

void JournaledTree::AddLocked(LiveOperation op) {
  op.number = stream_->last() + 1;
  frame_.Operation(op);
  ++told_;
  stream_->Add(std::move(op));
}

void JournaledTree::NothingToTellLocked() {
  if (journal_ != nullptr) ++told_;
}

bool JournaledTree::TakeBackOperationsLocked(uint64_t nodeid) {
  auto taken = stream_->TakeBack(nodeid);
  if (taken.empty()) return false;
  for (LiveOperation& op : taken) {
    frame_.Dropped(op.number);
    taken_back_.push_back(std::move(op));
  }
  NothingToTellLocked();
  return true;
}

uint64_t JournaledTree::ChangesInLocked(uint64_t operation) {
  while (!told_changes_.empty() && told_changes_.front().first <= operation) {
    included_changes_ = told_changes_.front().second;
    told_changes_.pop_front();
  }
  return included_changes_;
}

uint64_t JournaledTree::WriteLocked() {
  if (journal_ == nullptr) return 0;
  const bool changing = std::exchange(changing_, false);
  if (told_ > 0) told_changes_.emplace_back(stream_->last(), changes());
  Touched touched = TakeTouched();
  if (touched.empty() && frame_.empty()) return 0;
  const bool told = std::exchange(told_, 0) > 0;
  const uint64_t last = stream_->last();
  for (const uint64_t nodeid : touched.nodes) {
    LiveNode* node = Find(nodeid);
    if (node == nullptr) continue;
    if (told && node->change != 0) node->operation = last;
    frame_.Node(*node, node->file ? node->file->id() : 0);
  }
  for (const auto& [nodeid, name] : touched.names) {
    LiveNode* directory = Find(nodeid);
    if (directory == nullptr) continue;
    auto& entries = directory->directory->entries;
    const auto it = entries.find(name);
    if (it == entries.end()) {
      frame_.Name(nodeid, name, nullptr);
      continue;
    }
    LiveEntry& entry = it->second;
    if (told && entry.change != 0) entry.operation = last;
    const LiveSavedName saved = SavedName(entry);
    frame_.Name(nodeid, name, &saved);
  }
  for (const uint64_t nodeid : touched.places) {
    if (const LiveNode* directory = Find(nodeid)) frame_.Places(*directory);
  }
  for (const uint64_t nodeid : touched.gone) frame_.Gone(nodeid);
  const Status appended = journal_->Append(frame_, changing ? LiveJournal::Of::kChange : LiveJournal::Of::kReading);
  frame_.clear();
  return told && appended ? last : 0;  // a failed frame's operations go home after the next checkpoint
}

// --- room ------------------------------------------------------------------------------------------------------------

int JournaledTree::MakeRoom() {
  uint64_t lacks = 0;
  const int error = journal_->Reserve(&lacks);
  if (error == 0) return 0;
  (void)files_.GiveWay(error, lacks);
  Checkpoint();
  return journal_->Reserve(&lacks);
}

void JournaledTree::SeekRoom() {
  if (journal_ != nullptr && !journal_->TakesChange()) (void)MakeRoom();
}

LiveState JournaledTree::NumbersLocked() {
  LiveState numbers;
  numbers.tree = home_tree_;
  numbers.acknowledged = stream_->acknowledged();
  numbers.next_operation = stream_->last() + 1;
  numbers.next_node = next_id();
  numbers.next_cookie = next_cookie();
  numbers.next_file = files_.NextId();
  return numbers;
}

void JournaledTree::Checkpoint() {
  MutexLock alone(checkpoint_mutex_);
  if (!journal_->WantsCheckpoint()) return;
  LiveFrame all;
  uint64_t last = 0;
  {
    const TreeLock lock(*this);
    journal_->BeginCheckpoint();
    last = stream_->last();
    all.Header(NumbersLocked());
    ForEach([&](const LiveNode& node) {
      all.Node(node, node.file ? node.file->id() : 0);
      if (node.file) all.File(node.file->State());
    });
    ForEach([&](const LiveNode& node) {
      if (!node.is_directory()) return;
      if (!node.directory->places.empty()) all.Places(node);
      for (const auto& [name, entry] : node.directory->entries) {
        const LiveSavedName saved = SavedName(entry);
        all.Name(node.nodeid, name, &saved);
      }
    });
    stream_->ForEach([&](const LiveOperation& op) { all.Operation(op); });
    in_checkpoint_(&all);
  }
  if (const Status written = journal_->FinishCheckpoint(all); !written) {
    LogWarning("{}: the live view keeps its old journal", written.error().message());
  } else {
    stream_->Release(last);  // the journal lacked some of them
  }
}

}  // namespace vrun::vfs

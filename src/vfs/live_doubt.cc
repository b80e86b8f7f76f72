// SPDX-License-Identifier: Apache-2.0
#include "vfs/live_doubt.h"

#include <algorithm>

#include "base/clock.h"
#include "vfs/dispatcher.h"
#include "vfs/live_root.h"

namespace vrun::vfs {
namespace {

constexpr uint64_t kAbsentSeconds = 3;  // of more absent names than are noted

}  // namespace

LiveDoubt::LiveDoubt(TimerThread* timers, std::function<void()> ask) : timers_(timers), ask_(std::move(ask)) {}

void LiveDoubt::Begin() {
  std::lock_guard lock(mutex_);
  question_ = nullptr;
  doubted_ = true;
}

void LiveDoubt::End() {
  doubted_ = false;
  Answered();
}

void LiveDoubt::Answered() {
  std::shared_ptr<Question> question;
  {
    std::lock_guard lock(mutex_);
    question = std::exchange(question_, nullptr);
  }
  if (question) Close(*question);
}

bool LiveDoubt::Close(Question& question) {
  std::vector<std::function<void()>> waiting;
  {
    std::lock_guard lock(question.mutex);
    if (std::exchange(question.over, true)) return false;
    waiting.swap(question.waiting);
  }
  for (const auto& then : waiting) then();
  return true;
}

void LiveDoubt::After(const std::function<void()>& waits, std::function<void()> then) {
  if (!doubted() || !ask_) return then();
  std::shared_ptr<Question> question;
  bool asks = false;
  {
    std::lock_guard lock(mutex_);
    const int64_t now = MonotonicMicros();
    asks = !question_ || now - asked_ > kUnansweredMicros;
    if (asks) {
      question_ = std::make_shared<Question>();
      asked_ = now;
    }
    question = question_;
  }
  {
    std::lock_guard lock(question->mutex);
    if (!question->over) {
      waits();
      question->waiting.push_back(std::exchange(then, nullptr));
    }
  }
  if (then) then();
  if (!asks) return;
  timers_->After(kAnswerMicros, [question] { Close(*question); });
  ask_();
}

LiveDoubt::Noted LiveDoubt::NoteAbsent(uint64_t directory, std::string_view name) {
  std::lock_guard lock(mutex_);
  auto& names = absent_[directory];
  if (names.contains(std::string(name))) return Noted::kBefore;
  if (absent_count_ >= kMostAbsent) return Noted::kFull;
  names.emplace(name);
  ++absent_count_;
  return Noted::kNew;
}

LiveDoubt::Names LiveDoubt::AbsentLocked() const {
  Names all;
  for (const auto& [directory, names] : absent_) {
    for (const std::string& name : names) all.emplace_back(directory, name);
  }
  return all;
}

LiveDoubt::Names LiveDoubt::absent() const {
  std::lock_guard lock(mutex_);
  return AbsentLocked();
}

LiveDoubt::Names LiveDoubt::TakeAbsent() {
  std::lock_guard lock(mutex_);
  Names taken = AbsentLocked();
  absent_.clear();
  absent_count_ = 0;
  return taken;
}

// --- the file system -------------------------------------------------------------------------------------------------

void LiveRoot::Doubt(Dispatcher& dispatcher, bool doubt) {
  if (!doubt) {
    doubt_.End();
    return;
  }
  doubt_.Begin();  // first: what is answered from now on is not kept
  LiveNotices old;
  size_t absent = 0;
  {
    const TreeLock lock(*this);
    old.names = doubt_.TakeAbsent();
    absent = old.names.size();
    tree_.ForEach([&](const LiveNode& node) {
      if (node.lookups == 0 && node.nodeid != LiveTree::kRootId) return;
      for (const LiveName& link : node.names) old.names.emplace_back(link.parent->nodeid, link.name);
      (node.is_directory() ? old.listings : old.attributes).push_back(node.nodeid);
    });
  }
  // An expired name keeps its dentry, and what is mounted on it. Errors are names that the kernel has forgotten.
  for (const uint64_t nodeid : old.listings) dispatcher.InvalidateInode(nodeid);
  for (const uint64_t nodeid : old.attributes) dispatcher.InvalidateAttributes(nodeid);
  size_t told = 0;
  for (; told < old.names.size() && doubt_.doubted(); ++told) {
    dispatcher.ExpireEntry(old.names[told].first, old.names[told].second);
  }
  const TreeLock lock(*this);
  for (; told < absent; ++told) (void)doubt_.NoteAbsent(old.names[told].first, old.names[told].second);
  if (journal_ == nullptr || absent == 0) return;
  frame_.NoAbsent();
  for (const auto& [directory, name] : doubt_.absent()) frame_.Absent(directory, name);
}

uint64_t LiveRoot::AbsentSecondsLocked(uint64_t directory, std::string_view name) {
  if (doubt_.doubted()) return 0;
  switch (doubt_.NoteAbsent(directory, name)) {
    case LiveDoubt::Noted::kFull: return std::min(kAbsentSeconds, ValidSeconds());
    case LiveDoubt::Noted::kNew:
      if (journal_ != nullptr) frame_.Absent(directory, name);
      break;
    case LiveDoubt::Noted::kBefore: break;
  }
  return ValidSeconds();
}

void LiveRoot::AfterDoubt(Reply reply, Then then) {
  if (!doubt_.doubted()) return then(std::move(reply));
  const auto shared = std::make_shared<Reply>(std::move(reply));
  doubt_.After([&shared] { shared->Suspend(); },
               [gate = gate_, shared, then = std::move(then)] {
                 const Gate::Pass pass(gate.get());
                 if (pass) then(std::move(*shared));
               });
}

}  // namespace vrun::vfs

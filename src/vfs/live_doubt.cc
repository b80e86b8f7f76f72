// SPDX-License-Identifier: Apache-2.0
#include "vfs/live_doubt.h"

#include "base/clock.h"
#include "vfs/dispatcher.h"
#include "vfs/live_advance.h"
#include "vfs/live_root.h"

namespace vrun::vfs {

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

bool LiveDoubt::NoteAbsent(uint64_t directory, std::string_view name) {
  std::lock_guard lock(mutex_);
  auto& names = absent_[directory];
  if (names.contains(std::string(name))) return true;
  if (absent_count_ >= kMostAbsent) return false;
  names.emplace(name);
  ++absent_count_;
  return true;
}

std::vector<std::pair<uint64_t, std::string>> LiveDoubt::TakeAbsent() {
  std::vector<std::pair<uint64_t, std::string>> taken;
  std::lock_guard lock(mutex_);
  for (auto& [directory, names] : std::exchange(absent_, {})) {
    for (const std::string& name : names) taken.emplace_back(directory, name);
  }
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
  old.names = doubt_.TakeAbsent();
  {
    const TreeLock lock(*this);
    tree_.ForEach([&](const LiveNode& node) {
      if (node.lookups == 0 && node.nodeid != LiveTree::kRootId) return;
      for (const LiveName& link : node.names) old.names.emplace_back(link.parent->nodeid, link.name);
      (node.is_directory() ? old.listings : old.attributes).push_back(node.nodeid);
    });
  }
  // An expired name keeps its dentry, and what is mounted on it. Errors are names that the kernel has forgotten.
  for (const uint64_t nodeid : old.listings) dispatcher.InvalidateInode(nodeid);
  for (const uint64_t nodeid : old.attributes) dispatcher.InvalidateAttributes(nodeid);
  for (const auto& [parent, name] : old.names) {
    if (!doubt_.doubted()) return;
    dispatcher.ExpireEntry(parent, name);
  }
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

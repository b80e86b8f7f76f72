// SPDX-License-Identifier: Apache-2.0
#include "vfs/live/kernel/live_doubt.h"

#include "base/clock.h"

namespace vrun::vfs {

LiveDoubt::LiveDoubt(TimerThread* timers, std::function<void()> ask) : timers_(timers), ask_(std::move(ask)) {}

void LiveDoubt::Begin() {
  MutexLock lock(mutex_);
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
    MutexLock lock(mutex_);
    question = std::exchange(question_, nullptr);
  }
  if (question) Close(*question);
}

bool LiveDoubt::Close(Question& question) {
  std::vector<std::function<void()>> waiting;
  {
    MutexLock lock(question.mutex);
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
    MutexLock lock(mutex_);
    const int64_t now = MonotonicMicros();
    asks = !question_ || now - asked_ > kUnansweredMicros;
    if (asks) {
      question_ = std::make_shared<Question>();
      asked_ = now;
    }
    question = question_;
  }
  {
    MutexLock lock(question->mutex);
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
  MutexLock lock(mutex_);
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
  MutexLock lock(mutex_);
  return AbsentLocked();
}

LiveDoubt::Names LiveDoubt::TakeAbsentIn(uint64_t directory) {
  MutexLock lock(mutex_);
  Names taken;
  const auto it = absent_.find(directory);
  if (it == absent_.end()) return taken;
  for (const std::string& name : it->second) taken.emplace_back(directory, name);
  absent_count_ -= taken.size();
  absent_.erase(it);
  return taken;
}

LiveDoubt::Names LiveDoubt::TakeAbsent() {
  MutexLock lock(mutex_);
  Names taken = AbsentLocked();
  absent_.clear();
  absent_count_ = 0;
  return taken;
}

}  // namespace vrun::vfs

// SPDX-License-Identifier: Apache-2.0
#include "control/notify/sender.h"

#include <algorithm>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "control/notify/url.h"

namespace vrun::control::notify {
namespace {

constexpr int64_t kFirstPause = 2'000'000, kLongestPause = 600'000'000;

std::string ReceiverOf(const v1::Notification& message) {
  return message.mail().empty() ? message.webhook() : message.mail();
}

// Who does not answer for one of these messages does not for the others.
std::string ServerOf(const v1::Notification& message) {
  if (!message.mail().empty()) return "mail";
  const auto url = ParseUrl(message.webhook());
  return url ? url->origin : "?";
}

std::string NameOf(const v1::Notification& message) { return message.id() + " to " + Escape(ReceiverOf(message)); }

Outcome TryNow(const NotifySettings& settings, const v1::Notification& message, const std::atomic<bool>* ended) {
  return Deliver(settings, message, WallMicros(), ended);
}

}  // namespace

Sender::Sender(NotifySettings settings, Done done, Try attempt)
    : done_(std::move(done)),
      try_(attempt ? std::move(attempt) : Try(&TryNow)),
      settings_(std::make_shared<const NotifySettings>(std::move(settings))),
      thread_([this] { Run(false); }),
      silent_thread_([this] { Run(true); }) {}

Sender::~Sender() {
  {
    MutexLock lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  thread_.join();
  silent_thread_.join();
}

void Sender::Offer(std::vector<StoredMessage> messages) {
  if (messages.empty()) return;
  {
    MutexLock lock(mutex_);
    for (StoredMessage& message : messages) {
      if (!known_.insert(message.first).second) continue;
      Line& line = lines_[ReceiverOf(message.second)];
      line.server = ServerOf(message.second);
      line.messages.push_back(std::move(message));
    }
  }
  changed_.notify_all();
}

void Sender::Use(NotifySettings settings) {
  {
    MutexLock lock(mutex_);
    settings_ = std::make_shared<const NotifySettings>(std::move(settings));
    for (auto& [receiver, line] : lines_) line.pause.next_us = 0;
    for (auto& [server, pause] : silent_) pause.next_us = 0;
  }
  changed_.notify_all();
}

int64_t Sender::NextOf(const Line& line) const {
  const auto silent = silent_.find(line.server);
  return std::max(line.pause.next_us, silent == silent_.end() ? 0 : silent->second.next_us);
}

// Of those whose time has come the line that was tried longest ago, else the one whose time comes next.
Sender::Lines::iterator Sender::Due(int64_t now, bool silent) {
  std::erase_if(
      lines_, [now](const auto& entry) { return entry.second.messages.empty() && entry.second.pause.next_us <= now; });
  std::erase_if(silent_, [now](const auto& entry) { return entry.second.next_us + kLongestPause <= now; });
  const auto rank = [&](const Line& line) VRUN_REQUIRES(mutex_) {
    const int64_t next = NextOf(line);
    return std::pair(std::max(next, now), line.tried_us);
  };
  auto due = lines_.end();
  for (auto it = lines_.begin(); it != lines_.end(); ++it) {
    if (it->second.messages.empty() || silent_.contains(it->second.server) != silent) continue;
    if (due == lines_.end() || rank(it->second) < rank(due->second)) due = it;
  }
  return due;
}

void Sender::Run(bool silent) {
  MutexLock lock(mutex_);
  while (!ended_) {
    const int64_t now = MonotonicMicros();
    const auto due = Due(now, silent);
    if (due == lines_.end()) {
      changed_.wait(lock);
      continue;
    }
    if (const int64_t next = NextOf(due->second); next > now) {
      changed_.wait_for(lock, std::chrono::microseconds(next - now));
      continue;
    }
    const std::string receiver = due->first, server = due->second.server;
    StoredMessage message = std::move(due->second.messages.front());
    due->second.messages.pop_front();
    due->second.tried_us = now;  // so the others have their turn
    const std::shared_ptr<const NotifySettings> settings = settings_;
    lock.unlock();
    const Outcome outcome = try_(*settings, message.second, &ended_);
    if (!ended_) Settle(receiver, server, std::move(message), outcome, settings->most_micros);
    lock.lock();
  }
}

void Sender::Settle(const std::string& receiver, const std::string& server, StoredMessage message,
                    const Outcome& outcome, int64_t most_micros) {
  const auto& [row, what] = message;
  const bool mail = !what.mail().empty();
  const bool too_old = WallMicros() - what.made_us() > most_micros;
  const bool over = outcome.kind != Outcome::Kind::kAgain || too_old;
  if (over && outcome.kind != Outcome::Kind::kSent) {
    LogWarning("notification {} is dropped: {}{}", NameOf(what), outcome.why,
               too_old ? ", for " + std::to_string(most_micros / 3'600'000'000) + " hours" : "");
  }
  const uint64_t number = row;
  {
    MutexLock lock(mutex_);
    Line& line = lines_[receiver];
    line.server = server;
    if (outcome.kind == Outcome::Kind::kAgain) {
      Pause& pause = outcome.answered ? line.pause : silent_[server];
      if (pause.failures == 0) LogWarning("notification {}: {}: tries again", NameOf(what), outcome.why);
      const int64_t micros = kFirstPause << std::min(pause.failures, 12);
      pause.next_us = MonotonicMicros() + std::min(micros, kLongestPause);
      ++pause.failures;
    } else {
      line.pause = {};
    }
    if (outcome.kind == Outcome::Kind::kSent || outcome.answered) silent_.erase(server);
    changed_.notify_all();  // the server may be the other thread's now
    if (!over) {
      // Another one of the same receiver may go all the same.
      line.messages.push_back(std::move(message));
      return;
    }
    known_.erase(number);
  }
  done_(number, mail, outcome.kind == Outcome::Kind::kSent);
}

}  // namespace vrun::control::notify

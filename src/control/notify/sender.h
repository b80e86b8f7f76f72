// SPDX-License-Identifier: Apache-2.0
// Delivers messages on a thread of its own. What it is given is in the controller's database and stays there until it
// was delivered or given up, so that nothing is lost with this process; a message that was delivered just before a
// crash is delivered once more, with the same id.
//
// Each receiver, an address or a URL, has a line of its own. A message that its server does not take is tried again
// after 2 s, then after twice as long each time, up to 10 minutes; the others do not wait for it. If a server does not
// answer at all, the lines to it wait together. A message that is older than NotifySettings::most_micros is given up,
// with one line in the log.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/thread/mutex.h"
#include "control/notify/deliver.h"
#include "control/notify/settings.h"
#include "proto/notify.pb.h"

namespace vrun::control::notify {

// The number of the message's row, and the message.
using StoredMessage = std::pair<uint64_t, v1::Notification>;

class Sender {
 public:
  // Called on a thread of the sender: the message needs no more tries.
  using Done = std::function<void(uint64_t row, bool mail, bool sent)>;
  // One try; a test can replace it. Two at a time.
  using Try = std::function<Outcome(const NotifySettings&, const v1::Notification&, const std::atomic<bool>* ended)>;

  Sender(NotifySettings settings, Done done, Try attempt = nullptr);
  // Ends a try that is under way. `done` is not called any more.
  ~Sender();
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  // Any thread. Those that it has already are left out.
  void Offer(std::vector<StoredMessage> messages);
  // Any thread. From the next try on, which is at once.
  void Use(NotifySettings settings);

 private:
  struct Pause {
    int failures = 0;
    int64_t next_us = 0;  // monotonic
  };
  struct Line {
    std::string server;
    std::deque<StoredMessage> messages;
    Pause pause;
    int64_t tried_us = 0;  // monotonic
  };
  using Lines = std::map<std::string, Line>;

  // Of servers that have not answered the last time, or of the others: so that who hangs holds up nobody else.
  void Run(bool silent);
  int64_t NextOf(const Line& line) const VRUN_REQUIRES(mutex_);
  Lines::iterator Due(int64_t now, bool silent) VRUN_REQUIRES(mutex_);
  void Settle(const std::string& receiver, const std::string& server, StoredMessage message, const Outcome& outcome,
              int64_t most_micros);

  const Done done_;
  const Try try_;
  std::atomic<bool> ended_ = false;
  Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<const NotifySettings> settings_ VRUN_GUARDED_BY(mutex_);
  Lines lines_ VRUN_GUARDED_BY(mutex_);                          // by receiver
  std::map<std::string, Pause> silent_ VRUN_GUARDED_BY(mutex_);  // servers that did not answer
  std::set<uint64_t> known_ VRUN_GUARDED_BY(mutex_);  // rows of all messages in lines_ and of the present tries
  std::thread thread_, silent_thread_;
};

}  // namespace vrun::control::notify

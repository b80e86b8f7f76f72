// SPDX-License-Identifier: Apache-2.0
// Sends a live view's writes home and processes home's acknowledgements, on its own thread, because content is read
// from the node's disk. Pauses while home is away; home says where to continue.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/thread/mutex.h"
#include "vfs/live/data/live_stream.h"

namespace vrun::node {

class ContentSource;

class LiveSender {
 public:
  // `view`: its id at home. `home` must outlive it. `patience_micros`: if home acknowledges nothing for this long, it
  // is asked again where to continue; the time doubles with each try, up to 20 times the first.
  LiveSender(ContentSource* home, uint64_t view, int64_t patience_micros = 30'000'000);
  ~LiveSender();
  LiveSender(const LiveSender&) = delete;
  LiveSender& operator=(const LiveSender&) = delete;

  // For LiveViewOptions::on_ready. May outlive this.
  std::function<void()> ReadyCallback() const;
  // Call once. The stream must outlive this.
  void Start(vfs::LiveStream* stream);

 private:
  struct Shared;  // kept alive by callbacks of home and of the stream
  void Begin();
  void Run();
  struct Message {
    std::string bytes;     // serialized; empty: none
    uint64_t request = 0;  // the BeginWrites that it belongs to
    uint64_t begin = 0;    // the series that it belongs to
  };
  enum class Taken { kMessage, kNothing, kFailed };
  Taken Take(Message* message);  // takes the next message of the stream
  void AskAgainIfQuiet(MutexLock* lock);

  ContentSource* const home_;
  const uint64_t view_;
  const int64_t patience_micros_;
  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace vrun::node

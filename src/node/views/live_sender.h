// SPDX-License-Identifier: Apache-2.0
// Sends home what is written in a live view, and hears what home has of it, on a thread of its own: content is read
// from the node's disk. Where home is away it waits; home says where to go on.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "vfs/live/data/live_stream.h"

namespace vrun::node {

class ContentSource;

class LiveSender {
 public:
  // `view`: its id at home. `home` must outlive it. `patience_micros`: for so long home may say nothing of what it was
  // sent before it is asked anew from where to go on, then for twice as long, and so on up to 20 times.
  LiveSender(ContentSource* home, uint64_t view, int64_t patience_micros = 30'000'000);
  ~LiveSender();
  LiveSender(const LiveSender&) = delete;
  LiveSender& operator=(const LiveSender&) = delete;

  // For LiveViewOptions::on_ready. May outlive this.
  std::function<void()> ReadyCallback() const;
  // Once. The stream must outlive this.
  void Start(vfs::LiveStream* stream);

 private:
  struct Shared;  // what callbacks of home and of the stream keep alive
  void Begin();
  void Run();
  struct Message {
    std::string bytes;     // serialized; empty: none
    uint64_t request = 0;  // the BeginWrites that it belongs to
    uint64_t begin = 0;    // and the series
  };
  enum class Taken { kMessage, kNothing, kFailed };
  Taken Take(Message* message);  // the next of the stream
  void AskAgainIfQuiet(std::unique_lock<std::mutex>* lock);

  ContentSource* const home_;
  const uint64_t view_;
  const int64_t patience_micros_;
  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace vrun::node

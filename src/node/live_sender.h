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

#include "vfs/live_stream.h"

namespace vrun::node {

class ContentSource;

class LiveSender {
 public:
  // `view`: its id at home. `home` must outlive it.
  LiveSender(ContentSource* home, uint64_t view);
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
  enum class Taken { kMessage, kNothing, kFailed };
  // The next message of the stream, serialized, and the BeginWrites that it belongs to.
  Taken Take(std::string* message, uint64_t* request);

  ContentSource* const home_;
  const uint64_t view_;
  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace vrun::node

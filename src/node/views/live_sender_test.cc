// SPDX-License-Identifier: Apache-2.0
// Sends a live view's writes to an in-memory home that is slow, or has forgotten what it waits for.
#include "node/views/live_sender.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "base/files.h"
#include "node/testing/content_wire_testing.h"
#include "vfs/live/data/live_file.h"

namespace vrun::node {
namespace {

using vfs::LiveFile;
using vfs::LiveOperation;

constexpr uint64_t kPatienceMicros = 1'500'000;

class LiveSenderTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(::mkdtemp(top_.data()), nullptr);
    stream_.SetReady(sender_->ReadyCallback());
    auto handler = source_.Accept(std::make_unique<Wire::NodeEnd>(wire_));
    ASSERT_TRUE(handler);
    wire_->handler = *handler;
    source_.AllowToken(Wire::kHome, "secret", 7, 1);
    wire_->SayHello();
    sender_->Start(&stream_);
    request_ = Hear([](const v1::ContentRequest& asked) { return asked.has_begin_writes(); }).id();
    ASSERT_NE(request_, 0u);
  }
  void TearDown() override {
    sender_.reset();
    EXPECT_TRUE(RemoveTree(top_).has_value());
  }
  // Drops other messages that come before it. id 0: nothing came.
  v1::ContentRequest Hear(const std::function<bool(const v1::ContentRequest&)>& wanted, int millis = 20'000) {
    for (int i = 0; i < millis; ++i) {
      for (v1::ContentRequest next = wire_->Next(); next.ByteSizeLong() > 0; next = wire_->Next()) {
        if (wanted(next)) return next;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return {};
  }
  v1::ContentRequest::LiveWrite HearWrite(int millis = 20'000) {
    return Hear([](const v1::ContentRequest& asked) { return asked.has_write(); }, millis).write();
  }
  void Say(const v1::LiveAck& ack) {
    v1::ContentReply reply;
    reply.set_id(request_);
    *reply.mutable_live_ack() = ack;
    wire_->Say(reply);
  }
  void SayBegin(uint64_t begin, uint64_t window = 0) {
    v1::LiveAck ack;
    ack.mutable_ack();
    ack.set_begin(begin);
    ack.set_window(window);
    Say(ack);
  }
  void Add(LiveOperation operation) { stream_.Release(stream_.Add(std::move(operation))); }
  void AddDirectory(const std::string& path) {
    LiveOperation made;
    made.kind = LiveOperation::Kind::kDirectory;
    made.path = path;
    made.attributes.mode = S_IFDIR | 0755;
    Add(std::move(made));
  }

  std::string top_ = "/var/tmp/vrun-live-sender-XXXXXX";
  std::shared_ptr<Wire> wire_ = std::make_shared<Wire>();
  ContentSource source_{{.home_id = Wire::kHome, .home_deadline_micros = 60'000'000}, [] {}};
  vfs::LiveStream stream_{{}};
  std::unique_ptr<LiveSender> sender_ = std::make_unique<LiveSender>(&source_, 3, kPatienceMicros);
  uint64_t request_ = 0;
};

TEST_F(LiveSenderTest, AHomeThatSaysNothingIsAskedAgainFromWhere) {
  SayBegin(5);
  AddDirectory("/a");
  EXPECT_EQ(HearWrite().write().path(), "/a");
  const auto again = Hear([](const v1::ContentRequest& asked) { return asked.has_begin_writes(); });
  ASSERT_NE(again.id(), 0u);
  EXPECT_NE(again.id(), request_);
  request_ = again.id();
  SayBegin(6);
  const auto write = HearWrite();
  EXPECT_EQ(write.write().path(), "/a");
  EXPECT_EQ(write.begin(), 6u);
  // Nothing can be requested of what home already has.
  v1::LiveAck ack;
  ack.mutable_ack()->set_sequence(write.write().sequence());
  Say(ack);
  EXPECT_EQ(Hear([](const v1::ContentRequest& asked) { return asked.has_begin_writes(); }, 4'000).id(), 0u);
}

TEST_F(LiveSenderTest, NoMoreIsSentThanHomeHasRoomForUntilItHasTakenIt) {
  constexpr uint64_t kMessage = 1 << 20;
  auto files = vfs::LiveFiles::Open(top_);
  ASSERT_TRUE(files);
  auto file = LiveFile::Create(**files);
  ASSERT_TRUE(file);
  const std::string content(10 * kMessage, 'x');
  ASSERT_EQ((*file)->Write(0, content), 0);
  LiveOperation put;
  put.kind = LiveOperation::Kind::kPut;
  put.path = "/large";
  put.attributes.mode = S_IFREG | 0644;
  tree::FileVersion base;
  auto version = (*file)->Publish(&base);
  ASSERT_TRUE(version && *version);
  put.version = *version;
  put.content = put.version->content();
  SayBegin(5, 4 * kMessage);
  Add(std::move(put));
  const auto heard = [&](int millis) {
    uint64_t bytes = 0;
    for (auto write = HearWrite(millis); write.has_write(); write = HearWrite(millis)) {
      bytes += write.write().file_data().data().size();
    }
    return bytes;
  };
  EXPECT_EQ(heard(500), 4 * kMessage);
  v1::LiveAck ack;
  ack.mutable_ack();
  ack.set_taken(3 * kMessage);
  Say(ack);
  EXPECT_EQ(heard(500), 3 * kMessage);
  SayBegin(6);  // and without a limit
  EXPECT_EQ(heard(500), 10 * kMessage);
}

}  // namespace
}  // namespace vrun::node

// SPDX-License-Identifier: Apache-2.0
#include "node/gang/job_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>

#include "base/files.h"
#include "base/io/message_socket.h"

namespace vrun::node {
namespace {

class JobSocketTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = "/tmp/vrun-job-socket-XXXXXX";
    ASSERT_NE(nullptr, ::mkdtemp(directory_.data()));
    Result<UniqueFd> listener = ListenUnix(directory_ + "/s");
    ASSERT_TRUE(listener);
    ASSERT_TRUE(SetNonBlocking(listener->get(), true));
    socket_.Listen(*std::move(listener));
  }
  void TearDown() override {
    socket_.Close();
    static_cast<void>(RemoveTree(directory_));
  }
  UniqueFd Client(const std::string& request) {
    Result<UniqueFd> client = ConnectUnix(directory_ + "/s");
    EXPECT_TRUE(client && WriteAll(client->get(), request));
    return client ? *std::move(client) : UniqueFd();
  }
  void Turns() {
    for (int i = 0; i < 20; ++i) loop_.RunOnce(0);
  }
  static std::string Received(const UniqueFd& client) {
    char bytes[4096];
    const ssize_t n = ::recv(client.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    return n < 0 ? "(nothing)" : std::string(bytes, static_cast<size_t>(n));
  }

  EventLoop loop_;
  std::string directory_;
  int saved_ = 0;
  struct Asked {
    uint64_t connection;
    std::string pod;
    v1::ExecInPod exec;
  };
  std::vector<Asked> asked_;
  JobSocket socket_{&loop_,
                    {.on_saved = [this] { ++saved_; },
                     .members = [] { return std::string("{}"); },
                     .on_exec =
                         [this](uint64_t connection, const std::string& pod, v1::ExecInPod exec) {
                           asked_.push_back({connection, pod, std::move(exec)});
                         }}};
};

TEST_F(JobSocketTest, LinesMayComeInPartsAndTheLastOneWithoutItsEnd) {
  UniqueFd client = Client("SAV");
  Turns();
  EXPECT_EQ(0, saved_);
  ASSERT_TRUE(WriteAll(client.get(), "ED=1\nSAVED=1"));
  Turns();
  EXPECT_EQ(1, saved_);
  ::shutdown(client.get(), SHUT_WR);
  Turns();
  EXPECT_EQ(2, saved_);
  EXPECT_EQ("", Received(client)) << "closed";
}

TEST_F(JobSocketTest, WhatAProgramSaidBeforeItEndedIsNotLost) {
  Client("SAVED=1\n");
  socket_.Drain();
  EXPECT_EQ(1, saved_);
}

TEST_F(JobSocketTest, AProcessIsAskedForAndAnswered) {
  UniqueFd client = Client("MEMBERS=1\nEXEC=worker-1\nARG=sh\nARG=a\\nb\\\\n\nENV=A=b=c\nDIRECTORY=/x\nSTART=1\n");
  ::shutdown(client.get(), SHUT_WR);
  Turns();
  ASSERT_EQ(1u, asked_.size());
  EXPECT_EQ("worker-1", asked_[0].pod);
  ASSERT_EQ(2, asked_[0].exec.argv_size());
  EXPECT_EQ("a\nb\\n", asked_[0].exec.argv(1));
  EXPECT_EQ("A=b=c", asked_[0].exec.environment(0));
  EXPECT_EQ("/x", asked_[0].exec.directory());
  EXPECT_EQ("MEMBERS={}\n", Received(client));
  EXPECT_EQ("(nothing)", Received(client)) << "it waits for the end";
  socket_.Answer(asked_[0].connection, "EXITED", "3");
  EXPECT_EQ("EXITED=3\n", Received(client));
  EXPECT_EQ("", Received(client));
}

TEST_F(JobSocketTest, WhoHasAskedForTheMembersIsToldOfChanges) {
  UniqueFd asks = Client("MEMBERS=1\n"), other = Client("SAVED=1\n"), gone = Client("MEMBERS=1\n");
  Turns();
  EXPECT_EQ("MEMBERS={}\n", Received(asks));
  gone.Reset();
  Turns();
  socket_.TellMembers();
  EXPECT_EQ("MEMBERS={}\n", Received(asks));
  EXPECT_EQ("(nothing)", Received(other));
}

TEST_F(JobSocketTest, NonsenseIsAnsweredAndTooMuchIsCutOff) {
  UniqueFd client = Client("hello\nARG=x\nSTART=1\n");
  Turns();
  EXPECT_EQ("PROBLEM=not understood: hello\nPROBLEM=not understood: ARG=x\nPROBLEM=not understood: START=1\n",
            Received(client));
  UniqueFd flood = Client("EXEC=1\n");
  ASSERT_TRUE(SetNonBlocking(flood.get(), true));
  const std::string line = "ARG=" + std::string(60000, 'x') + "\n";
  bool closed = false;
  for (int i = 0; i < 1000 && !closed; ++i) {
    closed = ::send(flood.get(), line.data(), line.size(), MSG_NOSIGNAL) < 0 && errno == EPIPE;
    Turns();
  }
  EXPECT_TRUE(closed);
}

TEST_F(JobSocketTest, AClientThatIsGoneIsForgotten) {
  Client("EXEC=0\nARG=true\nSTART=1\n");
  Turns();
  ASSERT_EQ(1u, asked_.size());
  socket_.Answer(asked_[0].connection, "EXITED", "0");
  socket_.Answer(12345, "EXITED", "0");
  Turns();
}

TEST(Value, RoundTrip) {
  for (const std::string& value : {std::string("plain"), std::string("a\nb\\c\\n"), std::string(), std::string("\\")}) {
    EXPECT_EQ(value, UnescapeValue(EscapeValue(value)));
    EXPECT_EQ(std::string::npos, EscapeValue(value).find('\n'));
  }
}

}  // namespace
}  // namespace vrun::node

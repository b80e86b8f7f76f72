// SPDX-License-Identifier: Apache-2.0
// What a node that watches the tree is sent.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>

#include "base/clock.h"
#include "home/testing/content_testing.h"
#include "tree/codec.h"

namespace vrun::home {
namespace {

class WatchTreeTest : public ContentTest {
 protected:
  v1::ContentRequest Watch(const std::string& have = "") {
    v1::ContentRequest request;
    request.set_id(++next_id_);
    request.mutable_watch_tree()->set_have(have);
    session_->OnMessage(request.SerializeAsString());
    // It joins the board when its request is processed; requests are processed in order.
    v1::ContentRequest root;
    root.set_id(++next_id_);
    root.mutable_get_root()->set_tree(std::string(snapshot_->id.view()));
    (void)Ask(root);
    return request;
  }
  // As home's follower does after each change.
  void Change() {
    Rescan();
    server_->tree_board().Tell();
  }
  // The objects and the tree sent next, after `skip` answers.
  std::vector<v1::ContentReply> Told(uint64_t id, size_t trees) {
    std::vector<v1::ContentReply> parts;
    for (int i = 0; i < 2000; ++i) {
      parts = stream_.All(id);
      size_t told = 0;
      for (const auto& part : parts) told += part.has_tree_now();
      if (told >= trees) break;
      ::usleep(5'000);
    }
    return parts;
  }
  static std::vector<tree::DirectoryPtr> Objects(const v1::ContentReply& reply) {
    std::vector<tree::DirectoryPtr> objects;
    uint64_t total = 0;
    for (const uint32_t raw : reply.pack().raw_bytes()) total += raw;
    const std::string all = Unpack(reply.pack().encoded(), reply.pack().zstd(), total);
    size_t at = 0;
    for (const uint32_t raw : reply.pack().raw_bytes()) {
      auto object = tree::Directory::Parse(all.substr(at, raw));
      EXPECT_TRUE(object);
      if (object) objects.push_back(*object);
      at += raw;
    }
    return objects;
  }
};

TEST_F(WatchTreeTest, EachChangeComesWithTheDirectoriesThatItChanged) {
  root_.Put("a/b/f", "one");
  root_.Put("c/g", "two");
  Serve();
  const Digest first = snapshot_->id;
  const auto watch = Watch(std::string(first.view()));
  auto told = Told(watch.id(), 1);
  ASSERT_EQ(told.size(), 1u);  // at once; no objects, since the node has them
  EXPECT_EQ(told[0].tree_now().tree(), first.view());
  EXPECT_FALSE(told[0].last());
  root_.Put("a/b/new", "three");
  Change();
  told = Told(watch.id(), 2);
  ASSERT_EQ(told.size(), 3u);
  EXPECT_EQ(told[2].tree_now().tree(), snapshot_->id.view());
  EXPECT_TRUE(tree::DecodeRoot(told[2].tree_now().root(), snapshot_->id));
  EXPECT_GT(told[2].tree_now().serial(), told[0].tree_now().serial());
  const auto objects = Objects(told[1]);
  ASSERT_EQ(objects.size(), 3u);  // the root, a, a/b; not c
  EXPECT_EQ(objects[0]->digest(), snapshot_->directory->digest());
  EXPECT_LT(objects[2]->Find("new"), objects[2]->size());
}

TEST_F(WatchTreeTest, OfATreeThatHomeDoesNotKnowNothingIsAssumed) {
  root_.Put("a/f", "one");
  Serve();
  const auto watch = Watch(std::string(Sha256("another home's").view()));
  const auto told = Told(watch.id(), 1);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].tree_now().tree(), snapshot_->id.view());
}

TEST_F(WatchTreeTest, ALinkThatIsBehindIsToldOfTheNewestOnly) {
  root_.Put("f", "0");
  Serve();
  const auto watch = Watch(std::string(snapshot_->id.view()));
  (void)Told(watch.id(), 1);
  stream_.Hold();
  // Fills the stream: new states wait.
  const std::string large = RandomBytes(8 << 20, 1);
  root_.Put("large", large);
  Change();
  (void)Told(watch.id(), 2);
  (void)Ask(RangeRequest("/large", VersionOf("/large"), 0, 4 << 20));
  for (int i = 1; i <= 20; ++i) {
    root_.Put("f", std::to_string(i));
    Change();
  }
  const Digest newest = snapshot_->id;
  const size_t before = stream_.All(watch.id()).size();
  stream_.LetGo();
  session_->OnWritable();
  std::vector<v1::ContentReply> told;
  for (int i = 0; i < 2000; ++i) {
    told = stream_.All(watch.id());
    if (told.back().has_tree_now() && told.back().tree_now().tree() == newest.view()) break;
    ::usleep(5'000);
  }
  EXPECT_EQ(told.back().tree_now().tree(), newest.view());
  EXPECT_LE(told.size(), before + 2);
}

TEST_F(WatchTreeTest, WhoGoesInTheMiddleOfALargeTreeAndComesAgainIsToldOfIt) {
  Serve();
  for (int round = 0; round < 3; ++round) {
    const auto watch = Watch(std::string(snapshot_->id.view()));
    ASSERT_EQ(Told(watch.id(), 1).size(), 1u) << round;
    for (int i = 0; i < 10'000; ++i) {
      root_.Put(std::to_string(round) + "/" + std::string(200, 'm') + std::to_string(i), "");
    }
    Change();
    while (stream_.All(watch.id()).size() == 1) ::usleep(100);
    v1::ContentRequest cancel;  // usually while a part is being made
    cancel.mutable_cancel()->set_id(watch.id());
    session_->OnMessage(cancel.SerializeAsString());
  }
}

TEST_F(WatchTreeTest, WhoGoesIsToldNothingMore) {
  root_.Put("f", "0");
  Serve();
  const auto watch = Watch();
  ASSERT_EQ(Told(watch.id(), 1).size(), 1u);
  v1::ContentRequest cancel;
  cancel.mutable_cancel()->set_id(watch.id());
  session_->OnMessage(cancel.SerializeAsString());
  server_->tree_board().Tell();
  session_->Close();
  server_->tree_board().Tell();
  EXPECT_EQ(stream_.All(watch.id()).size(), 1u);
}

TEST_F(WatchTreeTest, ANodeWithoutAJobIsToldNothingUntilThereIsOne) {
  root_.Put("f", "0");
  Serve();
  v1::ContentRequest request;
  request.set_id(++next_id_);
  request.mutable_watch_tree();
  session_->OnMessage(request.SerializeAsString());
  ASSERT_EQ(Told(request.id(), 1).size(), 1u);
  session_->SetServes(false);
  for (const char* text : {"1", "22"}) {
    root_.Put("f", text);
    Change();
  }
  EXPECT_EQ(stream_.All(request.id()).size(), 1u);
  session_->SetServes(true);
  const auto told = Told(request.id(), 2);
  EXPECT_EQ(told.back().tree_now().tree(), std::string(snapshot_->id.view()));
}

TEST_F(WatchTreeTest, WhatIsIncludedIsWhatWasAppliedBeforeTheTreeWasLookedAt) {
  root_.Put("f", "0");
  Serve();
  v1::ContentRequest request;
  request.set_id(++next_id_);
  request.mutable_watch_tree()->set_view(7);
  session_->OnMessage(request.SerializeAsString());
  auto told = Told(request.id(), 1);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].tree_now().included(), 0u);
  uint64_t applied = 5;
  server_->tree_board().SetMark([&applied] { return std::map<uint64_t, uint64_t>{{7, applied}, {8, 99}}; });
  const auto mark = server_->tree_board().Mark();
  applied = 6;
  root_.Put("f", "1");
  Rescan();
  server_->tree_board().Tell(mark);
  told = Told(request.id(), 2);
  EXPECT_EQ(told.back().tree_now().included(), 5u);
}

TEST_F(WatchTreeTest, WhoWantsPingsGetsThemAndSaysWhatItShows) {
  root_.Put("f", "0");
  Serve();
  int looks = 0;
  server_->tree_board().SetLook([&] { ++looks; });
  (void)Watch();
  EXPECT_EQ(session_->shown_micros(), 0);  // the node will never report it
  v1::ContentRequest request;
  request.set_id(++next_id_);
  request.mutable_watch_tree()->set_pings(true);
  session_->OnMessage(request.SerializeAsString());
  ASSERT_EQ(Told(request.id(), 1).size(), 1u);
  const int64_t joined = session_->shown_micros();
  EXPECT_GT(joined, 0);
  server_->tree_board().Ping();
  EXPECT_TRUE(stream_.All(request.id()).back().has_ping());
  v1::ContentRequest heard;
  heard.mutable_heard()->set_look(true);
  session_->OnMessage(heard.SerializeAsString());
  EXPECT_EQ(looks, 1);
  EXPECT_EQ(session_->shown_micros(), joined);
  ::usleep(1'000);
  heard.mutable_heard()->set_shown(true);
  session_->OnMessage(heard.SerializeAsString());
  EXPECT_GT(session_->shown_micros(), joined);
}

TEST_F(WatchTreeTest, ATreeThatNobodyKeptCurrentIsNotTold) {
  root_.Put("f", "0");
  Serve();
  std::atomic<bool> wanted = false;
  server_->tree_board().SetWanted([&](bool is) { wanted = is; });
  const auto watch = Watch();
  for (int i = 0; i < 10'000 && !wanted; ++i) ::usleep(1'000);  // the session has a thread of its own
  ASSERT_TRUE(wanted);
  EXPECT_TRUE(stream_.All(watch.id()).empty());
  root_.Put("f", "1");
  Change();
  const auto told = Told(watch.id(), 1);
  ASSERT_FALSE(told.empty());
  EXPECT_EQ(told.back().tree_now().tree(), snapshot_->id.view());
  server_->tree_board().SetWanted(nullptr);
}

class LentFilesTest : public WatchTreeTest {
 protected:
  void SetUp() override {
    data_ = RandomBytes(4 << 20, 7);
    root_.Put("big", data_);
    Serve();
  }
  // The second half, requested by the version that the job saw.
  std::vector<v1::ContentReply> Rest() { return Ask(RangeRequest("/big", version_, 2 << 20, 2 << 20)); }
  std::string FirstHalf() {
    version_ = VersionOf("/big");
    return Content(Ask(RangeRequest("/big", version_, 0, 2 << 20)));
  }
  std::string RestContent() { return ContentOf(Rest()); }
  static std::string ContentOf(const std::vector<v1::ContentReply>& parts) {
    std::string all;
    for (const auto& part : parts) {
      EXPECT_TRUE(part.has_units()) << part.error().message();
      for (const auto& piece : part.units().piece()) all += Unpack(piece.data(), piece.zstd(), piece.raw_bytes());
    }
    return all;
  }

  std::string data_;
  tree::FileVersion version_;
};

TEST_F(LentFilesTest, WhatALiveViewReadsIsReadToItsEndThoughItsNameIsGone) {
  (void)Watch();
  ASSERT_EQ(FirstHalf(), data_.substr(0, 2 << 20));
  ASSERT_EQ(::unlink((root_.path() + "/big").c_str()), 0);
  Change();
  EXPECT_EQ(RestContent(), data_.substr(2 << 20));
  root_.Put("big", "another");
  Change();
  EXPECT_EQ(RestContent(), data_.substr(2 << 20));
}

TEST_F(LentFilesTest, ReplacedByRename) {
  (void)Watch();
  ASSERT_EQ(FirstHalf(), data_.substr(0, 2 << 20));
  root_.Put("next", RandomBytes(4 << 20, 8));
  ASSERT_EQ(::rename((root_.path() + "/next").c_str(), (root_.path() + "/big").c_str()), 0);
  EXPECT_EQ(RestContent(), data_.substr(2 << 20));  // also before home has refreshed its tree
  Change();
  EXPECT_EQ(RestContent(), data_.substr(2 << 20));
}

TEST_F(LentFilesTest, ASmallFileOfWhichAPartIsAskedForIsHeldAndAWholeOneIsNot) {
  const std::string data = RandomBytes(256 << 10, 9);
  root_.Put("small", data);
  Change();
  (void)Watch();
  const tree::FileVersion version = VersionOf("/small");
  (void)Ask(RangeRequest("/small", version, 0, data.size()));
  EXPECT_EQ(server_->lent().size(), 0u);
  (void)Ask(RangeRequest("/small", version, 64 << 10, 64 << 10));
  EXPECT_EQ(server_->lent().size(), 1u);
  ASSERT_EQ(::unlink((root_.path() + "/small").c_str()), 0);
  Change();
  EXPECT_EQ(ContentOf(Ask(RangeRequest("/small", version, 128 << 10, 128 << 10))), data.substr(128 << 10));
}

TEST_F(LentFilesTest, AFileIsHeldFromTheMomentTheNodeAsksForThatBeforeAnythingOfItWasAskedFor) {
  (void)Watch();
  version_ = VersionOf("/big");
  EXPECT_EQ(ContentOf(Ask(RangeRequest("/big", version_, 0, 0))), "");
  EXPECT_EQ(server_->lent().size(), 1u);
  root_.Put("next", RandomBytes(4 << 20, 8));
  ASSERT_EQ(::rename((root_.path() + "/next").c_str(), (root_.path() + "/big").c_str()), 0);
  Change();
  EXPECT_EQ(RestContent(), data_.substr(2 << 20));
  EXPECT_EQ(ErrorOf(Ask(RangeRequest("/big", {1, 2, 3, 4 << 20}, 0, 0))), Code::kAborted) << "another version";
}

TEST_F(LentFilesTest, WrittenInPlaceIsAnErrorNeverAMixture) {
  (void)Watch();
  ASSERT_EQ(FirstHalf(), data_.substr(0, 2 << 20));
  ::usleep(20'000);  // file times have the resolution of a tick
  const UniqueFd fd(::open((root_.path() + "/big").c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_EQ(::pwrite(fd.get(), "x", 1, 3 << 20), 1);
  EXPECT_EQ(ErrorOf(Rest()), Code::kAborted);
  ASSERT_EQ(::unlink((root_.path() + "/big").c_str()), 0);
  Change();
  EXPECT_EQ(ErrorOf(Rest()), Code::kAborted);
}

TEST_F(LentFilesTest, OnlyForLiveViewsAndUntilTheyEnd) {
  ASSERT_EQ(FirstHalf(), data_.substr(0, 2 << 20));
  EXPECT_EQ(server_->lent().size(), 0u);
  (void)Watch();
  (void)FirstHalf();
  EXPECT_EQ(server_->lent().size(), 1u);
  server_->lent().Age(MonotonicMicros());
  EXPECT_EQ(server_->lent().size(), 1u);
  server_->lent().Drop(0);  // the watch belongs to no view
  EXPECT_EQ(server_->lent().size(), 0u);
  (void)FirstHalf();
  server_->lent().Age(MonotonicMicros() + LentFiles::kUnusedMicros + 1);
  EXPECT_EQ(server_->lent().size(), 0u);
}

}  // namespace
}  // namespace vrun::home

// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <numeric>
#include <thread>

#include "base/files.h"
#include "home/testing/content_testing.h"
#include "store/format/statement.h"
#include "store/testing/names_testing.h"
#include "tree/codec.h"
#include "tree/diff.h"

namespace vrun::home {
namespace {

TEST_F(ContentTest, WhatIsPassedOnIsSignedAndDigestsComeWithoutData) {
  const std::string content = RandomBytes(200'000, 7);
  root_.Put("f", content);
  Serve();
  v1::Peers peers;
  (void)*server_->peers().Join({"n1", "1:1", "p"}, [&](const v1::Peers& told) { peers = told; });
  const tree::FileVersion version = VersionOf("/f");
  auto request = RangeRequest("/f", version, 0, content.size());
  EXPECT_TRUE(Ask(request)[0].units().signature().empty());
  std::string digests[2];
  for (const bool only : {false, true}) {
    request = RangeRequest("/f", version, 0, content.size());
    request.mutable_get_range()->set_sign(true);
    request.mutable_get_range()->set_digests_only(only);
    const auto parts = Ask(request);
    ASSERT_EQ(parts.size(), 1u);
    const v1::Units& units = parts[0].units();
    for (const auto& piece : units.piece()) digests[only] += piece.digests();
    EXPECT_EQ(units.piece(0).data().empty(), only);
    EXPECT_TRUE(VerifySignature(peers.public_key(),
                                store::UnitsStatement("", version, 0, digests[only], units.object_id()),
                                units.signature()));
  }
  EXPECT_EQ(digests[0], digests[1]);
}

TEST_F(ContentTest, SmallFilesCarryTheirObjectId) {
  std::string text = "hello\n";
  std::string big = RandomBytes(300'000, 1);
  root_.Put("a", text);
  root_.Put("b", big);
  root_.Put("empty", "");
  Serve();
  std::string id;
  EXPECT_EQ(Content(Ask(RangeRequest("/a", VersionOf("/a"), 0, text.size())), &id), text);
  EXPECT_EQ(id, store::FinalId(text).Encode());
  EXPECT_EQ(Content(Ask(RangeRequest("/b", VersionOf("/b"), 0, big.size())), &id), big);
  EXPECT_EQ(id, store::FinalId(big).Encode());
  EXPECT_EQ(Content(Ask(RangeRequest("/empty", VersionOf("/empty"), 0, 0)), &id), "");
  EXPECT_EQ(id, store::FinalId("").Encode());
}

TEST_F(ContentTest, LargeFilesComeInPartsAndAreNamedWhenAllUnitsAreKnown) {
  std::string big = RandomBytes(5'000'000, 2);
  root_.Put("big", big);
  Serve();
  std::string id;
  auto parts = Ask(RangeRequest("/big", VersionOf("/big"), 0, 2 << 20));
  EXPECT_EQ(parts.size(), 2u);
  EXPECT_EQ(Content(parts, &id), big.substr(0, 2 << 20));
  EXPECT_EQ(id, "");
  v1::ContentRequest rest = RangeRequest("/big", VersionOf("/big"), 2 << 20, big.size() - (2 << 20));
  parts = Ask(rest);
  std::string content;
  for (auto& part : parts) {
    for (auto& piece : part.units().piece()) content += Unpack(piece.data(), piece.zstd(), piece.raw_bytes());
  }
  EXPECT_EQ(content, big.substr(2 << 20));
  EXPECT_EQ(parts.back().units().object_id(), store::FinalId(big).Encode());
}

TEST_F(ContentTest, TextIsCompressedRandomBytesAreNot) {
  std::string text;
  while (text.size() < 200'000) text += "the same line again and again\n";
  root_.Put("text", text);
  root_.Put("noise", RandomBytes(200'000, 3));
  Serve();
  auto parts = Ask(RangeRequest("/text", VersionOf("/text"), 0, text.size()));
  EXPECT_TRUE(parts[0].units().piece(0).zstd());
  EXPECT_LT(parts[0].ByteSizeLong(), text.size() / 4);
  EXPECT_EQ(Content(parts), text);
  EXPECT_FALSE(Ask(RangeRequest("/noise", VersionOf("/noise"), 0, 200'000))[0].units().piece(0).zstd());
}

TEST_F(ContentTest, AChangedFileIsAnErrorThatNamesIt) {
  root_.Put("f", "before");
  Serve();
  auto version = VersionOf("/f");
  root_.Put("f", "after!");
  auto parts = Ask(RangeRequest("/f", version, 0, 6));
  EXPECT_EQ(ErrorOf(parts), Code::kAborted);
  EXPECT_THAT(parts.back().error().message(), testing::HasSubstr("/f"));
  // The new version is not served either if the tree does not have it.
  EXPECT_EQ(ErrorOf(Ask(RangeRequest("/f", VersionOf("/f"), 0, 6))), Code::kAborted);
}

TEST_F(ContentTest, AFileThatChangesWhileItIsReadIsNeverAMixture) {
  constexpr size_t kSize = 24 << 20;
  root_.Put("f", std::string(kSize, 'a'));
  Serve();
  auto version = VersionOf("/f");
  v1::ContentRequest request = RangeRequest("/f", version, 0, kSize);
  session_->OnMessage(request.SerializeAsString());
  ASSERT_TRUE(stream_.WaitForReplies(2));
  auto fd = OpenFile(root_ / "f", O_WRONLY);
  ASSERT_TRUE(fd);
  ASSERT_TRUE(PwriteAll(fd->get(), std::string(kSize, 'b'), 0));
  auto parts = stream_.Answer(request.id());
  bool failed = parts.back().has_error();
  for (auto& part : parts) {
    for (auto& piece : part.units().piece()) {
      EXPECT_EQ(Unpack(piece.data(), piece.zstd(), piece.raw_bytes()), std::string(piece.raw_bytes(), 'a'));
    }
  }
  EXPECT_TRUE(failed || parts.size() == kSize / (1 << 20));
}

TEST_F(ContentTest, AHomeWithoutDescriptorsAnswersWhenItHasOne) {
  root_.Put("a", "content");
  Serve();
  const auto request = RangeRequest("/a", VersionOf("/a"), 0, 7);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const int next = ::dup(0);  // all lower numbers are in use
  ::close(next);
  const rlimit low{static_cast<rlim_t>(next), limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  session_->OnMessage(request.SerializeAsString());
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_TRUE(stream_.All(request.id()).empty());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  const auto answer = stream_.Answer(request.id());
  ASSERT_EQ(answer.size(), 1u);
  EXPECT_FALSE(answer[0].has_error()) << answer[0].error().message();
  EXPECT_EQ(Content(answer), "content");
}

TEST_F(ContentTest, OnlyRegularFilesOfTheTreeAreServed) {
  root_.Put("dir/real", "x");
  ASSERT_EQ(::mkfifo((root_ / "fifo").c_str(), 0600), 0);
  ASSERT_EQ(::symlink("real", (root_ / "dir/link").c_str()), 0);
  ASSERT_EQ(::symlink("dir", (root_ / "alias").c_str()), 0);
  Serve();
  // Opening it would block for ever.
  EXPECT_EQ(ErrorOf(Ask(RangeRequest("/fifo", VersionOf("/fifo"), 0, 1))), Code::kAborted);
  tree::FileVersion fifo = VersionOf("/fifo");
  fifo.size = 1;
  EXPECT_EQ(ErrorOf(Ask(RangeRequest("/fifo", fifo, 0, 1))), Code::kAborted);
  EXPECT_EQ(ErrorOf(Ask(RangeRequest("/dir/link", VersionOf("/dir/real"), 0, 1))), Code::kAborted);
  EXPECT_EQ(ErrorOf(Ask(RangeRequest("/alias/real", VersionOf("/dir/real"), 0, 1))), Code::kAborted);
  EXPECT_EQ(ErrorOf(Ask(RangeRequest("/../etc/passwd", {1, 2, 3, 4}, 0, 4))), Code::kAborted);
  EXPECT_EQ(ErrorOf(Ask(RangeRequest("", {1, 2, 3, 4}, 0, 4))), Code::kAborted);
  EXPECT_EQ(Content(Ask(RangeRequest("/dir/real", VersionOf("/dir/real"), 0, 1))), "x");
}

TEST_F(ContentTest, SecretsAreNeitherInTheTreeNorServed) {
  root_.Put("root/.ssh/id_rsa", "secret");
  root_.Put("root/.ssh/id_rsa.pub", "public");
  root_.Put("home/ann/.aws/credentials", "secret");
  Serve();
  EXPECT_FALSE(tree::Lookup(*snapshot_, "/root/.ssh/id_rsa"));
  EXPECT_TRUE(tree::Lookup(*snapshot_, "/root/.ssh/id_rsa.pub"));
  EXPECT_FALSE(tree::Lookup(*snapshot_, "/home/ann/.aws"));
  EXPECT_EQ(ErrorOf(Ask(RangeRequest("/root/.ssh/id_rsa", VersionOf("/root/.ssh/id_rsa"), 0, 6))), Code::kDenied);
  // A key created after the rules, even if a tree names it.
  root_.Put("root/.ssh/id_new", "secret");
  tree::ScanOptions everything;
  everything.root = root_.path();
  snapshot_ = *tree::Scan(everything);
  auto pin = trees_.Add(snapshot_, {});
  EXPECT_TRUE(tree::Lookup(*snapshot_, "/root/.ssh/id_new"));
  EXPECT_EQ(ErrorOf(Ask(RangeRequest("/root/.ssh/id_new", VersionOf("/root/.ssh/id_new"), 0, 6))), Code::kDenied);
  // --expose, for the tree of that run only.
  auto exposed = trees_.Add(snapshot_, {"/root/.ssh"});
  EXPECT_EQ(Content(Ask(RangeRequest("/root/.ssh/id_new", VersionOf("/root/.ssh/id_new"), 0, 6))), "secret");
}

TEST_F(ContentTest, MalformedRequestsAreRefused) {
  root_.Put("f", RandomBytes(200'000, 4));
  Serve();
  auto version = VersionOf("/f");
  EXPECT_EQ(ErrorOf(Ask(RangeRequest("/f", version, 1, 65536))), Code::kInvalid);
  EXPECT_EQ(ErrorOf(Ask(RangeRequest("/f", version, 0, 1000))), Code::kInvalid);
  EXPECT_EQ(ErrorOf(Ask(RangeRequest("/f", version, 1 << 20, 65536))), Code::kInvalid);
  EXPECT_EQ(ErrorOf(Ask(RangeRequest("/f", version, 65536, 0))), Code::kInvalid);
  EXPECT_EQ(Content(Ask(RangeRequest("/f", version, 0, ~0ull))).size(), 200'000u);
  v1::ContentRequest unknown;
  unknown.set_id(++next_id_);
  EXPECT_EQ(ErrorOf(Ask(unknown)), Code::kUnsupported);
}

TEST_F(ContentTest, ANodeWithoutAJobOfThisHomeGetsNothingUntilThereIsOne) {
  root_.Put("a", "hello\n");
  root_.Put("b", "other\n");
  Serve();
  EXPECT_EQ(Content(Ask(RangeRequest("/a", VersionOf("/a"), 0, 6))), "hello\n");
  session_->SetServes(false);
  const v1::ContentRequest range = RangeRequest("/b", VersionOf("/b"), 0, 6);
  const v1::ContentRequest dropped = RangeRequest("/b", VersionOf("/b"), 0, 6);
  v1::ContentRequest root, cancel;
  root.set_id(++next_id_);
  root.mutable_get_root()->set_tree(std::string(snapshot_->id.view()));
  for (const auto& request : {range, root, dropped}) session_->OnMessage(request.SerializeAsString());
  cancel.mutable_cancel()->set_id(dropped.id());
  session_->OnMessage(cancel.SerializeAsString());
  // What another node asks it for is refused at once: that one can ask by itself.
  v1::ContentRequest passed_on = RangeRequest("/b", VersionOf("/b"), 0, 6);
  passed_on.mutable_get_range()->set_for_peer(true);
  EXPECT_EQ(ErrorOf(Ask(passed_on)), Code::kUnavailable);
  // The same workers answer another node, which has a job.
  FakeStream stream;
  auto other = std::make_shared<ContentSession>(&*server_);
  other->Start(&stream);
  for (int i = 0; i < 20; ++i) {
    const v1::ContentRequest asked = RangeRequest("/a", VersionOf("/a"), 0, 6);
    other->OnMessage(asked.SerializeAsString());
    EXPECT_EQ(Content(stream.Answer(asked.id())), "hello\n");
  }
  other->Close();
  EXPECT_TRUE(stream_.All(range.id()).empty());
  EXPECT_TRUE(stream_.All(root.id()).empty());
  session_->SetServes(true);
  EXPECT_EQ(Content(stream_.Answer(range.id())), "other\n");
  EXPECT_TRUE(stream_.Answer(root.id()).back().has_root());
  EXPECT_TRUE(stream_.All(dropped.id()).empty());
}

TEST_F(ContentTest, DirectoriesAndWholeTrees) {
  for (int i = 0; i < 50; ++i) root_.Put("d" + std::to_string(i) + "/sub/file", "x" + std::to_string(i));
  Serve();
  v1::ContentRequest root;
  root.set_id(++next_id_);
  root.mutable_get_root()->set_tree(std::string(snapshot_->id.view()));
  auto parts = Ask(root);
  ASSERT_TRUE(parts[0].has_root());
  EXPECT_TRUE(tree::DecodeRoot(parts[0].root().entry(), snapshot_->id));

  auto sub = tree::LookupDirectory(*snapshot_, "/d7/sub");
  ASSERT_TRUE(sub);
  v1::ContentRequest directory;
  directory.set_id(++next_id_);
  directory.mutable_get_directory()->set_tree(std::string(snapshot_->id.view()));
  directory.mutable_get_directory()->set_path("/d7/sub");
  directory.mutable_get_directory()->set_digest(std::string((*sub)->digest().view()));
  parts = Ask(directory);
  ASSERT_TRUE(parts[0].has_directory());
  EXPECT_EQ(Unpack(parts[0].directory().encoded(), parts[0].directory().zstd(), parts[0].directory().raw_bytes()),
            (*sub)->encoded());

  // An unknown tree (home was restarted): content that is unchanged at that path is served, other content is not.
  directory.set_id(++next_id_);
  directory.mutable_get_directory()->set_tree(std::string(32, 'x'));
  EXPECT_TRUE(Ask(directory)[0].has_directory());
  directory.set_id(++next_id_);
  directory.mutable_get_directory()->set_path("/d8/sub");
  EXPECT_EQ(ErrorOf(Ask(directory)), Code::kAborted);

  v1::ContentRequest tree;
  tree.set_id(++next_id_);
  tree.mutable_get_tree()->set_tree(std::string(snapshot_->id.view()));
  EXPECT_EQ(Ask(tree).size(), 101u);

  // For a second tree only the changes are sent.
  auto pin = trees_.Add(snapshot_, {});
  tree::TreePtr before = snapshot_;
  root_.Put("d7/sub/new", "y");
  Rescan();
  tree.set_id(++next_id_);
  tree.mutable_get_tree()->set_tree(std::string(snapshot_->id.view()));
  tree.mutable_get_tree()->set_have(std::string(before->id.view()));
  EXPECT_EQ(Ask(tree).size(), 3u);
  tree.set_id(++next_id_);
  tree.mutable_get_tree()->set_have(std::string(snapshot_->id.view()));
  parts = Ask(tree);
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_TRUE(parts[0].last());

  // For a base tree that home does not know: everything, unless the node finds out itself what it lacks.
  tree.set_id(++next_id_);
  tree.mutable_get_tree()->set_have(std::string(32, 'x'));
  EXPECT_EQ(Ask(tree).size(), 101u);
  tree.set_id(++next_id_);
  tree.mutable_get_tree()->set_walks(true);
  EXPECT_EQ(ErrorOf(Ask(tree)), Code::kNotFound);
  tree.mutable_get_tree()->set_walks(false);

  // In packs: the same objects in a few messages; too large ones come alone.
  for (int i = 0; i < 20000; ++i) root_.Put("many/a-name-of-some-length-" + std::to_string(i), "");
  Rescan();
  tree.set_id(++next_id_);
  tree.mutable_get_tree()->set_tree(std::string(snapshot_->id.view()));
  tree.mutable_get_tree()->clear_have();
  tree.mutable_get_tree()->set_packed(true);
  std::set<std::string> packed;
  std::string large;
  parts = Ask(tree);
  EXPECT_LT(parts.size(), 10u);
  for (const v1::ContentReply& part : parts) {
    if (part.has_directory()) large = part.directory().digest();
    const v1::DirectoryPack& pack = part.pack();
    const auto raw_bytes = std::accumulate(pack.raw_bytes().begin(), pack.raw_bytes().end(), uint64_t{0});
    const std::string raw = Unpack(pack.encoded(), pack.zstd(), raw_bytes);
    size_t at = 0;
    for (const uint32_t size : pack.raw_bytes()) {
      packed.insert(std::string(Sha256(std::string_view(raw).substr(at, size)).view()));
      at += size;
    }
  }
  auto many = tree::LookupDirectory(*snapshot_, "/many");
  ASSERT_TRUE(many);
  EXPECT_EQ(large, (*many)->digest().view());
  packed.insert(large);
  std::set<std::string> all;
  for (const auto& directory : tree::NewDirectories(nullptr, snapshot_->directory)) {
    all.insert(std::string(directory.directory->digest().view()));
  }
  EXPECT_EQ(packed, all);
}

TEST(TreeTableTest, ATreeThatARunHadCountsOnce) {
  TreeTable trees;
  const auto make = [](int64_t time) {
    tree::Entry root;
    root.mode = S_IFDIR | 0755;
    root.mtime_ns = time;
    return tree::AssembleTree(root, tree::Directory::Make({}, nullptr));
  };
  for (int64_t edit = 0; edit < 16; ++edit) {
    trees.SetCurrent(make(edit), nullptr);
    const auto run = trees.Add(make(edit), {"/shown" + std::to_string(edit)});
  }
  for (int64_t edit = 0; edit < 16; ++edit) {
    const auto held = trees.Find(make(edit)->id);
    ASSERT_TRUE(held) << edit;
    EXPECT_EQ(held->exposed, std::vector<std::string>{"/shown" + std::to_string(edit)});
  }
}

TEST_F(ContentTest, WhatSomebodyWaitsForOvertakesWhatIsSentAhead) {
  root_.Put("noise", RandomBytes(32 << 20, 5));
  Serve();
  stream_.Hold();
  uint64_t ahead = 0;
  for (uint64_t i = 0; i < 31; ++i) {
    v1::ContentRequest request = RangeRequest("/noise", VersionOf("/noise"), i << 20, 1 << 20);
    request.mutable_get_range()->set_ahead(true);
    session_->OnMessage(request.SerializeAsString());
    ahead = request.id();
  }
  ASSERT_TRUE(stream_.WaitForReplies(4));
  const v1::ContentRequest demand = RangeRequest("/noise", VersionOf("/noise"), 31 << 20, 1 << 20);
  EXPECT_TRUE(Ask(demand)[0].has_units());
  EXPECT_TRUE(stream_.urgent(demand.id()));
  EXPECT_LE(stream_.replies(), 13u);  // 4 MiB queued, one reply per worker, and this one
  stream_.LetGo();
  session_->OnWritable();
  EXPECT_EQ(stream_.Answer(ahead).size(), 1u);
  EXPECT_FALSE(stream_.urgent(ahead));
}

TEST_F(ContentTest, WhatIsLongAndNotUrgentComesInSlices) {
  const std::string noise = RandomBytes(1 << 20, 5);
  root_.Put("noise", noise);
  Serve();
  for (const bool ahead : {false, true}) {
    v1::ContentRequest request = RangeRequest("/noise", VersionOf("/noise"), 0, noise.size());
    request.mutable_get_range()->set_ahead(ahead);
    request.set_slices(true);
    session_->OnMessage(request.SerializeAsString());
    ASSERT_TRUE(stream_.WaitForReplies(ahead ? 6 : 1));
    const auto parts = stream_.All(request.id());
    if (!ahead) {
      ASSERT_EQ(parts.size(), 1u) << "somebody waits for it";
      EXPECT_EQ(Content(parts), noise);
      continue;
    }
    std::string message;
    for (size_t i = 0; i < parts.size(); ++i) {
      ASSERT_TRUE(parts[i].has_slice());
      EXPECT_EQ(parts[i].slice().more(), i + 1 < parts.size());
      EXPECT_LE(parts[i].slice().data().size(), 256u << 10);
      message += parts[i].slice().data();
    }
    v1::ContentReply whole;
    ASSERT_TRUE(whole.ParseFromString(message));
    EXPECT_EQ(Content({whole}), noise);
    EXPECT_EQ(whole.id(), request.id());
  }
}

TEST_F(ContentTest, WhatAProgramMissedIsToldIfItIsHiddenAndThere) {
  root_.Put("root/.netrc", "k");
  root_.Put("root/notes", "n");
  Serve();
  Mutex mutex;
  CondVar changed;
  std::vector<std::string> told;
  session_->OnWithheld([&](const std::string& path) {
    MutexLock lock(mutex);
    told.push_back(path);
    changed.notify_all();
  });
  server_->hidden().Set(trees_.rules()->Missable(256));
  v1::ContentRequest watch;
  watch.set_id(++next_id_);
  watch.mutable_watch_hidden();
  session_->OnMessage(watch.SerializeAsString());
  ASSERT_TRUE(stream_.WaitForReplies(1));
  const v1::Hidden hidden = stream_.All(watch.id()).at(0).hidden();
  const auto names = HiddenNames::From(hidden.salt(), {hidden.tag().begin(), hidden.tag().end()},
                                       {hidden.path().begin(), hidden.path().end()});
  ASSERT_TRUE(names);
  EXPECT_TRUE(names->MayHave(".netrc"));
  EXPECT_TRUE(names->Find("/root/.netrc"));
  EXPECT_FALSE(names->Find("/root/notes"));
  EXPECT_EQ(hidden.SerializeAsString().find("netrc"), std::string::npos) << "a node learns no names";
  for (const char* path : {"/root/notes", "/root/.pgpass", "/root/.netrc"}) {
    v1::ContentRequest missed;
    missed.mutable_missed()->set_path(path);
    session_->OnMessage(missed.SerializeAsString());
  }
  MutexLock lock(mutex);
  EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(20), [&] { return !told.empty(); }));
  EXPECT_EQ(told, std::vector<std::string>{"/root/.netrc"});
  lock.unlock();

  server_->hidden().Set({"/root/.netrc"});
  server_->hidden().Set({"/root/.netrc"});
  EXPECT_EQ(stream_.All(watch.id()).size(), 2u) << "told when it changes";
}

TEST_F(ContentTest, AFullStreamStopsReadingButDirectoriesOvertake) {
  root_.Put("noise", RandomBytes(32 << 20, 5));
  Serve();
  stream_.Hold();
  std::vector<v1::ContentRequest> ranges;
  for (int i = 0; i < 32; ++i)
    ranges.push_back(RangeRequest("/noise", VersionOf("/noise"), static_cast<uint64_t>(i) << 20, 1 << 20));
  for (auto& r : ranges) session_->OnMessage(r.SerializeAsString());
  ASSERT_TRUE(stream_.WaitForReplies(8));
  v1::ContentRequest directory;
  directory.set_id(++next_id_);
  directory.mutable_get_directory()->set_tree(std::string(snapshot_->id.view()));
  directory.mutable_get_directory()->set_path("/");
  directory.mutable_get_directory()->set_digest(std::string(snapshot_->directory->digest().view()));
  EXPECT_TRUE(Ask(directory)[0].has_directory());
  // 8 MiB queued, and one reply per worker.
  EXPECT_LE(stream_.replies(), 16u);
  v1::ContentRequest cancel;
  cancel.mutable_cancel()->set_id(ranges[31].id());
  session_->OnMessage(cancel.SerializeAsString());
  stream_.LetGo();
  session_->OnWritable();
  for (int i = 0; i < 31; ++i) EXPECT_EQ(stream_.Answer(ranges[static_cast<size_t>(i)].id()).size(), 1u);
  EXPECT_LE(stream_.replies(), 32u);
}

}  // namespace
}  // namespace vrun::home

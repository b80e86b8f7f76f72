// SPDX-License-Identifier: Apache-2.0
// The S3 tier on a real S3 server and a real store; the test replaces the controller, with the same presigner.
#include "node/s3/s3_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <future>
#include <random>
#include <thread>

#include "base/clock.h"
#include "base/thread/mutex.h"
#include "node/s3/s3_urls.h"
#include "node/s3/s3_writer.h"
#include "node/source/tiered_source.h"
#include "proto/cache.pb.h"
#include "s3/s3_testing.h"
#include "store/store.h"
#include "store/testing/names_testing.h"

namespace vrun::node {
namespace {

std::string Random(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::string out(n, '\0');
  for (char& c : out) c = static_cast<char>(random());
  return out;
}

// A home with contents by version; counts requests.
class FakeHome final : public vfs::Source {
 public:
  void FetchRoot(const Digest&, std::function<void(Result<tree::Entry>)>) override {}
  void FetchDirectory(const Digest&, const std::string&, const Digest&,
                      std::function<void(Result<vfs::FetchedDirectory>)>) override {}
  void FetchRange(const Digest&, const std::string& path, const tree::FileVersion&, uint64_t offset, uint64_t length,
                  vfs::Urgency, std::function<void(Result<vfs::FetchedRange>)> done) override {
    const std::string& content = files.at(path);
    ++asked;
    bytes += length;
    vfs::FetchedRange range{offset, {}, names ? std::optional(store::FinalId(content)) : std::nullopt};
    const uint64_t unit = store::UnitBytes(content.size());
    for (uint64_t at = offset; at < offset + length; at += unit) {
      std::string data = content.substr(at, std::min(unit, offset + length - at));
      const Digest digest = store::UnitDigest(data);
      range.units.push_back({digest, std::move(data)});
    }
    done(std::move(range));
  }
  void Borrow(const Digest&, const std::string&, const tree::FileVersion&, std::function<void()>) override {}
  void FetchFrames(const vfs::RunId&, std::shared_ptr<const vfs::TraceTable> table, std::vector<uint32_t> frames,
                   std::function<void(const vfs::TraceFrame&)> arrived, std::function<void(Status)> done) override {
    for (const uint32_t index : frames) {
      ++asked;
      vfs::TraceFrame frame{index, {}, {}};
      for (const vfs::TraceRange& range : table->frames[index]) {
        const std::string& content = files.at(table->files[range.file].path);
        for (uint64_t i = range.first; i < range.first + range.count; ++i) {
          frame.digests.push_back(store::UnitDigest(store::UnitOf(content, i)));
          frame.data += store::UnitOf(content, i);
        }
      }
      bytes += frame.data.size();
      arrived(std::move(frame));
    }
    done({});
  }
  std::map<std::string, std::string> files;
  std::atomic<int> asked{0};
  std::atomic<uint64_t> bytes{0};
  std::atomic<bool> names{true};
};

// One node: a store, a tier, a source.
struct Node {
  Node(FakeHome* home, s3::Bucket bucket, const std::string& seal = "tenant", s3::Keys keys = s3::TestServer::keys())
      : urls([this, bucket, seal, keys](const v1::PresignRequest& request) {
          v1::PresignReply reply;
          reply.set_id(request.id());
          const s3::Presigner presigner(keys, bucket.host(), bucket.region, WallMicros(), 600);
          for (const std::string& name : request.name()) {
            const std::string key = s3::Hex(s3::HmacSha256("names", name));
            reply.add_key(key);
            reply.add_signature(presigner.Sign(request.put() ? "PUT" : "GET", bucket.PathOf(key)));
          }
          reply.set_base(bucket.base() + bucket.PathOf(""));
          reply.set_query(presigner.query());
          reply.set_seal(seal);
          reply.set_expires_s(600);
          urls.Answered(reply, MonotonicMicros());
        }) {
    char directory[] = "/var/tmp/vrun-s3-node-XXXXXX";
    VRUN_CHECK(::mkdtemp(directory) != nullptr);
    path = directory;
    store = std::move(*store::Store::Open({.directory = path}));
    tier = std::make_unique<S3Tier>(&urls);
    writer = std::make_unique<S3Writer>(store.get(), tier.get(),
                                        S3WriterOptions{.delay_micros = 1000, .again_micros = 1000});
    source = std::make_unique<TieredSource>(home, tier.get(), writer.get());
  }
  ~Node() {
    urls.Close();
    writer.reset();
    tier.reset();
    store.reset();
    (void)RemoveTree(path);
  }

  static tree::FileVersion Version(const std::string& content) { return {1, content.size(), 1, content.size()}; }

  // Like FileContent: puts what arrives into the store.
  std::string Read(const std::string& path, const std::string& content, uint64_t first, uint64_t count,
                   bool named = true) {
    const uint64_t unit = store::UnitBytes(content.size());
    const uint64_t offset = first * unit, length = std::min(count * unit, content.size() - offset);
    std::promise<std::string> promise;
    auto done = [&](Result<vfs::FetchedRange> range) {
      VRUN_CHECK(range.has_value());
      std::vector<store::PutUnit> put;
      std::string data;
      for (const auto& u : range->units) {
        put.push_back({u.digest, u.data});
        data += u.data;
      }
      auto object = store->Acquire(store::FinalId(content), content.size());
      VRUN_CHECK(object && (*object)->Put(first, put, true));
      promise.set_value(data);
    };
    if (named) {
      source->FetchNamed(store::FinalId(content), {}, path, Version(content), offset, length, vfs::Urgency::kDemand,
                         done);
    } else {
      source->FetchRange({}, path, Version(content), offset, length, vfs::Urgency::kDemand, done);
    }
    return promise.get_future().get();
  }
  v1::S3Stat stat() {
    v1::S3Stat s;
    tier->Describe(&s);
    return s;
  }
  // Waits until this many objects are written and none is waiting.
  void WaitWritten(uint64_t objects) {
    while (stat().written_objects() < objects || writer->waiting() > 0) std::this_thread::yield();
  }

  S3Urls urls;
  std::string path;
  std::unique_ptr<store::Store> store;
  std::unique_ptr<S3Tier> tier;
  std::unique_ptr<S3Writer> writer;
  std::unique_ptr<TieredSource> source;
};

class S3TierTest : public testing::Test {
 protected:
  void SetUp() override {
    server_ = s3::TestServer::Start();
    if (!server_) GTEST_SKIP() << "no S3 server: tools/install-deps --test installs node and its packages";
    home_.files["/small"] = Random(3000, 1);
    home_.files["/text"] = std::string(200'000, 't');
    home_.files["/large"] = Random(9'500'000, 2);
  }
  const std::string& File(const std::string& path) { return home_.files.at(path); }
  // The server's files that hold objects.
  std::vector<std::string> Objects() {
    std::vector<std::string> out;
    for (const auto& e : std::filesystem::recursive_directory_iterator(server_->directory())) {
      if (e.is_regular_file() && e.path().string().ends_with("_object")) out.push_back(e.path());
    }
    return out;
  }
  // A trace of all files, eight units per frame.
  std::shared_ptr<vfs::TraceTable> Trace() {
    auto table = std::make_shared<vfs::TraceTable>();
    uint32_t file = 0;
    for (const auto& [path, content] : home_.files) {
      table->files.push_back({path, Node::Version(content), store::FinalId(content)});
      for (uint64_t unit = 0; unit < store::UnitCount(content.size()); unit += 8) {
        table->frames.push_back({{file, unit, std::min<uint64_t>(8, store::UnitCount(content.size()) - unit)}});
      }
      ++file;
    }
    return table;
  }
  std::unique_ptr<s3::TestServer> server_;
  FakeHome home_;
};

TEST_F(S3TierTest, TheSecondNodeAsksHomeForNothing) {
  Node first(&home_, server_->bucket());
  for (const auto& [path, content] : home_.files) {
    EXPECT_EQ(first.Read(path, content, 0, store::UnitCount(content.size())), content);
  }
  const uint64_t all = File("/small").size() + File("/text").size() + File("/large").size();
  EXPECT_EQ(home_.bytes, all);
  first.WaitWritten(1 + 1 + 3);
  EXPECT_EQ(first.stat().written_objects(), 1u + 1u + 3u);

  home_.bytes = 0;
  Node second(&home_, server_->bucket());
  EXPECT_EQ(second.Read("/small", File("/small"), 0, 1), File("/small"));
  EXPECT_EQ(second.Read("/text", File("/text"), 0, store::UnitCount(File("/text").size())), File("/text"));
  EXPECT_EQ(second.Read("/large", File("/large"), 250, 20),
            File("/large").substr(250 * store::kUnitBytes, 20 * store::kUnitBytes))
      << "across two extents";
  const uint64_t before = second.stat().read_bytes();
  EXPECT_EQ(second.Read("/large", File("/large"), 3, 1), store::UnitOf(File("/large"), 3));
  EXPECT_LT(second.stat().read_bytes() - before, 2 * store::kUnitBytes) << "one unit, not an extent";
  EXPECT_EQ(home_.bytes, 0u);
  EXPECT_EQ(second.stat().hit_units(), 1u + store::UnitCount(File("/text").size()) + 20u + 1u);
  second.WaitWritten(0);
  EXPECT_EQ(second.stat().written_objects(), 0u) << "nothing is written again";
}

TEST_F(S3TierTest, PartsOfAFileFromTwoNodesAddUp) {
  const std::string& large = File("/large");
  Node a(&home_, server_->bucket());
  a.Read("/large", large, 0, 4);
  a.WaitWritten(1);
  Node b(&home_, server_->bucket());
  EXPECT_EQ(b.Read("/large", large, 10, 2), large.substr(10 * store::kUnitBytes, 2 * store::kUnitBytes));
  b.WaitWritten(1);
  EXPECT_EQ(b.stat().written_objects(), 1u);
  home_.bytes = 0;
  Node c(&home_, server_->bucket());
  c.Read("/large", large, 0, 4);
  c.Read("/large", large, 10, 2);
  EXPECT_EQ(home_.bytes, 0u);
}

TEST_F(S3TierTest, WhatIsNamedLaterIsWrittenLater) {
  const std::string& large = File("/large");
  Node node(&home_, server_->bucket());
  home_.names = false;
  node.Read("/large", large, 64, 2, false);
  EXPECT_EQ(node.writer->waiting(), 0u) << "nobody could find it";
  node.writer->Named(Node::Version(large), store::FinalId(large));
  node.WaitWritten(1);
  EXPECT_EQ(node.stat().written_objects(), 1u);
}

TEST_F(S3TierTest, WhatIsOnItsWayToTheDiskStoreIsWaitedFor) {
  const std::string& large = File("/large");
  const auto put = [&large](Node* node, uint64_t unit) {
    const uint64_t bytes = store::UnitBytes(large.size());
    const std::string data = large.substr(unit * bytes, bytes);
    auto object = node->store->Acquire(store::FinalId(large), large.size());
    ASSERT_TRUE(object && (*object)->Put(unit, std::vector<store::PutUnit>{{store::UnitDigest(data), data}}, true));
  };
  std::vector<std::function<void()>> behind;
  Node first(&home_, server_->bucket());
  S3Writer writer(first.store.get(), first.tier.get(),
                  {.delay_micros = 1000, .when_stored = [&](auto task) { behind.push_back(std::move(task)); }});
  put(&first, 0);
  writer.Came(Node::Version(large), store::FinalId(large), 0, 2);
  writer.Hurry();
  EXPECT_EQ(writer.waiting(), 0u);
  put(&first, 1);
  for (const auto& task : behind) task();
  while (first.stat().written_objects() == 0 || writer.waiting() > 0) std::this_thread::yield();
  Node second(&home_, server_->bucket());
  second.Read("/large", large, 0, 2);
  EXPECT_EQ(home_.bytes, 0u);
}

TEST_F(S3TierTest, DamageIsNeverServedIsCountedAndRepaired) {
  {
    Node first(&home_, server_->bucket());
    for (const auto& [path, content] : home_.files) first.Read(path, content, 0, store::UnitCount(content.size()));
    first.WaitWritten(5);
  }
  const auto objects = Objects();
  ASSERT_EQ(objects.size(), 5u);
  for (size_t i = 0; i < objects.size(); ++i) {
    auto bytes = ReadFile(objects[i]);
    ASSERT_TRUE(bytes);
    // Damages the table of some, the content of others; truncates one and exchanges two.
    if (i == 0) bytes->resize(bytes->size() / 2);
    if (i == 1) *bytes = *ReadFile(objects[2]);
    if (i > 1) bytes->at(i % 2 ? 40 : bytes->size() - 20) ^= 1;
    ASSERT_TRUE(WriteFileAtomic(objects[i], *bytes, 0644));
  }
  Node second(&home_, server_->bucket());
  for (const auto& [path, content] : home_.files) {
    EXPECT_EQ(second.Read(path, content, 0, store::UnitCount(content.size())), content) << path;
  }
  EXPECT_GE(second.stat().corrupt_objects(), 3u);
  second.WaitWritten(5);
  home_.bytes = 0;
  Node third(&home_, server_->bucket());
  for (const auto& [path, content] : home_.files) {
    EXPECT_EQ(third.Read(path, content, 0, store::UnitCount(content.size())), content);
  }
  EXPECT_EQ(home_.bytes, 0u) << "what was seen to be damaged was written again";
}

TEST_F(S3TierTest, AnotherTenantCannotReadIt) {
  {
    Node first(&home_, server_->bucket(), "tenant");
    first.Read("/small", File("/small"), 0, 1);
    first.WaitWritten(1);
  }
  home_.bytes = 0;
  Node other(&home_, server_->bucket(), "another tenant, which even knows where it lies");
  EXPECT_EQ(other.Read("/small", File("/small"), 0, 1), File("/small"));
  EXPECT_EQ(home_.bytes, File("/small").size());
  EXPECT_EQ(other.stat().hit_units(), 0u);
}

TEST_F(S3TierTest, ADeadStoreAndWrongKeysCostNothingButHome) {
  Node wrong(&home_, server_->bucket(), "tenant", {"TESTACCESS", "no", ""});
  for (int i = 0; i < 12; ++i) EXPECT_EQ(wrong.Read("/large", File("/large"), i, 1), store::UnitOf(File("/large"), i));
  EXPECT_LE(wrong.stat().errors(), 14u) << "then it is left alone";
  EXPECT_THAT(wrong.stat().problem(), testing::HasSubstr("s3_credentials"));
  Node node(&home_, server_->bucket());
  node.Read("/small", File("/small"), 0, 1);
  node.WaitWritten(1);
  server_->Stop();
  Node dead(&home_, server_->bucket());
  const int64_t began = MonotonicMicros();
  for (int i = 0; i < 30; ++i) EXPECT_EQ(dead.Read("/large", File("/large"), i, 1), store::UnitOf(File("/large"), i));
  EXPECT_LT(MonotonicMicros() - began, 20'000'000) << "thirty time-outs would be longer";
  EXPECT_LE(dead.stat().errors(), 14u);
}

TEST_F(S3TierTest, WhatAnotherNodeHasAddedToIsNoDamageAndIsKept) {
  const std::string& large = File("/large");
  const auto part = [&](uint64_t first, uint64_t count) {
    return large.substr(first * store::kUnitBytes, count * store::kUnitBytes);
  };
  Node a(&home_, server_->bucket());
  a.Read("/large", large, 0, 4);
  a.WaitWritten(1);
  Node b(&home_, server_->bucket());
  EXPECT_EQ(b.Read("/large", large, 0, 1), part(0, 1));
  a.Read("/large", large, 20, 4);
  a.WaitWritten(2);
  home_.bytes = 0;
  EXPECT_EQ(b.Read("/large", large, 2, 2), part(2, 2)) << "of which b knows where it lay before";
  EXPECT_EQ(b.Read("/large", large, 21, 1), part(21, 1)) << "and now what is new";
  EXPECT_EQ(home_.bytes, 0u);
  EXPECT_EQ(b.stat().corrupt_objects(), 0u);

  // b adds to the state that it saw last, without these.
  a.Read("/large", large, 60, 4);
  a.WaitWritten(3);
  b.Read("/large", large, 40, 4);
  b.WaitWritten(1);
  home_.bytes = 0;
  Node c(&home_, server_->bucket());
  for (const uint64_t first : {0, 20, 40, 60}) EXPECT_EQ(c.Read("/large", large, first, 4), part(first, 4));
  EXPECT_EQ(home_.bytes, 0u) << "everybody's units are there";
  for (Node* node : {&a, &b, &c}) EXPECT_EQ(node->stat().corrupt_objects(), 0u);
}

TEST_F(S3TierTest, ADamagedUnitIsPutRightAndTheOthersStay) {
  const std::string& large = File("/large");
  Node a(&home_, server_->bucket());
  a.Read("/large", large, 0, 4);
  a.WaitWritten(1);
  ASSERT_EQ(Objects().size(), 1u);
  auto bytes = ReadFile(Objects()[0]);
  ASSERT_TRUE(bytes);
  bytes->at(bytes->size() - 20) ^= 1;
  ASSERT_TRUE(WriteFileAtomic(Objects()[0], *bytes, 0644));
  Node b(&home_, server_->bucket());
  EXPECT_EQ(b.Read("/large", large, 3, 1), store::UnitOf(large, 3));
  EXPECT_EQ(b.stat().corrupt_objects(), 1u);
  b.WaitWritten(1);
  home_.bytes = 0;
  Node c(&home_, server_->bucket());
  EXPECT_EQ(c.Read("/large", large, 0, 4), large.substr(0, 4 * store::kUnitBytes));
  EXPECT_EQ(home_.bytes, 0u);
}

TEST_F(S3TierTest, AStoreThatHangsCostsAMomentAndThenNothing) {
  s3::SilentServer silent;
  Node node(&home_, silent.bucket());
  const std::string& large = File("/large");
  const int64_t began = MonotonicMicros();
  std::vector<std::thread> readers;
  for (uint64_t i = 0; i < s3::Breaker::kFailures; ++i) {
    readers.emplace_back([&, i] { EXPECT_EQ(node.Read("/large", large, i, 1), store::UnitOf(large, i)); });
  }
  for (std::thread& reader : readers) reader.join();
  for (uint64_t i = 10; i < 20; ++i) EXPECT_EQ(node.Read("/large", large, i, 1), store::UnitOf(large, i));
  EXPECT_LT(MonotonicMicros() - began, 5'000'000) << "less than one time-out";
  EXPECT_EQ(home_.asked, s3::Breaker::kFailures + 10);
  EXPECT_THAT(node.stat().problem(), testing::HasSubstr("s3_endpoint"));
  silent.Close();
}

TEST_F(S3TierTest, AnAnswerThatComesLateIsNoSecondOne) {
  const std::string& large = File("/large");
  Node first(&home_, server_->bucket());
  first.Read("/large", large, 0, 40);
  first.WaitWritten(1);
  home_.bytes = 0;
  Node second(&home_, server_->bucket());
  server_->Pause();
  EXPECT_EQ(second.Read("/large", large, 0, 1), store::UnitOf(large, 0));
  EXPECT_EQ(home_.bytes, store::kUnitBytes);
  server_->Resume();
  for (uint64_t unit = 1; unit < 40 && second.stat().hit_units() == 0; ++unit) {
    EXPECT_EQ(second.Read("/large", large, unit, 1), store::UnitOf(large, unit));
  }
  EXPECT_GT(second.stat().hit_units(), 0u) << "once is no reason to leave it alone";
  EXPECT_EQ(second.stat().problem(), "");
}

TEST_F(S3TierTest, FramesOfATraceComeInOrderFromBoth) {
  const auto table = Trace();
  table->files[2].object_id.reset();  // home does not know its name yet
  std::vector<uint32_t> all(table->frames.size());
  for (uint32_t i = 0; i < all.size(); ++i) all[i] = i;
  {
    Node first(&home_, server_->bucket());
    first.Read("/large", File("/large"), 0, 40);
    first.WaitWritten(1);
  }
  home_.asked = 0;
  Node node(&home_, server_->bucket());
  std::promise<Status> over;
  std::vector<uint32_t> order;
  Mutex mutex;
  std::string data;
  node.source->FetchFrames(
      {}, table, all,
      [&](const vfs::TraceFrame& frame) {
        MutexLock lock(mutex);
        order.push_back(frame.index);
        data += frame.data;
      },
      [&](Status status) { over.set_value(std::move(status)); });
  EXPECT_TRUE(over.get_future().get());
  EXPECT_EQ(order, all);
  std::string want;
  for (const auto& [path, content] : home_.files) want += content;
  EXPECT_EQ(data, want);
  EXPECT_GE(node.stat().hit_units(), 40u);
  EXPECT_LE(home_.asked, static_cast<int>(all.size()) - 5);
}

TEST_F(S3TierTest, FramesThatHangComeFromHomeOnceEach) {
  s3::SilentServer silent;
  Node node(&home_, silent.bucket());
  const auto table = Trace();
  std::vector<uint32_t> all(table->frames.size()), order;
  for (uint32_t i = 0; i < all.size(); ++i) all[i] = i;
  const int64_t began = MonotonicMicros();
  std::promise<Status> over;
  node.source->FetchFrames(
      {}, table, all, [&](const vfs::TraceFrame& frame) { order.push_back(frame.index); },
      [&](Status status) { over.set_value(std::move(status)); });
  EXPECT_TRUE(over.get_future().get());
  EXPECT_LT(MonotonicMicros() - began, 5'000'000);
  EXPECT_EQ(order, all);
  EXPECT_EQ(home_.asked, static_cast<int>(all.size()));
  silent.Close();
}

TEST(Patience, IsAFewTimesWhatItTakesWithinBounds) {
  Patience patience;
  EXPECT_EQ(patience.micros(), Patience::kFirstMicros);
  for (int i = 0; i < 5; ++i) patience.Took(i == 2 ? 9'000'000 : 100'000);
  EXPECT_EQ(patience.micros(), 400'000) << "one that was slow says nothing";
  for (int i = 0; i < 40; ++i) patience.Took(1'000);
  EXPECT_EQ(patience.micros(), Patience::kLeastMicros);
  for (int i = 0; i < 40; ++i) patience.Took(3'000'000);
  EXPECT_EQ(patience.micros(), Patience::kMostMicros);
}

TEST(S3Urls, BatchesKeepsAndGivesUp) {
  std::vector<v1::PresignRequest> asked;
  S3Urls urls([&](const v1::PresignRequest& request) { asked.push_back(request); });
  int got = 0, failed = 0;
  const auto count = [&](Result<std::string> url) { ++(url ? got : failed); };
  for (const char* name : {"a", "b", "c"}) urls.Get(name, false, 0, count);
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0].name_size(), 1);
  v1::PresignReply reply;
  reply.set_id(asked[0].id());
  reply.add_key("k");
  reply.add_signature("s");
  reply.set_seal("seal");
  reply.set_expires_s(900);
  urls.Answered(reply, 0);
  EXPECT_EQ(got, 1);
  ASSERT_EQ(asked.size(), 2u);
  EXPECT_EQ(asked[1].name_size(), 2) << "what came meanwhile goes together";
  urls.Get("a", false, 1'000'000, count);
  EXPECT_EQ(got, 2) << "kept";
  urls.Get("a", false, 850'000'000, count);
  EXPECT_EQ(got, 2) << "but not until its very end";
  urls.Answered(reply, 0);  // for a request that is over
  EXPECT_EQ(got, 2);
  urls.Tick(4'000'000);
  EXPECT_EQ(failed, 2) << "no answer in time";
  reply.set_id(asked.back().id());
  reply.add_key("one too many");
  urls.Answered(reply, 850'000'000);
  EXPECT_EQ(failed, 3) << "an answer that does not fit";
  urls.Get("z", true, 850'000'000, count);
  urls.Close();
  EXPECT_EQ(failed, 4);
  urls.Get("z", true, 850'000'000, count);
  EXPECT_EQ(failed, 5);
}

}  // namespace
}  // namespace vrun::node

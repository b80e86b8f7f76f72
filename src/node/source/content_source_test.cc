// SPDX-License-Identifier: Apache-2.0
// The node's side of the content stream, against an in-memory home that is honest, slow, away, or lying.
#include "node/source/content_source.h"

#include <gtest/gtest.h>
#include <zstd.h>

#include <condition_variable>
#include <random>

#include "base/clock.h"
#include "node/source/content_decode.h"
#include "node/testing/content_wire_testing.h"
#include "proto/content.pb.h"
#include "tree/codec.h"

namespace vrun::node {
namespace {

constexpr auto& kHome = Wire::kHome;

std::string Bytes(size_t n, int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::string out(n, '\0');
  for (char& c : out) c = static_cast<char>(random() % 7);  // compressible
  return out;
}

std::string Zstd(std::string_view data) {
  std::string out(ZSTD_compressBound(data.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), data.data(), data.size(), 1));
  return out;
}

class ContentSourceTest : public testing::Test {
 protected:
  ~ContentSourceTest() override { over_ = true; }
  std::shared_ptr<Wire> Connect(bool hello = true) {
    auto wire = std::make_shared<Wire>();
    auto handler = source_.Accept(std::make_unique<Wire::NodeEnd>(wire));
    VRUN_CHECK(handler);
    wire->handler = *handler;
    if (hello) {
      source_.AllowToken(kHome, "secret", 7, 1);
      wire->SayHello();
    }
    return wire;
  }
  void Fetch(uint64_t offset, uint64_t length, Result<vfs::FetchedRange>* result) {
    source_.FetchRange(tree_, "/f", version(), offset, length, vfs::Urgency::kDemand,
                       [this, result](Result<vfs::FetchedRange> r) {
                         if (over_) return;  // the test is over, and its result object is gone
                         *result = std::move(r);
                         ++answers_;
                       });
  }
  tree::FileVersion version() const { return {1, 2, 3, content_.size()}; }
  v1::Piece UnitAt(uint64_t offset, bool zstd) const {
    const std::string data = content_.substr(offset, store::kUnitBytes);
    v1::Piece unit;
    unit.set_digests(std::string(store::UnitDigest(data).view()));
    unit.set_raw_bytes(static_cast<uint32_t>(data.size()));
    unit.set_zstd(zstd);
    unit.set_data(zstd ? Zstd(data) : data);
    return unit;
  }
  v1::ContentReply Part(uint64_t id, uint64_t offset, int units, bool last) const {
    v1::ContentReply reply;
    reply.set_id(id);
    reply.set_last(last);
    reply.mutable_units()->set_offset(offset);
    for (int i = 0; i < units; ++i) *reply.mutable_units()->add_piece() = UnitAt(offset + i * store::kUnitBytes, i % 2);
    return reply;
  }
  static Result<vfs::FetchedRange> None() { return Error(Code::kInternal, "not called"); }

  const std::string content_ = Bytes(5 * store::kUnitBytes + 100, 1);
  const Digest tree_ = Sha256("tree");
  bool over_ = false;
  int answers_ = 0;
  int connected_ = 0;
  ContentSource source_{{.home_id = kHome, .home_deadline_micros = 60'000'000, .window_bytes = 4 * store::kUnitBytes},
                        [this] { ++connected_; }};
};

TEST_F(ContentSourceTest, ARangeInSeveralParts) {
  auto wire = Connect();
  Result<vfs::FetchedRange> result = None();
  Fetch(store::kUnitBytes, content_.size() - store::kUnitBytes, &result);
  const auto request = wire->Next();
  ASSERT_TRUE(request.has_get_range());
  EXPECT_EQ(request.get_range().path(), "/f");
  EXPECT_EQ(request.get_range().version().size(), content_.size());
  wire->Say(Part(request.id(), store::kUnitBytes, 2, false));
  EXPECT_EQ(answers_, 0);
  auto last = Part(request.id(), 3 * store::kUnitBytes, 3, true);
  const store::ObjectId id{store::IdAlgorithm::kBlake3, Blake3(content_)};
  last.mutable_units()->set_object_id(id.Encode());
  wire->Say(last);
  ASSERT_TRUE(result) << result.error().message();
  EXPECT_EQ(result->offset, store::kUnitBytes);
  std::string all;
  for (const auto& unit : result->units) all += unit.data;
  EXPECT_TRUE(all == content_.substr(store::kUnitBytes));
  EXPECT_EQ(result->object_id, id);
  EXPECT_EQ(answers_, 1);
  EXPECT_EQ(source_.stats().units, 5u);
}

TEST_F(ContentSourceTest, SlicesArePutTogetherAndOthersComeBetween) {
  auto wire = Connect();
  Result<vfs::FetchedRange> a = None(), b = None();
  Fetch(0, 2 * store::kUnitBytes, &a);
  Fetch(2 * store::kUnitBytes, store::kUnitBytes, &b);
  const v1::ContentRequest first = wire->Next(), second = wire->Next();
  ASSERT_TRUE(first.slices());
  const std::string message = Part(first.id(), 0, 2, true).SerializeAsString();
  const auto slice = [&](size_t from, size_t to) {
    v1::ContentReply reply;
    reply.set_id(first.id());
    reply.mutable_slice()->set_data(message.substr(from, to - from));
    reply.mutable_slice()->set_more(to < message.size());
    return reply;
  };
  wire->Say(slice(0, 100));
  wire->Say(slice(100, 5000));
  wire->Say(Part(second.id(), 2 * store::kUnitBytes, 1, true));
  EXPECT_TRUE(b);
  EXPECT_FALSE(a);
  wire->Say(slice(5000, message.size()));
  ASSERT_TRUE(a) << a.error().message();
  EXPECT_EQ(a->units.size(), 2u);

  // Slices of a broken stream are not joined with those of the next.
  Fetch(0, store::kUnitBytes, &a);
  wire->Say(slice(0, 100));  // for a request that is over
  wire->handler->OnClosed(Error(Code::kUnavailable, "gone"));
  auto again = Connect();
  again->Say(Part(again->Next().id(), 0, 1, true));
  EXPECT_EQ(a->units.size(), 1u);

  // An endless sequence.
  Fetch(0, store::kUnitBytes, &a);
  v1::ContentReply endless;
  endless.set_id(again->Next().id());
  endless.mutable_slice()->set_more(true);
  endless.mutable_slice()->set_data(std::string(1 << 20, 'x'));
  for (int i = 0; i < 65; ++i) again->Say(endless);
  EXPECT_NE(again->cancelled.find("without an end"), std::string::npos) << again->cancelled;
}

TEST_F(ContentSourceTest, NothingIsAskedBeforeTheToken) {
  auto wire = Connect(false);
  Result<vfs::FetchedRange> result = None();
  Fetch(0, store::kUnitBytes, &result);
  wire->SayHello();
  EXPECT_TRUE(wire->asked.empty());
  EXPECT_FALSE(source_.connected());
  source_.AllowToken(kHome, "other", 7, 1);
  source_.AllowToken("x@y", "secret", 7, 1);
  source_.AllowToken(kHome, "secret", 8, 1);
  EXPECT_TRUE(wire->asked.empty());
  source_.AllowToken(kHome, "secret", 7, 1);  // AllowToken after home's Hello
  EXPECT_EQ(wire->asked.size(), 1u);
  EXPECT_EQ(connected_, 1);
}

TEST_F(ContentSourceTest, AWrongTokenIsSentAwayAndServesNothing) {
  source_.AllowToken(kHome, "secret", 7, 1);
  auto wire = Connect(false);
  wire->SayHello("guess");
  Result<vfs::FetchedRange> result = None();
  Fetch(0, store::kUnitBytes, &result);
  EXPECT_TRUE(wire->asked.empty());
  source_.Tick(MonotonicMicros() + 60'000'000 - 1'000'000);
  EXPECT_FALSE(wire->cancelled.empty());
  auto pushy = Connect(false);
  pushy->Say(Part(1, 0, 1, true));
  EXPECT_FALSE(pushy->cancelled.empty());
  EXPECT_EQ(answers_, 0);
}

TEST_F(ContentSourceTest, ABrokenStreamIsAskedAgainOnTheNext) {
  auto wire = Connect();
  Result<vfs::FetchedRange> result = None();
  Fetch(0, 3 * store::kUnitBytes, &result);
  const auto first = wire->Next();
  wire->Say(Part(first.id(), 0, 2, false));
  wire->handler->OnClosed(Error(Code::kUnavailable, "gone"));
  source_.Tick(MonotonicMicros() + 50'000'000);
  EXPECT_EQ(answers_, 0);
  auto again = Connect();
  const auto second = again->Next();
  ASSERT_TRUE(second.has_get_range());
  again->Say(Part(second.id(), 0, 3, true));
  ASSERT_TRUE(result);
  EXPECT_EQ(result->units.size(), 3u);
}

TEST_F(ContentSourceTest, ANewStreamTakesOver) {
  auto wire = Connect();
  Result<vfs::FetchedRange> result = None();
  Fetch(0, store::kUnitBytes, &result);
  auto next = Connect();
  EXPECT_FALSE(wire->cancelled.empty());
  ASSERT_EQ(next->asked.size(), 1u);
  next->Say(Part(next->asked[0].id(), 0, 1, true));
  EXPECT_TRUE(result);
}

TEST_F(ContentSourceTest, AHomeThatStaysAwayIsAnErrorInTheEnd) {
  auto wire = Connect();
  Result<vfs::FetchedRange> a = None(), b = None();
  Fetch(0, store::kUnitBytes, &a);
  wire->handler->OnClosed(Error(Code::kUnavailable, "gone"));
  Fetch(0, store::kUnitBytes, &b);
  source_.Tick(MonotonicMicros() + 59'000'000);
  EXPECT_EQ(answers_, 0);
  source_.Tick(MonotonicMicros() + 61'000'000);
  EXPECT_EQ(answers_, 2);
  EXPECT_EQ(a.error().code(), Code::kUnavailable);
  EXPECT_EQ(b.error().code(), Code::kUnavailable);
}

TEST_F(ContentSourceTest, WhatHomeRefusesIsSaid) {
  auto wire = Connect();
  Result<vfs::FetchedRange> result = None();
  Fetch(0, store::kUnitBytes, &result);
  v1::ContentReply reply;
  reply.set_id(wire->Next().id());
  reply.set_last(true);
  reply.mutable_error()->set_code(static_cast<int>(Code::kAborted));
  reply.mutable_error()->set_message("/f: changed\nat home");
  wire->Say(reply);
  EXPECT_EQ(result.error().code(), Code::kAborted);
  EXPECT_EQ(result.error().message().find('\n'), std::string::npos);
}

TEST_F(ContentSourceTest, TheWindowBoundsWhatIsUnderWayButNotDirectories) {
  auto wire = Connect();
  Result<vfs::FetchedRange> results[4] = {None(), None(), None(), None()};
  Fetch(0, 3 * store::kUnitBytes, &results[0]);
  Fetch(0, 2 * store::kUnitBytes, &results[1]);
  Fetch(0, 5 * store::kUnitBytes, &results[2]);
  auto root_done = std::make_shared<bool>(false);
  source_.FetchRoot(tree_, [root_done](Result<tree::Entry>) { *root_done = true; });
  ASSERT_EQ(wire->asked.size(), 2u);
  EXPECT_TRUE(wire->asked[1].has_get_root());
  wire->Say(Part(wire->asked[0].id(), 0, 3, true));
  ASSERT_EQ(wire->asked.size(), 3u);
  wire->Say(Part(wire->asked[2].id(), 0, 2, true));
  ASSERT_EQ(wire->asked.size(), 4u) << "one that is larger than the window goes alone";
  wire->Say(Part(wire->asked[3].id(), 0, 5, true));
  EXPECT_TRUE(results[0] && results[1] && results[2]);
  EXPECT_FALSE(*root_done);
}

// Each false answer costs the stream, and nothing of it is delivered. The third one fails the request.
TEST_F(ContentSourceTest, Lies) {
  using Lie = std::function<void(v1::ContentReply*)>;
  const std::vector<std::pair<const char*, Lie>> lies = {
      {"wrong digest",
       [](v1::ContentReply* r) { r->mutable_units()->mutable_piece(0)->set_digests(std::string(32, 'x')); }},
      {"short digest", [](v1::ContentReply* r) { r->mutable_units()->mutable_piece(0)->set_digests("x"); }},
      {"wrong offset", [](v1::ContentReply* r) { r->mutable_units()->set_offset(store::kUnitBytes); }},
      {"huge offset", [](v1::ContentReply* r) { r->mutable_units()->set_offset(UINT64_MAX - 5); }},
      {"too many",
       [this](v1::ContentReply* r) { *r->mutable_units()->add_piece() = UnitAt(2 * store::kUnitBytes, false); }},
      {"too few", [](v1::ContentReply* r) { r->mutable_units()->mutable_piece()->RemoveLast(); }},
      {"raw size", [](v1::ContentReply* r) { r->mutable_units()->mutable_piece(0)->set_raw_bytes(1u << 30); }},
      {"zip bomb",
       [](v1::ContentReply* r) {
         auto* u = r->mutable_units()->mutable_piece(0);
         u->set_zstd(true);
         u->set_data(Zstd(std::string(100u << 20, '\0')));
       }},
      {"not zstd", [](v1::ContentReply* r) { r->mutable_units()->mutable_piece(0)->set_zstd(true); }},
      {"oversized", [](v1::ContentReply* r) { r->mutable_units()->mutable_piece(0)->mutable_data()->append("x"); }},
      {"unknown id", [](v1::ContentReply* r) { r->set_id(1000); }},
      {"id 0", [](v1::ContentReply* r) { r->set_id(0); }},
      {"another kind", [](v1::ContentReply* r) { r->mutable_root()->set_entry("x"); }},
      {"nothing", [](v1::ContentReply* r) { r->clear_units(); }},
      {"object id", [](v1::ContentReply* r) { r->mutable_units()->set_object_id("x"); }},
      {"slices of nothing", [](v1::ContentReply* r) { r->mutable_slice()->set_data("garbage"); }},
      {"slices of slices",
       [](v1::ContentReply* r) {
         v1::ContentReply inner;
         inner.set_id(r->id());
         inner.mutable_slice();
         r->mutable_slice()->set_data(inner.SerializeAsString());
       }},
      {"second hello", [](v1::ContentReply* r) { r->mutable_hello(); }},
  };
  for (const auto& [name, lie] : lies) {
    SCOPED_TRACE(name);
    auto wire = Connect();
    Result<vfs::FetchedRange> result = None();
    const int before = answers_;
    Fetch(0, 2 * store::kUnitBytes, &result);
    auto reply = Part(wire->Next().id(), 0, 2, true);
    lie(&reply);
    wire->Say(reply);
    EXPECT_FALSE(wire->cancelled.empty());
    EXPECT_FALSE(source_.connected());
    EXPECT_EQ(answers_, before);
    // Messages from a cancelled stream are ignored.
    wire->Say(Part(1, 0, 2, true));
    wire->handler->OnClosed(Error(Code::kAborted, "cancelled"));
    auto honest = Connect();
    ASSERT_EQ(honest->asked.size(), 1u);
    honest->Say(Part(honest->asked[0].id(), 0, 2, true));
    EXPECT_TRUE(result);
    source_.Tick(MonotonicMicros());
  }
  Result<vfs::FetchedRange> result = None();
  auto wire = Connect();
  Fetch(0, store::kUnitBytes, &result);
  for (int i = 0; i < 3; ++i) {
    auto reply = Part(wire->Next().id(), 0, 1, true);
    reply.mutable_units()->mutable_piece(0)->set_digests(std::string(32, 'x'));
    wire->Say(reply);
    wire = Connect();
  }
  EXPECT_EQ(result.error().code(), Code::kCorrupt);
  EXPECT_TRUE(wire->asked.empty());
}

TEST_F(ContentSourceTest, GarbageNeverCrashes) {
  std::mt19937 random(std::random_device{}());
  for (int round = 0; round < 300; ++round) {
    auto wire = Connect();
    Result<vfs::FetchedRange> result = None();
    Fetch(0, 2 * store::kUnitBytes, &result);
    const auto request = wire->Next();
    std::string bytes = Part(request.id(), 0, 2, true).SerializeAsString();
    for (unsigned i = 0, n = static_cast<unsigned>(1 + random() % 5); i < n; ++i)
      bytes[random() % std::min<size_t>(bytes.size(), 200)] = static_cast<char>(random());
    wire->handler->OnMessage(bytes);
    if (result) {
      std::string all;
      for (const auto& unit : result->units) all += unit.data;
      EXPECT_TRUE(all == content_.substr(0, 2 * store::kUnitBytes));
    } else if (answers_ == 0) {
      wire = Connect();
      wire->Say(Part(wire->Next().id(), 0, 2, true));
      EXPECT_TRUE(result);
    }
    answers_ = 0;
    wire->handler->OnClosed(Error(Code::kOk, ""));
    source_.Tick(MonotonicMicros());
  }
}

tree::Entry File(const std::string& name) {
  tree::Entry e;
  e.name = name;
  e.mode = 0100644;
  e.size = 10;
  e.dev = 1;
  e.ino = 5;
  return e;
}

v1::ContentReply DirectoryReply(uint64_t id, const tree::Directory& directory, size_t from, size_t n, bool last) {
  v1::ContentReply reply;
  reply.set_id(id);
  reply.set_last(last);
  auto* object = reply.mutable_directory();
  object->set_digest(std::string(directory.digest().view()));
  const auto part = directory.encoded().substr(from, n);
  object->set_raw_bytes(part.size());
  object->set_total_bytes(directory.encoded().size());
  object->set_zstd(true);
  object->set_encoded(Zstd(part));
  return reply;
}

TEST_F(ContentSourceTest, DirectoriesInPartsWithKnownIds) {
  auto wire = Connect();
  const auto directory = tree::Directory::Make({File("a"), File("b")}, [](std::string_view) { return nullptr; });
  Result<vfs::FetchedDirectory> result = Error(Code::kInternal, "not called");
  source_.FetchDirectory(tree_, "/d", directory->digest(),
                         [&](Result<vfs::FetchedDirectory> r) { result = std::move(r); });
  const auto request = wire->Next();
  ASSERT_TRUE(request.has_get_directory());
  const store::ObjectId id{store::IdAlgorithm::kBlake3, Blake3("content")};
  auto first = DirectoryReply(request.id(), *directory, 0, 10, false);
  first.mutable_directory()->set_known_ids(tree::EncodeKnownIds({{1, id.Encode()}}));
  wire->Say(first);
  wire->Say(DirectoryReply(request.id(), *directory, 10, 100000, true));
  ASSERT_TRUE(result) << result.error().message();
  EXPECT_EQ(result->directory->digest(), directory->digest());
  ASSERT_EQ(result->known_ids.size(), 1u);
  EXPECT_EQ(result->known_ids[0].first, 1u);
  EXPECT_EQ(result->known_ids[0].second, id);

  // A directory other than the requested one.
  source_.FetchDirectory(tree_, "/d", Sha256("other"), [](Result<vfs::FetchedDirectory> r) { EXPECT_FALSE(r); });
  wire->Say(DirectoryReply(wire->Next().id(), *directory, 0, 100000, true));
  EXPECT_FALSE(wire->cancelled.empty());
}

TEST_F(ContentSourceTest, ATreeComesInOneBurst) {
  auto wire = Connect();
  std::vector<vfs::FetchedDirectory> arrived;
  int done = 0;
  const auto fetch = [&](const Digest& have) {
    source_.FetchTree(
        tree_, have,
        [&](std::vector<vfs::FetchedDirectory> d) {
          for (auto& x : d) arrived.push_back(std::move(x));
        },
        [&](Status s) { done += s.has_value(); });
    return wire->Next();
  };
  const auto a = tree::Directory::Make({File("a")}, [](std::string_view) { return nullptr; });
  const auto b = tree::Directory::Make({File("b")}, [](std::string_view) { return nullptr; });
  auto request = fetch(Sha256("have"));
  EXPECT_EQ(request.get_tree().have(), Sha256("have").view());
  wire->Say(DirectoryReply(request.id(), *a, 0, 100000, false));
  wire->Say(DirectoryReply(request.id(), *b, 0, 7, false));
  wire->Say(DirectoryReply(request.id(), *b, 7, 100000, true));
  EXPECT_EQ(done, 1);
  ASSERT_EQ(arrived.size(), 2u);
  EXPECT_EQ(arrived[1].directory->digest(), b->digest());
  // Packed: several in one message, with home's known ids of their files.
  request = fetch({});
  EXPECT_TRUE(request.get_tree().have().empty());
  EXPECT_TRUE(request.get_tree().packed());
  v1::ContentReply packed;
  packed.set_id(request.id());
  packed.set_last(true);
  const store::ObjectId id{store::IdAlgorithm::kBlake3, Blake3("content")};
  for (const auto& d : {a, b}) {
    packed.mutable_pack()->mutable_encoded()->append(d->encoded());
    packed.mutable_pack()->add_raw_bytes(static_cast<uint32_t>(d->encoded().size()));
    packed.mutable_pack()->add_known_ids(d == b ? tree::EncodeKnownIds({{0, id.Encode()}}) : "");
  }
  wire->Say(packed);
  EXPECT_EQ(done, 2);
  ASSERT_EQ(arrived.size(), 4u);
  EXPECT_EQ(arrived[2].directory->digest(), a->digest());
  EXPECT_EQ(arrived[3].directory->digest(), b->digest());
  ASSERT_EQ(arrived[3].known_ids.size(), 1u);
  EXPECT_EQ(arrived[3].known_ids[0].second, id);

  request = fetch({});
  v1::ContentReply nothing;
  nothing.set_id(request.id());
  nothing.set_last(true);
  wire->Say(nothing);
  EXPECT_EQ(done, 3);

  // Lengths that do not match the objects.
  request = fetch({});
  packed.set_id(request.id());
  packed.mutable_pack()->set_raw_bytes(0, 1);
  wire->Say(packed);
  EXPECT_FALSE(wire->cancelled.empty());
  EXPECT_EQ(done, 3);
}

TEST_F(ContentSourceTest, ADirectoryComesAsWhatItDiffersIn) {
  std::vector<tree::Entry> entries;
  for (int i = 0; i < 500; ++i) entries.push_back(File("name" + std::to_string(i)));
  const auto none = [](std::string_view) { return nullptr; };
  const auto base = tree::Directory::Make(entries, none);
  entries[7].ino = 99;
  const auto now = tree::Directory::Make(entries, none);
  vfs::LoadedDirectory loaded{base, {}};
  const store::ObjectId old_id{store::IdAlgorithm::kBlake3, Blake3("old")};
  const store::ObjectId new_id{store::IdAlgorithm::kBlake3, Blake3("new")};
  const auto at = [](const tree::DirectoryPtr& d, const char* name) { return static_cast<uint32_t>(d->Find(name)); };
  loaded.known_ids = {{at(base, "name3"), old_id}, {at(base, "name7"), old_id}};

  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, 20);
  ZSTD_CCtx_refPrefix(context, base->encoded().data(), base->encoded().size());
  std::string patch(ZSTD_compressBound(now->encoded().size()), 0);
  patch.resize(ZSTD_compress2(context, patch.data(), patch.size(), now->encoded().data(), now->encoded().size()));
  ZSTD_freeCCtx(context);
  EXPECT_LT(patch.size(), 200u);

  v1::DirectoryDelta delta;
  delta.set_base(std::string(base->digest().view()));
  delta.set_digest(std::string(now->digest().view()));
  delta.set_raw_bytes(now->encoded().size());
  delta.set_patch(patch);
  delta.set_known_ids(tree::EncodeKnownIds({{at(now, "name7"), new_id.Encode()}}));
  auto decoded = DecodeDelta(delta, loaded);
  ASSERT_TRUE(decoded) << decoded.error().message();
  EXPECT_EQ(decoded->directory->digest(), now->digest());
  EXPECT_EQ(decoded->known_ids, (decltype(decoded->known_ids){{at(now, "name3"), old_id}, {at(now, "name7"), new_id}}));

  // The next frame of this thread has no prefix.
  EXPECT_TRUE(Unpack(Zstd("plain plain plain plain plain"), true, 29));
  vfs::LoadedDirectory other{tree::Directory::Make({File("other")}, none), {}};
  EXPECT_FALSE(DecodeDelta(delta, other)) << "made for another base";
  v1::DirectoryDelta wrong = delta;
  wrong.set_digest(std::string(base->digest().view()));
  EXPECT_FALSE(DecodeDelta(wrong, loaded));
  wrong = delta;
  wrong.set_raw_bytes(delta.raw_bytes() + 1);
  EXPECT_FALSE(DecodeDelta(wrong, loaded));
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    wrong = delta;
    (*wrong.mutable_patch())[random() % patch.size()] = static_cast<char>(random());
    const auto result = DecodeDelta(wrong, loaded);
    EXPECT_TRUE(!result || result->directory->digest() == now->digest());
  }
}

TEST_F(ContentSourceTest, HintsAreChecked) {
  const uint64_t unit = store::kUnitBytes;
  struct Case {
    std::string path;
    std::vector<uint64_t> range;
    bool good;
    bool loader = false;
  };
  for (const Case& c :
       {Case{"/lib/x", {0, unit, 2 * unit, content_.size()}, true}, Case{"/x", {}, true}, Case{"x", {0, unit}, false},
        Case{"", {0, unit}, false}, Case{std::string("/a\0b", 4), {}, false}, Case{"/x", {1, unit}, false},
        Case{"/x", {0, unit + 1}, false}, Case{"/x", {unit, unit}, false},
        Case{"/x", {2 * unit, 3 * unit, 0, unit}, false}, Case{"/x", {0, content_.size() + 1}, false},
        Case{"/x", {unit, 2 * unit}, true, true}, Case{"/x", {unit, unit + 1}, false, true}}) {
    auto wire = Connect();
    Result<std::vector<vfs::ResidentFile>> result = Error(Code::kInternal, "not called");
    source_.FetchResident(tree_, "/f", version(), true, [&](Result<std::vector<vfs::ResidentFile>> r) {
      if (!over_) result = std::move(r);
    });
    auto request = wire->Next();
    ASSERT_TRUE(request.has_get_resident());
    EXPECT_TRUE(request.get_resident().siblings());
    v1::ContentReply reply;
    reply.set_id(request.id());
    reply.set_last(true);
    v1::ResidentFile* file = reply.mutable_resident()->add_file();
    file->set_path(c.path);
    file->mutable_version()->set_size(content_.size());
    for (uint64_t r : c.range) c.loader ? file->add_loader(r) : file->add_range(r);
    wire->Say(reply);
    EXPECT_EQ(wire->cancelled.empty(), c.good) << c.path;
    EXPECT_EQ(result.has_value(), c.good) << c.path;
    if (!c.good || !result) continue;
    EXPECT_EQ((c.loader ? result->front().loader : result->front().ranges).size(), c.range.size() / 2);
  }
}

TEST_F(ContentSourceTest, RootsAreChecked) {
  auto wire = Connect();
  tree::Entry root;
  root.mode = 040755;
  root.child = Sha256("d");
  const std::string encoded = tree::EncodeRoot(root);
  Result<tree::Entry> result = Error(Code::kInternal, "not called");
  source_.FetchRoot(Sha256(encoded), [&](Result<tree::Entry> r) { result = std::move(r); });
  v1::ContentReply reply;
  reply.set_id(wire->Next().id());
  reply.set_last(true);
  reply.mutable_root()->set_entry(encoded);
  wire->Say(reply);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->child, root.child);
  source_.FetchRoot(Sha256("another"), [](Result<tree::Entry> r) { EXPECT_FALSE(r); });
  reply.set_id(wire->Next().id());
  wire->Say(reply);
  EXPECT_FALSE(wire->cancelled.empty());
}

TEST_F(ContentSourceTest, WhatHomeHidesIsFollowedAndWhatWasMissedIsTold) {
  source_.SendMissed("/nobody/hears");
  std::vector<size_t> sizes;
  int over = 0;
  source_.WatchHidden([&](const HiddenNames& names) { sizes.push_back(names.size()); }, [&] { ++over; });
  auto wire = Connect();
  const v1::ContentRequest watch = wire->Next();
  ASSERT_TRUE(watch.has_watch_hidden());
  v1::ContentReply reply;
  reply.set_id(watch.id());
  const HiddenNames names = HiddenNames::Of("salt", {"/root/.netrc"});
  reply.mutable_hidden()->set_salt(names.salt());
  reply.mutable_hidden()->add_tag(names.tags()[0]);
  reply.mutable_hidden()->add_path(names.digests()[0]);
  wire->Say(reply);
  source_.SendMissed("/root/.netrc");
  EXPECT_EQ(wire->Next().missed().path(), "/root/.netrc");

  auto again = Connect();  // asked again on the next stream
  EXPECT_EQ(again->Next().id(), watch.id());
  reply.mutable_hidden()->clear_path();
  again->Say(reply);
  EXPECT_EQ(sizes, (std::vector<size_t>{1, 0}));
  reply.mutable_hidden()->add_path("short");
  again->Say(reply);
  EXPECT_NE(again->cancelled, "");
  v1::ContentReply unknown;
  auto older = Connect();
  unknown.set_id(older->Next().id());
  unknown.set_last(true);
  unknown.mutable_error()->set_code(static_cast<int>(Code::kUnsupported));
  older->Say(unknown);
  EXPECT_EQ(over, 1);
}

}  // namespace
}  // namespace vrun::node

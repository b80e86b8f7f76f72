// SPDX-License-Identifier: Apache-2.0
#include <elf.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <zstd.h>

#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <set>

#include "base/clock.h"
#include "home/content_server.h"
#include "home/content_session.h"
#include "home/elf_file.h"
#include "home/residency.h"
#include "home/test_directory.h"
#include "store/statement.h"
#include "tree/codec.h"
#include "tree/diff.h"
#include "tree/scan.h"

namespace vrun::home {
namespace {

std::string RandomBytes(size_t n, uint32_t seed) {
  std::mt19937 r(seed);
  std::string s(n, '\0');
  for (char& c : s) c = static_cast<char>(r());
  return s;
}

class FakeStream : public rpc::Stream {
 public:
  void Send(std::string message) override {
    std::lock_guard lock(mutex_);
    v1::ContentReply reply;
    EXPECT_TRUE(reply.ParseFromString(message));
    queued_ += hold_ ? message.size() : 0;
    replies_.push_back(std::move(reply));
    wake_.notify_all();
  }
  size_t queued_bytes() const override {
    std::lock_guard lock(mutex_);
    return queued_;
  }
  void Finish() override {}
  void Cancel(Error) override {
    std::lock_guard lock(mutex_);
    cancelled_ = true;
    wake_.notify_all();
  }

  // All parts of the answer to `id`, when its last one is there.
  std::vector<v1::ContentReply> Answer(uint64_t id) {
    std::unique_lock lock(mutex_);
    std::vector<v1::ContentReply> parts;
    bool whole = wake_.wait_for(lock, std::chrono::seconds(30), [&] {
      parts.clear();
      for (const auto& r : replies_) {
        if (r.id() == id) parts.push_back(r);
      }
      return !parts.empty() && parts.back().last();
    });
    EXPECT_TRUE(whole);
    return parts;
  }
  void Hold() {
    std::lock_guard lock(mutex_);
    hold_ = true;
  }
  void LetGo() {
    std::lock_guard lock(mutex_);
    hold_ = false;
    queued_ = 0;
  }
  // The count once it has not grown for a while is what back-pressure allows; waits until it is at least `n`.
  bool WaitForReplies(size_t n) {
    std::unique_lock lock(mutex_);
    return wake_.wait_for(lock, std::chrono::seconds(30), [&] { return replies_.size() >= n; });
  }
  size_t replies() const {
    std::lock_guard lock(mutex_);
    return replies_.size();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<v1::ContentReply> replies_;
  size_t queued_ = 0;
  bool hold_ = false;
  bool cancelled_ = false;
};

std::string Unpack(const std::string& data, bool zstd, size_t raw) {
  if (!zstd) return data;
  std::string out(raw, '\0');
  size_t n = ::ZSTD_decompress(out.data(), out.size(), data.data(), data.size());
  EXPECT_EQ(n, raw);
  return out;
}

class ContentTest : public testing::Test {
 protected:
  void Serve() {
    DenyList::Options deny;
    deny.root = root_.path();
    deny.homes = {"/root"};
    deny.home_parents = {"/home"};
    deny_ = std::make_unique<DenyList>(deny);
    Rescan();
    auto files = RootFiles::Open(root_.path());
    ASSERT_TRUE(files);
    files_ = std::make_unique<RootFiles>(std::move(*files));
    server_ = std::make_unique<ContentServer>(&trees_, files_.get(), &digests_);
    session_ = server_->NewSession();
    session_->Start(&stream_);
  }
  void Rescan() {
    tree::ScanOptions scan;
    scan.root = root_.path();
    auto rules = deny_->Current();
    scan.hidden = rules->Hidden();
    auto snapshot = tree::Scan(scan);
    ASSERT_TRUE(snapshot);
    snapshot_ = *snapshot;
    trees_.SetCurrent(snapshot_, rules);
  }
  void TearDown() override {
    if (session_) session_->Close();
    session_.reset();
    server_.reset();
  }

  tree::FileVersion VersionOf(const std::string& path) {
    struct stat st;
    EXPECT_EQ(::lstat((root_.path() + path).c_str(), &st), 0);
    return {st.st_dev, st.st_ino, st.st_ctim.tv_sec * 1'000'000'000 + st.st_ctim.tv_nsec,
            static_cast<uint64_t>(st.st_size)};
  }
  v1::ContentRequest RangeRequest(const std::string& path, const tree::FileVersion& v, uint64_t offset,
                                  uint64_t length) {
    v1::ContentRequest request;
    request.set_id(++next_id_);
    auto* get = request.mutable_get_range();
    get->set_path(path);
    get->mutable_version()->set_dev(v.dev);
    get->mutable_version()->set_ino(v.ino);
    get->mutable_version()->set_ctime_ns(v.ctime_ns);
    get->mutable_version()->set_size(v.size);
    get->set_offset(offset);
    get->set_length(length);
    get->set_tree(std::string(snapshot_->id.view()));
    return request;
  }
  v1::ContentRequest ResidentRequest(const std::string& path, bool siblings) {
    v1::ContentRequest request;
    request.set_id(++next_id_);
    auto* get = request.mutable_get_resident();
    get->set_path(path);
    get->set_siblings(siblings);
    const tree::FileVersion v = VersionOf(path);
    get->mutable_version()->set_dev(v.dev);
    get->mutable_version()->set_ino(v.ino);
    get->mutable_version()->set_ctime_ns(v.ctime_ns);
    get->mutable_version()->set_size(v.size);
    get->set_tree(std::string(snapshot_->id.view()));
    return request;
  }
  std::vector<v1::ContentReply> Ask(const v1::ContentRequest& request) {
    session_->OnMessage(request.SerializeAsString());
    return stream_.Answer(request.id());
  }
  std::string Content(const std::vector<v1::ContentReply>& parts, std::string* object_id = nullptr) {
    std::string all;
    for (const auto& part : parts) {
      EXPECT_TRUE(part.has_units()) << part.error().message();
      EXPECT_EQ(part.units().offset(), all.size());
      for (const auto& piece : part.units().piece()) {
        const std::string data = Unpack(piece.data(), piece.zstd(), piece.raw_bytes());
        std::string digests;
        for (size_t at = 0; at < data.size(); at += store::kUnitBytes)
          digests += Sha256(data.substr(at, store::kUnitBytes)).view();
        EXPECT_EQ(digests, data.empty() ? "" : piece.digests());
        all += data;
      }
      if (object_id != nullptr) *object_id = part.units().object_id();
    }
    return all;
  }
  Code ErrorOf(const std::vector<v1::ContentReply>& parts) {
    return parts.empty() ? Code::kOk : static_cast<Code>(parts.back().error().code());
  }

  TestDirectory root_;
  SnapshotTable trees_;
  DigestCache digests_{""};
  std::unique_ptr<DenyList> deny_;
  std::unique_ptr<RootFiles> files_;
  tree::SnapshotPtr snapshot_;
  FakeStream stream_;
  std::unique_ptr<ContentServer> server_;
  std::shared_ptr<ContentSession> session_;
  uint64_t next_id_ = 0;
};

// Paths and ranges of the answer.
using Hints = std::map<std::string, std::vector<std::pair<uint64_t, uint64_t>>>;
Hints HintsOf(const std::vector<v1::ContentReply>& parts) {
  Hints hints;
  EXPECT_TRUE(parts.size() == 1 && parts[0].has_resident()) << parts[0].error().message();
  for (const auto& file : parts[0].resident().file()) {
    auto& ranges = hints[file.path()];
    for (int i = 0; i + 1 < file.range_size(); i += 2) ranges.emplace_back(file.range(i), file.range(i + 1));
  }
  return hints;
}

TEST_F(ContentTest, WhatIsInThePageCacheIsOffered) {
  const uint64_t unit = store::kUnitBytes;
  // A library: its tables, then its code, then its data.
  std::string library = RandomBytes(3 << 20, 1);
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_phoff = sizeof header;
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = 3;
  const Elf64_Phdr segments[] = {
      {.p_type = PT_LOAD, .p_flags = PF_R, .p_offset = 0, .p_filesz = 8 * unit},
      {.p_type = PT_LOAD, .p_flags = PF_R | PF_X, .p_offset = 8 * unit, .p_filesz = 20 * unit},
      {.p_type = PT_LOAD, .p_flags = PF_R | PF_W, .p_offset = 28 * unit, .p_filesz = 20 * unit}};
  std::memcpy(library.data(), &header, sizeof header);
  std::memcpy(library.data() + sizeof header, segments, sizeof segments);
  root_.Put("root/.ssh/large.py", library);
  root_.Put("root/.ssh/small.py", "small");
  root_.Put("root/.ssh/other.c", "another kind");
  root_.Put("root/.ssh/cold.py", "cold");
  root_.Put("root/.ssh/id_key.py", "-----BEGIN OPENSSH PRIVATE KEY-----\n");
  Serve();
  if (!ResidentRanges(OpenFile(root_ / "root/.ssh/small.py", O_RDONLY)->get(), 5, unit))
    GTEST_SKIP() << "the kernel does not tell";
  for (const char* name : {"root/.ssh/large.py", "root/.ssh/cold.py"}) {
    auto fd = OpenFile(root_ / name, O_RDONLY);
    ASSERT_EQ(::fsync(fd->get()), 0);
    ASSERT_EQ(::posix_fadvise(fd->get(), 0, 0, POSIX_FADV_DONTNEED), 0);
    ASSERT_EQ(::posix_fadvise(fd->get(), 0, 0, POSIX_FADV_RANDOM), 0);
    if (!ResidentRanges(fd->get(), 3 << 20, unit)->empty()) GTEST_SKIP() << "this file system keeps its pages";
    char c;
    for (uint64_t u : {5, 12, 30}) {
      ASSERT_GE(::pread(fd->get(), &c, 1, static_cast<off_t>(u * unit + 7)), 0);
    }
  }
  Hints hints = HintsOf(Ask(ResidentRequest("/root/.ssh/large.py", true)));
  EXPECT_THAT(hints["/root/.ssh/large.py"],
              testing::ElementsAre(std::pair(5 * unit, 6 * unit), std::pair(30 * unit, 31 * unit)));
  EXPECT_TRUE(hints.contains("/root/.ssh/small.py"));
  EXPECT_FALSE(hints.contains("/root/.ssh/cold.py"));
  EXPECT_TRUE(hints.contains("/root/.ssh/other.c")) << "a package reads its data, too";
  EXPECT_FALSE(hints.contains("/root/.ssh/id_key.py")) << "the deny list holds for hints, too";
  EXPECT_TRUE(HintsOf(Ask(ResidentRequest("/root/.ssh/large.py", true))).empty()) << "one offer is enough";
  EXPECT_EQ(ErrorOf(Ask(ResidentRequest("/root/.ssh/id_key.py", false))), Code::kDenied);
}

TEST_F(ContentTest, WhatWasUsedOfAPackageIsOfferedWithItsFirstModule) {
  const std::vector<std::string> used = {"lib/pkg/__init__.py", "lib/pkg/__pycache__/__init__.cpython-311.pyc",
                                         "lib/pkg/deep/er/__pycache__/m.cpython-311.pyc", "lib/pkg/deep/table.json"};
  for (const std::string& path : used) root_.Put(path, path);
  root_.Put("lib/pkg/deep/cold.py", "nobody read this");
  root_.Put("lib/pkg/site-packages/other/__init__.py", "another package");
  root_.Put("lib/beside.py", "another module");
  Serve();
  auto cold = OpenFile(root_ / "lib/pkg/deep/cold.py", O_RDONLY);
  ASSERT_EQ(::fsync(cold->get()), 0);
  ASSERT_EQ(::posix_fadvise(cold->get(), 0, 0, POSIX_FADV_DONTNEED), 0);
  const auto resident = ResidentRanges(cold->get(), 16, 16);
  if (!resident || !resident->empty()) GTEST_SKIP() << "this file system keeps its pages, or the kernel does not tell";
  std::set<std::string> offered;
  for (const auto& [path, ranges] :
       HintsOf(Ask(ResidentRequest("/lib/pkg/__pycache__/__init__.cpython-311.pyc", true)))) {
    offered.insert(path);
  }
  EXPECT_EQ(offered, (std::set<std::string>{"/lib/pkg/__init__.py", "/lib/pkg/deep/er/__pycache__/m.cpython-311.pyc",
                                            "/lib/pkg/deep/table.json"}));
}

// Read-ahead makes pages resident that nobody uses.
TEST_F(ContentTest, OnlyPagesThatWereUsedCountAsUsed) {
  constexpr uint64_t kSize = 4u << 20, kUnit = 64u << 10;
  root_.Put("lib", RandomBytes(kSize, 1));
  auto fd = OpenFile(root_ / "lib", O_RDONLY);
  ASSERT_EQ(::fsync(fd->get()), 0);
  ASSERT_EQ(::posix_fadvise(fd->get(), 0, 0, POSIX_FADV_DONTNEED), 0);
  ASSERT_EQ(::readahead(fd->get(), 0, kSize), 0);
  const auto none = UsedRanges(fd->get(), kSize, kUnit);
  if (!none) GTEST_SKIP() << "needs root and Linux 6.3";
  if (!none->empty()) GTEST_SKIP() << "this file system keeps its pages";
  // A process that has it mapped, and ends.
  const pid_t child = ::fork();
  if (child == 0) {
    auto* map = static_cast<volatile char*>(::mmap(nullptr, kSize, PROT_READ, MAP_PRIVATE, fd->get(), 0));
    for (const uint64_t unit : {3, 40}) (void)map[unit * kUnit + 5000];
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  const std::pair<uint64_t, uint64_t> first{3 * kUnit, 4 * kUnit}, second{40 * kUnit, 41 * kUnit};
  for (int look = 0; look < 3; ++look) {
    EXPECT_THAT(*UsedRanges(fd->get(), kSize, kUnit), testing::ElementsAre(first, second)) << "look " << look;
  }
  // Cut off under our eyes: no signal.
  ASSERT_EQ(::truncate((root_ / "lib").c_str(), 4096), 0);
  (void)UsedRanges(fd->get(), kSize, kUnit);
}

TEST_F(ContentTest, OurOwnReadingIsNotTakenForSomebodys) {
  root_.Put("f", RandomBytes(1 << 20, 2));
  auto fd = OpenFile(root_ / "f", O_RDONLY);
  ASSERT_EQ(::fsync(fd->get()), 0);
  ASSERT_EQ(::posix_fadvise(fd->get(), 0, 0, POSIX_FADV_DONTNEED), 0);
  auto before = ResidentRanges(fd->get(), 1 << 20, store::kUnitBytes);
  if (!before || !before->empty()) GTEST_SKIP() << "this file system keeps its pages, or the kernel does not tell";
  {
    ResidencyKept kept(fd->get(), 0, 1 << 20);
    std::string all(1 << 20, '\0');
    ASSERT_TRUE(PreadUpTo(fd->get(), all.data(), all.size(), 0));
  }
  EXPECT_TRUE(ResidentRanges(fd->get(), 1 << 20, store::kUnitBytes)->empty());
}

TEST_F(ContentTest, TheLibrariesThatAProgramLoadsAreOffered) {
  auto program = ReadFile("/bin/true", 64 << 20);
  ASSERT_TRUE(program);
  const ElfNeeds needs = ReadElfNeeds(OpenFile("/bin/true", O_RDONLY)->get());
  ASSERT_THAT(needs.libraries, testing::Contains("libc.so.6"));
  root_.Put("usr/bin/true", *program);
  root_.Put("usr/lib/real-libc", *program);  // needs itself: a circle
  ASSERT_EQ(::symlink("usr/lib", (root_ / "lib").c_str()), 0);
  ASSERT_EQ(::symlink("real-libc", (root_ / "usr/lib/libc.so.6").c_str()), 0);
  Serve();
  Hints hints = HintsOf(Ask(ResidentRequest("/usr/bin/true", false)));
  EXPECT_EQ(hints.size(), 1u);
  EXPECT_TRUE(hints.contains("/usr/lib/real-libc"));
}

TEST_F(ContentTest, DamagedElfFilesNeedNothing) {
  auto program = ReadFile("/bin/true", 64 << 20);
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    std::string damaged = *program;
    for (int k = 0; k < 20; ++k) damaged[random() % (i % 2 ? 1024 : damaged.size())] = static_cast<char>(random());
    if (i % 5 == 0) damaged.resize(random() % damaged.size());
    root_.Put("f", damaged);
    auto fd = OpenFile(root_ / "f", O_RDONLY);
    (void)ReadElfNeeds(fd->get());
    std::vector<std::pair<uint64_t, uint64_t>> ranges{{0, damaged.size()}};
    KeepTablesAndData(fd->get(), store::kUnitBytes, &ranges);
    for (const auto& [first, end] : ranges) EXPECT_TRUE(first < end && end <= damaged.size());
  }
}

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
  EXPECT_EQ(id, (store::ObjectId{store::IdAlgorithm::kSha256, Sha256(text)}.Encode()));
  EXPECT_EQ(Content(Ask(RangeRequest("/b", VersionOf("/b"), 0, big.size())), &id), big);
  EXPECT_EQ(id, (store::ObjectId{store::IdAlgorithm::kSha256, Sha256(big)}.Encode()));
  EXPECT_EQ(Content(Ask(RangeRequest("/empty", VersionOf("/empty"), 0, 0)), &id), "");
  EXPECT_EQ(id, (store::ObjectId{store::IdAlgorithm::kSha256, Sha256("")}.Encode()));
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
  Sha256Stream ids;
  for (size_t at = 0; at < big.size(); at += store::kUnitBytes)
    ids.Update(Sha256(big.substr(at, store::kUnitBytes)).view());
  EXPECT_EQ(parts.back().units().object_id(),
            (store::ObjectId{store::IdAlgorithm::kSha256Units, ids.Finish()}.Encode()));
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
  // Nor is the new version served to somebody whose tree does not have it.
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

TEST_F(ContentTest, OnlyRegularFilesOfTheTreeAreServed) {
  root_.Put("dir/real", "x");
  ASSERT_EQ(::mkfifo((root_ / "fifo").c_str(), 0600), 0);
  ASSERT_EQ(::symlink("real", (root_ / "dir/link").c_str()), 0);
  ASSERT_EQ(::symlink("dir", (root_ / "alias").c_str()), 0);
  Serve();
  // Would block for ever if it were opened.
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
  // A key that came after the rules were made, even when a tree names it.
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
  EXPECT_EQ(ErrorOf(Ask(RangeRequest("/f", version, 0, 0))), Code::kInvalid);
  EXPECT_EQ(Content(Ask(RangeRequest("/f", version, 0, ~0ull))).size(), 200'000u);
  v1::ContentRequest unknown;
  unknown.set_id(++next_id_);
  EXPECT_EQ(ErrorOf(Ask(unknown)), Code::kUnsupported);
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

  // An unknown tree (home was restarted): what is the same at that path now will do, what is not will not.
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

  // Of a second tree only what changed travels.
  auto pin = trees_.Add(snapshot_, {});
  tree::SnapshotPtr before = snapshot_;
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

  // In packs: the same objects in a few messages, those that are too large for one by themselves.
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

TEST_F(ContentTest, AFullStreamStopsReadingButDirectoriesOvertake) {
  root_.Put("noise", RandomBytes(32 << 20, 5));
  Serve();
  stream_.Hold();
  std::vector<v1::ContentRequest> ranges;
  for (int i = 0; i < 32; ++i)
    ranges.push_back(RangeRequest("/noise", VersionOf("/noise"), static_cast<uint64_t>(i) << 20, 1 << 20));
  for (auto& r : ranges) session_->OnMessage(r.SerializeAsString());
  ASSERT_TRUE(stream_.WaitForReplies(4));
  v1::ContentRequest directory;
  directory.set_id(++next_id_);
  directory.mutable_get_directory()->set_tree(std::string(snapshot_->id.view()));
  directory.mutable_get_directory()->set_path("/");
  directory.mutable_get_directory()->set_digest(std::string(snapshot_->directory->digest().view()));
  EXPECT_TRUE(Ask(directory)[0].has_directory());
  // 4 MiB queued, and what the workers had in hand.
  EXPECT_LE(stream_.replies(), 12u);
  v1::ContentRequest cancel;
  cancel.mutable_cancel()->set_id(ranges[31].id());
  session_->OnMessage(cancel.SerializeAsString());
  stream_.LetGo();
  session_->OnWritable();
  for (int i = 0; i < 31; ++i) EXPECT_EQ(stream_.Answer(ranges[static_cast<size_t>(i)].id()).size(), 1u);
  EXPECT_LE(stream_.replies(), 32u);
}

TEST(DenyList, PatternsHomesAndExpose) {
  TestDirectory root;
  root.Put("root/.ssh/id_ed25519", "k");
  root.Put("root/.ssh/deploy.pem", "k");
  root.Put("root/.ssh/known_hosts", "k");
  root.Put("home/ann/.mozilla/x", "k");
  root.Put("home/ann/.config/gcloud/a/b", "k");
  root.Put("home/ann/.config/gcloud/a/c", "k");
  root.Put("elsewhere/kube", "k");
  root.Put("own/key", "k");
  ASSERT_EQ(::symlink((root / "elsewhere").c_str(), (root / "home/ann/.kube").c_str()), 0);
  DenyList list({root.path(), {"/root"}, {"/home"}, {root / "own"}});
  auto rules = list.Current();
  EXPECT_TRUE(rules->Denies("/root/.ssh/id_ed25519"));
  EXPECT_TRUE(rules->Denies("/root/.ssh/id_of_tomorrow"));
  EXPECT_FALSE(rules->Denies("/root/.ssh/id_ed25519.pub"));
  EXPECT_TRUE(rules->Denies("/root/.ssh/deploy.pem"));
  EXPECT_FALSE(rules->Denies("/root/.ssh/known_hosts"));
  EXPECT_FALSE(rules->Denies("/root/.ssh"));
  EXPECT_TRUE(rules->Denies("/home/ann/.aws"));
  EXPECT_TRUE(rules->Denies("/home/bob/.aws/credentials"));
  EXPECT_FALSE(rules->Denies("/home/ann/.awsome"));
  EXPECT_FALSE(rules->Denies("/srv/.aws/x"));
  EXPECT_TRUE(rules->Denies("/home/ann/.config/gcloud/a/b"));
  EXPECT_FALSE(rules->Denies("/home/ann/.config"));
  EXPECT_TRUE(rules->Denies("/elsewhere/kube")) << "what a denied link points at";
  EXPECT_TRUE(rules->Denies("/own/key"));
  EXPECT_TRUE(rules->Denies("/own/key", {"/own"})) << "our own state cannot be exposed";

  EXPECT_FALSE(rules->Denies("/home/ann/.config/gcloud/a/b", {"/home/ann/.config/gcloud/a"}));
  EXPECT_TRUE(rules->Denies("/home/ann/.aws/x", {"/home/ann/.config"}));

  auto hidden = rules->Hidden();
  EXPECT_THAT(hidden, testing::IsSupersetOf({"/root/.ssh/id_ed25519", "/root/.ssh/deploy.pem",
                                             "/home/ann/.config/gcloud", "/own", "/elsewhere"}));
  hidden = rules->Hidden({"/home/ann/.config/gcloud/a/b"});
  EXPECT_THAT(hidden, testing::Not(testing::Contains("/home/ann/.config/gcloud")));
  EXPECT_THAT(hidden, testing::Contains("/home/ann/.config/gcloud/a/c"));
  EXPECT_THAT(hidden, testing::Not(testing::Contains("/home/ann/.config/gcloud/a/b")));

  tree::DirtySet dirty;
  dirty.names["/var/log"] = {"x"};
  EXPECT_FALSE(list.Concerns(dirty));
  dirty.names["/root/.ssh"] = {"id_new"};
  EXPECT_TRUE(list.Concerns(dirty));
}

store::ObjectId IdOf(int n) { return {store::IdAlgorithm::kSha256, Sha256(std::to_string(n))}; }
tree::FileVersion VersionNumber(int n) { return {1, static_cast<uint64_t>(n), 1'000'000, 7}; }
constexpr int64_t kLater = 10'000'000'000;

TEST(DigestCache, RemembersOverARestart) {
  TestDirectory dir;
  {
    DigestCache cache(dir / "digests");
    for (int i = 0; i < 100; ++i) cache.Remember(VersionNumber(i), IdOf(i), kLater);
  }
  DigestCache cache(dir / "digests");
  EXPECT_EQ(cache.size(), 100u);
  EXPECT_EQ(cache.Find(VersionNumber(42)), IdOf(42));
  EXPECT_FALSE(cache.Find(VersionNumber(100)));
}

TEST(DigestCache, AFreshlyChangedFileIsNotRemembered) {
  DigestCache cache("");
  cache.Remember(VersionNumber(1), IdOf(1), 1'000'000 + 1'000'000);
  EXPECT_FALSE(cache.Find(VersionNumber(1)));
}

TEST(DigestCache, ATornOrRottenRecordEndsWhatIsBelieved) {
  TestDirectory dir;
  std::string file = dir / "digests";
  {
    DigestCache cache(file);
    for (int i = 0; i < 10; ++i) cache.Remember(VersionNumber(i), IdOf(i), kLater);
  }
  std::string content = *ReadFile(file);
  // Torn anywhere: the whole records before are there, and new ones can be added.
  for (size_t cut = 0; cut <= content.size(); cut += 13) {
    ASSERT_TRUE(WriteFileAtomic(file, content.substr(0, cut), 0600));
    size_t whole = cut < 8 ? 0 : (cut - 8) / 72;
    {
      DigestCache cache(file);
      EXPECT_EQ(cache.size(), whole) << cut;
      cache.Remember(VersionNumber(99), IdOf(99), kLater);
    }
    DigestCache again(file);
    EXPECT_EQ(again.size(), whole + 1) << cut;
    EXPECT_EQ(again.Find(VersionNumber(99)), IdOf(99));
  }
  // A flipped bit.
  content[8 + 72 * 4 + 20] = static_cast<char>(content[8 + 72 * 4 + 20] ^ 1);
  ASSERT_TRUE(WriteFileAtomic(file, content, 0600));
  DigestCache cache(file);
  EXPECT_EQ(cache.size(), 4u);
}

TEST(DigestCache, IsBounded) {
  TestDirectory dir;
  {
    DigestCache cache(dir / "digests", 100);
    for (int i = 0; i < 1000; ++i) cache.Remember(VersionNumber(i), IdOf(i), kLater);
    EXPECT_LE(cache.size(), 100u);
    EXPECT_TRUE(cache.Find(VersionNumber(999)));
    EXPECT_FALSE(cache.Find(VersionNumber(0)));
  }
  EXPECT_LT(ReadFile(dir / "digests")->size(), 202u * 72);
  DigestCache cache(dir / "digests", 100);
  EXPECT_TRUE(cache.Find(VersionNumber(999)));
}

TEST(DigestCache, WorksWithoutADisk) {
  DigestCache cache("/proc/nowhere/digests");
  cache.Remember(VersionNumber(1), IdOf(1), kLater);
  EXPECT_TRUE(cache.Find(VersionNumber(1)));
}

TEST(BackgroundHasher, NamesALargeFile) {
  TestDirectory root;
  std::string big = RandomBytes(3'000'000, 6);
  root.Put("big", big);
  auto files = RootFiles::Open(root.path());
  ASSERT_TRUE(files);
  struct stat st;
  ASSERT_EQ(::stat((root / "big").c_str(), &st), 0);
  tree::FileVersion version{st.st_dev, st.st_ino, st.st_ctim.tv_sec * 1'000'000'000 + st.st_ctim.tv_nsec, big.size()};
  std::mutex mutex;
  std::condition_variable wake;
  std::optional<store::ObjectId> known;
  BackgroundHasher hasher(
      &*files,
      [&](const tree::FileVersion& v, const store::ObjectId& id) {
        std::lock_guard lock(mutex);
        EXPECT_EQ(v, version);
        known = id;
        wake.notify_all();
      },
      std::chrono::milliseconds(0));
  hasher.Add("/big", version);
  std::unique_lock lock(mutex);
  ASSERT_TRUE(wake.wait_for(lock, std::chrono::seconds(30), [&] { return known.has_value(); }));
  UnitDigests units;
  std::vector<Digest> digests;
  for (size_t at = 0; at < big.size(); at += store::kUnitBytes)
    digests.push_back(Sha256(big.substr(at, store::kUnitBytes)));
  EXPECT_EQ(units.Add(version, 0, digests), *known);
}

}  // namespace
}  // namespace vrun::home

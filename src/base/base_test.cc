// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/hash/blake3.h"
#include "base/hash/digest.h"
#include "base/hash/secret.h"
#include "base/id_map.h"
#include "base/io/event_loop.h"
#include "base/io/file_lock.h"
#include "base/io/message_socket.h"

namespace vrun {
namespace {

std::string TempDir() {
  std::string t = "/var/tmp/vrun-base-XXXXXX";
  VRUN_CHECK(mkdtemp(t.data()) != nullptr);
  return t;
}

struct Pair {
  UniqueFd a, b;
  Pair() {
    int s[2];
    VRUN_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s) == 0);
    a.Reset(s[0]);
    b.Reset(s[1]);
  }
};

TEST(Digest, KnownAnswerAndHexRoundTrip) {
  EXPECT_EQ(Sha256("abc").Hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Digest::FromHex(Sha256("x").Hex()), Sha256("x"));
  EXPECT_FALSE(Digest::FromHex("zz"));
  Sha256Stream s;
  s.Update("a");
  s.Update("bc");
  EXPECT_EQ(s.Finish(), Sha256("abc"));
}

// Upstream's test_vectors.json: the input bytes count from 0 to 250 and repeat.
TEST(Blake3, KnownAnswers) {
  std::string input(102'400, '\0');
  for (size_t i = 0; i < input.size(); ++i) input[i] = static_cast<char>(i % 251);
  const std::pair<size_t, const char*> known[] = {
      {0, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"},
      {1, "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213"},
      {1024, "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7"},
      {102'400, "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085"},
  };
  for (const auto& [size, digest] : known) {
    EXPECT_EQ(Blake3(std::string_view(input).substr(0, size)).Hex(), digest) << size;
  }
}

TEST(Escape, ANameCanNeitherMoveTheCursorNorForgeALine) {
  EXPECT_EQ(Escape("plain é ✓"), "plain é ✓");
  EXPECT_EQ(Escape("a\nb\x1b[2J\\"), "a\\nb\\x1b[2J\\\\");
  EXPECT_EQ(Escape("\xff\xc0\x80"), "\\xff\\xc0\\x80");
  EXPECT_EQ(Escape("\xe2\x80\xae"), "\\xe2\\x80\\xae");  // right-to-left override
  EXPECT_EQ(ShellQuote("a b"), "'a b'");
  EXPECT_EQ(ShellQuote("it's"), "'it'\\''s'");
  EXPECT_EQ(ShellQuote(""), "''");
}

TEST(Files, AtomicWriteReplacesAndKeepsModes) {
  std::string dir = TempDir();
  ASSERT_TRUE(WriteFileAtomic(dir + "/f", "one", 0600));
  ASSERT_TRUE(WriteFileAtomic(dir + "/f", "two", 0600));
  EXPECT_EQ(*ReadFile(dir + "/f"), "two");
  struct stat st;
  ASSERT_EQ(stat((dir + "/f").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0600u);
  EXPECT_FALSE(WriteFileAtomic(dir + "/absent/f", "x", 0600));
  // As /dev/null and /dev/stdout: the whole machine would miss them.
  ASSERT_EQ(::symlink("/dev/null", (dir + "/null").c_str()), 0);
  ASSERT_EQ(::symlink("/proc/self/fd/1", (dir + "/stdout").c_str()), 0);
  ASSERT_EQ(::symlink("f", (dir + "/link").c_str()), 0);
  EXPECT_FALSE(WriteFileAtomic(dir + "/null", "x", 0600));
  EXPECT_FALSE(WriteFileAtomic(dir + "/stdout", "x", 0600));
  EXPECT_TRUE(WriteFileAtomic(dir + "/link", "x", 0600));
  ASSERT_TRUE(MakeDirs(dir + "/a/b/c", 0755));
  ASSERT_EQ(symlink("/etc", (dir + "/a/link").c_str()), 0);
  ASSERT_TRUE(RemoveTree(dir));
  EXPECT_FALSE(PathExists(dir));
  EXPECT_TRUE(PathExists("/etc/passwd"));
  EXPECT_TRUE(RemoveTree(dir));
}

// A daemon was killed between fork and exec: the child has its lock for a moment.
TEST(FileLock, AMomentOfAnotherIsWaitedForAndNoMore) {
  const std::string dir = TempDir(), path = dir + "/lock";
  for (const bool stays : {false, true}) {
    const pid_t child = fork();
    if (child == 0) {
      auto lock = LockFile(path);
      if (!lock || !WriteFileAtomic(path + ".taken", "", 0600)) _exit(1);
      stays ? pause() : usleep(300'000);
      _exit(0);
    }
    while (access((path + ".taken").c_str(), F_OK) != 0) usleep(1000);
    unlink((path + ".taken").c_str());
    const Result<UniqueFd> lock = LockFile(path);
    EXPECT_EQ(lock.has_value(), !stays);
    if (!lock) EXPECT_EQ(lock.error().code(), Code::kExists);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  EXPECT_TRUE(RemoveTree(dir));
}

TEST(MessageSocket, DescriptorsArriveWithTheirFrame) {
  Pair p;
  int pipe_fds[2];
  ASSERT_EQ(pipe2(pipe_fds, O_CLOEXEC), 0);
  UniqueFd r(pipe_fds[0]), w(pipe_fds[1]);
  FrameWriter writer;
  writer.Queue("first");
  std::vector<UniqueFd> fds;
  fds.emplace_back(dup(w.get()));
  writer.Queue("second", std::move(fds));
  writer.Queue("third");
  ASSERT_TRUE(*writer.Flush(p.a.get()));
  FrameReader reader;
  std::vector<Frame> got;
  while (got.size() < 3) ASSERT_TRUE(*reader.ReadAvailable(p.b.get(), [&](Frame f) { got.push_back(std::move(f)); }));
  EXPECT_EQ(got[0].bytes, "first");
  EXPECT_TRUE(got[0].fds.empty());
  EXPECT_EQ(got[1].bytes, "second");
  ASSERT_EQ(got[1].fds.size(), 1u);
  ASSERT_TRUE(WriteAll(got[1].fds[0].get(), "!"));
  char c;
  ASSERT_EQ(read(r.get(), &c, 1), 1);
  EXPECT_EQ(c, '!');
  EXPECT_EQ(got[2].bytes, "third");
}

TEST(MessageSocket, FramesComeWholeAndInOrderHoweverTheyAreCut) {
  Pair p;
  std::string wire;
  std::vector<std::string> sent;
  for (size_t size : {0u, 1u, 7u, 300'000u, 65'528u, 0u, 65'536u, 1'000'000u, 3u}) {
    sent.emplace_back(size, static_cast<char>('a' + sent.size()));
    for (size_t n : {size, size_t{0}}) {
      for (int i = 0; i < 4; ++i) wire.push_back(static_cast<char>(n >> (8 * i)));
    }
    wire += sent.back();
  }
  // Headers and bodies are split at odd places, and several frames arrive at once.
  FrameReader reader;
  std::vector<std::string> got;
  for (size_t at = 0, piece = 1; at < wire.size(); at += piece, piece = std::min<size_t>(piece * 3, 150'000)) {
    ASSERT_TRUE(WriteAll(p.a.get(), std::string_view(wire).substr(at, piece)));
    ASSERT_TRUE(*reader.ReadAvailable(p.b.get(), [&](Frame f) { got.push_back(std::move(f.bytes)); }));
  }
  EXPECT_EQ(got, sent);
  p.a.Reset();
  EXPECT_FALSE(*reader.ReadAvailable(p.b.get(), [](Frame) { FAIL(); }));
}

TEST(MessageSocket, LargeFramesCrossANonBlockingSocketWhole) {
  Pair p;
  std::string big(5u << 20, 'x');
  big[1234567] = 'y';
  std::thread sender([&] { ASSERT_TRUE(SendFrame(p.a.get(), big)); });
  Result<Frame> f = ReceiveFrame(p.b.get());
  sender.join();
  ASSERT_TRUE(f);
  EXPECT_EQ(f->bytes, big);
  p.a.Reset();
  Result<Frame> end = ReceiveFrame(p.b.get());
  ASSERT_FALSE(end);
  EXPECT_EQ(end.error().code(), Code::kUnavailable);
}

TEST(MessageSocket, AnOversizedFrameIsRefused) {
  Pair p;
  ASSERT_TRUE(WriteAll(p.a.get(), std::string("\xff\xff\xff\x7f\0\0\0\0", 8)));
  FrameReader reader;
  Result<bool> r = reader.ReadAvailable(p.b.get(), [](Frame) {});
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code(), Code::kCorrupt);
}

TEST(MessageSocket, AStaleSocketIsReplacedALiveOneIsNot) {
  std::string dir = TempDir(), path = dir + "/s";
  {
    Result<UniqueFd> first = ListenUnix(path);
    ASSERT_TRUE(first);
    Result<UniqueFd> second = ListenUnix(path);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code(), Code::kExists);
  }
  EXPECT_TRUE(PathExists(path));
  EXPECT_TRUE(ListenUnix(path));
  EXPECT_FALSE(ListenUnix(dir + "/" + std::string(120, 'x')));
  ASSERT_TRUE(RemoveTree(dir));
}

TEST(EventLoop, PostsTimersAndRemovalFromACallback) {
  EventLoop loop;
  std::string order;
  EventLoop::TimerId cancelled = loop.After(1000, [&] { order += "X"; });
  loop.Cancel(cancelled);
  int p[2];
  ASSERT_EQ(pipe2(p, O_CLOEXEC), 0);
  UniqueFd r(p[0]), w(p[1]);
  ASSERT_TRUE(loop.Add(r.get(), EPOLLIN, [&](uint32_t) {
    order += "r";
    loop.Remove(r.get());
    loop.After(2000, [&] {
      order += "t";
      loop.Stop();
    });
  }));
  std::thread other([&] { loop.Post([&] { ASSERT_TRUE(WriteAll(w.get(), "x")); }); });
  loop.Run();
  other.join();
  EXPECT_EQ(order, "rt");
}

TEST(Secret, ASignatureHoldsForItsTextAndKeyOnly) {
  const SigningKey key = *SigningKey::Generate(), other = *SigningKey::Generate();
  const std::string signature = key.Sign("text");
  EXPECT_TRUE(VerifySignature(key.public_key(), "text", signature));
  EXPECT_FALSE(VerifySignature(key.public_key(), "texT", signature));
  EXPECT_FALSE(VerifySignature(other.public_key(), "text", signature));
  EXPECT_FALSE(VerifySignature(key.public_key(), "text", signature.substr(1)));
  EXPECT_FALSE(VerifySignature("", "text", signature));
  EXPECT_FALSE(VerifySignature(key.public_key(), "text", ""));
}

TEST(Secret, AKeyIsThatOfItsSeed) {
  const std::string seed(SigningKey::kSeedBytes, 's');
  EXPECT_TRUE(
      VerifySignature(SigningKey::FromSeed(seed)->public_key(), "text", SigningKey::FromSeed(seed)->Sign("text")));
  EXPECT_EQ(SigningKey::FromSeed(seed.substr(1)).error().code(), Code::kInvalid);
}

TEST(Secret, HmacIsThatOfRfc4231) {
  EXPECT_EQ(HmacSha256("Jefe", "what do ya want for nothing?").Hex(),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_TRUE(SameSecret("abc", "abc"));
  EXPECT_FALSE(SameSecret("abc", "abd"));
  EXPECT_FALSE(SameSecret("abc", "ab"));
  EXPECT_NE(*RandomSecret(32), *RandomSecret(32));
}

TEST(IdMap, ThereAndBack) {
  const IdMap ids(0x40010000, {1200345, 4000000000u});
  IdMap copy = ids;
  for (const uint32_t id : {0u, 1000u, 65534u, 65535u, 1200345u, 4000000000u})
    EXPECT_EQ(ids.ToHome(ids.ToNode(id)), id) << id;
  EXPECT_EQ(ids.ToNode(1000), 0x40010000u + 1000);
  EXPECT_EQ(ids.ToNode(1200345), ids.high_base());
  EXPECT_EQ(ids.ToNode(70000), 0x40010000u + IdMap::kNobody);
  for (const uint32_t id : {0u, 0x40000000u, 0x40020000u, ids.high_base() + 2, ids.high_base() - 1, UINT32_MAX}) {
    EXPECT_EQ(ids.ToHome(id), IdMap::kNobody) << id;
  }
  copy.SetHigh({1200345, 4000000000u, 70000});
  EXPECT_EQ(ids.ToNode(70000), ids.high_base() + 2) << "copies share what is learnt";
  EXPECT_NE(IdMap(0x40000000).high_base(), ids.high_base());
}

TEST(Clock, NanosecondsEndWhereTheirNumbersEnd) {
  EXPECT_EQ(ToNanos(1, 5), 1'000'000'005);
  EXPECT_EQ(ToNanos(-2, 999'999'999), -1'000'000'001);
  EXPECT_EQ(ToNanos(10'000'000'000, 1), INT64_MAX);
  EXPECT_EQ(ToNanos(-10'000'000'000, 1), INT64_MIN);
}

}  // namespace
}  // namespace vrun

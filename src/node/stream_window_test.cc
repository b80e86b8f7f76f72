// SPDX-License-Identifier: Apache-2.0
#include "node/stream_window.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <random>

namespace vrun::node {
namespace {

std::string TakeAll(OutputWindow* window) {
  std::string out;
  while (auto piece = window->Next()) {
    EXPECT_EQ(out.size() + piece->offset - piece->offset, out.size());
    out.append(piece->data);
    if (piece->end) break;
  }
  return out;
}

TEST(OutputWindow, SendsWhatWasAppendedOnce) {
  OutputWindow w;
  w.Append("hello ");
  w.Append("world");
  auto piece = w.Next();
  ASSERT_TRUE(piece);
  EXPECT_EQ(0u, piece->offset);
  EXPECT_EQ("hello world", piece->data);
  EXPECT_FALSE(piece->end);
  EXPECT_FALSE(w.Next());
  w.SetEnd();
  piece = w.Next();
  ASSERT_TRUE(piece);
  EXPECT_TRUE(piece->end);
  EXPECT_EQ(11u, piece->offset);
  EXPECT_FALSE(w.Next());
}

TEST(OutputWindow, IsFullUntilAcknowledged) {
  OutputWindow w;
  w.Append(std::string(kStreamWindow - 1, 'x'));
  EXPECT_FALSE(w.full());
  EXPECT_EQ(1u, w.Reserve().size);
  w.Append("y");
  EXPECT_TRUE(w.full());
  EXPECT_EQ(0u, w.Reserve().size);
  EXPECT_EQ(kStreamWindow, TakeAll(&w).size());
  EXPECT_TRUE(w.full());  // sent does not mean passed on
  ASSERT_TRUE(w.Acknowledge(5));
  EXPECT_EQ(5u, w.Reserve().size);
  w.SetUnbounded();
  w.Append(std::string(1000000, 'z'));
  EXPECT_EQ(1000000u, TakeAll(&w).size());
}

TEST(OutputWindow, ASpoolGoesOnWithoutAReceiver) {
  OutputWindow w;
  w.SetLimit(1 << 20);
  UniqueFd file(::open("/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  ASSERT_TRUE(file);
  const int fd = file.get();
  w.SpoolTo(std::move(file), 8 << 20);
  std::string all;
  for (int i = 0; all.size() < 7'000'000; ++i) all += std::to_string(i) + " ";
  w.Append(all);
  EXPECT_FALSE(w.full());
  // What is on its way is bounded; the rest follows what is acknowledged.
  std::string got;
  while (got.size() < all.size()) {
    const std::string some = TakeAll(&w);
    ASSERT_FALSE(some.empty());
    ASSERT_LE(some.size(), (1u << 20) + kStreamMessage);
    got += some;
    ASSERT_TRUE(w.Acknowledge(got.size()));
  }
  EXPECT_EQ(got, all);
  struct stat st;
  ASSERT_EQ(::fstat(fd, &st), 0);
  EXPECT_LE(st.st_blocks * 512, 1 << 20) << "what is passed on takes no room";
}

TEST(OutputWindow, SendsAgainFromAnyUnacknowledgedByte) {
  OutputWindow w;
  std::string all;
  for (int i = 0; all.size() < 3'000'000; ++i) all += std::to_string(i) + " ";
  w.Append(all);
  w.SetEnd();
  EXPECT_EQ(all, TakeAll(&w));
  ASSERT_TRUE(w.Acknowledge(700'000));
  for (uint64_t from : {700'000u, 700'001u, 1'048'576u, 2'000'000u}) {
    ASSERT_TRUE(w.SendFrom(from));
    EXPECT_EQ(all.substr(from), TakeAll(&w));
    EXPECT_TRUE(w.end_sent());
  }
  ASSERT_TRUE(w.SendFrom(3));  // already freed: gets the rest
  EXPECT_EQ(2'000'000u, w.acknowledged());
  EXPECT_FALSE(w.SendFrom(all.size() + 1));
  EXPECT_FALSE(w.Acknowledge(all.size() + 1));
}

TEST(OutputWindow, RandomTrafficIsIdentical) {
  std::mt19937 random(7);
  OutputWindow w;
  std::string in, out;
  for (int i = 0; i < 20000; ++i) {
    switch (random() % 4) {
      case 0: {
        OutputWindow::Space space = w.Reserve();
        size_t n = std::min<size_t>(space.size, random() % 5000);
        for (size_t k = 0; k < n; ++k) {
          space.data[k] = static_cast<char>(random());
          in.push_back(space.data[k]);
        }
        w.Commit(n);
        break;
      }
      case 1:
        if (auto piece = w.Next()) {
          ASSERT_LE(piece->offset, out.size());
          out.resize(piece->offset);
          out.append(piece->data);
        }
        break;
      case 2: ASSERT_TRUE(w.Acknowledge(w.acknowledged() + random() % (out.size() - w.acknowledged() + 1))); break;
      default:
        if (random() % 50 == 0) {
          ASSERT_TRUE(w.SendFrom(w.acknowledged()));
          out.resize(w.acknowledged());
        }
    }
  }
  w.SetEnd();
  while (auto piece = w.Next()) {
    out.resize(piece->offset);
    out.append(piece->data);
  }
  EXPECT_EQ(in, out);
}

std::string Pending(const InputWindow& w) {
  iovec v[64];
  int n = w.Pending(v, 64);
  std::string out;
  for (int i = 0; i < n; ++i) out.append(static_cast<char*>(v[i].iov_base), v[i].iov_len);
  return out;
}

TEST(InputWindow, DropsWhatItHasAndRefusesGaps) {
  InputWindow w;
  ASSERT_TRUE(w.Receive(0, "abc", false));
  ASSERT_TRUE(w.Receive(1, "bcde", false));
  ASSERT_TRUE(w.Receive(0, "ab", false));
  EXPECT_FALSE(w.Receive(6, "g", false));
  EXPECT_FALSE(w.Receive(UINT64_MAX, "g", false));
  EXPECT_EQ("abcde", Pending(w));
  w.Passed(4);
  EXPECT_EQ("e", Pending(w));
  EXPECT_EQ(4u, w.passed());
  ASSERT_TRUE(w.Receive(5, "", true));
  EXPECT_TRUE(w.ended());
  ASSERT_TRUE(w.Receive(2, "cde", true));  // sent again
  EXPECT_FALSE(w.Receive(5, "more", false));
  w.Passed(1);
  EXPECT_TRUE(w.empty());
}

TEST(InputWindow, IsBounded) {
  InputWindow w;
  ASSERT_TRUE(w.Receive(0, std::string(kStreamWindow, 'x'), false));
  EXPECT_FALSE(w.Receive(kStreamWindow, "y", false));
  w.Passed(1);
  EXPECT_TRUE(w.Receive(kStreamWindow, "y", false));
}

TEST(InputWindow, DiscardedInputIsPassedOn) {
  InputWindow w;
  ASSERT_TRUE(w.Receive(0, "abc", false));
  w.Discard();
  EXPECT_TRUE(w.empty());
  EXPECT_EQ(3u, w.passed());
  ASSERT_TRUE(w.Receive(3, std::string(10 << 20, 'x'), true));
  EXPECT_EQ(3u + (10 << 20), w.passed());
  EXPECT_TRUE(w.empty());
}

}  // namespace
}  // namespace vrun::node

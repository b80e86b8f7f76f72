// SPDX-License-Identifier: Apache-2.0
#include "people/audit.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "base/files.h"

namespace vrun::people {
namespace {

TEST(AuditTest, LinesOfManyAtOnceAreWholeAndNoNameForgesOne) {
  const std::string file = ::testing::TempDir() + "/audit-" + std::to_string(::getpid());
  const AuditEntry entry{"2026-11-28T00:00:00Z", "home a@b", "ipv4:1.2.3.4:5", "submit", "job\t1\nx\ty", "ok"};
  std::vector<std::thread> all;
  for (int t = 0; t < 4; ++t) {
    all.emplace_back([&] {
      for (int i = 0; i < 200; ++i) EXPECT_TRUE(AppendAudit(file, entry));
    });
  }
  for (auto& one : all) one.join();
  const auto read = ReadAudit(file);
  ASSERT_TRUE(read);
  ASSERT_EQ(read->size(), 800u);
  for (const AuditEntry& e : *read) {
    EXPECT_EQ(e.who, entry.who);
    EXPECT_EQ(e.of, "job\\t1\\nx\\ty");
    EXPECT_EQ(e.result, "ok");
  }
  struct stat st {};
  ASSERT_EQ(::stat(file.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 077, 0u);
  ::unlink(file.c_str());
}

// Whoever submits for a day can make it as large as he likes.
TEST(AuditTest, TheEndOfALogThatIsTooLargeIsRead) {
  const std::string file = ::testing::TempDir() + "/audit-large-" + std::to_string(::getpid());
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(AppendAudit(file, {"t", "a", "b", "c", std::to_string(i), "ok"}));
  const auto read = ReadAudit(file, 200);
  ASSERT_TRUE(read);
  ASSERT_GT(read->size(), 5u);
  ASSERT_LT(read->size(), 50u);
  EXPECT_EQ(read->back().of, "99");
  EXPECT_EQ(read->front().of, std::to_string(100 - read->size()));
  EXPECT_EQ(ReadAudit(file)->size(), 100u);
  ::unlink(file.c_str());
}

TEST(AuditTest, MonthsThatAreOverAreMovedAndOldOnesRemoved) {
  const std::string file = ::testing::TempDir() + "/audit-months-" + std::to_string(::getpid());
  const auto add = [&](const std::string& time) { EXPECT_TRUE(AppendAudit(file, {time, "a", "b", "c", "d", "ok"})); };
  constexpr int64_t kDay = int64_t{86400} * 1'000'000;
  const int64_t december = 1'764'547'200'000'000;  // 2025-12-01
  add("2025-11-03T00:00:00Z");
  EXPECT_EQ(*RotateAudit(file, december - kDay, 30 * kDay), 0);
  EXPECT_EQ(*RotateAudit(file, december + kDay, 30 * kDay), 0);
  add("2025-12-02T00:00:00Z");
  ASSERT_EQ(ReadAudit(file)->size(), 2u);
  EXPECT_EQ((*ReadAudit(file))[0].time, "2025-11-03T00:00:00Z") << "the oldest is the first";
  EXPECT_EQ(*RotateAudit(file, december + 30 * kDay, 30 * kDay), 0);
  EXPECT_EQ(*RotateAudit(file, december + 31 * kDay - 1, 30 * kDay), 1);
  ASSERT_EQ(ReadAudit(file)->size(), 1u);
  ::unlink(file.c_str());
}

}  // namespace
}  // namespace vrun::people

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

}  // namespace
}  // namespace vrun::people

// SPDX-License-Identifier: Apache-2.0
#include "base/secrets/hidden_names.h"

#include <gtest/gtest.h>

namespace vrun {
namespace {

TEST(HiddenNames, AreRecognizedAndNotTold) {
  const HiddenNames names = HiddenNames::Of("salt", {"/root/.netrc", "/root/.ssh/id_of_a_customer", "/root/.netrc"});
  EXPECT_EQ(names.size(), 2u);
  EXPECT_TRUE(names.MayHave(".netrc"));
  EXPECT_TRUE(names.MayHave("id_of_a_customer"));
  EXPECT_TRUE(names.Find("/root/.netrc"));
  EXPECT_TRUE(names.Find("/root/.ssh/id_of_a_customer"));
  EXPECT_FALSE(names.Find("/home/.netrc"));
  EXPECT_FALSE(names.Find("/root/.netrc/"));
  int others = 0;
  for (int i = 0; i < 1000; ++i) others += names.MayHave("module" + std::to_string(i)) ? 1 : 0;
  EXPECT_LT(others, 10);
  for (const std::string& digest : names.digests()) EXPECT_EQ(digest.find("customer"), std::string::npos);

  const auto same = HiddenNames::From(names.salt(), names.tags(), names.digests());
  ASSERT_TRUE(same);
  EXPECT_TRUE(same->MayHave(".netrc"));
  EXPECT_EQ(same->Find("/root/.netrc"), names.Find("/root/.netrc"));
  const HiddenNames salted = HiddenNames::Of("pepper", {"/root/.netrc"});
  EXPECT_NE(salted.digests()[0], names.digests()[*names.Find("/root/.netrc")]);
}

TEST(HiddenNames, AreBounded) {
  EXPECT_FALSE(HiddenNames().MayHave(""));
  EXPECT_FALSE(HiddenNames().Find("/"));
  std::vector<std::string> paths;
  for (int i = 0; i < 300; ++i) paths.push_back("/root/.ssh/id_" + std::to_string(i));
  const HiddenNames names = HiddenNames::Of("salt", paths);
  EXPECT_EQ(names.size(), HiddenNames::kMost);
  EXPECT_TRUE(names.Find(paths[255]));
  EXPECT_FALSE(names.Find(paths[256]));

  EXPECT_FALSE(HiddenNames::From("salt", {}, {"short"}));
  EXPECT_FALSE(HiddenNames::From("salt", std::vector<uint32_t>(257), {}));
  EXPECT_FALSE(HiddenNames::From("salt", {}, std::vector<std::string>(257, std::string(16, 'x'))));
  EXPECT_FALSE(HiddenNames::From(std::string(65, 's'), {}, {}));
  EXPECT_TRUE(HiddenNames::From("", {70000}, {}));
}

}  // namespace
}  // namespace vrun

// SPDX-License-Identifier: Apache-2.0
#include "cli/isolation/secret_options.h"

#include <gtest/gtest.h>

#include "cli/request/run_options.h"

namespace vrun::cli {
namespace {

std::string UsesOf(const std::vector<std::string>& values) {
  std::vector<std::string> words;
  for (const std::string& value : values) words.push_back("--secret=" + value);
  words.push_back("x");
  auto options = ParseRun(words);
  if (!options) return "";
  std::string out;
  for (const v1::SecretUse& use : options->spec.secrets()) out += SecretText(use) + ";";
  return out;
}

TEST(SecretOptionsTest, WhereASecretMayBe) {
  EXPECT_EQ(UsesOf({"token"}), "token (/run/secrets/token);");
  EXPECT_EQ(UsesOf({"token=HF_TOKEN", "token"}), "token (HF_TOKEN);token (/run/secrets/token);");
  EXPECT_EQ(UsesOf({"token=/run/netrc"}), "token (/run/netrc);");
  EXPECT_EQ(UsesOf({"token", "token"}), "token (/run/secrets/token);");
  for (const char* bad : {"", "=X", "token=", "token=/etc/netrc", "token=/run/../etc/x", "token=/run/", "token=/run//x",
                          "token=/run/a/./b", "token=/run/vrun/job.sock", "token=9X", "token=a b", "../x", "a/b"}) {
    EXPECT_EQ(UsesOf({bad}), "") << bad;
  }
  EXPECT_EQ(UsesOf({"a=X", "b=X"}), "");
  EXPECT_EQ(UsesOf({"a=/run/x", "b=/run/x"}), "");
}

}  // namespace
}  // namespace vrun::cli

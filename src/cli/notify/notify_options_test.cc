// SPDX-License-Identifier: Apache-2.0
#include "cli/notify/notify_options.h"

#include <gtest/gtest.h>

#include "cli/request/run_options.h"

namespace vrun::cli {
namespace {

using Options = std::vector<std::string>;

// The request of these options; the error's text in its name if there is one.
v1::RunSpec SpecOf(Options words) {
  words.emplace_back("x");
  auto options = ParseBatch(words);
  v1::RunSpec spec;
  if (!options) {
    spec.set_name(options.error().message());
    return spec;
  }
  ApplyNotify(options->notify, &spec);
  return spec;
}
Options EventsOf(const Options& words) {
  const v1::RunSpec spec = SpecOf(words);
  EXPECT_EQ(spec.name(), "");
  return {spec.notify().events().begin(), spec.notify().events().end()};
}

TEST(NotifyOptionsTest, EventsAreThoseOfSlurm) {
  EXPECT_EQ(EventsOf({"--mail-type=END"}), Options{"end"});
  EXPECT_EQ(EventsOf({"--mail-type=begin,Fail"}), (Options{"begin", "fail"}));
  EXPECT_EQ(EventsOf({"--mail-type=ALL,TIME_LIMIT_90"}), (Options{"begin", "end", "fail", "requeue", "time_limit_90"}));
  EXPECT_EQ(EventsOf({"--mail-type=END,ARRAY_TASKS"}), (Options{"end", "array_tasks"}));
  EXPECT_EQ(EventsOf({"--mail-type=FAIL,INVALID_DEPEND"}), Options{"fail"});
  // The last one counts.
  EXPECT_EQ(EventsOf({"--mail-type=END", "--mail-type=BEGIN"}), Options{"begin"});
  EXPECT_FALSE(SpecOf({"--mail-type=END", "--mail-type=NONE"}).has_notify());
}

TEST(NotifyOptionsTest, WordsThatAreNoneAreRefusedInOneLine) {
  for (const char* wrong : {"--mail-type=SOON", "--mail-type=", "--mail-type=END,NONE", "--mail-type=ARRAY_TASKS",
                            "--mail-type=END\nBcc: x", "--mail-user=a b", "--mail-user=a\r\nBcc:b@c",
                            "--mail-user=", "--notify-url=ftp://x/", "--notify-url=x", "--notify-url=https://x/\ny"}) {
    const std::string said = SpecOf({wrong}).name();
    EXPECT_FALSE(said.empty()) << wrong;
    EXPECT_EQ(said.find('\n'), std::string::npos) << said;
  }
  EXPECT_NE(SpecOf({"--mail-type=SOON"}).name().find("TIME_LIMIT_50"), std::string::npos);
}

TEST(NotifyOptionsTest, WhoIsTold) {
  EXPECT_FALSE(SpecOf({}).has_notify());
  EXPECT_FALSE(SpecOf({"--mail-user=a@b"}).has_notify()) << "as in Slurm";
  v1::RunSpec spec = SpecOf({"--mail-type=END"});
  EXPECT_EQ(spec.notify().mail() + spec.notify().webhook(), "") << "the controller knows the address";
  spec = SpecOf({"--notify-url=https://h/x"});
  EXPECT_EQ(spec.notify().webhook(), "https://h/x");
  EXPECT_EQ(spec.notify().events_size(), 4);
  EXPECT_EQ(spec.notify().mail(), "");
  spec = SpecOf({"--notify-url=https://h/x", "--mail-type=FAIL", "--mail-user=a@b"});
  EXPECT_EQ(spec.notify().mail(), "a@b");
  EXPECT_EQ(NotifyText(spec.notify()), "mail to a@b, POST to https://h/x at fail");
  EXPECT_EQ(NotifyText({}), "");
}

}  // namespace
}  // namespace vrun::cli

// SPDX-License-Identifier: Apache-2.0
// What the dashboard shows of a state, the halves of a session, and the files of the page.
#include <gtest/gtest.h>

#include <algorithm>

#include "control/dashboard/assets.h"
#include "control/dashboard/now.h"
#include "control/dashboard/sessions.h"
#include "control/testing/state_testing.h"

namespace vrun::control {
namespace {

TEST(SessionTest, OnlyBothHalvesAreTheToken) {
  const std::string token = "vrun_0123456789abcdef0123456789abcdef01234567";
  const auto halves = Split(token);
  ASSERT_TRUE(halves);
  EXPECT_NE(halves->cookie, halves->proof);
  http::Request request;
  request.headers["host"] = "127.0.0.1:7421";
  const std::string set = SessionCookie(request, halves->cookie, 60, false);
  EXPECT_NE(set.find("HttpOnly; SameSite=Strict; Max-Age=60"), std::string::npos) << set;
  EXPECT_EQ(set.find("Secure"), std::string::npos);
  EXPECT_NE(SessionCookie(request, "", 60, true).find("; Secure"), std::string::npos);
  request.headers["cookie"] = "other=1; " + set.substr(0, set.find(';')) + "; vrun_session_7422=ff";
  EXPECT_EQ(SessionToken(request), "") << "a cookie alone";
  request.headers["x-vrun-session"] = halves->proof;
  EXPECT_EQ(SessionToken(request), token);
  request.headers["host"] = "127.0.0.1:7422";
  EXPECT_EQ(SessionToken(request), "") << "the cookie of another cluster";
  request.headers["host"] = "127.0.0.1:7421";
  for (const char* wrong :
       {"", "0", "zz", "00", "00000000000000000000000000000000000000000000000000000000000000000000000"}) {
    request.headers["x-vrun-session"] = wrong;
    EXPECT_NE(SessionToken(request), token) << wrong;
  }
}

TEST(AssetTest, FilesAreCompressedAndKnownByTheirTag) {
  size_t bytes = 0;
  for (const std::string_view path : AssetPaths()) {
    const http::Response plain = Asset(path, {});
    EXPECT_EQ(plain.status, 200);
    http::Request browser;
    browser.headers["accept-encoding"] = "gzip, br";
    const http::Response compressed = Asset(path, browser);
    EXPECT_EQ(compressed.body.substr(0, 2), "\x1f\x8b") << path;
    bytes += compressed.body.size();
    for (const auto& [name, value] : compressed.headers) {
      if (name == "ETag") browser.headers["if-none-match"] = value;
      if (name == "Content-Security-Policy") {
        EXPECT_EQ(value.find("unsafe"), std::string::npos);
      }
    }
    EXPECT_EQ(Asset(path, browser).status, 304) << path;
    EXPECT_EQ(Asset(path, browser).body, "");
  }
  EXPECT_LE(bytes, 100'000u) << "the whole dashboard, compressed";
}

class DashboardTest : public StateTest {
 protected:
  v1::ClusterNow Now(const std::string& viewer = "anna@h") { return NowOf(*state_, viewer, recent_, history_); }
  Recent recent_;
  History history_;
};

TEST_F(DashboardTest, EveryGpuIsACellAndTheQueueIsThereByClass) {
  Register(SimpleNode("n1", 8, 4));
  Register(SimpleNode("n2", 8, 2));
  v1::SubmitRequest two = SimpleJob("1");
  two.mutable_spec()->mutable_resources()->set_gpus(2);
  const v1::SubmitReply first = Submit(two);
  v1::SubmitRequest many = SimpleJob("2");
  many.mutable_spec()->mutable_resources()->set_gpus(4);
  many.mutable_spec()->mutable_scheduling()->set_class_(v1::PRODUCTION);
  Submit(many);
  many.set_request_id("3");
  Submit(many);
  history_.Sample(*state_);
  const v1::ClusterNow now = Now();
  ASSERT_EQ(now.nodes_size(), 2);
  std::string cells;
  for (const v1::CellNode& node : now.nodes()) {
    cells += node.cells();
    EXPECT_EQ(node.users_size(), static_cast<int>(node.cells().size()));
  }
  EXPECT_EQ(cells.size(), 6u);
  EXPECT_EQ(std::count(cells.begin(), cells.end(), 'h'), first.has_placement() ? 2 : 0) << cells << ": not started yet";
  ASSERT_EQ(now.queue_size(), 1);
  EXPECT_EQ(now.queue(0).class_(), v1::PRODUCTION);
  EXPECT_EQ(now.queue(0).jobs(), now.waiting());
  EXPECT_EQ(now.queue(0).gpu_milli(), now.waiting() * 4000);
  ASSERT_EQ(now.history_size(), 1);
  EXPECT_EQ(now.history(0).gpu_milli(), 6000u);
  EXPECT_EQ(now.history(0).allocated_milli(), 2000u);
  const v1::TeamUseList uses = TeamUseOf(*state_, "anna@h", recent_);
  ASSERT_EQ(uses.uses_size(), 1);
  EXPECT_EQ(uses.uses(0).user(), "anna@h");
  EXPECT_EQ(uses.uses(0).gpu_milli(), 2000u);
  EXPECT_EQ(uses.uses(0).waiting(), now.waiting());
}

TEST_F(DashboardTest, MoneyIsThatOfTheGpusThatJobsHaveAndWhatIsIdleIsWasted) {
  auto config =
      ParseSchedulerConfig("[money]\ncurrency = \"EUR\"\n[[money.price]]\ngpu_hour = { h100 = 2, \"\" = 1 }\n", "f");
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_FALSE(Now().has_money()) << "without prices there is none";
  Transaction([&] {
    state_->Configure(*config);
    return 0;
  });
  v1::Register node = SimpleNode("n1", 8, 4);
  node.mutable_total()->set_gpu_type("h100");
  Register(node);
  const v1::SubmitReply job = Submit(SimpleJob("1", 1, 3));
  ASSERT_TRUE(job.has_placement());
  Report("n1", ReportOf(job.placement(), v1::RUNNING));
  EXPECT_EQ(Now().money().allocated_hour_micros(), 6'000'000);
  EXPECT_FALSE(Now().money().measured());
  v1::GpuUsages usages;
  v1::GpuUsage* use = usages.add_usages();
  use->set_job(job.job());
  use->set_attempt(1);
  use->set_utilization_percent(75);
  EXPECT_TRUE(Transaction([&] { return state_->Use("n1", usages); }));
  EXPECT_TRUE(Now().money().measured());
  EXPECT_EQ(Now().money().idle_hour_micros(), 1'500'000);
  EXPECT_EQ(Now().money().currency(), "EUR");
}

TEST_F(DashboardTest, FreeGpusOnNodesInPartUsedAreScattered) {
  Register(SimpleNode("n1", 8, 4));
  Register(SimpleNode("n2", 8, 4));
  EXPECT_EQ(Now().free_gpus(), 8u);
  EXPECT_EQ(Now().scattered_gpus(), 0u);
  ASSERT_TRUE(Submit(SimpleJob("1", 1, 1)).has_placement());
  EXPECT_EQ(Now().free_gpus(), 7u);
  EXPECT_EQ(Now().scattered_gpus(), 3u);
}

}  // namespace
}  // namespace vrun::control

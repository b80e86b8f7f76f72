// SPDX-License-Identifier: Apache-2.0
// Whose a job is, what others see of it, and how much a user may take.
#include <gtest/gtest.h>

#include "control/testing/state_testing.h"

namespace vrun::control {
namespace {

const rpc::Peer kAmy{"home", "amy@h", ""};    // anna's team
const rpc::Peer kLea{"home", "lea@h", ""};    // leads it
const rpc::Peer kRoot{"home", "root@h", ""};  // an admin
constexpr char kTeams[] =
    "admins = [\"root\"]\noperators = [\"ops\"]\n[team.lab]\nleads = [\"lou\"]\n"
    "[team.vision]\nparent = \"lab\"\nusers = [\"anna\", \"amy\"]\nleads = [\"lea\"]\n";

class PeopleTest : public StateTest {
 protected:
  void Configure(const std::string& before, const std::string& text = kTeams) {
    auto config = ParseSchedulerConfig(before + text, "f");
    ASSERT_TRUE(config) << config.error().message();
    Transaction([&] {
      state_->Configure(*config);
      return 0;
    });
  }
  v1::JobInfo Seen(uint64_t id, const rpc::Peer& by) {
    v1::GetRequest get;
    get.set_job(id);
    return Get(*state_, by, get)->info();
  }
};

TEST_F(PeopleTest, OthersJobsAreThereAndNothingOfThemIsTold) {
  Register(SimpleNode("n1", 4, 4));
  Configure("visibility = \"team\"\n");
  const auto p = Submit(SimpleJob("secret plan", 1, 1)).placement();
  Report("n1", ReportOf(p, v1::RUNNING));
  const v1::JobInfo mine = Seen(p.job(), kAnna);
  EXPECT_EQ(mine.name(), "true");
  EXPECT_EQ(mine.argv_size(), 1);
  for (const rpc::Peer& by : {kAmy, kLea, kRoot}) {
    EXPECT_EQ(Seen(p.job(), by).name(), "true") << by.name;
    EXPECT_EQ(Seen(p.job(), by).user(), "anna@h") << by.name;
    EXPECT_EQ(Seen(p.job(), by).argv_size(), by.name == kRoot.name ? 1 : 0) << by.name;
  }
  const v1::JobInfo his = Seen(p.job(), kBob);
  EXPECT_EQ(his.state(), v1::RUNNING);
  EXPECT_EQ(his.resources().gpus(), 1u);
  for (const std::string& text : {his.name(), his.user(), his.node(), his.reason(), his.scheduling().team()}) {
    EXPECT_EQ(text, "");
  }
  EXPECT_EQ(his.attempts_size() + his.argv_size() + his.pods_size(), 0);
  EXPECT_EQ(List(*state_, kBob, {})->jobs(0).SerializeAsString(), his.SerializeAsString());
  EXPECT_EQ(Nodes(*state_, kBob, {})->nodes(0).gpu_users(0).user(), "");
  EXPECT_EQ(Nodes(*state_, kBob, {})->nodes(0).gpu_users(0).name(), "");
  EXPECT_EQ(Nodes(*state_, kAmy, {})->nodes(0).gpu_users(0).user(), "anna@h");
  EXPECT_EQ(Teams(*state_, kBob, {})->teams_size(), 0);
  EXPECT_EQ(Teams(*state_, kAmy, {})->teams_size(), 1);
  v1::WhyRequest why;
  why.set_job(p.job());
  EXPECT_EQ(Why(*state_, kBob, why).error().code(), Code::kDenied);
  EXPECT_TRUE(Why(*state_, kAmy, why));
  Report("n1", ExitOf(p, v1::COMPLETED, v1::ExitRecord::EXITED, 0));
  EXPECT_EQ(Accounts(*state_, kBob, {})->accounts(0).job().name(), "");
  EXPECT_EQ(Accounts(*state_, kAmy, {})->accounts(0).job().name(), "true");

  Configure("visibility = \"own\"\n");
  EXPECT_EQ(Seen(p.job(), kAmy).name(), "");
  EXPECT_EQ(Seen(p.job(), kLea).name(), "true");
  Configure("visibility = \"all\"\ncommands = \"team\"\n");
  EXPECT_EQ(Seen(p.job(), kBob).name(), "true");
  EXPECT_EQ(Seen(p.job(), kBob).argv_size(), 0);
  EXPECT_EQ(Seen(p.job(), kAmy).argv_size(), 1);
}

// Whoever tries names in a filter would learn those that are hidden, by what comes back or by a further page.
TEST_F(PeopleTest, NoFilterFindsWhatIsHidden) {
  Register(SimpleNode("n1", 4, 4));
  Configure("visibility = \"team\"\n");
  for (int i = 0; i < 3; ++i) Submit(SimpleJob("secret plan", 1, 1));
  for (const bool all : {false, true}) {
    for (int field = 0; field < 4; ++field) {
      v1::ListRequest request;
      request.set_all(all);
      request.set_limit(1);
      if (field == 0) request.set_name("true");
      if (field == 1) request.set_user("anna@h");
      if (field == 2) request.set_team("vision");
      if (field == 3) request.set_node("n1");
      const auto his = List(*state_, kBob, request);
      EXPECT_EQ(his->jobs_size(), 0) << all << field;
      EXPECT_EQ(his->next(), 0u) << all << field;
      EXPECT_EQ(List(*state_, kAmy, request)->jobs_size(), 1) << all << field;
    }
    v1::ListRequest request;
    request.set_all(all);
    request.set_limit(1);
    EXPECT_EQ(List(*state_, kBob, request)->jobs_size(), 1) << all;
  }
  EXPECT_FALSE(state_->ShowsTeam(kBob.name, "vision"));
  EXPECT_TRUE(state_->ShowsTeam(kAmy.name, "vision"));
  EXPECT_TRUE(state_->ShowsTeam(kRoot.name, "vision"));
}

TEST_F(PeopleTest, AnElementOfAnArrayIsAsItsArray) {
  Configure("visibility = \"own\"\n");
  v1::SubmitRequest request = SimpleJob("r");
  request.mutable_array()->add_ranges()->set_last(500);
  const uint64_t id = Submit(request).job();
  v1::GetRequest get;
  get.set_job(id);
  get.set_element(400);
  EXPECT_NE(Get(*state_, kAnna, get)->info().reason(), "");
  EXPECT_EQ(Get(*state_, kBob, get)->info().reason(), "");
  EXPECT_EQ(Get(*state_, kBob, get)->info().name(), "");
}

TEST_F(PeopleTest, ATeamIsForThoseInItsListAndAClassForThoseWhoMayUseIt) {
  Register(SimpleNode("n1", 8));
  Configure("");
  const auto submit = [&](const rpc::Peer& by, const std::string& team, v1::JobClass klass) {
    static int n = 0;
    v1::SubmitRequest request = SimpleJob("t" + std::to_string(++n));
    request.mutable_spec()->mutable_scheduling()->set_team(team);
    request.mutable_spec()->mutable_scheduling()->set_class_(klass);
    request.set_test_only(true);
    const auto reply = Transaction([&] { return control::Submit(*state_, by, request); });
    return reply ? "" : reply.error().message();
  };
  EXPECT_EQ(submit(kAnna, "", v1::TRAINING), "");
  EXPECT_EQ(submit(kLea, "vision", v1::TRAINING), "");
  EXPECT_EQ(submit(kBob, "vision", v1::SCAVENGER), "team vision: you are not in its list: name none");
  EXPECT_EQ(submit(kAnna, "lab", v1::SCAVENGER), "team lab: you are not in its list: yours are vision");
  EXPECT_NE(submit(kAnna, "vision", v1::PRODUCTION), "");
  EXPECT_NE(submit(kBob, "", v1::INFERENCE), "");
  Configure("max_class = \"experiment\"\n");
  EXPECT_NE(submit(kBob, "", v1::TRAINING), "");
  Configure("", "[team.vision]\nusers = [\"anna\"]\nmax_class = \"inference\"\n[team.open]\nusers = [\"*\"]\n");
  EXPECT_EQ(submit(kAnna, "vision", v1::INFERENCE), "");
  EXPECT_EQ(submit(kBob, "open", v1::TRAINING), "");
  // Nobody has said who is in which team: as without any.
  Configure("", "[team.a]\nweight = 2\n");
  EXPECT_EQ(submit(kBob, "a", v1::INFERENCE), "");
  Configure("", "");
  EXPECT_EQ(submit(kBob, "any", v1::INFERENCE), "");
  // A user who is called like a team is not in it.
  Configure("", "[team.bob]\nusers = [\"anna\"]\n");
  const auto named = Submit(SimpleJob("like a team"), kBob);
  EXPECT_EQ(Seen(named.job(), kBob).scheduling().team(), "bob@");
}

TEST_F(PeopleTest, RolesAreThoseOfTheListsAndWithoutListsOfThoseWhoDidNotComeByAToken) {
  settings_.joined = [](const std::string& name) { return name == "bob@h" || name == "bob@desk"; };
  Restart();
  EXPECT_EQ(state_->RoleOf("root@h"), Role::kOperator);
  EXPECT_EQ(state_->RoleOf("bob@h"), Role::kUser);
  EXPECT_EQ(state_->WhoseIs("bob@h", "bob@desk", "bob"), Whose::kOwn);
  EXPECT_NE(state_->WhoseIs("root@h", "root@other", "x"), Whose::kOwn);  // two people, for all that is known
  Configure("");
  EXPECT_EQ(state_->RoleOf("root@h"), Role::kAdmin);
  EXPECT_EQ(state_->RoleOf("ops@h"), Role::kOperator);
  EXPECT_EQ(state_->RoleOf("lea@h"), Role::kLead);
  EXPECT_EQ(state_->RoleOf("lou@h"), Role::kLead);
  EXPECT_EQ(state_->RoleOf("anna@h"), Role::kUser);
  EXPECT_EQ(state_->RoleOf("toor@h"), Role::kUser);
  const v1::WhoAmIReply lou = *WhoAmI(*state_, {"home", "lou@h", ""}, {});
  EXPECT_EQ(lou.role(), "lead");
  EXPECT_EQ(lou.leads_size(), 2);  // also the team below
}

TEST_F(PeopleTest, AUserHasABoundThatSaysSoAndOthersDoNotFeelIt) {
  Configure("", "[bounds]\njobs = 2\n");
  const uint64_t first = Submit(SimpleJob("a")).job();
  v1::SubmitRequest array = SimpleJob("b");
  array.mutable_array()->add_ranges()->set_last(500);
  Submit(array);
  const Error refused = SubmitError(SimpleJob("c"));
  EXPECT_EQ(refused.code(), Code::kExhausted);
  EXPECT_NE(refused.message().find("which is the limit of each user"), std::string::npos) << refused.message();
  EXPECT_EQ(Submit(SimpleJob("a")).job(), first);  // the same request again is no other job
  EXPECT_NE(Submit(SimpleJob("d"), kBob).job(), 0u);
  Restart();
  Configure("", "[bounds]\njobs = 100\nrequest_mib = 1\n");
  v1::SubmitRequest large = SimpleJob("e");
  large.mutable_spec()->mutable_command()->add_environment(std::string(600'000, 'x'));
  const uint64_t id = Submit(large).job();
  large.set_request_id("f");
  EXPECT_NE(SubmitError(large).message().find("may have 1 MiB together"), std::string::npos);
  Restart();
  Configure("", "[bounds]\njobs = 100\nrequest_mib = 1\n");
  EXPECT_EQ(SubmitError(large).code(), Code::kExhausted) << "it is known after a restart";
  CancelJob(id);
  EXPECT_NE(Submit(large).job(), 0u);
}

}  // namespace
}  // namespace vrun::control

// SPDX-License-Identifier: Apache-2.0
// Every call x who calls x whose job it is about, over real mTLS. The calls are those of proto/*.proto and those that
// the controller serves: one that has no row here fails.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <future>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <thread>
#include <tuple>

#include "control/access/access.h"
#include "control/service.h"
#include "control/store/sqlite.h"
#include "control/testing/rpc_testing.h"
#include "control/testing/testing.h"
#include "people/audit.h"
#include "people/members.h"
#include "proto/vault.pb.h"
#include "rpc/testing.h"

namespace vrun::control {
namespace {

// Callers: bob is nobody special, amy is in anna's team, lea leads it, ops is an operator, root an admin. Jobs: the
// caller's own, one of anna's, one of carl's, who is in no team. The visibility is "team". y: it was done, n: refused.
// What a call shows of a job is asked too: there n means that its name is hidden.
constexpr const char* kCallers[] = {"bob@h", "amy@h", "lea@h", "ops@h", "root@h"};
struct Row {
  const char* call;
  const char* own;
  const char* annas;
  const char* carls;
  const char* others = "";  // further certificates that may call it: n(ode), s(napshots), - (none)
};
constexpr Row kRows[] = {
    {"/vrun.v1.Control/Submit", "yyyyy", "yyyyy", "yyyyy"},
    {"/vrun.v1.Control/Cancel", "yyyyy", "nnyny", "nnnny"},
    {"/vrun.v1.Control/Change", "yyyyy", "nnyyy", "nnnyy"},
    {"/vrun.v1.Control/Get", "yyyyy", "nyyyy", "nnnyy", "s"},
    {"/vrun.v1.Control/List", "yyyyy", "nyyyy", "nnnyy", "s"},
    {"/vrun.v1.Control/Watch", "yyyyy", "nyyyy", "nnnyy"},
    {"/vrun.v1.Control/Why", "yyyyy", "nyyyy", "nnnyy"},
    {"/vrun.v1.Control/Accounts", "yyyyy", "nyyyy", "nnnyy"},
    {"/vrun.v1.Control/Nodes", "yyyyy", "yyyyy", "yyyyy"},
    {"/vrun.v1.Control/Teams", "yyyyy", "yyyyy", "yyyyy"},
    {"/vrun.v1.Control/Usage", "yyyyy", "yyyyy", "yyyyy"},
    {"/vrun.v1.Control/Prices", "yyyyy", "yyyyy", "yyyyy"},
    {"/vrun.v1.Control/Budgets", "yyyyy", "yyyyy", "yyyyy"},
    {"/vrun.v1.Control/Drain", "nnnyy", "nnnyy", "nnnyy"},
    {"/vrun.v1.Control/Maintain", "yyyyy", "yyyyy", "yyyyy"},
    {"/vrun.v1.Control/Maintain#change", "nnnyy", "nnnyy", "nnnyy"},
    {"/vrun.v1.Control/PresignVault", "nnnnn", "nnnnn", "nnnnn", "s"},
    {"/vrun.v1.Control/Agent", "nnnnn", "nnnnn", "nnnnn", "n"},
    {"/vrun.v1.People/WhoAmI", "yyyyy", "yyyyy", "yyyyy"},
    {"/vrun.v1.People/ShutOutList", "yyyyy", "yyyyy", "yyyyy", "s"},
    // A token or a key decides, not the certificate of the connection.
    {"/vrun.v1.People/Join", "yyyyy", "yyyyy", "yyyyy", "ns-"},
    {"/vrun.v1.People/Renew", "yyyyy", "yyyyy", "yyyyy", "ns-"},
    {"/vrun.v1.SignIn/Describe", "yyyyy", "yyyyy", "yyyyy", "ns-"},
    {"/vrun.v1.SignIn/LogIn", "yyyyy", "yyyyy", "yyyyy", "ns-"},
};

std::set<std::string> CallsOfSchemas() {
  std::set<std::string> calls;
  for (const char* name : {"control", "people", "sign_in"}) {
    std::ifstream file(std::string(VRUN_PROTO_DIR "/") + name + ".proto");
    std::string line, service;
    std::smatch match;
    while (std::getline(file, line)) {
      if (std::regex_search(line, match, std::regex("^service (\\w+)"))) service = match[1];
      if (std::regex_search(line, match, std::regex("^ *rpc (\\w+)\\("))) {
        calls.insert("/vrun.v1." + service + "/" + match[1].str());
      }
    }
  }
  return calls;
}

std::string WithoutPart(const std::string& call) { return call.substr(0, call.find('#')); }

class RolesTest : public ::testing::Test {
 protected:
  RolesTest() {
    auto opened = SqliteStore::Open(directory_.path() + "/vrun.db");
    VRUN_CHECK(opened.has_value());
    store_ = std::move(*opened);
    Settings settings;
    settings.scheduler = *ParseSchedulerConfig(
        "admins = [\"root\"]\noperators = [\"ops\"]\nvisibility = \"team\"\n"
        "[team.vision]\nusers = [\"anna\", \"amy\"]\nleads = [\"lea\"]\n",
        "f");
    service_ = std::make_unique<Service>(&loop_, store_.get(), &clock_, settings);
    service_->UseMembers(&members_, {authority_.directory()});
    service_->UsePersons(&persons_, {});
    const auto port = service_->Start("127.0.0.1:0", authority_.Make("controller", "controller"));
    VRUN_CHECK(port.has_value());
    address_ = "127.0.0.1:" + std::to_string(*port);
    thread_ = std::thread([this] { loop_.Run(); });
  }
  ~RolesTest() override {
    channels_.clear();
    loop_.Stop();
    thread_.join();
  }

  rpc::Channel& As(const std::string& role, const std::string& name) {
    auto& channel = channels_[role + "/" + name];
    if (!channel) {
      const rpc::Credentials mine = role.empty()
                                        ? rpc::Credentials{ReadFile(authority_.directory() + "/ca.pem").value(), "", ""}
                                        : authority_.Make(role, name);
      auto dialled = rpc::Channel::Dial(address_, mine, "controller");
      VRUN_CHECK(dialled.has_value());
      channel = std::move(*dialled);
    }
    return *channel;
  }
  uint64_t NewJob(const std::string& owner) {
    v1::SubmitRequest request = SimpleJob("r" + std::to_string(++requests_));
    request.mutable_spec()->set_name("secret");
    const auto reply = CallAndWait<v1::SubmitReply>(As("home", owner), "Submit", request);
    VRUN_CHECK(reply.has_value());
    return reply->job();
  }
  uint64_t EndedJob(const std::string& owner) {
    const uint64_t id = NewJob(owner);
    v1::CancelRequest request;
    request.set_job(id);
    VRUN_CHECK(CallAndWait<v1::CancelReply>(As("home", owner), "Cancel", request).has_value());
    return id;
  }

  static bool Refused(const Error& error) {
    const std::string& text = error.message();
    return error.code() == Code::kDenied &&
           (text.find("may call this") != text.npos || text.find("may do this") != text.npos ||
            text.find("you may not do this") != text.npos || text.find("it is not yours") != text.npos);
  }
  // Whatever else is wrong with the request: the caller was let in.
  template <typename Reply, typename Request>
  bool Call(rpc::Channel& channel, const std::string& call, const Request& request, Reply* to = nullptr) {
    auto reply = CallAndWait<Reply>(channel, call.substr(std::string("/vrun.v1.Control/").size()), request);
    if (reply && to != nullptr) *to = *std::move(reply);
    return reply || !Refused(reply.error());
  }
  bool Stream(rpc::Channel& channel, const std::string& call, const std::string& first) {
    // The first message, or the end.
    struct First : rpc::Stream::Handler {
      void OnMessage(std::string) override { Say(std::nullopt); }
      void OnClosed(Error reason) override { Say(std::move(reason)); }
      void Say(std::optional<Error> end) {
        if (!said.exchange(true)) what.set_value(std::move(end));
      }
      std::promise<std::optional<Error>> what;
      std::atomic<bool> said = false;
    } handler;
    auto what = handler.what.get_future();
    const auto stream = channel.OpenStream(call, &handler);
    stream->Send(first);
    if (what.wait_for(std::chrono::seconds(20)) != std::future_status::ready) {
      ADD_FAILURE() << call << ": neither an answer nor an end";
      return false;
    }
    const std::optional<Error> end = what.get();
    return !end || !Refused(*end);
  }

  // Whether the call was done, or shows what is secret of the owner's job.
  bool Try(rpc::Channel& channel, const std::string& call, const std::string& owner) {
    const std::string name = WithoutPart(call).substr(call.rfind('/') + 1);
    if (name == "Submit") return Call<v1::SubmitReply>(channel, call, SimpleJob("s" + std::to_string(++requests_)));
    if (name == "Cancel") {
      v1::CancelRequest request;
      request.set_job(NewJob(owner));
      return Call<v1::CancelReply>(channel, call, request);
    }
    if (name == "Change") {
      v1::ChangeJobs request;
      request.add_jobs()->set_job(NewJob(owner));
      request.set_what(v1::ChangeJobs::HOLD);
      v1::ChangeReply reply;
      return Call(channel, call, request, &reply) && reply.problems_size() == 0;
    }
    if (name == "Get") {
      v1::GetRequest request;
      request.set_job(NewJob(owner));
      v1::GetReply reply;
      return Call(channel, call, request, &reply) && reply.info().name() == "secret";
    }
    if (name == "List") {
      const uint64_t id = NewJob(owner);
      v1::ListReply reply;
      if (!Call(channel, call, v1::ListRequest(), &reply)) return false;
      for (const v1::JobInfo& job : reply.jobs()) {
        if (job.job() == id) return job.name() == "secret";
      }
      return true;  // the snapshot store, which sees only jobs that need it
    }
    if (name == "Accounts") {
      v1::AccountsRequest request;
      request.set_after(EndedJob(owner) - 1);
      v1::AccountList reply;
      return Call(channel, call, request, &reply) && reply.accounts_size() > 0 &&
             reply.accounts(0).job().name() == "secret";
    }
    if (name == "Why") {
      v1::WhyRequest request;
      request.set_job(NewJob(owner));
      return Call<v1::WhyAnswer>(channel, call, request);
    }
    if (name == "Watch") {
      v1::WatchRequest request;
      request.set_job(NewJob(owner));
      return Stream(channel, call, request.SerializeAsString());
    }
    if (name == "Agent") {
      v1::AgentMessage hello;
      *hello.mutable_register_() = SimpleNode("n9");
      return Stream(channel, call, hello.SerializeAsString());
    }
    if (name == "Drain") {
      v1::DrainNodes request;
      request.add_nodes("n9");
      return Call<v1::NodesReply>(channel, call, request);
    }
    if (name == "Maintain") {
      v1::SetMaintenance request;
      if (call != WithoutPart(call)) request.set_name("window");
      return Call<v1::MaintenanceList>(channel, WithoutPart(call), request);
    }
    if (name == "Nodes") return Call<v1::NodesReply>(channel, call, v1::NodesRequest());
    if (name == "Teams") return Call<v1::TeamList>(channel, call, v1::TeamsRequest());
    if (name == "Usage") return Call<v1::UsageReport>(channel, call, v1::UsageRequest());
    if (name == "Prices") return Call<v1::PriceList>(channel, call, v1::PricesRequest());
    if (name == "Budgets") return Call<v1::BudgetList>(channel, call, v1::BudgetsRequest());
    if (name == "PresignVault") return Call<v1::PresignReply>(channel, call, v1::VaultPresign());
    return CallPeople(channel, call);
  }
  bool CallPeople(rpc::Channel& channel, const std::string& call) {
    std::promise<Result<std::string>> answered;
    channel.Call(call, "", 20'000'000, [&](Result<std::string> answer) { answered.set_value(std::move(answer)); });
    const auto answer = answered.get_future().get();
    return answer || !Refused(answer.error());
  }

  rpc::TestAuthority authority_;
  TestDirectory directory_;
  Clock clock_;
  const people::Members members_{directory_.path() + "/people"};
  people::Persons persons_{directory_.path() + "/people"};
  std::unique_ptr<SqliteStore> store_;
  EventLoop loop_;
  std::unique_ptr<Service> service_;
  std::string address_;
  std::map<std::string, std::unique_ptr<rpc::Channel>> channels_;
  std::thread thread_;
  int requests_ = 0;
};

TEST_F(RolesTest, EveryCallHasARowHereAndThere) {
  std::set<std::string> rows, rules;
  for (const Row& row : kRows) rows.insert(WithoutPart(row.call));
  for (const CallRule& rule : CallRules()) rules.insert(WithoutPart(std::string(rule.call)));
  const std::vector<std::string> served = service_->calls();
  EXPECT_EQ(CallsOfSchemas(), rules);
  EXPECT_EQ(std::set<std::string>(served.begin(), served.end()), rules);
  EXPECT_EQ(rows, rules);
}

TEST_F(RolesTest, EveryCallByEverybodyAboutEverybodysJob) {
  for (const Row& row : kRows) {
    for (size_t i = 0; i < std::size(kCallers); ++i) {
      const std::string caller = kCallers[i];
      const std::pair<const char*, std::string> jobs[] = {
          {row.own, caller}, {row.annas, "anna@h"}, {row.carls, "carl@h"}};
      for (const auto& [expected, owner] : jobs) {
        ASSERT_EQ(std::string(expected).size(), std::size(kCallers)) << row.call;
        EXPECT_EQ(Try(As("home", caller), row.call, owner), expected[i] == 'y')
            << caller << " calls " << row.call << ", job of " << owner;
      }
    }
  }
}

TEST_F(RolesTest, WhatWasRefusedIsInTheAuditLog) {
  const uint64_t job = NewJob("anna@h");
  v1::CancelRequest cancel;
  cancel.set_job(job);
  EXPECT_FALSE(CallAndWait<v1::CancelReply>(As("home", "carl@h"), "Cancel", cancel));
  v1::ChangeJobs hold;
  hold.add_jobs()->set_job(job);
  hold.set_what(v1::ChangeJobs::HOLD);
  EXPECT_TRUE(CallAndWait<v1::ChangeReply>(As("home", "carl@h"), "Change", hold));
  hold.add_jobs()->set_job(NewJob("carl@h"));
  EXPECT_TRUE(CallAndWait<v1::ChangeReply>(As("home", "carl@h"), "Change", hold));
  v1::DrainNodes drain;
  drain.add_nodes("n9");
  EXPECT_FALSE(CallAndWait<v1::NodesReply>(As("home", "anna@h"), "Drain", drain));
  EXPECT_FALSE(CallAndWait<v1::SubmitReply>(As("node", "n9"), "Submit", SimpleJob("x")));
  EXPECT_FALSE(Stream(As("home", "carl@h"), "/vrun.v1.Control/Agent", ""));
  const auto audit = people::ReadAudit(members_.audit_file());
  ASSERT_TRUE(audit) << audit.error().message();
  const std::string of = "job " + std::to_string(job);
  const std::tuple<std::string, std::string, std::string, std::string> wanted[] = {
      {"home carl@h", "cancel", of, "refused: " + of + ": it is not yours"},
      {"home carl@h", "hold", of, "refused: " + of + ": it is not yours"},
      {"home carl@h", "hold", of + ",job " + std::to_string(job + 1), "ok, but 1 of 2 refused: " + of},
      {"home anna@h", "drain", "node n9", "refused: Drain: you may not do this"},
      {"node n9", "/vrun.v1.Control/Submit", "", "refused: Submit: only homes may call this"},
      {"home carl@h", "/vrun.v1.Control/Agent", "", "refused: Agent: only nodes may call this"}};
  for (const auto& [who, what, object, result] : wanted) {
    const bool found = std::any_of(audit->begin(), audit->end(), [&](const people::AuditEntry& e) {
      return e.who == who && e.what == what && e.of == object && e.result.starts_with(result) &&
             e.from.starts_with("ipv4:127.0.0.1:") && e.time.starts_with("20") && e.time.ends_with("Z");
    });
    EXPECT_TRUE(found) << who << ", " << what << ", " << object << ", " << result;
  }
}

TEST_F(RolesTest, EveryCallByCertificatesThatAreOfNoPerson) {
  for (const Row& row : kRows) {
    const std::string others = row.others;
    for (const auto& [letter, role, name] : {std::tuple('n', "node", "n9"), std::tuple('s', "snapshots", "snapshots"),
                                             std::tuple('c', "controller", "controller")}) {
      if (letter == 'c' && others.find('-') != others.npos) continue;
      EXPECT_EQ(Try(As(role, name), row.call, "anna@h"), others.find(letter) != others.npos)
          << role << " calls " << row.call;
    }
    // Without a certificate nothing is asked, whoever the job is of.
    std::promise<Result<std::string>> answered;
    As("", "").Call(WithoutPart(row.call), "", 20'000'000,
                    [&](Result<std::string> answer) { answered.set_value(std::move(answer)); });
    const auto answer = answered.get_future().get();
    const bool no_certificate = !answer && answer.error().message().find("names no role") != std::string::npos;
    EXPECT_EQ(no_certificate, others.find('-') == others.npos) << row.call;
  }
}

}  // namespace
}  // namespace vrun::control

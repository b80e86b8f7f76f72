// SPDX-License-Identifier: Apache-2.0
// The table of the API against the schemas of its calls, and what it makes of input and answers.
#include <gtest/gtest.h>

#include <set>

#include "control/api/input.h"
#include "control/api/metrics.h"
#include "control/api/openapi.h"
#include "control/api/token_gate.h"
#include "control/testing/state_testing.h"
#include "control/testing/testing.h"

namespace vrun::control {
namespace {

const ApiRoute& RouteOf(std::string_view method, std::string_view path) {
  for (const ApiRoute& route : ApiRoutes()) {
    if (route.method == method && route.path == path) return route;
  }
  VRUN_CHECK(false);
}

http::Call CallOf(std::map<std::string, std::string> path, http::Query query = {}, std::string body = "") {
  http::Call call;
  call.path = std::move(path);
  call.query = std::move(query);
  call.request.body = std::move(body);
  call.request.headers["content-type"] = "application/json";
  return call;
}

template <typename Message>
Message RequestOf(const ApiRoute& route, const http::Call& call) {
  const auto input = ReadInput(route, call);
  EXPECT_TRUE(input) << input.error().message();
  const auto bytes = Schema::Get().ToBytes(route.request, input->request);
  EXPECT_TRUE(bytes) << bytes.error().message();
  Message message;
  EXPECT_TRUE(message.ParseFromString(*bytes));
  return message;
}

TEST(ApiTest, PartsOfARequestFillTheMessageOfItsCall) {
  const auto cancel = RequestOf<v1::CancelRequest>(RouteOf("POST", "/jobs/{job}/cancel"),
                                                   CallOf({{"job", "12"}}, {}, R"({"signal": 10})"));
  EXPECT_EQ(cancel.job(), 12u);
  EXPECT_EQ(cancel.signal(), 10);
  const auto hold = RequestOf<v1::ChangeJobs>(RouteOf("POST", "/jobs/{job}/hold"), CallOf({{"job", "7"}}));
  EXPECT_EQ(hold.what(), v1::ChangeJobs::HOLD);
  ASSERT_EQ(hold.jobs_size(), 1);
  EXPECT_EQ(hold.jobs(0).job(), 7u);
  const auto drain = RequestOf<v1::DrainNodes>(RouteOf("POST", "/nodes/{node}/drain"),
                                               CallOf({{"node", "n1"}}, {}, R"({"reason": "fan \u00fc"})"));
  EXPECT_EQ(drain.nodes(0), "n1");
  EXPECT_EQ(drain.reason(), "fan \xc3\xbc");
  EXPECT_FALSE(drain.resume());
  EXPECT_TRUE(RequestOf<v1::DrainNodes>(RouteOf("POST", "/nodes/{node}/resume"), CallOf({{"node", "n1"}})).resume());
  const auto why =
      RequestOf<v1::WhyRequest>(RouteOf("GET", "/jobs/{job}/why"), CallOf({{"job", "7"}}, {{"element", "0"}}));
  EXPECT_TRUE(why.has_element());
}

class MetricsTest : public StateTest {};

TEST_F(MetricsTest, TeamsAreNamedToThoseWhoSeeThem) {
  Register(SimpleNode("n1", 4, 4));
  const auto config = ParseSchedulerConfig(
      "visibility = \"team\"\nadmins = [\"root\"]\n[team.vision]\nusers = [\"anna\", \"amy\"]\nguarantee = 2\n", "f");
  ASSERT_TRUE(config) << config.error().message();
  Transaction([&] {
    state_->Configure(*config);
    return 0;
  });
  Submit(SimpleJob("plan", 1, 1));
  const Counters counters;
  for (const auto& [viewer, sees] :
       std::vector<std::pair<std::string, bool>>{{"", true}, {"root@h", true}, {"amy@h", true}, {"bob@h", false}}) {
    const std::string page = MetricsText(*state_, counters, viewer);
    EXPECT_EQ(page.find("team=\"vision\"") != page.npos, sees) << viewer;
    EXPECT_NE(page.find("vrun_jobs{"), page.npos) << viewer;
  }
}

TEST(ApiTest, RefusesInputThatTheDocumentDoesNotAllow) {
  const ApiRoute& cancel = RouteOf("POST", "/jobs/{job}/cancel");
  for (const char* job : {"", "-1", "1.0", "0x1", " 1", "99999999999999999999", "9007199254740992", "a"}) {
    EXPECT_FALSE(ReadInput(cancel, CallOf({{"job", job}}))) << job;
  }
  for (const char* body : {"[]", "{", "null", R"({"signal": "9"})", R"({"signal": 65})", R"({"signal": -1})",
                           R"({"signal": 1.5})", R"({"signal": null})", R"({"other": 1})", R"({"job": 1})"}) {
    EXPECT_FALSE(ReadInput(cancel, CallOf({{"job", "1"}}, {}, body))) << body;
  }
  http::Call form = CallOf({{"job", "1"}}, {}, "{}");
  form.request.headers["content-type"] = "text/plain";
  EXPECT_EQ(ReadInput(cancel, form).error().code(), Code::kUnsupported);
  const ApiRoute& list = RouteOf("GET", "/jobs");
  for (const auto& query : {http::Query{{"all", "yes"}}, http::Query{{"state", "running"}}, http::Query{{"limit", "0"}},
                            http::Query{{"limit", "1001"}}, http::Query{{"fields", "job,nothing"}},
                            http::Query{{"unknown", "1"}}, http::Query{{"user", "\xff"}}}) {
    EXPECT_FALSE(ReadInput(list, CallOf({}, query))) << query[0].first;
  }
  EXPECT_FALSE(ReadInput(RouteOf("POST", "/nodes/{node}/drain"), CallOf({{"node", "n[1-9]"}})));
  // What is wrong is named, also where it cannot be printed.
  EXPECT_NE(ReadInput(list, CallOf({}, {{"fields", "job,nothing"}})).error().message().find("nothing"),
            std::string::npos);
  EXPECT_NE(ReadInput(list, CallOf({}, {{"unknown", "1"}})).error().message().find("unknown: "), std::string::npos);
  EXPECT_TRUE(http::IsUtf8(ReadInput(list, CallOf({}, {{"\xff", "1"}})).error().message()));
}

TEST(ApiTest, ListsComeInPagesFilteredAndWithTheFieldsThatAreAskedFor) {
  v1::ListReply reply;
  for (uint64_t id = 9; id >= 1; --id) {
    v1::JobInfo* job = reply.add_jobs();
    job->set_job(id);
    job->set_state(id % 3 == 0 ? v1::RUNNING : v1::PENDING);
    job->add_argv("\xff");
  }
  const ApiRoute& list = RouteOf("GET", "/jobs");
  const auto page = [&](const http::Query& query) {
    const auto input = ReadInput(list, CallOf({}, query));
    VRUN_CHECK(input.has_value());
    return *AnswerOf(list, *input, *Schema::Get().ToJson("ListReply", reply.SerializeAsString()));
  };
  EXPECT_EQ(Text(page({{"state", "RUNNING"}, {"fields", "job,state"}, {"limit", "2"}})),
            R"({"jobs":[{"job":9,"state":"RUNNING"},{"job":6,"state":"RUNNING"}],"next":6})");
  EXPECT_EQ(Text(page({{"state", "RUNNING"}, {"fields", "job"}, {"limit", "2"}, {"before", "6"}})),
            R"({"jobs":[{"job":3}]})");
  EXPECT_EQ(Text(page({{"fields", "argv"}, {"limit", "1"}})), "{\"jobs\":[{\"argv\":[\"\xef\xbf\xbd\"]}],\"next\":9}");
}

TEST(ApiTest, ASecretOfAPlacementIsNoPartOfAJob) {
  v1::GetReply reply;
  reply.mutable_info()->set_job(1);
  reply.mutable_placement()->set_token("hidden-token");
  const ApiRoute& get = RouteOf("GET", "/jobs/{job}");
  const auto json = AnswerOf(get, {}, *Schema::Get().ToJson("GetReply", reply.SerializeAsString()));
  ASSERT_TRUE(json);
  EXPECT_EQ((*json)["job"], 1);
  EXPECT_EQ(Text(*json).find("hidden-token"), std::string::npos);
}

TEST(ApiTest, ThereIsOneGpuForEachOfANode) {
  v1::NodesReply reply;
  v1::NodeInfo* node = reply.add_nodes();
  node->set_name("n1");
  node->mutable_total()->set_gpus(2);
  node->mutable_total()->set_gpu_type("h100");
  node->mutable_facts()->set_bad_gpus(1);
  node->add_gpu_users()->set_gpu(1);
  node->mutable_gpu_users(0)->set_job(5);
  const auto json =
      AnswerOf(RouteOf("GET", "/gpus"), {}, *Schema::Get().ToJson("NodesReply", reply.SerializeAsString()));
  ASSERT_TRUE(json);
  const Json& gpus = (*json)["gpus"];
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0]["bad"], true);
  EXPECT_EQ(gpus[0]["type"], "h100");
  EXPECT_EQ(gpus[1]["users"][0]["job"], 5);
}

// Every row is in the document, and every reference in it leads somewhere. (Validators of others read it in
// tests/e2e/test_api.py.)
TEST(ApiTest, TheDocumentHasAllOfTheTable) {
  const Json document = Json::parse(OpenApiDocument());
  std::set<std::string> ids;
  for (const ApiRoute& route : ApiRoutes()) {
    const std::string method = route.method == "GET" ? "get" : route.method == "POST" ? "post" : "delete";
    const Json& operation = document["paths"][std::string(kApiPrefix) + std::string(route.path)][method];
    EXPECT_TRUE(ids.insert(operation["operationId"].get<std::string>()).second) << route.path;
  }
  const std::string text = Text(document);
  const std::string mark = "#/components/schemas/";
  for (size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + 1)) {
    const size_t begin = at + mark.size();
    const std::string name = text.substr(begin, text.find('"', begin) - begin);
    EXPECT_TRUE(document["components"]["schemas"].contains(name)) << name;
  }
}

class TokenGateTest : public ::testing::Test {
 protected:
  std::string Token(const std::string& user, bool write) {
    v1::ApiToken token;
    token.set_user(user);
    token.set_name(write ? "w" : "r");
    token.set_write(write);
    token.set_expires_us(WallMicros() + 60'000'000);
    return *people::Tokens(directory_.path()).Create(token);
  }
  static http::Request With(const std::string& header) {
    http::Request request;
    if (!header.empty()) request.headers["authorization"] = header;
    return request;
  }
  TestDirectory directory_;
  TokenGate gate_{directory_.path()};
};

TEST_F(TokenGateTest, NobodyWithoutAToken) {
  const std::string reads = Token("anna@laptop", false), writes = Token("anna@laptop", true);
  for (const std::string& header : {std::string(), std::string("Bearer"), std::string("Bearer x"), "Basic " + reads,
                                    reads, "Bearer  " + reads, "Bearer " + reads + " "}) {
    const auto verdict = gate_.Admit(With(header), false);
    EXPECT_FALSE(verdict.admitted) << header;
    EXPECT_EQ(verdict.refusal.status, 401);
  }
  const auto verdict = gate_.Admit(With("bearer " + reads), false);
  ASSERT_TRUE(verdict.admitted);
  EXPECT_EQ(verdict.caller.peer.role, "home");
  EXPECT_EQ(verdict.caller.peer.name, "anna@laptop");
  EXPECT_EQ(gate_.Admit(With("Bearer " + reads), true).refusal.status, 403);
  EXPECT_TRUE(gate_.Admit(With("Bearer " + writes), true).admitted);
}

TEST_F(TokenGateTest, WhoIsShutOutIsSoWithHisTokens) {
  const std::string token = Token("anna@laptop", true);
  ASSERT_TRUE(gate_.Check(token));
  ASSERT_TRUE(people::Members(directory_.path()).Revoke("home", "anna"));
  EXPECT_FALSE(gate_.Check(token));
  EXPECT_EQ(gate_.Admit(With("Bearer " + token), false).refusal.status, 403);
}

TEST_F(TokenGateTest, OneTokenCannotTakeAllOfTheController) {
  const std::string token = Token("anna@laptop", false), other = Token("bob@laptop", false);
  int refused = 0;
  for (int i = 0; i < 400; ++i) refused += gate_.Admit(With("Bearer " + token), false).refusal.status == 429 ? 1 : 0;
  EXPECT_GT(refused, 50);
  EXPECT_TRUE(gate_.Admit(With("Bearer " + other), false).admitted);
  for (int i = 0; i < 200; ++i) (void)gate_.Admit(With("Bearer guess"), false);
  EXPECT_EQ(gate_.Admit(With("Bearer guess"), false).refusal.status, 429);
  EXPECT_TRUE(gate_.Admit(With("Bearer " + other), false).admitted);
}

}  // namespace
}  // namespace vrun::control

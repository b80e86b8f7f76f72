// SPDX-License-Identifier: Apache-2.0
// vctl token: tokens of the controller's HTTP API.
#include <unistd.h>

#include <cstdio>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "cli/base/home_connection.h"
#include "cli/base/json.h"
#include "cli/base/table.h"
#include "cli/base/values.h"
#include "cli/ctl/ctl.h"
#include "cli/people/membership.h"
#include "people/tokens.h"

namespace vrun::cli {
namespace {

enum Id { kFor, kScope, kUser };
constexpr int64_t kDefaultSeconds = 30 * 86400;

constexpr OptionSpec kTokenOptions[] = {
    {kFor, 0, "for", Argument::kRequired, "DURATION",
     "create: how long the token is good (30 days); forms as of vrun -t"},
    {kScope, 0, "scope", Argument::kRequired, "read|write", "create: whether it may also change something (read)"},
    {kUser, 'u', "user", Argument::kRequired, "USER@HOST", "for whom it acts (default: you, as this machine's home)"},
};

Status Check(const CtlInvocation& invocation) {
  const std::vector<std::string>& words = invocation.words.operands;
  const std::string usage = "write create NAME, list, or revoke NAME";
  if (words.empty()) return Error(Code::kInvalid, "what to do? " + usage);
  if (words[0] != "create" && words[0] != "list" && words[0] != "revoke") {
    return Error(Code::kInvalid, Escape(words[0]) + ": no such action: " + usage);
  }
  const size_t wanted = words[0] == "list" ? 1 : 2;
  if (words.size() < wanted) return Error(Code::kInvalid, "no name: write " + words[0] + " NAME");
  if (words.size() > wanted) return Error(Code::kInvalid, Escape(words.back()) + ": unexpected");
  if (auto scope = invocation.Value(kScope); scope && *scope != "read" && *scope != "write") {
    return Error(Code::kInvalid, "--scope " + Escape(*scope) + ": write read or write");
  }
  if (auto user = invocation.Value(kUser); user && user->find('@') == std::string::npos) {
    return Error(Code::kInvalid, "--user " + Escape(*user) + ": write USER@HOST, as `vctl jobs -o wide` shows it");
  }
  if (auto text = invocation.Value(kFor)) {
    auto seconds = ParseTimeLimit(*text);
    if (!seconds) return std::move(seconds).error();
    if (*seconds == 0) return Error(Code::kInvalid, "--for: a token needs an end: write a duration above 0");
  }
  return {};
}

void Audit(const people::Members& members, const std::string& what, const std::string& user, const std::string& name) {
  members.Audit({"", "uid " + std::to_string(::getuid()), "here", what, "token " + name + " of " + user, "ok"});
}

Result<int> Create(const CtlInvocation& invocation, const Places& places, const ControllerHere& here) {
  v1::ApiToken token;
  VRUN_ASSIGN(*token.mutable_user(), TokenUser(invocation.Value(kUser), places));
  VRUN_TRY(here.members().Admit("home", token.user()));
  token.set_name(invocation.words.operands[1]);
  token.set_write(invocation.Value(kScope).value_or("read") == "write");
  int64_t seconds = kDefaultSeconds;
  if (auto text = invocation.Value(kFor)) {
    VRUN_ASSIGN(const uint64_t given, ParseTimeLimit(*text));
    seconds = static_cast<int64_t>(given);
  }
  token.set_created_us(WallMicros());
  token.set_expires_us(token.created_us() + seconds * 1'000'000);
  VRUN_ASSIGN(const std::string text, people::Tokens(here.people_directory()).Create(token));
  Audit(here.members(), "token create", token.user(), token.name());
  std::string address = ReadFile(here.state_directory + "/http", 4096).value_or("");
  while (!address.empty() && address.back() == '\n') address.pop_back();
  if (invocation.json()) {
    JsonWriter json;
    json.BeginObject().Key("schema").Int(kJsonSchema).Key("token").String(text).Key("user").String(token.user());
    json.Key("scope").String(token.write() ? "write" : "read").Key("expires").Time(token.expires_us());
    json.Key("http").String(address).EndObject();
    Print(json.Take());
    return 0;
  }
  std::fprintf(stderr, "vctl: acts for %s, may %s, until %s; it is shown only now\n", Escape(token.user()).c_str(),
               token.write() ? "read and write" : "read", FormatRfc3339(token.expires_us()).c_str());
  if (address.empty()) std::fprintf(stderr, "vctl: the controller serves no HTTP yet: `vctl up --http HOST:PORT`\n");
  Print(text + "\n");
  return 0;
}

Result<int> List(const CtlInvocation& invocation, const ControllerHere& here) {
  VRUN_ASSIGN(const std::vector<v1::ApiToken> tokens, people::Tokens(here.people_directory()).List());
  Table table({"NAME", "USER", "SCOPE", "CREATED", "EXPIRES", "STATE"});
  JsonWriter json;
  json.BeginObject().Key("schema").Int(kJsonSchema).Key("tokens").BeginArray();
  std::string names;
  for (const v1::ApiToken& token : tokens) {
    names += token.name() + "\n";
    const std::string scope = token.write() ? "write" : "read";
    const bool ended = token.expires_us() <= WallMicros();
    table.Add({token.name(), token.user(), scope, FormatRfc3339(token.created_us()), FormatRfc3339(token.expires_us()),
               ended ? "ended" : "good"});
    json.BeginObject().Key("name").String(token.name()).Key("user").String(token.user()).Key("scope").String(scope);
    json.Key("created").Time(token.created_us()).Key("expires").Time(token.expires_us()).Key("ended").Bool(ended);
    json.EndObject();
  }
  json.EndArray().EndObject();
  if (invocation.json()) {
    Print(json.Take());
  } else {
    Print(invocation.format == OutputFormat::kName ? names : table.Format(invocation.headers));
  }
  return 0;
}

Result<int> Run(const CtlInvocation& invocation) {
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  VRUN_ASSIGN(const ControllerHere here, FindController(home.places()));
  const std::string& what = invocation.words.operands[0];
  if (what == "list") return List(invocation, here);
  if (what == "create") return Create(invocation, home.places(), here);
  const std::string& name = invocation.words.operands[1];
  VRUN_ASSIGN(const std::string user, TokenUser(invocation.Value(kUser), home.places()));
  VRUN_TRY(people::Tokens(here.people_directory()).Revoke(user, name));
  Audit(here.members(), "token revoke", user, name);
  return 0;
}

}  // namespace

const CtlCommand kCtlToken{"token",
                           "create NAME|list|revoke NAME",
                           "tokens of the HTTP API of this machine's controller",
                           kTokenOptions,
                           Completes::kNothing,
                           Check,
                           Run};

}  // namespace vrun::cli

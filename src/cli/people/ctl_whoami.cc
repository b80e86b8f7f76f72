// SPDX-License-Identifier: Apache-2.0
// vctl whoami: what the cluster takes this user for.
#include "base/clock.h"
#include "base/escape.h"
#include "cli/base/home_connection.h"
#include "cli/base/json.h"
#include "cli/base/output.h"
#include "cli/ctl/ctl.h"
#include "cli/request/job_command.h"

namespace vrun::cli {
namespace {

template <typename List>
std::string Joined(const List& list, const char* none) {
  std::string text;
  for (const std::string& one : list) text += (text.empty() ? "" : ", ") + Escape(one);
  return text.empty() ? none : text;
}

std::string Text(const v1::WhoAmIReply& me) {
  const size_t at = me.name().find('@');
  const auto line = [](const char* what, const std::string& value) {
    std::string left = what;
    left.resize(13, ' ');
    return left + value + "\n";
  };
  std::string text = line("user", Escape(me.name().substr(0, at)));
  text += line("machine", at == std::string::npos ? "" : Escape(me.name().substr(at + 1)));
  text += line("role", Escape(me.role()));
  text += line("teams", Joined(me.teams(), "none"));
  if (me.leads_size() > 0) text += line("leads", Joined(me.leads(), ""));
  text += line("max class", Escape(me.max_class()) + " (without a team)");
  text += line("sees", "jobs of " + Escape(me.visibility()) + ", commands of " + Escape(me.commands()));
  text += line("jobs", std::to_string(me.jobs()) + (me.most_jobs() > 0 ? " of " + std::to_string(me.most_jobs()) : ""));
  text += line("controller", Escape(me.controller()));
  if (me.certificate_ends_us() > 0) text += line("certificate", "until " + FormatRfc3339(me.certificate_ends_us()));
  return text;
}

void WriteList(const char* key, const google::protobuf::RepeatedPtrField<std::string>& list, JsonWriter* json) {
  json->Key(key).BeginArray();
  for (const std::string& one : list) json->String(one);
  json->EndArray();
}

Result<int> RunWhoAmI(const CtlInvocation& invocation) {
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  v1::Query query;
  query.mutable_who_am_i();
  VRUN_ASSIGN(const v1::HomeMessage answer, Ask(home, query, true));
  if (!answer.has_who_am_i()) return Error(Code::kInternal, "home: unexpected answer instead of who you are");
  const v1::WhoAmIReply& me = answer.who_am_i();
  if (!invocation.json()) {
    Print(invocation.format == OutputFormat::kName ? Escape(me.name()) + "\n" : Text(me));
    return 0;
  }
  JsonWriter json;
  json.BeginObject().Key("schema").Int(kJsonSchema).Key("name").String(me.name()).Key("role").String(me.role());
  WriteList("teams", me.teams(), &json);
  WriteList("leads", me.leads(), &json);
  json.Key("max_class").String(me.max_class()).Key("visibility").String(me.visibility());
  json.Key("commands").String(me.commands()).Key("jobs").Uint(me.jobs()).Key("most_jobs").Uint(me.most_jobs());
  json.Key("controller").String(me.controller()).Key("certificate_ends").Time(me.certificate_ends_us()).EndObject();
  Print(json.Take());
  return 0;
}

}  // namespace

const CtlCommand kCtlWhoAmI{
    "whoami",   "",       "who you are to the cluster: name, role, teams, what you may see", {}, Completes::kNothing,
    NoOperands, RunWhoAmI};

}  // namespace vrun::cli

// SPDX-License-Identifier: Apache-2.0
// vctl dashboard: a link that signs a browser in.
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "cli/base/home_connection.h"
#include "cli/base/json.h"
#include "cli/base/table.h"
#include "cli/base/values.h"
#include "cli/ctl/ctl.h"
#include "cli/people/membership.h"
#include "cli/request/job_command.h"
#include "people/tokens.h"

namespace vrun::cli {
namespace {

enum Id { kFor, kScope, kUser, kPrint };
constexpr int64_t kCodeSeconds = 60;
constexpr int64_t kDefaultSeconds = 12 * 3600;

constexpr OptionSpec kOptions[] = {
    {kFor, 0, "for", Argument::kRequired, "DURATION", "how long the browser stays signed in (12 hours)"},
    {kScope, 0, "scope", Argument::kRequired, "read|write", "whether it may also change something (write)"},
    {kUser, 'u', "user", Argument::kRequired, "USER@HOST", "for whom it acts (default: you, as this machine's home)"},
    {kPrint, 0, "print", Argument::kNone, "", "do not open a browser"},
};

Status Check(const CtlInvocation& invocation) {
  if (auto scope = invocation.Value(kScope); scope && *scope != "read" && *scope != "write") {
    return Error(Code::kInvalid, "--scope " + Escape(*scope) + ": write read or write");
  }
  if (auto user = invocation.Value(kUser); user && user->find('@') == std::string::npos) {
    return Error(Code::kInvalid, "--user " + Escape(*user) + ": write USER@HOST, as `vctl jobs -o wide` shows it");
  }
  if (auto text = invocation.Value(kFor)) {
    auto seconds = ParseTimeLimit(*text);
    if (!seconds) return std::move(seconds).error();
    if (*seconds == 0) return Error(Code::kInvalid, "--for: a session needs an end: write a duration above 0");
  }
  return NoOperands(invocation);
}

// As the controller listens: a machine that listens on all of its addresses is reached by its name.
std::string AddressOf(const std::string& http) {
  const size_t colon = http.rfind(':');
  const std::string host = http.substr(0, colon), port = http.substr(colon);
  if (host == "0.0.0.0" || host == "[::]") return "https://" + people::MachineName() + port;
  const bool loopback = host.starts_with("127.") || host == "localhost" || host == "[::1]";
  return (loopback ? "http://" : "https://") + host + port;
}

// Whether a browser was told to show it. Not as root, whose browser would be a risk.
bool Open(const std::string& url) {
  const bool screen = ::getenv("DISPLAY") != nullptr || ::getenv("WAYLAND_DISPLAY") != nullptr;
  if (!screen || ::geteuid() == 0 || ::isatty(1) == 0) return false;
  const pid_t child = ::fork();
  if (child < 0) return false;
  if (child == 0) {
    ::execlp("xdg-open", "xdg-open", url.c_str(), nullptr);
    ::_exit(127);
  }
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

Result<int> Run(const CtlInvocation& invocation) {
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  VRUN_ASSIGN(const ControllerHere here, FindController(home.places()));
  std::string http = ReadFile(here.state_directory + "/http", 4096).value_or("");
  while (!http.empty() && http.back() == '\n') http.pop_back();
  if (http.empty()) {
    return Error(Code::kUnavailable,
                 "the controller serves no dashboard: `vctl down`, then `vctl up --http 127.0.0.1:7421`");
  }
  v1::ApiToken code;
  VRUN_ASSIGN(*code.mutable_user(), TokenUser(invocation.Value(kUser), home.places()));
  VRUN_TRY(here.members().Admit("home", code.user()));
  const int64_t now = WallMicros();
  code.set_name("code-" + std::to_string(now));
  code.set_write(invocation.Value(kScope).value_or("write") == "write");
  code.set_created_us(now);
  code.set_expires_us(now + kCodeSeconds * 1'000'000);
  code.set_session_s(kDefaultSeconds);
  if (auto text = invocation.Value(kFor)) {
    VRUN_ASSIGN(const uint64_t seconds, ParseTimeLimit(*text));
    code.set_session_s(static_cast<int64_t>(seconds));
  }
  VRUN_ASSIGN(const std::string text, people::Tokens(here.people_directory(), "codes").Create(code));
  const std::string url = AddressOf(http) + "/#code=" + text;
  if (invocation.json()) {
    JsonWriter json;
    json.BeginObject().Key("schema").Int(kJsonSchema).Key("url").String(url).Key("user").String(code.user());
    json.Key("expires").Time(code.expires_us()).EndObject();
    Print(json.Take());
    return 0;
  }
  Print(url + "\n");
  const bool opened = !invocation.Has(kPrint) && Open(url);
  std::fprintf(stderr, "vctl: %sthe link works once, within a minute, and signs in %s for %s\n",
               opened ? "a browser was told to open it; " : "", Escape(code.user()).c_str(),
               FormatDuration(code.session_s() * 1'000'000).c_str());
  return 0;
}

}  // namespace

const CtlCommand kCtlDashboard{
    "dashboard", "", "a link that signs your browser in to the cluster's pages", kOptions, Completes::kNothing,
    Check,       Run};

}  // namespace vrun::cli

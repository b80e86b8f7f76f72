// SPDX-License-Identifier: Apache-2.0
#include "cli/request/scheduling.h"

#include <strings.h>

#include <algorithm>
#include <cctype>
#include <csignal>

#include "base/escape.h"
#include "cli/base/values.h"

namespace vrun::cli {
namespace {

struct SignalName {
  std::string_view name;
  int number;
};
constexpr SignalName kSignals[] = {{"HUP", SIGHUP},   {"INT", SIGINT},   {"QUIT", SIGQUIT}, {"KILL", SIGKILL},
                                   {"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"TERM", SIGTERM}, {"CONT", SIGCONT},
                                   {"STOP", SIGSTOP}, {"TSTP", SIGTSTP}, {"ALRM", SIGALRM}, {"ABRT", SIGABRT},
                                   {"URG", SIGURG},   {"TTIN", SIGTTIN}, {"TTOU", SIGTTOU}};
constexpr uint64_t kMostGrace = 24 * 3600;
constexpr uint32_t kSlurmsGrace = 60;

}  // namespace

Result<v1::JobClass> ParseJobClass(std::string_view name) {
  for (int c = v1::SCAVENGER; c <= v1::INFERENCE; ++c) {
    if (name == JobClassName(static_cast<v1::JobClass>(c))) return static_cast<v1::JobClass>(c);
  }
  return Error(Code::kInvalid,
               Escape(name) + ": unknown class: write scavenger, experiment, training, production or inference");
}

std::string JobClassName(v1::JobClass klass) {
  std::string name = v1::JobClass_Name(klass == v1::JOB_CLASS_UNSPECIFIED ? v1::TRAINING : klass);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name;
}

int ParseSignal(std::string_view text) {
  if (auto n = ParseNumber(text, 64)) return static_cast<int>(*n);
  if (text.size() > 3 && ::strncasecmp(text.data(), "SIG", 3) == 0) text.remove_prefix(3);
  for (const SignalName& s : kSignals) {
    if (text.size() == s.name.size() && ::strncasecmp(text.data(), s.name.data(), text.size()) == 0) return s.number;
  }
  return 0;
}

Result<EndSignal> ParseEndSignal(std::string_view text) {
  const auto bad = [&] {
    return Error(Code::kInvalid, Escape(text) + ": not a signal: write a name and seconds, as in USR1@60");
  };
  std::string_view rest = text;
  EndSignal out;
  out.grace_s = kSlurmsGrace;
  if (const size_t colon = text.find(':'); colon != text.npos) {
    for (char c : text.substr(0, colon)) {
      if (c != 'B' && c != 'R') return bad();
      (c == 'B' ? out.shell_only : out.may_meet_maintenance) = true;
    }
    if (colon == 0) return bad();
    rest.remove_prefix(colon + 1);
  }
  const size_t at = rest.find('@');
  if (at != rest.npos) {
    auto seconds = ParseNumber(rest.substr(at + 1), kMostGrace);
    if (!seconds) return bad();
    // With 0 the signal would come when the job is gone.
    out.grace_s = std::max<uint32_t>(static_cast<uint32_t>(*seconds), 1);
  }
  out.signal = ParseSignal(rest.substr(0, at));
  if (out.signal == 0 || out.signal == SIGKILL || out.signal == SIGSTOP) return bad();
  return out;
}

}  // namespace vrun::cli

// SPDX-License-Identifier: Apache-2.0
// Who is told what, as the controller's configuration says. Sections of scheduler.toml:
//
//   [notify]
//   smtp = "smtps://mail.example.org:465"  # or smtp://HOST:PORT. Without it no mail is sent
//   starttls = true               # with smtp://: TLS before anything else, or nothing is sent. Default: true, but to
//                                 # this machine false
//   user = "vrun"                 # default: no login
//   password_file = "smtp.password"  # beside this file
//   ca = "mail.pem"               # authority of the server's certificate, beside this file; default: the system's
//   from = "vrun@example.org"
//   domain = "example.org"        # people without an address of their own are NAME@example.org
//   mail_domains = ["example.org"]   # a job may name only addresses there; default: any
//   operators = ["ops@example.org"]  # are told about nodes
//   job_webhooks = ["https://hooks.example.org/vrun/"]  # URLs that a job may name begin so; default: none
//   job_secret_file = "job.secret"   # signs what is sent there; default: not signed
//   hours = 6                     # so long a message is tried again, then it is dropped
//
//   [[notify.webhook]]            # as often as needed
//   url = "https://hooks.example.org/cluster"
//   secret_file = "hook.secret"   # whsec_..., beside this file; default: not signed
//   events = ["end", "node_lost"] # default: all of kEvents
//   teams = ["vision"]            # of jobs and budgets: of these teams. Default: all teams, and nodes too
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace vrun::control::notify {

// Events of jobs, of budgets and of nodes that a webhook of the cluster may ask for. "end" is any end of a job, "fail"
// those without success that nobody asked for.
constexpr std::string_view kEvents[] = {"begin",       "end",         "fail",      "requeue",      "time_limit",
                                        "budget_warn", "budget_full", "node_lost", "node_drained", "gpu_bad"};
// What a job may name besides those of jobs above.
constexpr std::string_view kEventsOfJobs[] = {"time_limit_90", "time_limit_80", "time_limit_50", "array_tasks"};
bool IsEventOfJobs(std::string_view name);  // of both lists

struct Webhook {
  std::string url;  // in its normal form (url.h)
  std::string secret_file;
  std::string key;                  // "": not signed
  std::vector<std::string> events;  // empty: all
  std::vector<std::string> teams;   // empty: all
  bool Wants(std::string_view event) const;
  bool Watches(const std::string& team) const;  // "": a node
};

struct NotifySettings {
  std::string smtp, user, password_file, password, ca, from, domain;  // `ca`: a file, then its text
  bool starttls = true;
  std::vector<std::string> mail_domains, operators;
  std::vector<std::string> job_webhooks;  // in normal form
  std::string job_secret_file, job_key;
  int64_t most_micros = int64_t{6} * 3600 * 1'000'000;
  std::vector<Webhook> webhooks;

  bool mails() const { return !smtp.empty(); }
  // The address of somebody who is called so in lists and certificates: "anna", "anna@laptop". "": he has none.
  std::string AddressOf(const std::string& name) const;
  // kDenied, kInvalid: no job may name it. Returns the URL in its normal form.
  Result<std::string> JobWebhook(const std::string& url) const;
  // kInvalid, kDenied: not addresses, or not allowed. Of "anna,ben@example.org" both.
  Result<std::vector<std::string>> JobAddresses(const std::string& text) const;
};

// Reads [notify] of the whole text, and nothing else of it. kInvalid: "NAME:LINE: what: what to do".
Result<NotifySettings> ParseNotify(std::string_view text, const std::string& name);
// Reads the files that it names. `beside`: the directory of the configuration, with a slash. Errors name the setting.
Status ReadSecrets(const std::string& beside, NotifySettings* settings);

}  // namespace vrun::control::notify

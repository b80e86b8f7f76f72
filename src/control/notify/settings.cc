// SPDX-License-Identifier: Apache-2.0
#include "control/notify/settings.h"

#include <algorithm>
#include <iterator>

#include "base/escape.h"
#include "base/files.h"
#include "control/notify/sign.h"
#include "control/notify/url.h"

// As in scheduler_config.cc.
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#define TOML_ENABLE_UNRELEASED_FEATURES 0
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#include <toml++/toml.h>
#pragma GCC diagnostic pop

namespace vrun::control::notify {
namespace {

constexpr size_t kMostSecret = 65536;
constexpr size_t kMostAddresses = 10;  // of one job

bool Contains(const std::vector<std::string>& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

std::string DomainOf(const std::string& address) { return address.substr(address.find('@') + 1); }

std::string AllEvents() {
  std::string text;
  for (const std::string_view event : kEvents) text += (text.empty() ? "" : ", ") + std::string(event);
  return text;
}

class NotifyReader {
 public:
  explicit NotifyReader(const std::string& name) : name_(name) {}

  Result<NotifySettings> Read(const toml::table& table) {
    const std::pair<std::string_view, std::string*> texts[] = {{"smtp", &settings_.smtp},
                                                               {"user", &settings_.user},
                                                               {"password_file", &settings_.password_file},
                                                               {"ca", &settings_.ca},
                                                               {"from", &settings_.from},
                                                               {"domain", &settings_.domain},
                                                               {"job_secret_file", &settings_.job_secret_file}};
    const std::pair<std::string_view, std::vector<std::string>*> lists[] = {{"mail_domains", &settings_.mail_domains},
                                                                            {"operators", &settings_.operators},
                                                                            {"job_webhooks", &settings_.job_webhooks}};
    std::optional<bool> starttls;
    for (auto&& [key, node] : table) {
      const std::string what = "notify." + Escape(key.str()) + ": expected ";
      const auto named = [&](const auto& entry) { return entry.first == key.str(); };
      const auto text = std::find_if(std::begin(texts), std::end(texts), named);
      const auto list = std::find_if(std::begin(lists), std::end(lists), named);
      if (text != std::end(texts)) {
        *text->second = node.value_exact<std::string>().value_or("");
        if (text->second->empty()) return At(node, what + "a text");
      } else if (list != std::end(lists)) {
        if (!ReadList(node, list->second)) return At(node, what + "a list of texts");
      } else if (key.str() == "starttls") {
        starttls = node.value_exact<bool>();
        if (!starttls) return At(node, what + "true or false");
      } else if (key.str() == "hours") {
        const auto hours = node.value_exact<int64_t>();
        if (!hours || *hours < 1 || *hours > 168) return At(node, what + "a number from 1 to 168");
        settings_.most_micros = *hours * 3600 * 1'000'000;
      } else if (key.str() == "webhook" && node.is_array()) {
        for (const toml::node& one : *node.as_array()) {
          if (!one.is_table()) return At(one, "notify.webhook: write it as a section [[notify.webhook]]");
          VRUN_TRY(ReadWebhook(*one.as_table()));
        }
      } else {
        return At(node, "unknown setting notify." + Escape(key.str()) +
                            ": known are smtp, starttls, user, password_file, ca, from, domain, mail_domains, "
                            "operators, job_webhooks, job_secret_file, hours and sections [[notify.webhook]]");
      }
    }
    VRUN_TRY(Check(table, starttls));
    return std::move(settings_);
  }

  Error At(const toml::node& node, const std::string& what) const {
    return Error(Code::kInvalid, Escape(name_) + ":" + std::to_string(node.source().begin.line) + ": " + what);
  }

 private:
  static bool ReadList(const toml::node& node, std::vector<std::string>* list) {
    if (!node.is_array()) return false;
    for (const toml::node& item : *node.as_array()) {
      auto text = item.value_exact<std::string>();
      if (!text || text->empty()) return false;
      list->push_back(*std::move(text));
    }
    return true;
  }

  Status ReadWebhook(const toml::table& table) {
    Webhook& hook = settings_.webhooks.emplace_back();
    for (auto&& [key, node] : table) {
      const std::string what = "notify.webhook: " + Escape(key.str()) + ": expected ";
      if (key.str() == "url") {
        const auto url = ParseUrl(node.value_exact<std::string>().value_or(""));
        if (!url) return At(node, "notify.webhook: url: " + url.error().message());
        hook.url = url->text;
      } else if (key.str() == "secret_file") {
        hook.secret_file = node.value_exact<std::string>().value_or("");
        if (hook.secret_file.empty()) return At(node, what + "the name of a file");
      } else if (key.str() == "events") {
        if (!ReadList(node, &hook.events)) return At(node, what + "a list of " + AllEvents());
        for (const std::string& event : hook.events) {
          if (std::find(std::begin(kEvents), std::end(kEvents), event) == std::end(kEvents)) {
            return At(node, "notify.webhook: unknown event " + Escape(event) + ": known are " + AllEvents());
          }
        }
      } else if (key.str() == "teams") {
        if (!ReadList(node, &hook.teams)) return At(node, what + "a list of teams");
      } else {
        return At(node, "unknown setting of notify.webhook: " + Escape(key.str()) +
                            ": known are url, secret_file, events and teams");
      }
    }
    return hook.url.empty() ? Status(At(table, "notify.webhook: url is missing")) : Status();
  }

  Status Check(const toml::table& table, std::optional<bool> starttls) {
    if (settings_.mails()) {
      const bool plain = settings_.smtp.starts_with("smtp://");
      if (!plain && !settings_.smtp.starts_with("smtps://")) {
        return At(table, "notify.smtp: write smtp://HOST[:PORT] or smtps://HOST[:PORT]");
      }
      // Read as a URL of the web, which has the same form.
      auto url = ParseUrl((plain ? "http" : "https") + settings_.smtp.substr(plain ? 4 : 5));
      if (!url || url->path != "/" || url->text.find('?') != std::string::npos) {
        return At(table, "notify.smtp: write smtp://HOST[:PORT], and the name in `user`");
      }
      if (!IsMailAddress(settings_.from)) {
        return At(table, "notify.from: expected the address from which mail is sent, as in \"vrun@example.org\"");
      }
      const std::string host = url->origin.substr(url->origin.find("//") + 2);
      const bool here = host.starts_with("127.") || host.starts_with("localhost:") || host.starts_with("[::1]:");
      settings_.starttls = starttls.value_or(!here);
    }
    if (!settings_.user.empty() && settings_.password_file.empty()) {
      return At(table, "notify: there is a user, but no password_file");
    }
    if (!settings_.domain.empty() && !IsMailAddress("a@" + settings_.domain)) {
      return At(table, "notify.domain: expected a domain, as in \"example.org\"");
    }
    for (const std::string& address : settings_.operators) {
      if (!IsMailAddress(address)) return At(table, "notify.operators: " + Escape(address) + ": not an address");
    }
    for (std::string& prefix : settings_.job_webhooks) {
      const auto url = ParseUrl(prefix);
      if (!url) return At(table, "notify.job_webhooks: " + url.error().message());
      prefix = url->text;
    }
    return {};
  }

  const std::string& name_;
  NotifySettings settings_;
};

Result<std::string> ReadBeside(const std::string& beside, const std::string& file, const char* setting) {
  auto text = ReadFile(file[0] == '/' ? file : beside + file, kMostSecret);
  if (!text) return std::move(text).error().With(std::string("notify: ") + setting);
  return text;
}

Status ReadKey(const std::string& beside, const std::string& file, const char* setting, std::string* key) {
  if (file.empty()) return {};
  VRUN_ASSIGN(const std::string text, ReadBeside(beside, file, setting));
  auto parsed = ParseSecret(text);
  if (!parsed) return std::move(parsed).error().With(std::string("notify: ") + setting + " " + Escape(file));
  *key = *std::move(parsed);
  return {};
}

}  // namespace

bool IsEventOfJobs(std::string_view name) {
  const auto end = std::begin(kEvents) + 5;
  return std::find(std::begin(kEvents), end, name) != end ||
         std::find(std::begin(kEventsOfJobs), std::end(kEventsOfJobs), name) != std::end(kEventsOfJobs);
}

bool Webhook::Wants(std::string_view event) const { return events.empty() || Contains(events, event); }
bool Webhook::Watches(const std::string& team) const {
  return teams.empty() || (!team.empty() && Contains(teams, team));
}

std::string NotifySettings::AddressOf(const std::string& name) const {
  const std::string address = name.substr(0, name.find('@')) + "@" + domain;
  return !domain.empty() && IsMailAddress(address) ? address : "";
}

Result<std::string> NotifySettings::JobWebhook(const std::string& text) const {
  VRUN_ASSIGN(const Url url, ParseUrl(text));
  std::string allowed;
  for (const std::string& prefix : job_webhooks) {
    VRUN_ASSIGN(const Url under, ParseUrl(prefix));
    if (IsUnder(url, under)) return url.text;
    allowed += (allowed.empty() ? "" : ", ") + prefix;
  }
  if (allowed.empty()) {
    return Error(Code::kDenied,
                 "--notify-url: this cluster calls no webhooks of jobs: leave it out, or ask its administrator to set "
                 "job_webhooks of [notify] in scheduler.toml");
  }
  return Error(Code::kDenied, Escape(text) + ": jobs of this cluster may name only webhooks below " + allowed +
                                  ": correct --notify-url");
}

Result<std::vector<std::string>> NotifySettings::JobAddresses(const std::string& text) const {
  std::vector<std::string> addresses;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string word = text.substr(at, comma - at);
    at = comma + 1;
    std::string address = word.find('@') == std::string::npos ? AddressOf(word) : word;
    if (address.empty() && !word.empty() && domain.empty()) {
      return Error(Code::kInvalid, Escape(word) + ": not a mail address: write --mail-user NAME@DOMAIN");
    }
    if (word.empty()) {
      return Error(Code::kInvalid, "--mail-user: an empty address: write NAME@DOMAIN, with a comma only between two");
    }
    if (!IsMailAddress(address)) {
      return Error(Code::kInvalid, Escape(word.substr(0, 300)) + ": not a mail address: correct --mail-user");
    }
    if (!mail_domains.empty() && !Contains(mail_domains, DomainOf(address)) && DomainOf(address) != domain) {
      std::string known;
      for (const std::string& one : mail_domains) known += (known.empty() ? "" : ", ") + one;
      return Error(Code::kDenied, Escape(address) + ": jobs of this cluster send mail only to addresses at " + known +
                                      ": correct --mail-user");
    }
    if (!Contains(addresses, address)) addresses.push_back(std::move(address));
  }
  if (addresses.size() > kMostAddresses) {
    return Error(Code::kInvalid,
                 "--mail-user: more than 10 addresses: name fewer, or a list that your mail server keeps");
  }
  return addresses;
}

Result<NotifySettings> ParseNotify(std::string_view text, const std::string& name) {
  toml::parse_result parsed = toml::parse(text);
  if (!parsed) return Error(Code::kInvalid, Escape(name) + ": " + Escape(parsed.error().description()));
  const toml::node* node = parsed.table().get("notify");
  if (node == nullptr) return NotifySettings();
  NotifyReader reader(name);
  if (!node->is_table()) return reader.At(*node, "notify: write it as a section [notify]");
  return reader.Read(*node->as_table());
}

Status ReadSecrets(const std::string& beside, NotifySettings* settings) {
  if (!settings->password_file.empty()) {
    VRUN_ASSIGN(settings->password, ReadBeside(beside, settings->password_file, "password_file"));
    const size_t end = settings->password.find_last_not_of("\r\n");
    settings->password.resize(end == std::string::npos ? 0 : end + 1);
  }
  if (!settings->ca.empty()) {
    VRUN_ASSIGN(settings->ca, ReadBeside(beside, settings->ca, "ca"));
  }
  VRUN_TRY(ReadKey(beside, settings->job_secret_file, "job_secret_file", &settings->job_key));
  for (Webhook& hook : settings->webhooks) {
    VRUN_TRY(ReadKey(beside, hook.secret_file, "secret_file", &hook.key));
  }
  return {};
}

}  // namespace vrun::control::notify

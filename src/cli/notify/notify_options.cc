// SPDX-License-Identifier: Apache-2.0
#include "cli/notify/notify_options.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "base/escape.h"

namespace vrun::cli {
namespace {

struct MailType {
  std::string_view name, event;
};
constexpr MailType kMailTypes[] = {{"BEGIN", "begin"},
                                   {"END", "end"},
                                   {"FAIL", "fail"},
                                   {"REQUEUE", "requeue"},
                                   {"TIME_LIMIT", "time_limit"},
                                   {"TIME_LIMIT_90", "time_limit_90"},
                                   {"TIME_LIMIT_80", "time_limit_80"},
                                   {"TIME_LIMIT_50", "time_limit_50"},
                                   {"ARRAY_TASKS", "array_tasks"},
                                   // A job whose dependency has failed ends like others that fail.
                                   {"INVALID_DEPEND", "fail"},
                                   // The end is when all writes are home.
                                   {"STAGE_OUT", "end"}};
constexpr std::string_view kAllEvents[] = {"begin", "end", "fail", "requeue"};

void AddEvent(std::string_view event, std::vector<std::string>* events) {
  if (std::find(events->begin(), events->end(), event) == events->end()) events->emplace_back(event);
}

std::string EventWords(const google::protobuf::RepeatedPtrField<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + Escape(word);
  return text;
}

}  // namespace

Status ParseMailType(const std::string& text, NotifyOptions* options) {
  std::vector<std::string> events;
  bool none = false;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    std::string word = text.substr(at, comma - at);
    at = comma + 1;
    std::transform(word.begin(), word.end(), word.begin(),
                   [](char c) { return static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c); });
    const auto known = std::find_if(std::begin(kMailTypes), std::end(kMailTypes),
                                    [&](const MailType& type) { return type.name == word; });
    if (word == "NONE") {
      none = true;
    } else if (word == "ALL") {
      for (const std::string_view event : kAllEvents) AddEvent(event, &events);
    } else if (known != std::end(kMailTypes)) {
      AddEvent(known->event, &events);
    } else {
      return Error(Code::kInvalid, (word.empty() ? "empty" : Escape(word.substr(0, 50)) + ": unknown") +
                                       ": write some of BEGIN, END, FAIL, REQUEUE, TIME_LIMIT, TIME_LIMIT_90, "
                                       "TIME_LIMIT_80, TIME_LIMIT_50, ARRAY_TASKS, or ALL or NONE");
    }
  }
  if (none && !events.empty()) return Error(Code::kInvalid, "NONE beside other words: leave it out");
  options->events = std::move(events);
  options->asked = !options->events.empty();
  // Alone it says nothing.
  if (options->events == std::vector<std::string>{"array_tasks"}) {
    return Error(Code::kInvalid, "ARRAY_TASKS alone: write also at which events, as in END,ARRAY_TASKS");
  }
  return {};
}

Status ParseMailUser(const std::string& text, NotifyOptions* options) {
  if (text.empty()) return Error(Code::kInvalid, "empty: write NAME@DOMAIN");
  if (text.size() > 2000 || text != Escape(text) || text.find(' ') != std::string::npos) {
    return Error(Code::kInvalid, Escape(text.substr(0, 100)) + ": not a mail address");
  }
  options->mail_user = text;
  return {};
}

Status ParseNotifyUrl(const std::string& text, NotifyOptions* options) {
  if (text.empty()) return Error(Code::kInvalid, "empty: write https://HOST/PATH");
  const bool web = text.starts_with("https://") || text.starts_with("http://");
  if (!web || text.size() > 2000 || text != Escape(text)) {
    return Error(Code::kInvalid, Escape(text.substr(0, 100)) + ": not a URL: write https://HOST/PATH");
  }
  options->url = text;
  return {};
}

void ApplyNotify(const NotifyOptions& options, v1::RunSpec* spec) {
  spec->clear_notify();
  const bool mail = options.asked && (options.url.empty() || !options.mail_user.empty());
  if (!mail && options.url.empty()) return;
  v1::Notify* notify = spec->mutable_notify();
  notify->set_webhook(options.url);
  if (mail) notify->set_mail(options.mail_user);
  notify->mutable_events()->Assign(options.events.begin(), options.events.end());
  if (!options.events.empty()) return;
  for (const std::string_view event : kAllEvents) notify->add_events(std::string(event));
}

std::string NotifyText(const v1::Notify& notify) {
  std::string who;
  if (!notify.mail().empty()) who = "mail to " + Escape(notify.mail());
  if (!notify.webhook().empty()) who += (who.empty() ? "" : ", ") + std::string("POST to ") + Escape(notify.webhook());
  return who.empty() ? "" : who + " at " + EventWords(notify.events());
}

}  // namespace vrun::cli

// SPDX-License-Identifier: Apache-2.0
// The part of State that tells people and programs what happens to jobs, budgets and nodes.
//
// A message is stored in the transaction that changes what it is about, so there is one if and only if that has
// happened. It is handed to the sender after the commit, and again after each start of the controller, until it was
// delivered.
#include <sys/random.h>

#include <algorithm>

#define JSON_USE_IMPLICIT_CONVERSIONS 0
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "base/time/calendar.h"
#include "control/state/state.h"
#include "jobs/ending.h"

namespace vrun::control {
namespace {

using EventJson = nlohmann::ordered_json;

constexpr size_t kMostMessages = 10'000;  // that wait: 10 MB
constexpr int64_t kSecondMicros = 1'000'000;
constexpr size_t kMostNodesNamed = 20;
constexpr int kMostEvents = 20;
constexpr const char* kTimeEvents[] = {"time_limit_50", "time_limit_80", "time_limit_90"};
constexpr uint32_t kTimePercents[] = {50, 80, 90};

template <typename List>
bool IsIn(const List& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

bool HasBegun(const JobRow& job) {
  return job.started_us != 0 && job.state != v1::PENDING && job.state != v1::STARTING;
}

// Somebody has asked for this end.
bool WasCancelled(const JobRow& job) {
  return job.state == v1::CANCELLED && (job.cancelled || job.reason.starts_with("cancelled"));
}

// Valid UTF-8, whatever is in it.
std::string JsonText(const EventJson& json) { return json.dump(-1, ' ', false, EventJson::error_handler_t::replace); }

std::string LowerCase(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c); });
  return text;
}

EventJson EventTime(int64_t at_us) { return at_us == 0 ? EventJson() : EventJson(FormatRfc3339(at_us)); }

std::string Span(int64_t micros) {
  const int64_t seconds = std::max<int64_t>(micros, 0) / kSecondMicros;
  char text[48];
  std::snprintf(text, sizeof text, "%lld:%02d:%02d", static_cast<long long>(seconds / 3600),
                static_cast<int>(seconds / 60 % 60), static_cast<int>(seconds % 60));
  return text;
}

// "" for an array that has none yet, and for a job without a record.
std::string ExitText(const JobRow& job) {
  v1::ExitRecord record;
  const std::string exit = ExitOf(job);
  return !exit.empty() && record.ParseFromString(exit) ? std::to_string(ExitStatus(record)) : "";
}

EventJson EventData(const JobRow& job) {
  EventJson data;
  data["job"] = job.id;
  if (job.array != 0) {
    data["array"] = job.array;
    data["index"] = job.array_index;
  }
  if (job.elements != 0) data["elements"] = job.elements;
  data["name"] = Escape(job.name);
  data["user"] = job.user;
  data["team"] = job.scheduling.team();
  data["project"] = job.scheduling.project();
  data["pool"] = job.pool;
  data["state"] = v1::JobState_Name(job.state);
  data["reason"] = Escape(job.reason);
  data["attempt"] = job.attempt;
  data["submitted"] = EventTime(job.submitted_us);
  data["started"] = EventTime(job.started_us);
  data["ended"] = EventTime(job.ended_us);
  if (const std::string exit = ExitText(job); !exit.empty()) data["exit"] = std::stoi(exit);
  return data;
}

std::string EventBody(const std::string& type, int64_t at_us, EventJson data) {
  EventJson body;
  body["type"] = type;
  body["timestamp"] = FormatRfc3339(at_us);
  body["data"] = std::move(data);
  return JsonText(body);
}

std::string JobName(const JobRow& job) {
  const std::string id =
      job.array != 0 ? std::to_string(job.array) + "_" + std::to_string(job.array_index) : std::to_string(job.id);
  return (job.elements != 0 ? "array " : "job ") + id + (job.name.empty() ? "" : " (" + Escape(job.name) + ")");
}

std::string MailText(const JobRow& job, const std::string& said, int64_t now) {
  std::string text = JobName(job) + " " + said + "\n\n";
  const auto line = [&](const char* name, const std::string& value) {
    if (value.empty()) return;
    std::string left = std::string(name) + ":";
    left.resize(12, ' ');
    text += left + value + "\n";
  };
  line("state", LowerCase(v1::JobState_Name(job.state)));
  line("reason", Escape(job.reason));
  line("exit", IsEnd(job.state) ? ExitText(job) : "");
  line("user", Escape(job.user));
  line("team", Escape(job.scheduling.team()));
  line("pool", Escape(job.pool));
  if (!job.pods.empty()) {
    line("node", Escape(job.pods[0].node) +
                     (job.pods.size() > 1 ? " and " + std::to_string(job.pods.size() - 1) + " more" : ""));
  }
  if (job.attempt > 1) line("attempt", std::to_string(job.attempt));
  line("submitted", FormatRfc3339(job.submitted_us));
  if (job.started_us != 0) line("started", FormatRfc3339(job.started_us));
  if (job.ended_us != 0) line("ended", FormatRfc3339(job.ended_us));
  if (job.started_us != 0) line("ran", Span((job.ended_us != 0 ? job.ended_us : now) - job.started_us));
  return text + "\nMore: vctl job " + std::to_string(job.id) + "\n";
}

}  // namespace

// --- what is stored ---

Status State::LoadMessages() {
  begun_.clear();
  timed_.clear();
  node_news_.clear();
  VRUN_ASSIGN(const auto rows, store_->Messages());
  messages_ = rows.size();
  for (const auto& [number, bytes] : rows) {
    v1::Notification message;
    // One that does not parse would be tried for ever.
    if (!message.ParseFromString(bytes)) {
      VRUN_TRY(Delivered(number));
      continue;
    }
    outbox_.messages.emplace_back(number, std::move(message));
  }
  VRUN_ASSIGN(const std::string told, store_->GetNote("budgets-told"));
  if (!budgets_told_.ParseFromString(told)) budgets_told_.Clear();
  return {};
}

Status State::Delivered(uint64_t row) {
  if (messages_ > 0) --messages_;
  return store_->DropMessage(row);
}

Status State::Send(v1::Notification message) {
  if (messages_ >= kMostMessages) {
    if (messages_refused_++ % 1000 == 0) {
      LogError("{} notifications wait to be delivered: more are dropped until some were", messages_);
    }
    return {};
  }
  unsigned char random[16];
  if (::getrandom(random, sizeof random, 0) != static_cast<ssize_t>(sizeof random)) return ErrnoError("random id");
  std::string id = "msg_";
  for (const unsigned char byte : random) {
    id += "0123456789abcdef"[byte >> 4];
    id += "0123456789abcdef"[byte & 15];
  }
  message.set_id(id);
  message.set_made_us(clock_->Wall());
  VRUN_ASSIGN(const uint64_t row, store_->AddMessage(message.SerializeAsString()));
  ++messages_;
  outbox_.messages.emplace_back(row, std::move(message));
  return {};
}

Status State::TellHooks(const std::vector<std::string>& events, const std::string& team, const std::string& body) {
  for (const notify::Webhook& hook : settings_.scheduler.notify.webhooks) {
    const bool wants = std::any_of(events.begin(), events.end(), [&](const auto& event) { return hook.Wants(event); });
    if (!wants || !hook.Watches(team)) continue;
    v1::Notification message;
    message.set_webhook(hook.url);
    message.set_body(body);
    VRUN_TRY(Send(std::move(message)));
  }
  return {};
}

Status State::TellPeople(const std::vector<std::string>& addresses, const std::string& subject,
                         const std::string& text) {
  if (!settings_.scheduler.notify.mails()) return {};
  for (const std::string& address : addresses) {
    v1::Notification message;
    message.set_mail(address);
    message.set_subject("vrun: " + subject);
    message.set_text(text);
    VRUN_TRY(Send(std::move(message)));
  }
  return {};
}

// --- jobs ---

Result<v1::JobNotify> State::NotifyOf(const std::string& user, const v1::Notify& asked, std::string* warning) const {
  const notify::NotifySettings& settings = settings_.scheduler.notify;
  v1::JobNotify notify;
  v1::Notify* who = notify.mutable_who();
  if (asked.events_size() > kMostEvents) return Error(Code::kInvalid, "submit: more events than there are");
  for (const std::string& event : asked.events()) {
    if (!notify::IsEventOfJobs(event)) {
      return Error(Code::kUnsupported, "submit: this controller does not know the event " +
                                           Escape(event.substr(0, 50)) + ": leave it out of --mail-type");
    }
    if (!IsIn(who->events(), event)) who->add_events(event);
  }
  if (who->events().empty()) {
    for (const char* event : {"begin", "end", "fail", "requeue"}) who->add_events(event);
  }
  if (!asked.webhook().empty()) {
    VRUN_ASSIGN(*who->mutable_webhook(), settings.JobWebhook(asked.webhook()));
  }
  if (asked.mail().empty() && !asked.webhook().empty()) return notify;
  // Scripts for Slurm ask for mail everywhere.
  if (!settings.mails()) {
    *warning = "no mail is sent about the job: its cluster has no mail server (smtp of [notify] in scheduler.toml)";
    if (asked.webhook().empty()) notify.Clear();
    return notify;
  }
  if (asked.mail().empty()) {
    who->set_mail(settings.AddressOf(user));
    if (!who->mail().empty()) return notify;
    return Error(Code::kInvalid,
                 settings.domain.empty()
                     ? "submit: --mail-type without an address: this cluster knows none of yours: write "
                       "--mail-user NAME@DOMAIN"
                     : "submit: " + Escape(user) + " makes no mail address: write --mail-user");
  }
  VRUN_ASSIGN(const std::vector<std::string> addresses, settings.JobAddresses(asked.mail()));
  for (const std::string& address : addresses) {
    who->mutable_mail()->append((who->mail().empty() ? "" : ",") + address);
  }
  return notify;
}

void State::FollowTold(const JobRow& job) {
  if (HasBegun(job)) begun_.insert(job.id);
  const auto& events = job.notify.who().events();
  const bool timed = std::any_of(std::begin(kTimeEvents), std::end(kTimeEvents),
                                 [&](const char* event) { return IsIn(events, event); });
  if (timed && job.scheduling.limit_s() > 0 && job.elements == 0) timed_.insert(job.id);
}

Status State::TellTransition(const JobRow& job) {
  const bool had_begun = begun_.contains(job.id);
  if (IsEnd(job.state)) {
    begun_.erase(job.id);
    timed_.erase(job.id);
    // A short one may have ended before anybody has heard that it runs.
    if (!had_begun && job.started_us != 0) VRUN_TRY(TellJob(job, {"begin"}, "has begun"));
    std::vector<std::string> events{"end"};
    if (job.state != v1::COMPLETED && !WasCancelled(job)) events.emplace_back("fail");
    if (job.state == v1::TIMEOUT) events.emplace_back("time_limit");
    std::string how = LowerCase(v1::JobState_Name(job.state));
    std::replace(how.begin(), how.end(), '_', ' ');
    if (const std::string exit = ExitText(job); !exit.empty() && job.state == v1::FAILED) how += ", exit " + exit;
    return TellJob(job, events, "has ended: " + how);
  }
  if (HasBegun(job) && !had_begun) {
    begun_.insert(job.id);
    return TellJob(job, {"begin"}, "has begun");
  }
  if (job.state == v1::PENDING && had_begun) {
    begun_.erase(job.id);
    return TellJob(job, {"requeue"}, "waits again" + (job.reason.empty() ? "" : ": " + Escape(job.reason)));
  }
  return {};
}

Status State::TellJob(const JobRow& job, const std::vector<std::string>& events, const std::string& said) {
  const notify::NotifySettings& settings = settings_.scheduler.notify;
  const v1::Notify& who = job.notify.who();
  const bool element = job.array != 0;
  // An array is told about as a whole, unless it asks for its elements.
  const bool asked =
      element == IsIn(who.events(), "array_tasks") &&
      std::any_of(events.begin(), events.end(), [&](const auto& event) { return IsIn(who.events(), event); });
  const bool hooks = !element && !settings.webhooks.empty();
  if (!asked && !hooks) return {};
  EventJson data = EventData(job);
  if (IsIn(events, "end")) data["failed"] = IsIn(events, "fail");
  const std::string body = EventBody("job." + events[0], clock_->Wall(), std::move(data));
  if (hooks) VRUN_TRY(TellHooks(events, job.scheduling.team(), body));
  if (!asked) return {};
  if (!who.webhook().empty()) {
    v1::Notification message;
    message.set_webhook(who.webhook());
    message.set_by_job(true);
    message.set_body(body);
    VRUN_TRY(Send(std::move(message)));
  }
  std::vector<std::string> addresses;
  for (size_t at = 0; at < who.mail().size();) {
    const size_t comma = std::min(who.mail().find(',', at), who.mail().size());
    addresses.push_back(who.mail().substr(at, comma - at));
    at = comma + 1;
  }
  return TellPeople(addresses, JobName(job) + " " + said, MailText(job, said, clock_->Wall()));
}

Status State::TellLimits() {
  for (const uint64_t id : timed_) {
    JobRow& job = jobs_.at(id);
    if (!begun_.contains(id) || job.state != v1::RUNNING) continue;
    const int64_t limit = static_cast<int64_t>(job.scheduling.limit_s()) * kSecondMicros;
    const int64_t ran = clock_->Wall() - job.started_us;
    if (limit <= 0 || ran >= limit) continue;
    const uint32_t told = job.notify.limit_attempt() == job.attempt ? job.notify.limit_percent() : 0;
    size_t due = std::size(kTimeEvents);
    for (size_t i = 0; i < std::size(kTimeEvents); ++i) {
      const bool reached =
          ran / kSecondMicros * 100 >= static_cast<int64_t>(kTimePercents[i]) * (limit / kSecondMicros);
      if (kTimePercents[i] > told && reached && IsIn(job.notify.who().events(), kTimeEvents[i])) due = i;
    }
    if (due == std::size(kTimeEvents)) continue;
    job.notify.set_limit_attempt(job.attempt);
    job.notify.set_limit_percent(kTimePercents[due]);
    VRUN_TRY(TellJob(job, {kTimeEvents[due]},
                     "has used " + std::to_string(kTimePercents[due]) + " % of its time limit of " + Span(limit)));
    VRUN_TRY(store_->UpdateJob(job));
  }
  return {};
}

// --- budgets ---

Status State::TellBudgets() {
  const SchedulerConfig& config = settings_.scheduler;
  v1::BudgetsTold now;
  for (const auto& [name, budget] : budgets_) {
    const uint32_t level = budget.used_percent() >= 100 || budget.state() == "stop" ? 2
                           : budget.state() == "warn"                               ? 1
                                                                                    : 0;
    uint32_t told = 0;
    for (const auto& team : budgets_told_.teams()) {
      if (team.team() == name && team.from_us() == budget.from_us()) told = team.level();
    }
    if (level > 0) {
      v1::BudgetsTold::Team* team = now.add_teams();
      team->set_team(name);
      team->set_from_us(budget.from_us());
      team->set_level(level);
    }
    const TeamConfig* team = config.FindTeam(name);
    if (level <= told || team == nullptr) continue;
    EventJson data;
    data["team"] = name;
    data["month"] = DayText(budget.from_us()).substr(0, 7);
    data["used_percent"] = budget.used_percent();
    data["used_gpu_hours"] = static_cast<double>(budget.used_gpu_ms()) / 3.6e6;
    if (budget.gpu_ms() > 0) data["gpu_hours"] = static_cast<double>(budget.gpu_ms()) / 3.6e6;
    if (budget.money_micros() > 0) {
      data["money"] = static_cast<double>(budget.money_micros()) / 1e6;
      data["used_money"] = static_cast<double>(budget.used_money_micros()) / 1e6;
      data["currency"] = config.prices.currency;
    }
    data["stopped"] = budget.state() == "stop";
    const std::string event = level == 2 ? "budget_full" : "budget_warn";
    VRUN_TRY(TellHooks({event}, name, EventBody(level == 2 ? "budget.full" : "budget.warn", clock_->Wall(), data)));
    std::vector<std::string> addresses = team->mail;
    if (addresses.empty()) {
      for (const std::string& lead : team->leads) {
        const std::string address = lead == "*" || lead[0] == '@' ? "" : config.notify.AddressOf(lead);
        if (!address.empty() && !IsIn(addresses, address)) addresses.push_back(address);
      }
    }
    const std::string subject =
        "team " + Escape(name) + " has used " + std::to_string(budget.used_percent()) + " % of its budget";
    VRUN_TRY(TellPeople(addresses, subject, budget.text() + "\n\nMore: vctl usage --by user,project\n"));
  }
  if (now.SerializeAsString() == budgets_told_.SerializeAsString()) return {};
  budgets_told_ = std::move(now);
  return store_->PutNote("budgets-told", budgets_told_.SerializeAsString());
}

// --- nodes ---

void State::NoteNode(const char* event, const std::string& node, const std::string& text) {
  const notify::NotifySettings& settings = settings_.scheduler.notify;
  if (settings.webhooks.empty() && (settings.operators.empty() || !settings.mails())) return;
  node_news_.push_back({event, node, text});
}

Status State::TellNodes() {
  const std::vector<NodeNews> news = std::exchange(node_news_, {});
  const std::pair<const char*, const char*> kinds[] = {
      {"node_lost", "lost"}, {"node_drained", "out of service"}, {"gpu_bad", "with bad GPUs"}};
  for (const auto& [event, what] : kinds) {
    EventJson nodes = EventJson::array();
    std::string names, text;
    size_t count = 0;
    for (const NodeNews& one : news) {
      if (one.event != event) continue;
      if (++count <= kMostNodesNamed) names += (names.empty() ? "" : ", ") + Escape(one.node);
      text += Escape(one.node) + ": " + one.text + "\n";
      EventJson entry;
      entry["node"] = one.node;
      entry["text"] = one.text;
      nodes.push_back(std::move(entry));
    }
    if (count == 0) continue;
    if (count > kMostNodesNamed) names += " and " + std::to_string(count - kMostNodesNamed) + " more";
    std::string type = event;
    std::replace(type.begin(), type.end(), '_', '.');
    EventJson data;
    data["nodes"] = std::move(nodes);
    VRUN_TRY(TellHooks({event}, "", EventBody(type, clock_->Wall(), std::move(data))));
    const std::string subject = (count == 1 ? "node " : std::to_string(count) + " nodes ") + std::string(what) + ": ";
    VRUN_TRY(TellPeople(settings_.scheduler.notify.operators, subject + names, text + "\nMore: vctl nodes\n"));
  }
  return {};
}

}  // namespace vrun::control

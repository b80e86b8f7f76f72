// SPDX-License-Identifier: Apache-2.0
// The part of SqlStore that removes old jobs and keeps what is left of them, and the messages that wait.
#include <charconv>

#include "control/store/sql_statement.h"
#include "control/store/sql_store.h"

namespace vrun::control {

Status SqlStore::PutNote(const std::string& name, const std::string& value) {
  Statement s(this, "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value=excluded.value");
  s.Text(name).Blob(value);
  return s.Run();
}

Result<std::string> SqlStore::GetNote(const std::string& name) {
  Statement s(this, "SELECT value FROM meta WHERE key=?");
  s.Text(name);
  VRUN_ASSIGN(const bool row, s.Step());
  return row ? s.Bytes() : "";
}

Result<int64_t> SqlStore::NumberNote(const std::string& name) {
  VRUN_ASSIGN(const std::string text, GetNote(name));
  int64_t number = 0;
  (void)std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

Status SqlStore::PutDay(const Holder& holder, const DayRow& day) {
  VRUN_ASSIGN(const int64_t id, IdOf(holder));
  Statement s(this,
              "INSERT INTO days (day_us, holder, sums) VALUES (?, ?, ?) ON CONFLICT (day_us, holder) DO UPDATE SET "
              "sums=excluded.sums");
  s.Int(day.day_us).Int(id).Blob(day.sums);
  return s.Run();
}

Result<std::string> SqlStore::GetDay(const Holder& holder, int64_t day) {
  VRUN_ASSIGN(const int64_t id, IdOf(holder));
  Statement s(this, "SELECT sums FROM days WHERE day_us=? AND holder=?");
  s.Int(day).Int(id);
  VRUN_ASSIGN(const bool row, s.Step());
  return row ? s.Bytes() : "";
}

Status SqlStore::ReadDays(int64_t from, int64_t to, const std::function<void(const Holder&, const DayRow&)>& each) {
  // A day is shorter than 24 h and 1 us, and a day that has begun before may still have something.
  constexpr int64_t kDay = int64_t{86400} * 1'000'000;
  VRUN_ASSIGN(const auto holders, Holders());
  Statement s(this, "SELECT day_us, holder, sums FROM days WHERE day_us>? AND day_us<? ORDER BY day_us, holder");
  s.Int(from < INT64_MIN + kDay ? INT64_MIN : from - kDay).Int(to);
  DayRow day;
  for (;;) {
    VRUN_ASSIGN(const bool there, s.Step());
    if (!there) return {};
    day.day_us = s.Int();
    const auto holder = holders.find(s.Int());
    day.sums = s.Bytes();
    if (holder != holders.end()) each(holder->second, day);
  }
}

Result<std::vector<OldJob>> SqlStore::OldJobs(int64_t ended_before, const OldJob& after, int limit) {
  Statement s(this,
              "SELECT j.id, j.ended_us, j.array, j.elements, coalesce((SELECT a.ended_us FROM jobs a WHERE "
              "a.id=j.array), 0) FROM jobs j INDEXED BY jobs_by_end WHERE j.ended_us>0 AND j.ended_us<? AND "
              "j.ended_us>=? AND (j.ended_us>? OR j.id>?) ORDER BY j.ended_us, j.id LIMIT ?");
  s.Int(ended_before).Int(after.ended_us).Int(after.ended_us).Int(static_cast<int64_t>(after.id)).Int(limit);
  std::vector<OldJob> jobs;
  for (;;) {
    VRUN_ASSIGN(const bool row, s.Step());
    if (!row) return jobs;
    OldJob& job = jobs.emplace_back();
    job.id = static_cast<uint64_t>(s.Int());
    job.ended_us = s.Int();
    job.array = static_cast<uint64_t>(s.Int());
    job.is_array = s.Int() != 0;
    job.array_ended_us = s.Int();
  }
}

Result<bool> SqlStore::HasElements(uint64_t array) {
  Statement s(this, "SELECT 1 FROM jobs WHERE array=? AND array!=0 LIMIT 1");
  s.Int(static_cast<int64_t>(array));
  return s.Step();
}

Status SqlStore::KeepExtremes(uint64_t job) {
  int64_t epoch = 0, first = 0, last = 0;
  {
    Statement s(this, "SELECT coalesce(max(epoch), 0) FROM attempts WHERE job=?");
    s.Int(static_cast<int64_t>(job));
    VRUN_ASSIGN([[maybe_unused]] const bool row, s.Step());
    epoch = s.Int();
  }
  {
    Statement s(this, "SELECT coalesce(min(start_us), 0), coalesce(max(end_us), 0) FROM intervals WHERE job=?");
    s.Int(static_cast<int64_t>(job));
    VRUN_ASSIGN([[maybe_unused]] const bool row, s.Step());
    first = s.Int();
    last = s.Int();
  }
  VRUN_ASSIGN(const int64_t kept_epoch, NumberNote("last-epoch"));
  VRUN_ASSIGN(const int64_t kept_first, NumberNote("first-interval"));
  VRUN_ASSIGN(const int64_t kept_last, NumberNote("last-interval"));
  if (epoch > kept_epoch) VRUN_TRY(PutNote("last-epoch", std::to_string(epoch)));
  if (first != 0 && (kept_first == 0 || first < kept_first)) VRUN_TRY(PutNote("first-interval", std::to_string(first)));
  if (last > kept_last) VRUN_TRY(PutNote("last-interval", std::to_string(last)));
  return {};
}

Status SqlStore::DropJob(uint64_t id) {
  VRUN_TRY(KeepExtremes(id));
  for (const char* sql :
       {"DELETE FROM intervals WHERE job=?", "DELETE FROM pods WHERE job=?", "DELETE FROM attempts WHERE job=?",
        "DELETE FROM arrays WHERE job=?", "DELETE FROM jobs WHERE id=?"}) {
    VRUN_TRY(Statement(this, sql).Int(static_cast<int64_t>(id)).Run());
  }
  return {};
}

Result<uint64_t> SqlStore::AddMessage(const std::string& message) {
  Statement s(this, "INSERT INTO messages (message) VALUES (?) RETURNING id");
  s.Blob(message);
  VRUN_ASSIGN([[maybe_unused]] const bool row, s.Step());
  return static_cast<uint64_t>(s.Int());
}

Status SqlStore::DropMessage(uint64_t number) {
  return Statement(this, "DELETE FROM messages WHERE id=?").Int(static_cast<int64_t>(number)).Run();
}

Result<std::vector<std::pair<uint64_t, std::string>>> SqlStore::Messages() {
  Statement s(this, "SELECT id, message FROM messages ORDER BY id");
  std::vector<std::pair<uint64_t, std::string>> messages;
  for (;;) {
    VRUN_ASSIGN(const bool row, s.Step());
    if (!row) return messages;
    const auto number = static_cast<uint64_t>(s.Int());
    messages.emplace_back(number, s.Bytes());
  }
}

}  // namespace vrun::control

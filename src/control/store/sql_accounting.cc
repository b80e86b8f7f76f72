// SPDX-License-Identifier: Apache-2.0
// The part of SqlStore that keeps the intervals of the accounting.
#include <algorithm>
#include <charconv>

#include "control/store/sql_statement.h"
#include "control/store/sql_store.h"

namespace vrun::control {

Result<int64_t> SqlStore::IdOf(const Holder& h) {
  const auto bind = [&](Statement& s) { s.Text(h.user).Text(h.team).Text(h.project).Text(h.pool).Text(h.gpu_type); };
  {
    Statement find(this, "SELECT id FROM holders WHERE user=? AND team=? AND project=? AND pool=? AND gpu_type=?");
    bind(find);
    VRUN_ASSIGN(const bool known, find.Step());
    if (known) return find.Int();
  }
  Statement make(this, "INSERT INTO holders (user, team, project, pool, gpu_type) VALUES (?,?,?,?,?) RETURNING id");
  bind(make);
  VRUN_ASSIGN([[maybe_unused]] const bool made, make.Step());
  return make.Int();
}

Status SqlStore::AddInterval(const Holder& holder, const IntervalRow& row) {
  VRUN_ASSIGN(const int64_t id, IdOf(holder));
  int64_t busy = row.busy_us, metered = row.metered_us;
  {
    Statement before(this,
                     "SELECT coalesce(sum(busy_us), 0), coalesce(sum(metered_us), 0) FROM intervals WHERE job=? AND "
                     "attempt=? AND pod=?");
    before.Int(static_cast<int64_t>(row.job)).Int(row.attempt).Int(row.pod);
    VRUN_ASSIGN([[maybe_unused]] const bool there, before.Step());
    busy = std::max<int64_t>(busy - before.Int(), 0);
    metered = std::max<int64_t>(metered - before.Int(), 0);
  }
  Statement s(this,
              "INSERT INTO intervals (job, attempt, pod, start_us, end_us, holder, node, gpu_milli, milli_cpus, "
              "memory_bytes, ended, lost_us, busy_us, metered_us, waited_us) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)");
  s.Int(static_cast<int64_t>(row.job)).Int(row.attempt).Int(row.pod).Int(row.start_us).Int(row.end_us).Int(id);
  s.Text(row.node).Int(row.gpu_milli).Int(row.milli_cpus).Int(row.memory_bytes).Int(static_cast<int64_t>(row.ended));
  s.Int(row.lost_us).Int(busy).Int(metered).Int(row.waited_us);
  return s.Run();
}

Status SqlStore::LoseEarlier(const IntervalRow& last, int64_t from) {
  Statement s(
      this,
      "UPDATE intervals SET ended=?, lost_us=end_us-(CASE WHEN start_us>? THEN start_us ELSE ? END) WHERE job=? "
      "AND attempt=? AND pod=? AND ended=? AND end_us>?");
  s.Int(static_cast<int64_t>(last.ended)).Int(from).Int(from);
  s.Int(static_cast<int64_t>(last.job)).Int(last.attempt).Int(last.pod);
  s.Int(static_cast<int64_t>(IntervalEnd::kContinued)).Int(from);
  return s.Run();
}

Result<std::map<int64_t, Holder>> SqlStore::Holders() {
  Statement s(this, "SELECT id, user, team, project, pool, gpu_type FROM holders");
  std::map<int64_t, Holder> holders;
  for (;;) {
    VRUN_ASSIGN(const bool row, s.Step());
    if (!row) return holders;
    Holder& h = holders[s.Int()];
    h.user = s.Bytes();
    h.team = s.Bytes();
    h.project = s.Bytes();
    h.pool = s.Bytes();
    h.gpu_type = s.Bytes();
  }
}

namespace {

constexpr char kIntervalColumns[] =
    "holder, job, attempt, pod, start_us, end_us, gpu_milli, milli_cpus, memory_bytes, ended, lost_us, busy_us, "
    "metered_us, waited_us";

// After the holder.
template <typename S>
void ReadInterval(S& s, IntervalRow* row) {
  row->job = static_cast<uint64_t>(s.Int());
  row->attempt = static_cast<uint32_t>(s.Int());
  row->pod = static_cast<uint32_t>(s.Int());
  row->start_us = s.Int();
  row->end_us = s.Int();
  row->gpu_milli = s.Int();
  row->milli_cpus = s.Int();
  row->memory_bytes = s.Int();
  row->ended = static_cast<IntervalEnd>(s.Int());
  row->lost_us = s.Int();
  row->busy_us = s.Int();
  row->metered_us = s.Int();
  row->waited_us = s.Int();
}

}  // namespace

Status SqlStore::ReadIntervals(int64_t from, int64_t to,
                               const std::function<void(const Holder&, const IntervalRow&)>& each) {
  static const std::string sql = std::string("SELECT ") + kIntervalColumns +
                                 " FROM intervals INDEXED BY intervals_end WHERE end_us>=? AND start_us<? ORDER BY "
                                 "end_us, start_us";
  VRUN_ASSIGN(const auto holders, Holders());
  Statement s(this, sql);
  s.Int(from).Int(to);
  IntervalRow row;
  for (;;) {
    VRUN_ASSIGN(const bool there, s.Step());
    if (!there) return {};
    const auto holder = holders.find(s.Int());
    ReadInterval(s, &row);
    const bool before = row.end_us == from && row.start_us < from;
    if (holder != holders.end() && !before) each(holder->second, row);
  }
}

Result<std::vector<std::pair<Holder, IntervalRow>>> SqlStore::IntervalsOf(uint64_t job) {
  static const std::string sql = std::string("SELECT user, team, project, holders.pool, gpu_type, node, ") +
                                 kIntervalColumns +
                                 " FROM intervals JOIN holders ON holders.id=holder WHERE job=? OR job IN (SELECT id "
                                 "FROM jobs WHERE array=? AND array!=0) ORDER BY start_us, attempt, pod";
  Statement s(this, sql);
  s.Int(static_cast<int64_t>(job)).Int(static_cast<int64_t>(job));
  std::vector<std::pair<Holder, IntervalRow>> rows;
  for (;;) {
    VRUN_ASSIGN(const bool there, s.Step());
    if (!there) return rows;
    auto& [holder, row] = rows.emplace_back();
    holder.user = s.Bytes();
    holder.team = s.Bytes();
    holder.project = s.Bytes();
    holder.pool = s.Bytes();
    holder.gpu_type = s.Bytes();
    row.node = s.Bytes();
    s.Int();  // the holder
    ReadInterval(s, &row);
  }
}

Result<int64_t> SqlStore::FirstInterval() {
  VRUN_ASSIGN(const int64_t kept, NumberNote("first-interval"));
  Statement s(this, "SELECT coalesce(min(start_us), 0) FROM intervals");
  VRUN_ASSIGN([[maybe_unused]] const bool row, s.Step());
  const int64_t first = s.Int();
  return kept == 0 || (first != 0 && first < kept) ? first : kept;
}

Result<int64_t> SqlStore::LastInterval() {
  VRUN_ASSIGN(const int64_t kept, NumberNote("last-interval"));
  Statement s(this, "SELECT coalesce(max(end_us), 0) FROM intervals");
  VRUN_ASSIGN([[maybe_unused]] const bool row, s.Step());
  return std::max(s.Int(), kept);
}

Status SqlStore::PutAccountingClock(const AccountingClock& clock) {
  Statement s(this,
              "INSERT INTO meta (key, value) VALUES ('accounting-clock', ?) ON CONFLICT (key) DO UPDATE SET "
              "value=excluded.value");
  const std::string value = std::to_string(clock.at_us) + " " + std::to_string(clock.monotonic) + " " + clock.boot_id;
  s.Blob(value);
  return s.Run();
}

Result<std::optional<AccountingClock>> SqlStore::GetAccountingClock() {
  Statement s(this, "SELECT value FROM meta WHERE key='accounting-clock'");
  VRUN_ASSIGN(const bool row, s.Step());
  if (!row) return std::optional<AccountingClock>();
  const std::string value = s.Bytes();
  AccountingClock clock;
  const char* at = value.data();
  const char* const end = at + value.size();
  const auto number = [&](int64_t* to) {
    at = std::from_chars(at, end, *to).ptr;
    if (at < end) ++at;
  };
  number(&clock.at_us);
  number(&clock.monotonic);
  clock.boot_id.assign(at, end);
  return std::optional<AccountingClock>(std::move(clock));
}

Result<std::string> SqlStore::NameOfJob(uint64_t id) {
  Statement s(this, "SELECT name FROM jobs WHERE id=?");
  s.Int(static_cast<int64_t>(id));
  VRUN_ASSIGN(const bool row, s.Step());
  return row ? s.Bytes() : "";
}

}  // namespace vrun::control

// SPDX-License-Identifier: Apache-2.0
#include "control/store/sql_store.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "control/store/sql_statement.h"

namespace vrun::control {
namespace {

constexpr char kJobColumns[] =
    "id, user, request_id, home_id, pool, name, milli_cpus, memory_bytes, gpus, gpu_type, state, reason, submitted_us, "
    "started_us, ended_us, attempt, epoch, cancelled, cancel_signal, scheduling, stopping, stopping_us, preemptions, "
    "leaving_attempt, leaving_epoch, gang, ending, failure, failed_pod, failed_starts, first_end_us, saved_us, "
    "lost_us, elements, array, array_index, parked, gpu_needs, sharers, gpu_fault, waits_since_us, notify, "
    "LENGTH(spec), pods";

constexpr char kArrayColumns[] =
    "arrays.job, arrays.array, waiting, next, held, gated, completed, failed, arrays.cancelled, exit";

constexpr char kPodColumns[] =
    "pod, node, token, gpu_mask, state, ready, exit, membership, leaving, mig_start, gpu_milli, "
    "mig_profile, usage, held_since_us";

// To whom a sealed request belongs.
std::string OwnerOf(const JobRow& job) { return job.user + '\0' + job.request_id; }

std::string Join(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& p : parts) text += p + "\n";
  return text;
}

std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    parts.push_back(text.substr(at, end - at));
  }
  return parts;
}

}  // namespace

namespace {

// What a job takes of GPUs besides their number and type.
std::string GpuNeeds(const Needs& needs) {
  v1::Resources gpus;
  gpus.set_gpu_milli(needs.gpu_milli);
  gpus.set_gpu_burst_milli(needs.gpu_burst_milli);
  gpus.set_gpu_sharing(needs.gpu_sharing);
  gpus.set_mig_profile(needs.mig_profile);
  gpus.set_gpu_memory_bytes(static_cast<uint64_t>(needs.gpu_memory_bytes));
  return gpus.SerializeAsString();
}

// The number of its pods is the next column.
template <typename S>
JobRow ReadJob(S& s) {
  JobRow job;
  job.id = static_cast<uint64_t>(s.Int());
  job.user = s.Bytes();
  job.request_id = s.Bytes();
  job.home_id = s.Bytes();
  job.pool = s.Bytes();
  job.name = s.Bytes();
  job.needs.milli_cpus = s.Int();
  job.needs.memory_bytes = s.Int();
  job.needs.gpus = s.Int();
  job.needs.gpu_type = s.Bytes();
  job.state = static_cast<v1::JobState>(s.Int());
  job.reason = s.Bytes();
  job.submitted_us = s.Int();
  job.started_us = s.Int();
  job.ended_us = s.Int();
  job.attempt = static_cast<uint32_t>(s.Int());
  job.epoch = static_cast<uint64_t>(s.Int());
  job.cancelled = s.Int() != 0;
  job.cancel_signal = static_cast<int32_t>(s.Int());
  (void)job.scheduling.ParseFromString(s.Bytes());
  job.stopping = s.Bytes();
  job.stopping_us = s.Int();
  job.preemptions = static_cast<uint32_t>(s.Int());
  job.leaving.attempt = static_cast<uint32_t>(s.Int());
  job.leaving.epoch = static_cast<uint64_t>(s.Int());
  (void)job.gang.ParseFromString(s.Bytes());
  job.ending = static_cast<Ending>(s.Int());
  job.failure = s.Bytes();
  job.failed_pod = static_cast<uint32_t>(s.Int());
  job.failed_starts = static_cast<uint32_t>(s.Int());
  job.first_end_us = s.Int();
  job.saved_us = s.Int();
  job.lost_us = s.Int();
  job.elements = static_cast<uint32_t>(s.Int());
  job.array = static_cast<uint64_t>(s.Int());
  job.array_index = static_cast<uint32_t>(s.Int());
  job.parked = s.Int() != 0;
  v1::Resources gpus;
  (void)gpus.ParseFromString(s.Bytes());
  job.needs.gpu_milli = gpus.gpu_milli();
  job.needs.gpu_burst_milli = gpus.gpu_burst_milli();
  job.needs.gpu_sharing = gpus.gpu_sharing();
  job.needs.mig_profile = gpus.mig_profile();
  job.needs.gpu_memory_bytes = static_cast<int64_t>(gpus.gpu_memory_bytes());
  job.needs.sharers = static_cast<uint64_t>(s.Int());
  job.gpu_fault = s.Bytes();
  job.waits_since_us = s.Int();
  (void)job.notify.ParseFromString(s.Bytes());
  job.spec_bytes = static_cast<uint64_t>(s.Int());
  return job;
}

template <typename S>
PodRow ReadPod(S& s) {
  PodRow pod;
  pod.pod = static_cast<uint32_t>(s.Int());
  pod.node = s.Bytes();
  pod.token = s.Bytes();
  pod.gpu_mask = static_cast<uint32_t>(s.Int());
  pod.state = static_cast<v1::JobState>(s.Int());
  pod.ready = s.Int() != 0;
  pod.exit = s.Bytes();
  pod.membership = static_cast<Membership>(s.Int());
  pod.leaving = s.Bytes();
  pod.mig_start = static_cast<int32_t>(s.Int());
  pod.gpu_milli = static_cast<uint32_t>(s.Int());
  pod.mig_profile = s.Bytes();
  pod.usage = s.Bytes();
  pod.held_since_us = s.Int();
  return pod;
}

}  // namespace

SqlStore::SqlStore(std::unique_ptr<sql::Database> database) : database_(std::move(database)) {}
SqlStore::~SqlStore() = default;

Result<bool> SqlStore::OpenKey(const std::string& path) {
  bool needed = false;
  {
    Statement s(this, "SELECT 1 FROM jobs WHERE substr(spec, 1, 4)=? LIMIT 1");
    s.Blob(SealedSpecs::kMagic);
    VRUN_ASSIGN(needed, s.Step());
  }
  VRUN_ASSIGN(specs_, SealedSpecs::Open(path, needed));
  return SealOldSpecs();
}

Result<bool> SqlStore::SealOldSpecs() {
  std::vector<JobRow> plain;
  {
    Statement s(this,
                "SELECT id, user, request_id, ended_us, spec FROM jobs WHERE length(spec)>0 AND substr(spec, 1, 4)!=?");
    s.Blob(SealedSpecs::kMagic);
    for (;;) {
      VRUN_ASSIGN(const bool row, s.Step());
      if (!row) break;
      JobRow& job = plain.emplace_back();
      job.id = static_cast<uint64_t>(s.Int());
      job.user = s.Bytes();
      job.request_id = s.Bytes();
      job.ended_us = s.Int();
      job.spec = s.Bytes();
    }
  }
  if (plain.empty()) return false;
  VRUN_TRY(Begin());
  for (JobRow& job : plain) {
    if (job.ended_us != 0) job.spec = WithoutEnvironment(job.spec).value_or(job.spec);
    const std::string sealed = specs_->Seal(job.spec, OwnerOf(job));
    VRUN_TRY(Statement(this, "UPDATE jobs SET spec=? WHERE id=?").Blob(sealed).Int(static_cast<int64_t>(job.id)).Run());
  }
  VRUN_TRY(Commit());
  return true;
}

Result<std::string> SqlStore::ReadSpec(Statement& statement, const JobRow& job) {
  Result<std::string> spec = specs_->Open(statement.Bytes(), OwnerOf(job));
  if (!spec) return Fail(std::move(spec).error().With("job " + std::to_string(job.id)));
  return spec;
}

// What an ended job is shown with stays.
Status SqlStore::DropEnvironment(const JobRow& job) {
  std::string spec;
  {
    Statement s(this, "SELECT spec FROM jobs WHERE id=?");
    s.Int(static_cast<int64_t>(job.id));
    VRUN_ASSIGN(const bool row, s.Step());
    if (!row) return {};
    VRUN_ASSIGN(spec, ReadSpec(s, job));
  }
  const std::optional<std::string> left = WithoutEnvironment(spec);
  if (!left) return {};
  const std::string sealed = specs_->Seal(*left, OwnerOf(job));
  return Statement(this, "UPDATE jobs SET spec=? WHERE id=?").Blob(sealed).Int(static_cast<int64_t>(job.id)).Run();
}

Error SqlStore::Fail(Error error) {
  if (!failure_) failure_ = error;
  return error;
}

Status SqlStore::Begin() { return Statement(this, "BEGIN").Run(); }

Status SqlStore::Commit() { return Statement(this, "COMMIT").Run(); }

void SqlStore::Rollback() {
  failure_.reset();
  database_->Rollback();
}

Result<uint64_t> SqlStore::InsertJob(const JobRow& job) {
  const std::string spec = specs_->Seal(job.spec, OwnerOf(job));
  Statement s(
      this,
      "INSERT INTO jobs (user, request_id, home_id, pool, name, spec, milli_cpus, memory_bytes, gpus, gpu_type, "
      "state, reason, submitted_us, started_us, ended_us, attempt, epoch, cancelled, cancel_signal, scheduling, gang, "
      "elements, array, array_index, gpu_needs, sharers, waits_since_us, notify) VALUES "
      "(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?) RETURNING id");
  const std::string scheduling = job.scheduling.SerializeAsString(), gang = job.gang.SerializeAsString();
  const std::string gpu_needs = GpuNeeds(job.needs), notify = job.notify.SerializeAsString();
  s.Text(job.user).Text(job.request_id).Blob(job.home_id).Text(job.pool).Text(job.name).Blob(spec);
  s.Int(job.needs.milli_cpus).Int(job.needs.memory_bytes).Int(job.needs.gpus).Text(job.needs.gpu_type);
  s.Int(job.state).Text(job.reason).Int(job.submitted_us).Int(job.started_us).Int(job.ended_us);
  s.Int(job.attempt).Int(static_cast<int64_t>(job.epoch)).Int(job.cancelled).Int(job.cancel_signal).Blob(scheduling);
  s.Blob(gang).Int(job.elements).Int(static_cast<int64_t>(job.array)).Int(job.array_index);
  s.Blob(gpu_needs).Int(static_cast<int64_t>(job.needs.sharers)).Int(job.waits_since_us).Blob(notify);
  VRUN_ASSIGN([[maybe_unused]] bool row, s.Step());
  return static_cast<uint64_t>(s.Int());
}

Status SqlStore::UpdateJob(const JobRow& job) {
  Statement s(
      this,
      "UPDATE jobs SET state=?, reason=?, started_us=?, ended_us=?, attempt=?, epoch=?, cancelled=?, cancel_signal=?, "
      "stopping=?, stopping_us=?, preemptions=?, leaving_attempt=?, leaving_epoch=?, ending=?, failure=?, "
      "failed_pod=?, failed_starts=?, first_end_us=?, saved_us=?, lost_us=?, scheduling=?, pods=?, parked=?, "
      "gpu_fault=?, waits_since_us=?, notify=? "
      "WHERE id=?");
  const std::string scheduling = job.scheduling.SerializeAsString(), notify = job.notify.SerializeAsString();
  s.Int(job.state).Text(job.reason).Int(job.started_us).Int(job.ended_us).Int(job.attempt);
  s.Int(static_cast<int64_t>(job.epoch)).Int(job.cancelled).Int(job.cancel_signal);
  s.Text(job.stopping).Int(job.stopping_us).Int(job.preemptions).Int(job.leaving.attempt);
  s.Int(static_cast<int64_t>(job.leaving.epoch)).Int(static_cast<int64_t>(job.ending)).Text(job.failure);
  s.Int(job.failed_pod).Int(job.failed_starts).Int(job.first_end_us);
  s.Int(job.saved_us).Int(job.lost_us).Blob(scheduling).Int(static_cast<int64_t>(job.pods.size()));
  s.Int(job.parked).Text(job.gpu_fault).Int(job.waits_since_us).Blob(notify);
  s.Int(static_cast<int64_t>(job.id));
  VRUN_TRY(s.Run());
  return job.ended_us != 0 && job.array == 0 ? DropEnvironment(job) : Status();
}

Status SqlStore::InsertArray(const ArrayRow& row) {
  Statement s(this,
              "INSERT INTO arrays (job, array, waiting, next, held, gated, completed, failed, cancelled, exit) VALUES "
              "(?,?,?,?,?,?,?,?,?,?)");
  const std::string array = row.array.SerializeAsString(), left = row.left.Encode(), held = row.held.Encode();
  const std::string gated = row.gated.Encode();
  s.Int(static_cast<int64_t>(row.job)).Blob(array).Blob(left).Int(static_cast<int64_t>(row.next)).Blob(held);
  s.Blob(gated).Int(static_cast<int64_t>(row.completed)).Int(static_cast<int64_t>(row.failed));
  s.Int(static_cast<int64_t>(row.cancelled)).Blob(row.exit);
  return s.Run();
}

Status SqlStore::UpdateArray(const ArrayRow& row, bool sets) {
  {
    Statement s(this, "UPDATE arrays SET next=?, completed=?, failed=?, cancelled=?, exit=? WHERE job=?");
    s.Int(static_cast<int64_t>(row.next))
        .Int(static_cast<int64_t>(row.completed))
        .Int(static_cast<int64_t>(row.failed));
    s.Int(static_cast<int64_t>(row.cancelled)).Blob(row.exit).Int(static_cast<int64_t>(row.job));
    VRUN_TRY(s.Run());
  }
  if (!sets) return {};
  Statement s(this, "UPDATE arrays SET waiting=?, held=?, gated=? WHERE job=?");
  const std::string left = row.left.Encode(), held = row.held.Encode(), gated = row.gated.Encode();
  s.Blob(left).Blob(held).Blob(gated).Int(static_cast<int64_t>(row.job));
  return s.Run();
}

Status SqlStore::PutPod(uint64_t job, uint32_t attempt, const PodRow& pod) {
  Statement s(this,
              "INSERT INTO pods (job, attempt, pod, node, token, gpu_mask, state, ready, exit, membership, leaving, "
              "mig_start, gpu_milli, mig_profile, usage, held_since_us) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?) "
              "ON CONFLICT (job, attempt, pod) DO UPDATE SET state=excluded.state, ready=excluded.ready, "
              "exit=excluded.exit, membership=excluded.membership, leaving=excluded.leaving, usage=excluded.usage, "
              "held_since_us=excluded.held_since_us");
  s.Int(static_cast<int64_t>(job)).Int(attempt).Int(pod.pod).Text(pod.node).Blob(pod.token).Int(pod.gpu_mask);
  s.Int(pod.state).Int(pod.ready).Blob(pod.exit).Int(static_cast<int64_t>(pod.membership)).Text(pod.leaving);
  s.Int(pod.mig_start).Int(pod.gpu_milli).Text(pod.mig_profile).Blob(pod.usage).Int(pod.held_since_us);
  return s.Run();
}

Status SqlStore::PutAttempt(const AttemptRow& a) {
  Statement s(this,
              "INSERT INTO attempts (job, attempt, epoch, state, placed_us, ended_us, reason) VALUES (?,?,?,?,?,?,?) "
              "ON CONFLICT (job, attempt) DO UPDATE SET state=excluded.state, ended_us=excluded.ended_us, "
              "reason=excluded.reason");
  s.Int(static_cast<int64_t>(a.job)).Int(a.attempt).Int(static_cast<int64_t>(a.epoch)).Int(a.state);
  s.Int(a.placed_us).Int(a.ended_us).Text(a.reason);
  return s.Run();
}

Status SqlStore::PutNode(const NodeRow& node) {
  const std::string addresses = Join(node.addresses);
  Statement s(this,
              "INSERT INTO nodes (name, pool, total, addresses, version, boot_id, last_seen_us, lost, "
              "draining, facts, reason, health) VALUES (?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT (name) DO UPDATE SET "
              "pool=excluded.pool, total=excluded.total, addresses=excluded.addresses, version=excluded.version, "
              "boot_id=excluded.boot_id, last_seen_us=excluded.last_seen_us, lost=excluded.lost, "
              "draining=excluded.draining, facts=excluded.facts, reason=excluded.reason, health=excluded.health");
  s.Text(node.name).Text(node.pool).Blob(node.total).Text(addresses).Text(node.version);
  s.Int(static_cast<int64_t>(node.boot_id)).Int(node.last_seen_us).Int(node.lost).Int(node.draining);
  s.Blob(node.facts).Text(node.reason).Blob(node.health);
  return s.Run();
}

Status SqlStore::PutMaintenance(const MaintenanceRow& window) {
  const std::string nodes = Join(window.nodes);
  Statement s(this,
              "INSERT INTO maintenance (name, nodes, from_us, until_us) VALUES (?,?,?,?) ON CONFLICT (name) DO UPDATE "
              "SET nodes=excluded.nodes, from_us=excluded.from_us, until_us=excluded.until_us");
  s.Text(window.name).Text(nodes).Int(window.from_us).Int(window.until_us);
  return s.Run();
}

Status SqlStore::DropMaintenance(const std::string& name) {
  Statement s(this, "DELETE FROM maintenance WHERE name=?");
  s.Text(name);
  return s.Run();
}

Result<std::vector<MaintenanceRow>> SqlStore::Maintenance() {
  Statement s(this, "SELECT name, nodes, from_us, until_us FROM maintenance ORDER BY name");
  std::vector<MaintenanceRow> windows;
  for (;;) {
    VRUN_ASSIGN(bool row, s.Step());
    if (!row) return windows;
    MaintenanceRow& w = windows.emplace_back();
    w.name = s.Bytes();
    w.nodes = Split(s.Bytes());
    w.from_us = s.Int();
    w.until_us = s.Int();
  }
}

Result<std::optional<uint64_t>> SqlStore::FindRequest(const std::string& user, const std::string& request_id) {
  Statement s(this, "SELECT id FROM jobs WHERE user=? AND request_id=?");
  s.Text(user).Text(request_id);
  VRUN_ASSIGN(bool row, s.Step());
  if (!row) return std::optional<uint64_t>();
  return std::optional<uint64_t>(static_cast<uint64_t>(s.Int()));
}

Result<std::optional<JobRow>> SqlStore::GetJob(uint64_t id) {
  static const std::string sql = std::string("SELECT ") + kJobColumns + ", spec FROM jobs WHERE id=?";
  Statement s(this, sql);
  s.Int(static_cast<int64_t>(id));
  VRUN_ASSIGN(bool row, s.Step());
  if (!row) return std::optional<JobRow>();
  JobRow job = ReadJob(s);
  const auto pods = static_cast<uint32_t>(s.Int());
  VRUN_ASSIGN(job.spec, ReadSpec(s, job));
  VRUN_TRY(ReadPods(&job, pods));
  return std::optional<JobRow>(std::move(job));
}

Result<std::vector<PodRow>> SqlStore::Pods(uint64_t job, uint32_t attempt) {
  static const std::string sql =
      std::string("SELECT ") + kPodColumns + " FROM pods WHERE job=? AND attempt=? ORDER BY pod";
  Statement s(this, sql);
  s.Int(static_cast<int64_t>(job)).Int(attempt);
  std::vector<PodRow> pods;
  for (;;) {
    VRUN_ASSIGN(bool row, s.Step());
    if (!row) return pods;
    pods.push_back(ReadPod(s));
  }
}

Status SqlStore::ReadPods(JobRow* job, uint32_t count) {
  if (count > 0) {
    VRUN_ASSIGN(job->pods, Pods(job->id, job->attempt));
  }
  if (job->leaving.attempt == 0) return {};
  VRUN_ASSIGN(job->leaving.pods, Pods(job->id, job->leaving.attempt));
  std::erase_if(job->leaving.pods, [](const PodRow& pod) { return IsOver(pod.state); });
  return {};
}

Result<std::vector<JobRow>> SqlStore::ReadJobs(Statement& s, bool with_spec) {
  std::vector<JobRow> jobs;
  std::vector<uint32_t> counts;
  for (;;) {
    VRUN_ASSIGN(bool row, s.Step());
    if (!row) break;
    jobs.push_back(ReadJob(s));
    counts.push_back(static_cast<uint32_t>(s.Int()));
    if (with_spec) {
      VRUN_ASSIGN(jobs.back().spec, ReadSpec(s, jobs.back()));
    }
  }
  for (size_t i = 0; i < jobs.size(); ++i) VRUN_TRY(ReadPods(&jobs[i], counts[i]));
  return jobs;
}

Result<std::vector<JobRow>> SqlStore::UnfinishedJobs() {
  static const std::string sql = std::string("SELECT ") + kJobColumns + " FROM jobs WHERE ended_us=0 ORDER BY id";
  Statement s(this, sql);
  return ReadJobs(s, false);
}

Result<std::optional<v1::JobState>> SqlStore::StateOfJob(uint64_t id) {
  Statement s(this, "SELECT state FROM jobs WHERE id=?");
  s.Int(static_cast<int64_t>(id));
  VRUN_ASSIGN(bool row, s.Step());
  if (!row) return std::optional<v1::JobState>();
  return std::optional<v1::JobState>(static_cast<v1::JobState>(s.Int()));
}

Result<std::vector<ArrayRow>> SqlStore::ReadArrays(Statement& s) {
  std::vector<ArrayRow> arrays;
  for (;;) {
    VRUN_ASSIGN(bool found, s.Step());
    if (!found) return arrays;
    ArrayRow& row = arrays.emplace_back();
    row.job = static_cast<uint64_t>(s.Int());
    bool parses = row.array.ParseFromString(s.Bytes());
    parses = Positions::Decode(s.Bytes(), &row.left) && parses;
    row.next = static_cast<uint64_t>(s.Int());
    row.left.Remove(0, row.next);
    parses = Positions::Decode(s.Bytes(), &row.held) && parses;
    parses = Positions::Decode(s.Bytes(), &row.gated) && parses;
    if (!parses) return Fail(Error(Code::kCorrupt, "array " + std::to_string(row.job) + ": its record does not parse"));
    row.completed = static_cast<uint64_t>(s.Int());
    row.failed = static_cast<uint64_t>(s.Int());
    row.cancelled = static_cast<uint64_t>(s.Int());
    row.exit = s.Bytes();
  }
}

Result<std::optional<ArrayRow>> SqlStore::GetArray(uint64_t job) {
  static const std::string sql = std::string("SELECT ") + kArrayColumns + " FROM arrays WHERE job=?";
  Statement s(this, sql);
  s.Int(static_cast<int64_t>(job));
  VRUN_ASSIGN(std::vector<ArrayRow> rows, ReadArrays(s));
  if (rows.empty()) return std::optional<ArrayRow>();
  return std::optional<ArrayRow>(std::move(rows[0]));
}

Result<std::vector<ArrayRow>> SqlStore::UnfinishedArrays() {
  static const std::string sql = std::string("SELECT ") + kArrayColumns +
                                 " FROM jobs INDEXED BY jobs_arrays JOIN arrays ON arrays.job=jobs.id WHERE "
                                 "elements!=0 AND ended_us=0 ORDER BY jobs.id";
  Statement s(this, sql);
  return ReadArrays(s);
}

Result<std::optional<uint64_t>> SqlStore::FindElement(uint64_t array, uint32_t index) {
  Statement s(this, "SELECT id FROM jobs WHERE array=? AND array_index=? AND array!=0");
  s.Int(static_cast<int64_t>(array)).Int(index);
  VRUN_ASSIGN(bool row, s.Step());
  if (!row) return std::optional<uint64_t>();
  return std::optional<uint64_t>(static_cast<uint64_t>(s.Int()));
}

Result<std::vector<ElementEnd>> SqlStore::EndedElements(uint64_t array) {
  Statement s(this,
              "SELECT array_index, state FROM jobs WHERE array=? AND array!=0 AND ended_us!=0 ORDER BY array_index");
  s.Int(static_cast<int64_t>(array));
  std::vector<ElementEnd> ends;
  for (;;) {
    VRUN_ASSIGN(bool row, s.Step());
    if (!row) return ends;
    const auto index = static_cast<uint32_t>(s.Int());
    ends.push_back({index, s.Int() == v1::COMPLETED});
  }
}

Result<std::vector<JobRow>> SqlStore::ListJobs(bool ended_too, int limit) {
  static const std::string select = std::string("SELECT ") + kJobColumns + ", spec FROM jobs ";
  static const std::string any = select + "ORDER BY id DESC LIMIT ?";
  static const std::string arrays =
      select + "INDEXED BY jobs_arrays WHERE elements!=0 AND ended_us=0 ORDER BY id DESC LIMIT ?";
  // 1 is PENDING.
  static const std::string others = select +
                                    "WHERE ended_us=0 AND elements=0 AND (array=0 OR state!=1) ORDER BY id "
                                    "DESC LIMIT ?";
  static_assert(v1::PENDING == 1);
  const auto read = [&](const std::string& sql) {
    Statement s(this, sql);
    s.Int(limit);
    return ReadJobs(s, true);
  };
  if (ended_too) return read(any);
  VRUN_ASSIGN(std::vector<JobRow> jobs, read(arrays));
  VRUN_ASSIGN(std::vector<JobRow> rest, read(others));
  std::move(rest.begin(), rest.end(), std::back_inserter(jobs));
  std::sort(jobs.begin(), jobs.end(), [](const JobRow& a, const JobRow& b) { return a.id > b.id; });
  return jobs;
}

Result<JobPage> SqlStore::FindJobs(const JobFilter& filter, int limit) {
  constexpr uint64_t kMostLookedAt = 20'000;
  uint64_t before = filter.before;
  if (before == 0) {
    Statement last(this, "SELECT COALESCE(MAX(id), 0) FROM jobs");
    VRUN_TRY(last.Step());
    before = static_cast<uint64_t>(last.Int()) + 1;
  }
  const uint64_t from = before > kMostLookedAt ? before - kMostLookedAt : 0;
  std::string sql = std::string("SELECT ") + kJobColumns + ", spec FROM jobs WHERE id>=? AND id<?";
  if (filter.state != v1::JOB_STATE_UNSPECIFIED) sql += " AND state=?";
  if (!filter.user.empty()) sql += " AND user=?";
  if (!filter.pool.empty()) sql += " AND pool=?";
  if (!filter.name.empty()) sql += " AND name=?";
  Statement s(this, sql + " ORDER BY id DESC LIMIT ?");
  s.Int(static_cast<int64_t>(from)).Int(static_cast<int64_t>(before));
  if (filter.state != v1::JOB_STATE_UNSPECIFIED) s.Int(filter.state);
  for (const std::string* text : {&filter.user, &filter.pool, &filter.name}) {
    if (!text->empty()) s.Text(*text);
  }
  s.Int(limit);
  JobPage page;
  VRUN_ASSIGN(page.jobs, ReadJobs(s, true));
  if (page.jobs.size() == static_cast<size_t>(limit)) {
    page.next = page.jobs.back().id;
  } else if (from > 1) {
    page.next = from;
  }
  return page;
}

Result<std::vector<NodeRow>> SqlStore::Nodes() {
  Statement s(this,
              "SELECT name, pool, total, addresses, version, boot_id, last_seen_us, lost, draining, facts, reason, "
              "health FROM nodes "
              "ORDER BY name");
  std::vector<NodeRow> nodes;
  for (;;) {
    VRUN_ASSIGN(bool row, s.Step());
    if (!row) return nodes;
    NodeRow& n = nodes.emplace_back();
    n.name = s.Bytes();
    n.pool = s.Bytes();
    n.total = s.Bytes();
    n.addresses = Split(s.Bytes());
    n.version = s.Bytes();
    n.boot_id = static_cast<uint64_t>(s.Int());
    n.last_seen_us = s.Int();
    n.lost = s.Int() != 0;
    n.draining = s.Int() != 0;
    n.facts = s.Bytes();
    n.reason = s.Bytes();
    n.health = s.Bytes();
  }
}

Result<std::vector<AttemptRow>> SqlStore::Attempts(uint64_t job) {
  Statement s(this,
              "SELECT job, attempt, epoch, state, placed_us, ended_us, reason FROM attempts WHERE job=? ORDER BY "
              "attempt");
  s.Int(static_cast<int64_t>(job));
  std::vector<AttemptRow> attempts;
  for (;;) {
    VRUN_ASSIGN(bool row, s.Step());
    if (!row) break;
    AttemptRow& a = attempts.emplace_back();
    a.job = static_cast<uint64_t>(s.Int());
    a.attempt = static_cast<uint32_t>(s.Int());
    a.epoch = static_cast<uint64_t>(s.Int());
    a.state = static_cast<v1::JobState>(s.Int());
    a.placed_us = s.Int();
    a.ended_us = s.Int();
    a.reason = s.Bytes();
  }
  for (AttemptRow& a : attempts) {
    VRUN_ASSIGN(a.pods, Pods(job, a.attempt));
  }
  return attempts;
}

Result<std::vector<JobRow>> SqlStore::EndedJobs(uint64_t after, int limit, bool newest) {
  static const std::string select =
      std::string("SELECT ") + kJobColumns + " FROM jobs WHERE ended_us!=0 AND elements=0 AND id>? ";
  static const std::string ascending = select + "ORDER BY id LIMIT ?", descending = select + "ORDER BY id DESC LIMIT ?";
  Statement s(this, newest ? descending : ascending);
  s.Int(static_cast<int64_t>(after)).Int(limit);
  VRUN_ASSIGN(std::vector<JobRow> jobs, ReadJobs(s, false));
  if (newest) std::reverse(jobs.begin(), jobs.end());
  return jobs;
}

Status SqlStore::AppendJournal(const std::string& row) {
  Statement s(this, "INSERT INTO journal (steps) VALUES (?)");
  s.Blob(row);
  return s.Run();
}

Status SqlStore::ClearJournal() { return Statement(this, "DELETE FROM journal").Run(); }

Result<std::vector<std::string>> SqlStore::Journal() {
  Statement s(this, "SELECT steps FROM journal ORDER BY id");
  std::vector<std::string> rows;
  for (;;) {
    VRUN_ASSIGN(bool row, s.Step());
    if (!row) return rows;
    rows.push_back(s.Bytes());
  }
}

Result<uint64_t> SqlStore::LastEpoch() {
  // Of attempts that are no longer kept, and after a restore (backup/) of those that were given since the backup.
  VRUN_ASSIGN(const int64_t kept, NumberNote("last-epoch"));
  VRUN_ASSIGN(const int64_t restored, NumberNote("epoch-floor"));
  Statement s(this, "SELECT coalesce(max(epoch), 0) FROM attempts");
  VRUN_ASSIGN([[maybe_unused]] bool row, s.Step());
  return static_cast<uint64_t>(std::max({s.Int(), kept, restored}));
}

}  // namespace vrun::control

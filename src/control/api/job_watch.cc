// SPDX-License-Identifier: Apache-2.0
#include "control/api/job_watch.h"

#include <algorithm>
#include <map>

namespace vrun::control {
namespace {

constexpr int64_t kTellMicros = 200'000;
constexpr int64_t kCheckMicros = 5'000'000;
constexpr size_t kMaxArgvBytes = 4096;  // as of ops/list.cc
// A client that wants to know of more jobs at once lists them again.
constexpr size_t kMostAtOnce = 1000;

// The same jobs as one group of clients sees them.
struct Batch {
  std::vector<std::string> jobs;  // serialized JobInfo
  std::vector<std::shared_ptr<JobWatch::Client>> clients;
};

void Send(const Batch& batch) {
  for (const std::string& bytes : batch.jobs) {
    const auto job = Schema::Get().ToJson("JobInfo", bytes);
    if (!job) continue;
    const std::string text = Text(*job);
    for (const auto& client : batch.clients) {
      const bool fits = std::all_of(client->input.filter.begin(), client->input.filter.end(), [&](const auto& filter) {
        const Json::json_pointer at(filter.first);
        return job->contains(at) && (*job)[at] == filter.second;
      });
      if (fits) (void)client->events->Send("job", text);
    }
  }
}

}  // namespace

JobWatch::JobWatch(EventLoop* loop, Calls* calls, WorkQueue* work) : loop_(loop), calls_(calls), work_(work) {
  calls_->Observe([this](State&, const std::set<uint64_t>& jobs) { Changed(jobs); });
}

JobWatch::~JobWatch() {
  calls_->Observe(nullptr);
  loop_->Cancel(tell_);
  loop_->Cancel(check_);
}

void JobWatch::Add(Client client) {
  if (!client.events->Send("ready", "{}")) return;
  clients_.push_back(std::make_shared<Client>(std::move(client)));
  if (check_ == 0) {
    check_ = loop_->After(kCheckMicros, [this] {
      check_ = 0;
      Check();
    });
  }
}

void JobWatch::Changed(const std::set<uint64_t>& jobs) {
  if (clients_.empty()) return;
  changed_.insert(jobs.begin(), jobs.end());
  if (tell_ != 0) return;
  tell_ = loop_->After(kTellMicros, [this] {
    tell_ = 0;
    Tell();
  });
}

void JobWatch::Tell() {
  calls_->Read([this](State* state) {
    if (state == nullptr || clients_.empty()) return;
    std::map<std::string, Batch> batches;  // by viewer
    for (const auto& client : clients_) batches[client->viewer].clients.push_back(client);
    auto next = changed_.begin();
    for (size_t n = 0; next != changed_.end() && n < kMostAtOnce; ++next, ++n) {
      const auto row = state->Find(*next);
      if (!row) continue;
      for (auto& [viewer, batch] : batches) {
        batch.jobs.push_back(state->InfoOf(*row, viewer, kMaxArgvBytes).SerializeAsString());
      }
    }
    changed_.erase(changed_.begin(), next);
    if (!changed_.empty()) Changed({});
    work_->Post([batches = std::move(batches)] {
      for (const auto& [viewer, batch] : batches) Send(batch);
    });
  });
}

// Clients that are gone, or whose token has ended.
void JobWatch::Check() {
  std::erase_if(clients_, [](const auto& client) { return !client->may_go_on() || !client->events->open(); });
  if (clients_.empty()) {
    changed_.clear();
    return;
  }
  check_ = loop_->After(kCheckMicros, [this] {
    check_ = 0;
    Check();
  });
}

}  // namespace vrun::control

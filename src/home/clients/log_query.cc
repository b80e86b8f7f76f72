// SPDX-License-Identifier: Apache-2.0
#include "home/clients/log_query.h"

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "jobs/array.h"
#include "jobs/ending.h"

namespace vrun::home {
namespace {

constexpr uint64_t kLogBytes = 256 * 1024;
constexpr int64_t kEndCheckMicros = 1'000'000;

// One reader of a log. Continues when the client has taken what was sent, and at the end when there is more. Owned by
// the callbacks of its connection.
class LogReader : public std::enable_shared_from_this<LogReader> {
 public:
  LogReader(EventLoop* loop, ControllerClient* controller, LogSpool* spool, const Runs* runs,
            const v1::Query::ReadLog& query)
      : loop_(loop),
        controller_(controller),
        spool_(spool),
        runs_(runs),
        job_(query.job()),
        element_(query.has_element() ? std::optional<uint32_t>(query.element()) : std::nullopt),
        follow_(query.follow()) {}
  ~LogReader() { loop_->Cancel(check_); }

  void Start(const std::shared_ptr<ClientConnection>& client) {
    client_ = client;
    // The connection owns us, we hold it weakly.
    client->SetEvents({.on_message = [self = shared_from_this()](v1::ClientMessage, std::vector<UniqueFd>) {},
                       .on_closed = [] {},
                       .on_drained = [self = shared_from_this()] { self->Next(); }});
    if (element_) return FindElement();
    Read();
  }

 private:
  // Which job the element is.
  void FindElement() {
    controller_->Get(job_, element_, [self = shared_from_this()](Result<v1::GetReply> reply) {
      auto client = self->client_.lock();
      if (!client || !client->open()) return;
      if (!reply) return client->SendError(reply.error());
      // Until it is a job of its own it has the array's number. This home may not have begun it yet.
      const uint64_t job = reply->info().job();
      const bool waits = self->follow_ && !IsEnd(reply->info().state()) && !self->runs_->Has(job);
      if (job != self->job_ && !waits) {
        self->job_ = job;
        return self->Read();
      }
      if (waits) {
        return self->Later([weak = self->weak_from_this()] {
          if (auto again = weak.lock()) again->FindElement();
        });
      }
      client->SendError(Error(Code::kNotFound, "job " + std::to_string(self->job_) + "_" +
                                                   std::to_string(*self->element_) + ": it has not begun"));
    });
  }

  void Read() {
    if (follow_) {
      changed_ = spool_->Subscribe(job_, [weak = weak_from_this()] {
        if (auto self = weak.lock()) self->Next();
      });
    }
    Next();
  }

  void Next() {
    auto client = client_.lock();
    if (reading_ || !client || !client->open() || client->queued_bytes() > 0) return;
    reading_ = true;
    // Checked before the read: everything a run printed before its end is in the log by then.
    bool over = !follow_ || !runs_->Has(job_);
    spool_->ReadFrom(job_, position_, kLogBytes, [self = shared_from_this(), over](Result<LogSpool::Read> read) {
      self->reading_ = false;
      self->Got(std::move(read), over);
    });
  }

  void Got(Result<LogSpool::Read> read, bool over) {
    auto client = client_.lock();
    if (!client || !client->open()) return;
    if (!read) {
      // A job of this home without a log file has printed nothing, or nothing yet.
      if (read.error().code() != Code::kNotFound) return client->SendError(read.error());
      if (over) return NothingKept();
      return CheckLater();
    }
    position_ = read->next;
    v1::HomeMessage message;
    for (LogSpool::Record& record : read->records) {
      message.mutable_log()->set_data(std::move(record.data));
      message.mutable_log()->set_is_stderr(record.stream == v1::STDERR);
      message.mutable_log()->set_is_note(record.note);
      client->Send(message);
    }
    if (!read->at_end) {
      if (client->queued_bytes() == 0) Next();
      return;
    }
    if (over) return End(client);
    CheckLater();
  }

  void End(const std::shared_ptr<ClientConnection>& client) {
    if (const Outcome* outcome = follow_ ? runs_->OutcomeOf(job_) : nullptr) {
      v1::HomeMessage message;
      v1::Finished* finished = message.mutable_finished();
      if (outcome->record) *finished->mutable_record() = *outcome->record;
      finished->set_exit_status(outcome->exit_status);
      finished->set_state(outcome->state);
      finished->set_reason(outcome->reason);
      finished->set_job(job_);
      client->Send(message);
    }
    v1::HomeMessage done;
    done.mutable_done();
    client->Send(done);
    client->Close();
  }

  void NothingKept() {
    controller_->Get(job_, [self = shared_from_this(), job = job_](Result<v1::GetReply> reply) {
      auto to = self->client_.lock();
      if (!to) return;
      if (reply && reply->info().has_array_info()) {
        return to->SendError(
            Error(Code::kInvalid, "job " + std::to_string(job) + " is an array: name an element, as in `vctl logs " +
                                      std::to_string(job) + "_" +
                                      std::to_string(MinIndex(reply->info().array_info().array())) + "`"));
      }
      if (reply) return self->End(to);  // it has printed nothing, or elsewhere
      to->SendError(reply.error().code() == Code::kNotFound
                        ? Error(Code::kNotFound, "job " + std::to_string(job) + ": there is no such job")
                        : reply.error());
    });
  }

  // The end of a run is not announced here; checking every second is enough for following a log.
  void CheckLater() {
    Later([weak = weak_from_this()] {
      if (auto self = weak.lock()) self->Next();
    });
  }

  void Later(std::function<void()> then) {
    if (check_ != 0) return;
    check_ = loop_->After(kEndCheckMicros, [weak = weak_from_this(), then = std::move(then)] {
      if (auto self = weak.lock()) self->check_ = 0;
      then();
    });
  }

  EventLoop* const loop_;
  ControllerClient* const controller_;
  LogSpool* const spool_;
  const Runs* const runs_;
  uint64_t job_;  // from FindElement on the element's own
  const std::optional<uint32_t> element_;
  const bool follow_;
  std::weak_ptr<ClientConnection> client_;
  std::unique_ptr<LogSpool::Subscription> changed_;
  EventLoop::TimerId check_ = 0;
  uint64_t position_ = 0;
  bool reading_ = false;
};

}  // namespace

void AnswerLogQuery(EventLoop* loop, ControllerClient* controller, LogSpool* spool, const Runs* runs,
                    const std::shared_ptr<ClientConnection>& client, const v1::Query::ReadLog& query) {
  std::make_shared<LogReader>(loop, controller, spool, runs, query)->Start(client);
}

}  // namespace vrun::home

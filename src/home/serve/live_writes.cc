// SPDX-License-Identifier: Apache-2.0
#include "home/serve/live_writes.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/io/work_queue.h"
#include "base/log.h"
#include "base/thread/mutex.h"
#include "home/apply/apply.h"
#include "home/apply/apply_flush.h"

namespace vrun::home {
namespace {

// A fraction of the node's window (vfs/live/data/live_stream.h), so that in a steady stream the node never waits for
// us.
constexpr size_t kSyncOperations = 1024;
constexpr uint64_t kSyncBytes = 16u << 20;
constexpr int64_t kGatherMicros = 1'000;      // operations that arrive within this time share a flush
constexpr uint64_t kWindow = 128u << 20;      // bytes of content that a node may send before they leave the queue
constexpr uint64_t kTakenStep = 8u << 20;     // reported to the node in such steps
constexpr uint64_t kMostQueued = 256u << 20;  // limit for a node that ignores the window
constexpr int64_t kFullMicros = 5'000'000;    // between retries while home is full
constexpr size_t kLately = 16384;             // more operations than a window has
constexpr uint64_t kMostTold = 10;            // consecutive failures that are reported
constexpr size_t kToldLately = 64;            // lines, for new listeners
constexpr int64_t kMostViews = 500;           // of one node: each has a thread, and a node has one at a time
constexpr size_t kRefusedLately = 256;        // more exclusive operations than can be under way

// Errors that go away when somebody frees space.
bool MayPass(const Error& error) {
  switch (error.error_number()) {
    case ENOSPC:
    case EDQUOT:
    case ENFILE:
    case EMFILE:
    case ENOMEM: return true;
    default: return error.error_number() == 0 && error.code() == Code::kExhausted;
  }
}

}  // namespace

class LiveWrites::View {
 public:
  View(uint64_t id, const Options& options, std::shared_ptr<Looker> looker,
       std::shared_ptr<std::atomic<uint64_t>> expected)
      : id_(id), flush_(options.flush), looker_(std::move(looker)), expected_(std::move(expected)) {
    // Series numbers must not repeat after a restart of home: messages for an earlier home are dropped.
    next_begin_ = static_cast<uint64_t>(WallMicros());
    apply_.root = options.root;
    apply_.job = id >> 32;
    apply_.attempt = static_cast<uint32_t>(id);
    apply_.live = true;
    apply_.shown_job = [this] { return ShownJob(); };
    apply_.rules = options.rules;
    apply_.judge = options.judge;
    apply_.notice = [this](const std::string& text) { Tell(text); };
    if (!options.journals.empty() && MakeDirs(options.journals, 0700)) {
      apply_.journal = options.journals + "/live-" + std::to_string(id);
    }
    thread_ = std::thread([this] { Run(); });
  }

  // `finish`: nothing more will come; removes the journal.
  void Stop(bool finish) {
    {
      MutexLock lock(mutex_);
      stop_ = true;
      finish_ = finish;
      // A node that ends its view says that home has everything.
      if (rests_) {
        queue_.clear();
        queued_bytes_ = 0;
      }
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
    flusher_.Stop();
  }

  Status Bind(const std::string& node) {
    MutexLock lock(mutex_);
    if (node_.empty()) node_ = node;
    if (node.empty() || node == node_) return {};
    return Error(Code::kDenied, "this live view is that of node " + Escape(node_));
  }
  bool BelongsTo(const std::string& node) const {
    MutexLock lock(mutex_);
    return node_ == node;
  }
  void Rest(bool rests) {
    MutexLock lock(mutex_);
    rests_ = rests;
    changed_.notify_all();
  }

  uint64_t Join(Send send) {
    MutexLock lock(mutex_);
    send_ = std::move(send);
    BeginLocked();
    return ++joined_;
  }
  void Leave(uint64_t joined) {
    MutexLock lock(mutex_);
    if (joined_ == joined) send_ = nullptr;
  }
  void Write(uint64_t begin, v1::WriteBack message) {
    MutexLock lock(mutex_);
    if (begin != begin_ || stop_) return;
    queued_bytes_ += message.file_data().data().size();
    queue_.push_back(std::move(message));
    changed_.notify_all();
    if (queued_bytes_ > kMostQueued) {
      LogWarning("live view {:x}: the node sent more than its window: restarting the series", id_);
      BeginLocked();
    }
  }

  uint64_t applied() const {
    MutexLock lock(mutex_);
    return applied_;
  }

  Mark mark() const {
    MutexLock lock(mutex_);
    return {failed_, told_};
  }

  void WhenDurable(uint64_t sequence, std::function<void()> done) {
    {
      MutexLock lock(mutex_);
      if (durable_ < sequence) {
        waiting_.emplace(sequence, std::move(done));
        // After a restart of home only the journal knows it.
        open_ = true;
        changed_.notify_all();
        return;
      }
    }
    done();
  }
  uint64_t Listen(uint64_t job, uint64_t told, std::function<void(const std::string&)> notice) {
    MutexLock lock(mutex_);
    last_job_ = job;
    const uint64_t forgotten = told_ - told_lately_.size();
    for (uint64_t i = std::max(told, forgotten); i < told_; ++i) notice(told_lately_[i - forgotten]);
    listeners_[++next_listener_] = {job, std::move(notice)};
    return next_listener_;
  }
  void Unlisten(uint64_t id) {
    MutexLock lock(mutex_);
    listeners_.erase(id);
  }

 private:
  using Lock = MutexLock;
  struct Listener {
    uint64_t job;
    std::function<void(const std::string&)> notice;
  };
  struct Flushed {
    Applier::Flushing begun;
    uint64_t settled = 0;
    std::vector<v1::Applied> applied;
    std::vector<uint64_t> refused;
    Status status;
    int64_t micros = 0;
  };

  uint64_t ShownJob() const {
    MutexLock lock(mutex_);
    if (!listeners_.empty()) return listeners_.rbegin()->second.job;
    // The first writes of a job may arrive before home knows that it runs.
    return std::max(last_job_, expected_->load());
  }

  void BeginLocked() VRUN_REQUIRES(mutex_) {
    queue_.clear();
    queued_bytes_ = 0;
    begin_ = 0;  // nothing is accepted before the node knows the next series
    restart_ = true;
    changed_.notify_all();
  }

  void Run() {
    ::pthread_setname_np(::pthread_self(), "live-apply");
    Lock lock(mutex_);
    while (!stop_ || flushing_ || (finish_ && !queue_.empty())) {
      const int64_t now = MonotonicMicros();
      if (flushed_) {
        const Flushed flushed = *std::exchange(flushed_, std::nullopt);
        lock.unlock();
        EndFlush(flushed);
        lock.lock();
      } else if (stop_ && !finish_) {
        changed_.wait(lock);  // for the running flush, which uses the applier
      } else if (now < full_until_) {
        changed_.wait_for(lock, std::chrono::microseconds(full_until_ - now),
                          [this]() VRUN_REQUIRES(mutex_) { return (stop_ && !flushing_) || flushed_; });
      } else if (std::exchange(restart_, false)) {
        Begin(&lock);
      } else if (std::exchange(open_, false)) {
        lock.unlock();
        OpenAndTell();
        lock.lock();
      } else if (!queue_.empty() && !rests_) {
        const v1::WriteBack message = std::move(queue_.front());
        queue_.pop_front();
        queued_bytes_ -= message.file_data().data().size();
        taken_ += message.file_data().data().size();
        const bool tell = taken_ - told_taken_ >= kTakenStep;
        lock.unlock();
        ApplyOne(message);
        if (tell) Acknowledge(0);
        lock.lock();
      } else if (unsynced_ > 0 && !flushing_ && (urgent_ || now >= sync_due_)) {
        lock.unlock();
        BeginFlush();
        lock.lock();
      } else if (unsynced_ > 0 && !flushing_) {
        changed_.wait_for(lock, std::chrono::microseconds(sync_due_ - now));
      } else {
        changed_.wait(lock);
      }
    }
    const bool finish = finish_;
    lock.unlock();
    if (!finish || !Open()) return;
    if (const Status finished = applier_->Finish(); !finished) {
      LogWarning("live view {:x}: {}", id_, Escape(finished.error().message()));
    }
  }

  // --- on the view's thread ---

  Status Open() {
    if (applier_) return {};
    VRUN_ASSIGN(auto applier, Applier::Open(apply_));
    // What an earlier home has applied.
    VRUN_ASSIGN(const uint64_t durable, applier->Sync());
    applier_ = std::move(applier);
    NoteRefused(applier_->TakeRefused());
    Advance();
    MutexLock lock(mutex_);
    durable_ = std::max(durable_, durable);
    return {};
  }

  // The caller may wait for operations that an earlier home has applied.
  void OpenAndTell() {
    if (const Status opened = Open(); !opened) {
      Tell("cannot make the job's writes durable: " + opened.error().message());
      MutexLock lock(mutex_);
      open_ = true;
      full_until_ = MonotonicMicros() + kFullMicros;
      return;
    }
    std::vector<std::function<void()>> calls;
    {
      MutexLock lock(mutex_);
      calls = TakeServedLocked();
    }
    for (const auto& call : calls) call();
  }

  std::vector<std::function<void()>> TakeServedLocked() VRUN_REQUIRES(mutex_) {
    std::vector<std::function<void()>> calls;
    for (auto it = waiting_.begin(); it != waiting_.end() && it->first <= durable_; it = waiting_.erase(it)) {
      calls.push_back(std::move(it->second));
    }
    return calls;
  }

  // Updates the progress, at file boundaries only. Operations that failed for good count as done.
  void Advance() {
    MutexLock lock(mutex_);
    applied_ = std::max({applied_, applier_ ? applier_->sequence() : 0, settled_});
  }

  // The analysis does not know that `lock` holds mutex_.
  void Begin(Lock* lock) VRUN_NO_THREAD_SAFETY_ANALYSIS {
    lock->unlock();
    const Status opened = Open();
    if (!opened) Tell("cannot accept the job's writes: " + opened.error().message());
    v1::LiveAck first;
    lock->lock();
    if (restart_ || !applier_) return Later();
    begin_ = ++next_begin_;
    taken_ = told_taken_ = 0;
    first.set_begin(begin_);
    first.set_window(kWindow);
    first.set_claims(true);
    first.mutable_ack()->set_sequence(durable_);
    // Repeats those of acknowledgements that were lost with the stream before.
    for (const v1::Applied& one : lately_) *first.mutable_ack()->add_applied() = one;
    for (const uint64_t one : refused_lately_) first.mutable_ack()->add_refused(one);
    const Send send = send_;
    lock->unlock();
    if (send) send(first);
    lock->lock();
  }

  void Later() VRUN_REQUIRES(mutex_) {
    restart_ = true;
    full_until_ = MonotonicMicros() + (applier_ ? 0 : kFullMicros);
  }

  void ApplyOne(const v1::WriteBack& message) {
    if (const Status opened = Open(); !opened) return Full(opened.error());
    const Status applied = applier_->Apply(message);
    if (!applied && MayPass(applied.error())) return Full(applied.error());
    if (!applied) Failed(message, applied.error());
    if (applied && !message.has_file_data()) ignoring_ = false;
    if (applied && !ignoring_) failures_ = 0;
    if (ignoring_) settled_ = message.sequence();
    const bool begins = message.has_put_file() && !message.exclusive();
    const bool whole = message.has_file_data() ? message.file_data().last() : !begins;
    if (whole && settled_ == message.sequence() && applier_) applier_->Settle(settled_);
    Advance();
    if (unsynced_++ == 0) sync_due_ = std::max(MonotonicMicros() + kGatherMicros, rest_until_);
    unsynced_bytes_ += message.file_data().data().size();
    if (const uint64_t wanted = applier_ ? applier_->TakeWantWhole() : 0; wanted != 0) Acknowledge(wanted);
    if (message.exclusive()) {
      // A program waits for a tree that is known to have it. A refresh that has begun before does not know.
      urgent_ = true;
      Look();
    }
    const bool much = unsynced_ >= kSyncOperations || unsynced_bytes_ >= kSyncBytes;
    if ((much || urgent_) && !flushing_) BeginFlush();
  }

  void Failed(const v1::WriteBack& message, const Error& error) {
    settled_ = message.sequence();
    refused_ = true;
    if ((message.has_put_file() && !message.exclusive()) || message.has_file_data()) ignoring_ = true;
    {
      MutexLock lock(mutex_);
      ++failed_;
    }
    if (++failures_ <= kMostTold) Tell(error.message() + ": the job's write to this path is lost");
  }

  void Full(const Error& error) {
    Tell(error.message() + ": the job's writes wait on the node: free space at home");
    if (applier_ && !flushing_) BeginFlush();
    MutexLock lock(mutex_);
    full_until_ = MonotonicMicros() + kFullMicros;
    BeginLocked();
  }

  // Acknowledges for another reason than a flush. `want_whole`: 0: nothing.
  void Acknowledge(uint64_t want_whole) {
    v1::LiveAck ack;
    Send send;
    {
      MutexLock lock(mutex_);
      ack.mutable_ack()->set_sequence(durable_);
      ack.mutable_ack()->set_want_whole(want_whole);
      ack.set_taken(told_taken_ = taken_);
      send = begin_ != 0 ? send_ : nullptr;  // the next series begins with all of it
    }
    if (send) send(ack);
  }

  void Look() {
    const MutexLock lock(looker_->mutex);
    if (looker_->look) looker_->look();
  }

  // On a separate thread, so that a busy disk delays neither new operations nor the completion of earlier flushes.
  void BeginFlush() {
    // Before the waiters for the flush continue: whoever looks next must see the real state.
    if (std::exchange(refused_, false)) Look();
    unsynced_ = 0;
    unsynced_bytes_ = 0;
    urgent_ = false;
    flushing_ = true;
    Flushed begun;
    begun.begun = applier_->BeginSync();
    begun.settled = settled_;
    begun.applied = applier_->TakeApplied();
    begun.refused = applier_->TakeRefused();
    flusher_.Post([this, begun = std::move(begun)]() mutable {
      const int64_t began = MonotonicMicros();
      begun.status = flush_ ? flush_(begun.begun.flush.get()) : begun.begun.flush->Flush();
      begun.micros = MonotonicMicros() - began;
      MutexLock lock(mutex_);
      flushed_ = std::move(begun);
      changed_.notify_all();
    });
  }

  void EndFlush(const Flushed& flushed) {
    flushing_ = false;
    const int64_t now = MonotonicMicros();
    rest_until_ = now + flushed.micros;
    sync_due_ = std::max(sync_due_, rest_until_);
    applier_->EndSync(flushed.begun, flushed.status.has_value());
    NoteRefused(flushed.refused);
    std::vector<std::function<void()>> calls;
    v1::LiveAck ack;
    Send send;
    {
      MutexLock lock(mutex_);
      for (const v1::Applied& one : flushed.applied) unacknowledged_.push_back(one);
      if (flushed.status) {
        durable_ = std::max({durable_, flushed.begun.sequence, flushed.settled});
        ack.mutable_ack()->set_sequence(durable_);
        // Those of a failed flush, too.
        for (const uint64_t one : refused_lately_) {
          if (one > told_refused_) ack.mutable_ack()->add_refused(one);
        }
        if (!refused_lately_.empty()) told_refused_ = refused_lately_.back();
        for (v1::Applied& one : std::exchange(unacknowledged_, {})) {
          *ack.mutable_ack()->add_applied() = one;
          lately_.push_back(std::move(one));
          if (lately_.size() > kLately) lately_.pop_front();
        }
        calls = TakeServedLocked();
        send = begin_ != 0 ? send_ : nullptr;
      }
    }
    if (!flushed.status) {
      ++unsynced_;
      sync_due_ = now + kFullMicros;
      return Tell("cannot make the job's writes durable: " + flushed.status.error().message());
    }
    if (send) send(ack);
    for (const auto& call : calls) call();
  }

  void NoteRefused(const std::vector<uint64_t>& refused) {
    refused_lately_.insert(refused_lately_.end(), refused.begin(), refused.end());
    while (refused_lately_.size() > kRefusedLately) refused_lately_.pop_front();
  }

  void Tell(const std::string& text) {
    std::map<uint64_t, Listener> listeners;
    {
      MutexLock lock(mutex_);
      listeners = listeners_;
      ++told_;
      told_lately_.push_back(text);
      if (told_lately_.size() > kToldLately) told_lately_.pop_front();
    }
    if (listeners.empty()) LogWarning("live view {:x}: {}", id_, Escape(text));
    for (const auto& [id, listener] : listeners) listener.notice(text);
  }

  const uint64_t id_;
  const std::function<Status(ApplyFlush*)> flush_;
  const std::shared_ptr<Looker> looker_;
  const std::shared_ptr<std::atomic<uint64_t>> expected_;
  ApplyOptions apply_;
  mutable Mutex mutex_;
  CondVar changed_;
  // Guarded by mutex_.
  std::deque<v1::WriteBack> queue_ VRUN_GUARDED_BY(mutex_);
  uint64_t queued_bytes_ VRUN_GUARDED_BY(mutex_) = 0;
  uint64_t next_begin_ VRUN_GUARDED_BY(mutex_) = 0;
  uint64_t begin_ VRUN_GUARDED_BY(mutex_) = 0;  // the accepted series; 0: none
  uint64_t taken_ VRUN_GUARDED_BY(mutex_) = 0;  // content bytes of it that have left the queue
  uint64_t told_taken_ VRUN_GUARDED_BY(mutex_) = 0;
  bool restart_ VRUN_GUARDED_BY(mutex_) = false;
  bool open_ VRUN_GUARDED_BY(mutex_) = false;
  bool stop_ VRUN_GUARDED_BY(mutex_) = false;
  bool finish_ VRUN_GUARDED_BY(mutex_) = false;
  int64_t full_until_ VRUN_GUARDED_BY(mutex_) = 0;
  uint64_t joined_ VRUN_GUARDED_BY(mutex_) = 0;
  bool rests_ VRUN_GUARDED_BY(mutex_) = false;
  std::string node_ VRUN_GUARDED_BY(mutex_);
  Send send_ VRUN_GUARDED_BY(mutex_);
  uint64_t applied_ VRUN_GUARDED_BY(mutex_) = 0;
  uint64_t durable_ VRUN_GUARDED_BY(mutex_) = 0;
  uint64_t failed_ VRUN_GUARDED_BY(mutex_) = 0;
  std::multimap<uint64_t, std::function<void()>> waiting_ VRUN_GUARDED_BY(mutex_);
  uint64_t next_listener_ VRUN_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Listener> listeners_ VRUN_GUARDED_BY(mutex_);
  uint64_t last_job_ VRUN_GUARDED_BY(mutex_) = 0;
  uint64_t told_ VRUN_GUARDED_BY(mutex_) = 0;
  std::deque<std::string> told_lately_ VRUN_GUARDED_BY(mutex_);
  std::optional<Flushed> flushed_ VRUN_GUARDED_BY(mutex_);  // result of the flusher

  // Used by the thread only.
  std::unique_ptr<Applier> applier_;
  uint64_t settled_ = 0;   // the last message that failed for good
  bool ignoring_ = false;  // skip the rest of the failed file
  bool refused_ = false;   // an operation has failed and was not reported yet
  uint64_t failures_ = 0;  // since the last success
  size_t unsynced_ = 0;
  uint64_t unsynced_bytes_ = 0;
  int64_t sync_due_ = 0;
  int64_t rest_until_ = 0;
  bool flushing_ = false;
  std::vector<v1::Applied> unacknowledged_;  // from failed flushes
  std::deque<v1::Applied> lately_;
  std::deque<uint64_t> refused_lately_;  // exclusive operations that found their name taken, ascending
  uint64_t told_refused_ = 0;            // the last of them that was sent
  bool urgent_ = false;                  // an exclusive operation was applied since the last flush
  WorkQueue flusher_{"live-flush"};

  std::thread thread_;
};

LiveWrites::LiveWrites(Options options) : options_(std::move(options)) {}

LiveWrites::~LiveWrites() {
  for (const auto& [id, view] : views_) view->Stop(false);
}

std::shared_ptr<LiveWrites::View> LiveWrites::Find(uint64_t view) const {
  MutexLock lock(mutex_);
  const auto it = views_.find(view);
  return it == views_.end() ? nullptr : it->second;
}

std::shared_ptr<LiveWrites::View> LiveWrites::Make(uint64_t view) {
  MutexLock lock(mutex_);
  auto& made = views_[view];
  if (!made) made = std::make_shared<View>(view, options_, looker_, expected_);
  return made;
}

Status LiveWrites::Bind(uint64_t view, const std::string& node) {
  {
    MutexLock lock(mutex_);
    const auto of_node = [&](const auto& entry) { return entry.second->BelongsTo(node); };
    if (!node.empty() && !views_.contains(view) && std::count_if(views_.begin(), views_.end(), of_node) >= kMostViews) {
      return Error(Code::kExhausted, "node " + Escape(node) + " has begun " + std::to_string(kMostViews) +
                                         " live views here, which is the limit: restart home");
    }
  }
  return Make(view)->Bind(node);
}

void LiveWrites::Rest(uint64_t view, bool rests) {
  if (const auto found = Find(view)) found->Rest(rests);
}

uint64_t LiveWrites::Join(uint64_t view, Send send) { return Make(view)->Join(std::move(send)); }

void LiveWrites::Leave(uint64_t view, uint64_t joined) {
  if (const auto found = Find(view)) found->Leave(joined);
}

void LiveWrites::Write(uint64_t view, uint64_t begin, v1::WriteBack message) {
  if (const auto found = Find(view)) found->Write(begin, std::move(message));
}

void LiveWrites::OnLook(std::function<void()> look) {
  const MutexLock lock(looker_->mutex);
  looker_->look = std::move(look);
}

void LiveWrites::End(uint64_t view) {
  std::shared_ptr<View> ended;
  {
    MutexLock lock(mutex_);
    const auto it = views_.find(view);
    if (it == views_.end()) return;
    ended = std::move(it->second);
    views_.erase(it);
  }
  ended->Stop(true);
}

std::map<uint64_t, uint64_t> LiveWrites::Applied() const {
  MutexLock lock(mutex_);
  std::map<uint64_t, uint64_t> applied;
  for (const auto& [id, view] : views_) applied[id] = view->applied();
  return applied;
}

void LiveWrites::WhenDurable(uint64_t view, uint64_t sequence, std::function<void()> done) {
  Make(view)->WhenDurable(sequence, std::move(done));
}

std::map<uint64_t, LiveWrites::Mark> LiveWrites::Marks() const {
  MutexLock lock(mutex_);
  std::map<uint64_t, Mark> marks;
  for (const auto& [id, view] : views_) marks[id] = view->mark();
  return marks;
}

uint64_t LiveWrites::Failed(uint64_t view) const {
  const auto found = Find(view);
  return found ? found->mark().failed : 0;
}

void LiveWrites::Expect(uint64_t job) { *expected_ = job; }

uint64_t LiveWrites::Listen(uint64_t view, uint64_t job, uint64_t told,
                            std::function<void(const std::string&)> notice) {
  return Make(view)->Listen(job, told, std::move(notice));
}

void LiveWrites::Unlisten(uint64_t view, uint64_t id) {
  if (const auto found = Find(view)) found->Unlisten(id);
}

}  // namespace vrun::home

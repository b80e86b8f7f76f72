// SPDX-License-Identifier: Apache-2.0
#include "node/source/content_source.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/escape.h"
#include "base/hash/secret.h"
#include "base/log.h"
#include "node/source/content_decode.h"
#include "node/source/content_request.h"
#include "proto/content.pb.h"
#include "tree/codec.h"

namespace vrun::node {
namespace {

constexpr int64_t kHelloMicros = 10'000'000;  // time to send a Hello with an allowed token
constexpr size_t kMaxTokens = 4096;
constexpr int kMaxCorrupt = 3;       // per request
constexpr size_t kMaxSessions = 16;  // a home has one; more are half-open leftovers

Error Away() { return Error(Code::kUnavailable, "home is away: its content stream is not connected"); }

void SetVersion(const tree::FileVersion& version, v1::FileVersion* message) {
  message->set_dev(version.dev);
  message->set_ino(version.ino);
  message->set_ctime_ns(version.ctime_ns);
  message->set_size(version.size);
}

}  // namespace

struct ContentSource::Token {
  std::string home_id, token;
  uint64_t job;
  uint32_t attempt;
};

class ContentSource::Session final : public rpc::Stream::Handler {
 public:
  Session(ContentSource* source, std::unique_ptr<rpc::Stream> stream)
      : source_(source), stream_(std::move(stream)), hello_deadline(MonotonicMicros() + kHelloMicros) {}
  ~Session() override { stream_.reset(); }

  void OnMessage(std::string message) override { source_->OnMessage(this, message); }
  void OnClosed(Error reason) override { source_->OnClosed(this, reason); }
  void Send(const v1::ContentRequest& request) { stream_->Send(request.SerializeAsString()); }
  void Send(std::string message) { stream_->Send(std::move(message)); }
  size_t queued_bytes() const { return stream_->queued_bytes(); }
  void Cancel(const Error& reason) { stream_->Cancel(reason); }

  // Used by this stream's thread.
  std::unordered_map<uint64_t, std::unique_ptr<Answer>> answers;
  SliceAssembler slices;

 private:
  ContentSource* source_;
  std::unique_ptr<rpc::Stream> stream_;

 public:
  // Guarded by the source's lock.
  const int64_t hello_deadline;
  std::unique_ptr<v1::Hello> hello;  // received, but not allowed yet
  bool said_hello = false;
  bool dead = false;  // cancelled or closed
};

ContentSource::ContentSource(ContentSourceOptions options, std::function<void()> on_connected)
    : options_(std::move(options)), on_connected_(std::move(on_connected)) {}

ContentSource::~ContentSource() {
  std::vector<SessionPtr> sessions;
  Calls calls;
  {
    MutexLock lock(mu_);
    closing_ = true;
    active_ = nullptr;
    sessions.swap(sessions_);
    waiting_.clear();
    while (!requests_.empty()) FailLocked(requests_.begin()->first, Away(), &calls);
  }
  for (auto& session : sessions) session->Cancel(Error(Code::kAborted, "the file system server ends"));
  sessions.clear();  // no callback runs after this
  for (auto& call : calls) call();
}

bool ContentSource::connected() const {
  MutexLock lock(mu_);
  return active_ != nullptr;
}

ContentSourceStats ContentSource::stats() const {
  MutexLock lock(mu_);
  return stats_;
}

// --- streams ---

Result<rpc::Stream::Handler*> ContentSource::Accept(std::unique_ptr<rpc::Stream> stream) {
  MutexLock lock(mu_);
  if (closing_) return Error(Code::kUnavailable, "the file system server ends");
  if (sessions_.size() >= kMaxSessions) return Error(Code::kExhausted, "too many content streams at a time");
  sessions_.push_back(std::make_shared<Session>(this, std::move(stream)));
  return sessions_.back().get();
}

bool ContentSource::AllowedLocked(const v1::Hello& hello) const {
  bool allowed = false;
  for (const Token& t : tokens_) {
    allowed |= t.job == hello.job() && t.attempt == hello.attempt() && t.home_id == hello.home_id() &&
               !t.token.empty() && SameSecret(t.token, hello.token());
  }
  return allowed && hello.home_id() == options_.home_id;
}

void ContentSource::AllowToken(const std::string& home_id, const std::string& token, uint64_t job, uint32_t attempt) {
  Calls calls;
  {
    MutexLock lock(mu_);
    tokens_.push_back({home_id, token, job, attempt});
    if (tokens_.size() > kMaxTokens) tokens_.pop_front();
    for (const SessionPtr& session : sessions_) {
      if (!session->dead && session->hello && AllowedLocked(*session->hello)) ActivateLocked(session.get(), &calls);
    }
  }
  for (auto& call : calls) call();
}

void ContentSource::HelloLocked(Session* session, const v1::Hello& hello, Calls* calls) {
  session->said_hello = true;
  session->hello = std::make_unique<v1::Hello>(hello);
  if (AllowedLocked(hello)) ActivateLocked(session, calls);
}

void ContentSource::ActivateLocked(Session* session, Calls* calls) {
  session->hello.reset();
  if (active_ && active_ != session) {
    active_->dead = true;
    active_->Cancel(Error(Code::kAborted, "home opened another content stream"));
    DropActiveLocked(MonotonicMicros());
  }
  active_ = session;
  for (auto& [id, request] : requests_) request->deadline = 0;
  SendWaitingLocked();
  if (on_connected_) calls->push_back(on_connected_);
}

void ContentSource::DropActiveLocked(int64_t now) {
  active_ = nullptr;
  window_used_ = 0;
  waiting_.clear();
  for (auto& [id, request] : requests_) {
    request->sent = false;
    if (request->deadline == 0) request->deadline = now + options_.home_deadline_micros;
    waiting_.push_back(request);
  }
}

void ContentSource::OnClosed(Session* session, const Error& reason) {
  MutexLock lock(mu_);
  session->dead = true;
  if (active_ != session) return;
  LogInfo("content stream of home closed: {}", Escape(reason.message()));
  DropActiveLocked(MonotonicMicros());
}

void ContentSource::Tick(int64_t now) {
  Calls calls;
  std::vector<SessionPtr> gone;
  {
    MutexLock lock(mu_);
    for (auto& session : sessions_) {
      const bool silent = session.get() != active_ && !session->dead && now > session->hello_deadline;
      if (silent) {
        session->dead = true;
        session->Cancel(Error(Code::kDenied, "content stream: no token of a job of this home"));
      }
      if (session->dead && session.get() != active_) gone.push_back(std::move(session));
    }
    std::erase(sessions_, nullptr);
    std::vector<uint64_t> late;
    for (const auto& [id, request] : requests_) {
      if (!active_ && request->deadline != 0 && now > request->deadline) late.push_back(id);
    }
    for (uint64_t id : late) FailLocked(id, Away(), &calls);
  }
  gone.clear();  // waits for their callbacks, so not under the lock
  for (auto& call : calls) call();
}

// --- requests ---

uint64_t ContentSource::Add(RequestPtr request) {
  MutexLock lock(mu_);
  if (closing_) {
    lock.unlock();
    request->fail(Away());
    return 0;
  }
  const uint64_t id = next_id_++;
  request->message.set_id(id);
  request->message.set_slices(true);
  if (!active_) request->deadline = MonotonicMicros() + options_.home_deadline_micros;
  requests_[id] = request;
  waiting_.push_back(std::move(request));
  if (active_) SendWaitingLocked();
  return id;
}

void ContentSource::SendCancelLocked(uint64_t id) {
  v1::ContentRequest cancel;
  cancel.mutable_cancel()->set_id(id);
  active_->Send(cancel);
}

// Sends a message that gets no answer. kFull when more than `most_queued` bytes are already queued.
ContentSource::Sent ContentSource::SendDirectLocked(const std::string& message, size_t most_queued) {
  if (active_ == nullptr) return Sent::kAway;
  if (active_->queued_bytes() > most_queued) return Sent::kFull;
  active_->Send(message);
  return Sent::kSent;
}

void ContentSource::SendWaitingLocked() {
  while (active_ && !waiting_.empty()) {
    const RequestPtr& next = waiting_.front();
    if (next->bytes > 0 && window_used_ > 0 && window_used_ + next->bytes > options_.window_bytes) {
      // Requests without file content skip this queue.
      for (auto it = waiting_.begin(); it != waiting_.end();) {
        if ((*it)->bytes == 0) {
          SendLocked(*it);
          it = waiting_.erase(it);
        } else {
          ++it;
        }
      }
      return;
    }
    SendLocked(next);
    waiting_.pop_front();
  }
}

void ContentSource::SendLocked(const RequestPtr& request) {
  request->sent = true;
  window_used_ += request->bytes;
  active_->Send(request->message);
}

ContentSource::RequestPtr ContentSource::RemoveLocked(uint64_t id) {
  auto it = requests_.find(id);
  if (it == requests_.end()) return nullptr;
  RequestPtr request = std::move(it->second);
  requests_.erase(it);
  if (request->sent)
    window_used_ -= request->bytes;
  else
    std::erase(waiting_, request);
  SendWaitingLocked();
  return request;
}

void ContentSource::FailLocked(uint64_t id, Error error, Calls* calls) {
  if (RequestPtr request = RemoveLocked(id)) {
    calls->push_back([request, error = std::move(error)] { request->fail(error); });
  }
}

void ContentSource::Broken(Session* session, const RequestPtr& request, const Error& error) {
  Calls calls;
  {
    MutexLock lock(mu_);
    if (!session->dead) BrokenLocked(session, request, error, &calls);
  }
  for (auto& call : calls) call();
}

void ContentSource::BrokenLocked(Session* session, const RequestPtr& request, const Error& error, Calls* calls) {
  LogWarning("content stream of home cancelled: {}", Escape(error.message()));
  session->dead = true;
  session->Cancel(Error(Code::kCorrupt, error.message()));
  if (active_ == session) DropActiveLocked(MonotonicMicros());
  if (request && ++request->corrupt >= kMaxCorrupt) {
    FailLocked(request->message.id(), Error(Code::kCorrupt, error.message()), calls);
  }
}

void ContentSource::OnMessage(Session* session, const std::string& bytes) {
  v1::ContentReply reply;
  if (!reply.ParseFromString(bytes)) {
    return Broken(session, nullptr, Error(Code::kCorrupt, "home sent a message that does not parse"));
  }
  Calls calls;
  RequestPtr request;
  const char* lie = nullptr;
  bool trusted = false;
  {
    MutexLock lock(mu_);
    if (session->dead || closing_) return;
    trusted = active_ == session;
    stats_.wire_bytes += bytes.size();
    meter_.Arrived(MonotonicMicros(), bytes.size());
    stats_.busy_micros = meter_.busy_micros();
  }
  if (reply.has_slice() && trusted) {
    const Result<bool> whole = session->slices.Add(&reply);
    if (!whole) return Broken(session, nullptr, whole.error());
    if (!*whole) return;
  }
  {
    MutexLock lock(mu_);
    if (session->dead || closing_) return;
    if (reply.has_hello()) {
      if (session->said_hello)
        lie = "home sent Hello twice";
      else
        HelloLocked(session, reply.hello(), &calls);
    } else if (active_ != session) {
      lie = "home sent content before a token that is allowed";
    } else if (auto it = requests_.find(reply.id()); it != requests_.end()) {
      request = it->second;
      if (!request->sent) lie = "home answered before it was asked";
    } else if (reply.id() == 0 || reply.id() >= next_id_) {
      lie = "home answered a request that was never sent";  // otherwise it was asked and is already over
    }
    for (const v1::Piece& piece : reply.units().piece()) stats_.units += piece.digests().size() / sizeof(Digest::bytes);
  }
  for (auto& call : calls) call();
  if (lie) return Broken(session, request, Error(Code::kCorrupt, lie));
  if (request)
    OnAnswer(session, request, reply);
  else
    session->answers.erase(reply.id());
}

void ContentSource::OnAnswer(Session* session, const RequestPtr& request, const v1::ContentReply& reply) {
  const uint64_t id = reply.id();
  if (reply.has_error()) {
    session->answers.erase(id);
    const int code = reply.error().code();
    const bool known = code > static_cast<int>(Code::kOk) && code <= static_cast<int>(Code::kInternal);
    Error error(known ? static_cast<Code>(code) : Code::kInternal, Escape(reply.error().message()));
    // Only this side detects corruption. A kCorrupt from home becomes kInternal, so that it cannot cause endless
    // retries.
    if (error.code() == Code::kCorrupt) error = Error(Code::kInternal, error.message());
    Calls calls;
    {
      MutexLock lock(mu_);
      FailLocked(id, std::move(error), &calls);
    }
    for (auto& call : calls) call();
    return;
  }
  auto& answer = session->answers[id];
  if (!answer) answer = request->begin();
  Status taken = answer->Take(reply);
  if (taken && reply.last() && !answer->whole()) taken = Error(Code::kCorrupt, "home sent an incomplete answer");
  if (!taken) {
    session->answers.erase(id);
    return Broken(session, request, taken.error());
  }
  if (!reply.last()) return;
  std::unique_ptr<Answer> done = std::move(answer);
  session->answers.erase(id);
  bool ours;
  {
    MutexLock lock(mu_);
    ours = RemoveLocked(id) != nullptr;
  }
  // Valid content is used even if another stream has taken over meanwhile.
  if (ours) done->Deliver();
}

// --- the requests ---

void ContentSource::FetchRoot(const Digest& tree, std::function<void(Result<tree::Entry>)> done) {
  class RootAnswer final : public Answer {
   public:
    RootAnswer(const Digest& tree, std::function<void(Result<tree::Entry>)> done)
        : tree_(tree), done_(std::move(done)) {}
    Status Take(const v1::ContentReply& reply) override {
      if (!reply.has_root() || entry_) return Error(Code::kCorrupt, "home sent an unexpected reply instead of a root");
      VRUN_ASSIGN(entry_, tree::DecodeRoot(reply.root().entry(), tree_));
      return {};
    }
    bool whole() const override { return entry_.has_value(); }
    void Deliver() override { done_(std::move(*entry_)); }

   private:
    Digest tree_;
    std::function<void(Result<tree::Entry>)> done_;
    std::optional<tree::Entry> entry_;
  };
  auto request = std::make_shared<Request>();
  request->message.mutable_get_root()->set_tree(std::string(tree.view()));
  request->begin = [tree, done] { return std::make_unique<RootAnswer>(tree, done); };
  request->fail = [done](Error error) { done(std::move(error)); };
  Add(std::move(request));
}

void ContentSource::FetchDirectory(const Digest& tree, const std::string& path, const Digest& digest,
                                   std::function<void(Result<vfs::FetchedDirectory>)> done) {
  class DirectoryAnswer final : public Answer {
   public:
    DirectoryAnswer(const Digest& digest, std::function<void(Result<vfs::FetchedDirectory>)> done)
        : digest_(digest), done_(std::move(done)) {}
    Status Take(const v1::ContentReply& reply) override {
      if (!reply.has_directory() || object_)
        return Error(Code::kCorrupt, "home sent an unexpected reply instead of a directory");
      VRUN_ASSIGN(object_, parts_.Add(reply.directory(), &digest_));
      return {};
    }
    bool whole() const override { return object_.has_value(); }
    void Deliver() override { done_(std::move(*object_)); }

   private:
    Digest digest_;
    std::function<void(Result<vfs::FetchedDirectory>)> done_;
    DirectoryAssembler parts_;
    std::optional<vfs::FetchedDirectory> object_;
  };
  auto request = std::make_shared<Request>();
  auto* get = request->message.mutable_get_directory();
  get->set_tree(std::string(tree.view()));
  get->set_path(path);
  get->set_digest(std::string(digest.view()));
  request->begin = [digest, done] { return std::make_unique<DirectoryAnswer>(digest, done); };
  request->fail = [done](Error error) { done(std::move(error)); };
  Add(std::move(request));
}

void ContentSource::FetchRange(const Digest& tree, const std::string& path, const tree::FileVersion& version,
                               uint64_t offset, uint64_t length, vfs::Urgency urgency,
                               std::function<void(Result<vfs::FetchedRange>)> done) {
  class RangeAnswer final : public Answer {
   public:
    RangeAnswer(uint64_t size, uint64_t offset, uint64_t length, std::function<void(Result<vfs::FetchedRange>)> done)
        : parts_(size, offset, length), done_(std::move(done)) {}
    Status Take(const v1::ContentReply& reply) override {
      if (!reply.has_units()) return Error(Code::kCorrupt, "home sent an unexpected reply instead of content");
      return parts_.Add(reply.units());
    }
    bool whole() const override { return parts_.complete(); }
    void Deliver() override { done_(parts_.Take()); }

   private:
    RangeAssembler parts_;
    std::function<void(Result<vfs::FetchedRange>)> done_;
  };
  const uint64_t unit = store::UnitBytes(version.size);
  if (offset % unit != 0 || offset > version.size || length > version.size - offset ||
      (length % unit != 0 && offset + length != version.size)) {
    return done(Error(Code::kInvalid, "fetch content: not a range of whole units"));
  }
  auto request = std::make_shared<Request>();
  request->bytes = length;
  auto* get = request->message.mutable_get_range();
  get->set_tree(std::string(tree.view()));
  get->set_path(path);
  get->set_offset(offset);
  get->set_length(length);
  get->set_ahead(urgency == vfs::Urgency::kAhead);
  SetVersion(version, get->mutable_version());
  request->begin = [size = version.size, offset, length, done] {
    return std::make_unique<RangeAnswer>(size, offset, length, done);
  };
  request->fail = [done](Error error) { done(std::move(error)); };
  Add(std::move(request));
}

void ContentSource::Borrow(const Digest& tree, const std::string& path, const tree::FileVersion& version,
                           std::function<void()> done) {
  FetchRange(tree, path, version, 0, 0, vfs::Urgency::kDemand,
             [done = std::move(done)](const Result<vfs::FetchedRange>&) {
               if (done) done();
             });
}

void ContentSource::FetchResident(const Digest& tree, const std::string& path, const tree::FileVersion& version,
                                  bool siblings, std::function<void(Result<std::vector<vfs::ResidentFile>>)> done) {
  class ResidentAnswer final : public Answer {
   public:
    explicit ResidentAnswer(std::function<void(Result<std::vector<vfs::ResidentFile>>)> done)
        : done_(std::move(done)) {}
    Status Take(const v1::ContentReply& reply) override {
      if (!reply.has_resident() || files_)
        return Error(Code::kCorrupt, "home sent an unexpected reply instead of hints");
      VRUN_ASSIGN(files_, DecodeResident(reply.resident()));
      return {};
    }
    bool whole() const override { return files_.has_value(); }
    void Deliver() override { done_(std::move(*files_)); }

   private:
    std::function<void(Result<std::vector<vfs::ResidentFile>>)> done_;
    std::optional<std::vector<vfs::ResidentFile>> files_;
  };
  auto request = std::make_shared<Request>();
  auto* get = request->message.mutable_get_resident();
  get->set_tree(std::string(tree.view()));
  get->set_path(path);
  get->set_siblings(siblings);
  SetVersion(version, get->mutable_version());
  request->begin = [done] { return std::make_unique<ResidentAnswer>(done); };
  request->fail = [done](Error error) { done(std::move(error)); };
  Add(std::move(request));
}

void ContentSource::FetchExtents(const Digest& tree, const std::string& path, const tree::FileVersion& version,
                                 std::function<void(Result<vfs::Extents>)> done) {
  class ExtentsAnswer final : public Answer {
   public:
    ExtentsAnswer(uint64_t size, std::function<void(Result<vfs::Extents>)> done)
        : size_(size), done_(std::move(done)) {}
    Status Take(const v1::ContentReply& reply) override {
      if (!reply.has_extents() || extents_)
        return Error(Code::kCorrupt, "home sent an unexpected reply instead of extents");
      VRUN_ASSIGN(extents_, DecodeExtents(reply.extents(), size_));
      return {};
    }
    bool whole() const override { return extents_.has_value(); }
    void Deliver() override { done_(std::move(*extents_)); }

   private:
    const uint64_t size_;
    std::function<void(Result<vfs::Extents>)> done_;
    std::optional<vfs::Extents> extents_;
  };
  auto request = std::make_shared<Request>();
  auto* get = request->message.mutable_get_extents();
  get->set_tree(std::string(tree.view()));
  get->set_path(path);
  SetVersion(version, get->mutable_version());
  request->begin = [size = version.size, done] { return std::make_unique<ExtentsAnswer>(size, done); };
  request->fail = [done](Error error) { done(std::move(error)); };
  Add(std::move(request));
}

void ContentSource::FetchTree(const Digest& tree, const Digest& have,
                              std::function<void(std::vector<vfs::FetchedDirectory>)> arrived,
                              std::function<void(Status)> done) {
  class TreeAnswer final : public Answer {
   public:
    TreeAnswer(std::function<void(std::vector<vfs::FetchedDirectory>)> arrived, std::function<void(Status)> done)
        : arrived_(std::move(arrived)), done_(std::move(done)) {}
    Status Take(const v1::ContentReply& reply) override {
      if (reply.what_case() == v1::ContentReply::WHAT_NOT_SET) return {};  // nothing has changed
      if (reply.has_pack() && parts_.between_objects()) {
        VRUN_ASSIGN(auto objects, DecodePack(reply.pack()));
        for (vfs::FetchedDirectory& object : objects) Add(std::move(object));
      } else {
        if (!reply.has_directory())
          return Error(Code::kCorrupt, "home sent an unexpected reply instead of directories");
        VRUN_ASSIGN(auto object, parts_.Add(reply.directory(), nullptr));
        if (!object) return {};
        Add(std::move(*object));
      }
      if (batch_.size() >= 256 || batch_bytes_ >= (1u << 20) || reply.last()) Flush();
      return {};
    }
    bool whole() const override { return parts_.between_objects(); }
    void Deliver() override {
      Flush();
      done_({});
    }

   private:
    void Add(vfs::FetchedDirectory object) {
      batch_bytes_ += object.directory->encoded().size();
      batch_.push_back(std::move(object));
    }
    void Flush() {
      if (!batch_.empty()) arrived_(std::exchange(batch_, {}));
      batch_bytes_ = 0;
    }
    std::function<void(std::vector<vfs::FetchedDirectory>)> arrived_;
    std::function<void(Status)> done_;
    DirectoryAssembler parts_;
    std::vector<vfs::FetchedDirectory> batch_;
    size_t batch_bytes_ = 0;
  };
  auto request = std::make_shared<Request>();
  request->message.mutable_get_tree()->set_tree(std::string(tree.view()));
  request->message.mutable_get_tree()->set_packed(true);
  if (!have.is_zero()) {
    request->message.mutable_get_tree()->set_have(std::string(have.view()));
    request->message.mutable_get_tree()->set_walks(true);
  }
  request->begin = [arrived, done] { return std::make_unique<TreeAnswer>(arrived, done); };
  request->fail = [done](Error error) { done(std::move(error)); };
  Add(std::move(request));
}

}  // namespace vrun::node

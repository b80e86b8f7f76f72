// SPDX-License-Identifier: Apache-2.0
#include "home/content_session.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "base/escape.h"
#include "home/content_server.h"
#include "home/guess.h"
#include "store/statement.h"

namespace vrun::home {
namespace {

constexpr uint64_t kPartBytes = 1u << 20;    // of one reply
constexpr uint64_t kPieceBytes = 64u << 10;  // compressed as one; whole units
constexpr size_t kMaxOffered = 65536;        // files
// Of an answer that is not urgent.
constexpr double kSliceSeconds = 0.01;
constexpr size_t kLeastSlice = 64u << 10, kMostSlice = 1u << 20;
constexpr size_t kFirstSlice = 256u << 10;  // while the link's speed is not known
constexpr size_t kMaxShrinks = 8192;
constexpr int kMaxExtents = 65536;  // of one file, as the node takes them

tree::FileVersion Version(const v1::FileVersion& v) { return {v.dev(), v.ino(), v.ctime_ns(), v.size()}; }

// preadv until everything is there; false at the end of the file.
Result<bool> ReadFully(int fd, std::vector<iovec> parts, uint64_t offset) {
  size_t first = 0;
  while (first < parts.size()) {
    ssize_t n = ::preadv(fd, parts.data() + first, static_cast<int>(parts.size() - first), static_cast<off_t>(offset));
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoError("read");
    }
    if (n == 0) return false;
    offset += static_cast<uint64_t>(n);
    size_t left = static_cast<size_t>(n);
    while (first < parts.size() && left >= parts[first].iov_len) left -= parts[first++].iov_len;
    if (left > 0) {
      parts[first].iov_base = static_cast<char*>(parts[first].iov_base) + left;
      parts[first].iov_len -= left;
    }
  }
  return true;
}

// Where the file has data, in at most kMaxExtents pieces: what is left then counts as one.
Status ReadExtents(int fd, uint64_t size, v1::Extents* extents) {
  for (uint64_t at = 0; at < size;) {
    const off_t data = ::lseek(fd, static_cast<off_t>(at), SEEK_DATA);
    if (data < 0 && errno == ENXIO) break;
    if (data < 0) return ErrnoError("look for holes");
    const off_t hole = ::lseek(fd, data, SEEK_HOLE);
    if (hole < 0) return ErrnoError("look for holes");
    const bool most = extents->extent_size() == 2 * (kMaxExtents - 1);
    at = most ? size : std::min(size, static_cast<uint64_t>(hole));
    if (static_cast<uint64_t>(data) >= at) break;
    extents->add_extent(static_cast<uint64_t>(data));
    extents->add_extent(at);
  }
  return {};
}

}  // namespace

void ContentSession::Start(rpc::Stream* stream) {
  std::lock_guard lock(mutex_);
  stream_ = stream;
}

void ContentSession::Close() {
  std::deque<WorkPtr> dropped[kUrgencies];
  {
    std::lock_guard lock(mutex_);
    stream_ = nullptr;
    for (int u = 0; u < kUrgencies; ++u) dropped[u].swap(waiting_[u]);
  }
  LeavePeers();
  LeaveTree();
  LeaveWrites();
}

ContentSession::Urgency ContentSession::UrgencyOf(const Work& work) {
  if (work.request.has_get_range()) return work.request.get_range().ahead() ? kAhead : kRanges;
  if (work.request.has_get_resident() || work.request.has_get_trace() || work.request.has_put_trace()) return kRanges;
  if (work.request.has_get_frames()) return kAhead;
  if (work.request.has_get_tree()) return kTrees;
  return kDirectories;
}

size_t ContentSession::MostQueued(Urgency urgency) {
  if (urgency == kDirectories) return std::numeric_limits<size_t>::max();
  return urgency == kRanges ? 2 * rpc::Stream::kHighWater : rpc::Stream::kHighWater;
}

void ContentSession::OnMessage(const std::string& message) {
  server_->hasher_.Busy();
  server_->traces_.frames().Busy();
  auto work = std::make_unique<Work>();
  std::unique_lock lock(mutex_);
  if (stream_ == nullptr) return;
  if (!work->request.ParseFromString(message)) {
    stream_->Cancel(Error(Code::kCorrupt, "content request does not parse"));
    return;
  }
  const v1::ContentRequest& request = work->request;
  if (request.has_write()) {
    lock.unlock();
    return TakeWrite(work->request.mutable_write());
  }
  if (request.has_heard()) {
    lock.unlock();
    return TakeHeard(request.heard());
  }
  if (request.has_cancel()) {
    uint64_t id = request.cancel().id();
    if (running_.contains(id)) cancelled_.insert(id);
    if (id == watch_id_) watch_id_ = 0;
    for (auto& queue : waiting_) {
      std::erase_if(queue, [&](const WorkPtr& w) {
        if (w->snapshot) telling_ &= w->request.id() != id;
        return w->request.id() == id;
      });
    }
    return;
  }
  if (request.has_get_root() || request.has_get_directory() || request.has_get_tree()) ++server_->metadata_requests_;
  Urgency urgency = UrgencyOf(*work);
  if (waiting_[urgency].size() >= kMaxWaiting) {
    stream_->Cancel(Error(Code::kExhausted, "too many content requests at a time"));
    return;
  }
  waiting_[urgency].push_back(std::move(work));
  Schedule();
}

void ContentSession::OnWritable() {
  std::lock_guard lock(mutex_);
  parked_ = false;
  if (tell_again_ && !telling_) TellTreeLocked();
  Schedule();
}

// One posted step for each request that could be worked on now, and no more than the workers can use.
void ContentSession::Schedule() {
  constexpr size_t kEnough = 8;
  size_t wanted = waiting_[kDirectories].size() + waiting_[kRanges].size();
  if (!parked_) wanted += waiting_[kTrees].size() + waiting_[kAhead].size();
  while (scheduled_ < std::min(wanted, kEnough)) {
    ++scheduled_;
    server_->workers_.Post([self = shared_from_this()] { self->Step(); });
  }
}

void ContentSession::Step() {
  WorkPtr work;
  {
    std::lock_guard lock(mutex_);
    --scheduled_;
    if (stream_ == nullptr) return;
    for (int u = 0; u < kUrgencies && !work; ++u) {
      if (waiting_[u].empty()) continue;
      if (stream_->queued_bytes() > MostQueued(static_cast<Urgency>(u))) {
        parked_ = true;
        // It may have become writable in between, and then nobody would tell us.
        if (stream_->queued_bytes() > rpc::Stream::kLowWater) return;
        parked_ = false;
      }
      work = std::move(waiting_[u].front());
      waiting_[u].pop_front();
    }
    if (!work) return;
    running_.insert(work->request.id());
  }
  bool answered = Do(work.get());
  std::lock_guard lock(mutex_);
  uint64_t id = work->request.id();
  running_.erase(id);
  bool cancelled = cancelled_.erase(id) > 0;
  if (!answered && !cancelled && stream_ != nullptr) {
    auto& queue = waiting_[UrgencyOf(*work)];
    queue.push_front(std::move(work));
  } else if (!answered && work->snapshot) {  // the node left in the middle of a tree
    telling_ = false;
    if (tell_again_ && stream_ != nullptr) TellTreeLocked();
  }
  Schedule();
}

bool ContentSession::Do(Work* work) {
  switch (work->request.what_case()) {
    case v1::ContentRequest::kGetDirectory: return Directory(work);
    case v1::ContentRequest::kGetRange: return Range(work);
    case v1::ContentRequest::kGetTree: return Tree(work);
    case v1::ContentRequest::kGetRoot: return Root(work);
    case v1::ContentRequest::kGetExtents: return Extents(work);
    case v1::ContentRequest::kGetResident: return Resident(work);
    case v1::ContentRequest::kGetTrace: return TraceTable(work);
    case v1::ContentRequest::kGetFrames: return TraceFrames(work);
    case v1::ContentRequest::kPutTrace: return PutTrace(work);
    case v1::ContentRequest::kWatchPeers: return WatchPeers(work);
    case v1::ContentRequest::kWatchTree: return WatchTree(work);
    case v1::ContentRequest::kBeginWrites: return BeginWrites(work);
    case v1::ContentRequest::kEndWrites: return EndWrites(work);
    default:
      return Fail(work->request.id(),
                  Error(Code::kUnsupported, "this home does not know that content request: update vrun"));
  }
}

bool ContentSession::Fail(uint64_t id, const Error& error) {
  v1::ContentReply reply;
  reply.set_id(id);
  reply.set_last(true);
  reply.mutable_error()->set_code(static_cast<int>(error.code()));
  reply.mutable_error()->set_message(error.message());
  reply.mutable_error()->set_errno_value(error.error_number());
  Send(reply);
  return true;
}

void ContentSession::Send(const v1::ContentReply& reply, const Work& work) {
  Send(reply, UrgencyOf(work), work.request.slices());
}

// What the link takes in kSliceSeconds: so long something urgent may have to wait for the one that is on its way.
size_t ContentSession::SliceBytes() const {
  const double link = policy_.link();
  if (link <= 0) return kFirstSlice;
  return static_cast<size_t>(std::clamp(link * kSliceSeconds, double{kLeastSlice}, double{kMostSlice}));
}

void ContentSession::Send(const v1::ContentReply& reply, Urgency urgency, bool slices) {
  std::string bytes;
  reply.SerializeToString(&bytes);
  std::lock_guard lock(mutex_);
  if (stream_ == nullptr || cancelled_.contains(reply.id())) return;
  server_->served_bytes_.fetch_add(bytes.size(), std::memory_order_relaxed);
  sent_bytes_.fetch_add(bytes.size(), std::memory_order_relaxed);
  // Before it is queued: what is queued now is what the link has not taken since the last one.
  bool more = running_.size() > 1 || !reply.last();
  for (const auto& queue : waiting_) more |= !queue.empty();
  policy_.Sent(MonotonicMicros(), sent_bytes_.load(std::memory_order_relaxed) - bytes.size(), stream_->queued_bytes(),
               more);
  if (urgency < kTrees) return stream_->SendUrgent(std::move(bytes));
  const size_t slice = SliceBytes();
  if (!slices || bytes.size() <= slice + slice / 2) return stream_->Send(std::move(bytes));
  for (size_t at = 0; at < bytes.size(); at += slice) {
    v1::ContentReply part;
    part.set_id(reply.id());
    part.mutable_slice()->set_data(bytes.substr(at, slice));
    part.mutable_slice()->set_more(bytes.size() - at > slice);
    stream_->Send(part.SerializeAsString());
  }
}

Result<ContentSession::Served> ContentSession::CheckServed(const std::string& tree, const std::string& path,
                                                           const tree::FileVersion& version) const {
  auto tree_id = Digest::FromBytes(tree);
  auto held = tree_id ? server_->trees_->Find(*tree_id) : std::nullopt;
  Served served{held ? held->snapshot : server_->trees_->current(), held ? held->exposed : std::vector<std::string>()};
  auto rules = server_->trees_->rules();
  if (!served.snapshot || !rules) return UnknownTree();
  if (rules->Denies(path, served.exposed)) {
    return Error(Code::kDenied, Escape(path) + ": a private key or credential: not served (see --expose)");
  }
  auto entry = tree::Lookup(*served.snapshot, path);
  if (!entry || !entry->is_regular() || entry->version() != version) {
    return Error(Code::kAborted, Escape(path) + ": changed at home after the job's tree was taken");
  }
  return served;
}

bool ContentSession::Resident(Work* work) {
  const auto& get = work->request.get_resident();
  const tree::FileVersion version = Version(get.version());
  auto served = CheckServed(get.tree(), get.path(), version);
  if (!served) return Fail(work->request.id(), served.error());
  const auto rules = server_->trees_->rules();
  const auto offer = [this](const tree::FileVersion& file) {
    std::lock_guard lock(mutex_);
    if (offered_.size() >= kMaxOffered) offered_.clear();
    return offered_.insert(file).second;
  };
  Guess guess(*served->snapshot, *server_->files_, server_->first_looks_, offer,
              [&](const std::string& path) { return rules->Denies(path, served->exposed); });
  guess.Touched(get.path(), version);
  bool known;  // then so are the libraries that it loads
  {
    std::lock_guard lock(mutex_);
    known = offered_.contains(version);
  }
  if (!known) guess.AddFile(get.path(), version);
  (void)offer(version);
  if (get.siblings()) guess.AddSiblings(get.path());
  v1::ContentReply reply;
  reply.set_id(work->request.id());
  reply.set_last(true);
  reply.mutable_resident();
  for (const GuessedFile& guessed : guess.Take()) {
    v1::ResidentFile* file = reply.mutable_resident()->add_file();
    file->set_path(guessed.path);
    file->mutable_version()->set_dev(guessed.version.dev);
    file->mutable_version()->set_ino(guessed.version.ino);
    file->mutable_version()->set_ctime_ns(guessed.version.ctime_ns);
    file->mutable_version()->set_size(guessed.version.size);
    if (auto id = server_->digests_->Find(guessed.version)) file->set_object_id(id->Encode());
    for (const auto& [first, end] : guessed.ranges) {
      file->add_range(first);
      file->add_range(end);
    }
    for (const auto& [first, end] : guessed.loader) {
      file->add_loader(first);
      file->add_loader(end);
    }
  }
  Send(reply);
  return true;
}

bool ContentSession::TraceTable(Work* work) {
  auto table = server_->traces_.Table(work->request.get_trace());
  if (!table) return Fail(work->request.id(), table.error());
  v1::ContentReply reply;
  reply.set_id(work->request.id());
  reply.set_last(true);
  *reply.mutable_trace() = std::move(*table);
  Send(reply);
  return true;
}

bool ContentSession::TraceFrames(Work* work) {
  const auto& get = work->request.get_frames();
  Digest name;
  auto frame = server_->traces_.Frame(get, static_cast<int>(work->done), &name);
  if (!frame) return Fail(work->request.id(), frame.error());
  if (get.sign()) {
    frame->set_signature(server_->peers_.Sign(store::FrameStatement(server_->home_id_, name, frame->digests())));
  }
  ++work->done;
  v1::ContentReply reply;
  reply.set_id(work->request.id());
  reply.set_last(work->done == static_cast<uint64_t>(get.frame_size()));
  *reply.mutable_frame() = std::move(*frame);
  Send(reply, *work);
  return reply.last();
}

bool ContentSession::PutTrace(Work* work) {
  const Status put = server_->traces_.Put(work->request.put_trace());
  if (!put) return Fail(work->request.id(), put.error());
  v1::ContentReply reply;
  reply.set_id(work->request.id());
  reply.set_last(true);
  Send(reply);
  return true;
}

bool ContentSession::WatchPeers(Work* work) {
  const uint64_t id = work->request.id();
  const auto& watch = work->request.watch_peers();
  if (watch.name().empty() || watch.addresses_size() == 0) {
    return Fail(id, Error(Code::kInvalid, "malformed request for peers"));
  }
  LeavePeers();
  auto joined = server_->peers_.Join({watch.name(), watch.addresses(0), watch.pool()},
                                     [weak = weak_from_this(), id](const v1::Peers& peers) {
                                       const auto self = weak.lock();
                                       if (!self) return;
                                       v1::ContentReply reply;
                                       reply.set_id(id);
                                       *reply.mutable_peers() = peers;
                                       self->Send(reply);
                                     });
  if (!joined) return Fail(id, joined.error());
  {
    std::lock_guard lock(mutex_);
    peer_id_ = *joined;
    if (stream_ != nullptr) return true;
  }
  LeavePeers();  // it was closed meanwhile
  return true;
}

void ContentSession::LeavePeers() {
  uint64_t id;
  {
    std::lock_guard lock(mutex_);
    id = std::exchange(peer_id_, 0);
  }
  // Without our lock: the board tells the others, and us while we are on it.
  if (id != 0) server_->peers_.Leave(id);
}

bool ContentSession::Range(Work* work) {
  const auto& get = work->request.get_range();
  uint64_t id = work->request.id();
  tree::FileVersion version = Version(get.version());
  uint64_t unit = store::UnitBytes(version.size);
  uint64_t end =
      get.length() > version.size - std::min(version.size, get.offset()) ? version.size : get.offset() + get.length();
  const bool nothing = get.offset() == 0 && end == 0;  // of an empty file, or only to have the file held
  if (get.offset() % unit != 0 || (get.offset() >= end && !nothing) || end - get.offset() > kMaxRange ||
      (end % unit != 0 && end != version.size)) {
    return Fail(id, Error(Code::kInvalid, "malformed range of " + Escape(get.path())));
  }
  if (work->done == 0) {
    const auto served = CheckServed(get.tree(), get.path(), version);
    // What a live view began to read it may read to its end, whatever has its name by now.
    const bool lent = !served && served.error().code() == Code::kAborted && server_->lent_.Has(version);
    if (!served && !lent) return Fail(id, served.error());
  }
  uint64_t length = 0;
  auto reply = ReadPart(work, end, &length);
  // Old content may have passed from the file to a copy while it was read.
  if (!reply && reply.error().code() == Code::kAborted) reply = ReadPart(work, end, &length);
  if (!reply) {
    if (reply.error().code() == Code::kAborted && server_->stale_) server_->stale_(get.path());
    return Fail(id, reply.error());
  }
  work->done += length;
  bool last = get.offset() + work->done >= end;
  reply->set_id(id);
  reply->set_last(last);
  Send(*reply, *work);
  return last;
}

std::vector<Digest> ContentSession::Pack(const tree::FileVersion& version, v1::Units* units, bool digests_only) {
  Shrinks shrinks;
  {
    std::lock_guard lock(mutex_);
    if (const auto it = shrinks_.find(version); it != shrinks_.end()) shrinks = it->second;
  }
  const uint64_t unit = store::UnitBytes(version.size);
  std::vector<Digest> digests;
  const int level = digests_only ? 0 : policy_.level();
  uint64_t raw = 0, small = 0;
  const int64_t began = MonotonicMicros();
  int64_t hashing = 0;
  for (v1::Piece& piece : *units->mutable_piece()) {
    const std::string_view data = piece.data();
    const int64_t start = MonotonicMicros();
    for (size_t at = 0; at < data.size(); at += unit) {
      digests.push_back(store::UnitDigest(data.substr(at, unit)));
      piece.mutable_digests()->append(digests.back().view());
    }
    hashing += MonotonicMicros() - start;
    piece.set_raw_bytes(static_cast<uint32_t>(data.size()));
    if (level == 0 || !shrinks.Try()) continue;
    std::string packed;
    const bool smaller = server_->compressor_.Compress(data, &packed, level);
    shrinks.Tried(smaller);
    raw += data.size();
    small += smaller ? packed.size() : data.size();
    if (!smaller) continue;
    piece.set_data(std::move(packed));
    piece.set_zstd(true);
  }
  policy_.Compressed(level, raw, small, MonotonicMicros() - began - hashing);
  if (level > 0) {
    std::lock_guard lock(mutex_);
    if (shrinks_.size() >= kMaxShrinks) shrinks_.clear();
    shrinks_[version] = shrinks;
  }
  return digests;
}

void ContentSession::Attest(const v1::ContentRequest::GetRange& get, const tree::FileVersion& version,
                            v1::Units* units) const {
  std::string all;
  for (v1::Piece& piece : *units->mutable_piece()) {
    all += piece.digests();
    if (!get.digests_only()) continue;
    piece.clear_data();
    piece.clear_zstd();
  }
  if (!get.sign()) return;
  units->set_signature(server_->peers_.Sign(
      store::UnitsStatement(server_->home_id_, version, units->offset(), all, units->object_id())));
}

Result<UniqueFd> ContentSession::OpenServed(const std::string& path, const tree::FileVersion& version, uint64_t offset,
                                            uint64_t length, bool* lent) const {
  return WithDescriptors([&] {
    auto opened = server_->files_->OpenPart(path, version, offset, length);
    *lent = !opened && opened.error().code() == Code::kAborted && server_->lent_.Has(version);
    return *lent ? server_->lent_.Open(version) : std::move(opened);
  });
}

Status ContentSession::CheckOpen(int fd, const std::string& path, const tree::FileVersion& version, bool lent) const {
  return lent ? server_->lent_.Check(version, fd) : server_->files_->Check(fd, path, version);
}

bool ContentSession::Extents(Work* work) {
  const auto& get = work->request.get_extents();
  const uint64_t id = work->request.id();
  const tree::FileVersion version = Version(get.version());
  const auto served = CheckServed(get.tree(), get.path(), version);
  if (!served && !(served.error().code() == Code::kAborted && server_->lent_.Has(version))) {
    return Fail(id, served.error());
  }
  const auto read = [&]() -> Result<v1::ContentReply> {
    v1::ContentReply reply;
    // Nothing is brought here for that: it is all data then.
    if (const auto fd = server_->files_->OpenAtHand(get.path(), version);
        !fd && fd.error().code() == Code::kUnavailable) {
      reply.mutable_extents()->add_extent(0);
      reply.mutable_extents()->add_extent(version.size);
      return reply;
    }
    bool lent = false;
    VRUN_ASSIGN(const UniqueFd fd, OpenServed(get.path(), version, 0, version.size, &lent));
    VRUN_TRY(ReadExtents(fd.get(), version.size, reply.mutable_extents()));
    VRUN_TRY(CheckOpen(fd.get(), get.path(), version, lent));
    return reply;
  };
  auto reply = read();
  if (!reply && reply.error().code() == Code::kAborted) reply = read();  // as in Range
  if (!reply) return Fail(id, reply.error());
  reply->set_id(id);
  reply->set_last(true);
  Send(*reply);
  return true;
}

Result<v1::ContentReply> ContentSession::ReadPart(Work* work, uint64_t end, uint64_t* length) {
  const auto& get = work->request.get_range();
  tree::FileVersion version = Version(get.version());
  uint64_t unit = store::UnitBytes(version.size);
  uint64_t offset = get.offset() + work->done;
  *length = std::min(end - offset, kMaxPart);
  bool lent = false;
  VRUN_ASSIGN(const UniqueFd fd, OpenServed(get.path(), version, offset, *length, &lent));
  if (!lent) Lend(version, fd.get(), get.offset() == 0 && get.length() >= version.size);

  v1::ContentReply reply;
  v1::Units* units = reply.mutable_units();
  units->set_offset(offset);
  if (*length == 0 && version.size > 0) return reply;
  const uint64_t first = offset / unit, count = (*length + unit - 1) / unit;
  if (const auto known = server_->digests_->Find(version);
      known && server_->hot_units_.Find(version, first, count, units)) {
    // OpenServed has just seen that the file is still that version.
    units->set_object_id(known->Encode());
    Attest(get, version, units);
    return reply;
  }
  std::vector<iovec> parts;
  for (uint64_t at = 0; at < *length; at += kPieceBytes) {
    std::string* data = units->add_piece()->mutable_data();
    data->resize(std::min(kPieceBytes, *length - at));
    parts.push_back({data->data(), data->size()});
  }
  server_->first_looks_.BeforeServing(fd.get(), version);
  VRUN_ASSIGN(bool whole, ReadFully(fd.get(), std::move(parts), offset));
  VRUN_TRY(CheckOpen(fd.get(), get.path(), version, lent));
  // Shorter than its size although the version is the same: a file system that lies (some FUSE ones do).
  if (!whole) return Error(Code::kAborted, Escape(get.path()) + ": shorter than its size says");

  const std::vector<Digest> digests = Pack(version, units, get.digests_only());
  if (!get.digests_only()) server_->hot_units_.Keep(version, first, *units, WallMicros() * 1000);

  auto known = server_->digests_->Find(version);
  if (!known) {
    known = server_->units_.Add(version, first, digests);
    if (known) {
      server_->digests_->Remember(version, *known, WallMicros() * 1000);
    } else if (version.size > store::kWholeFileLimit) {
      server_->hasher_.Add(get.path(), version);
    }
  }
  if (known) units->set_object_id(known->Encode());
  Attest(get, version, units);
  return reply;
}

}  // namespace vrun::home

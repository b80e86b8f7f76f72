// SPDX-License-Identifier: Apache-2.0
#include "node/s3/s3_tier.h"

#include <future>
#include <utility>

#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "base/thread/mutex.h"
#include "proto/cache.pb.h"

namespace vrun::node {
namespace {

constexpr size_t kS3Threads = 2;
constexpr size_t kMaxKnown = 4096;  // tables of at most 2 KiB each
constexpr int64_t kAbsentMicros = 60'000'000;
constexpr uint64_t kWholeUnits = 16;  // an extent with so few units is read whole
constexpr int kMostDoubts = 4;        // gives up if the object is constantly rewritten

template <typename T>
using Answer = std::function<void(Result<T>)>;

// Calls `start`, waits until it calls back, and returns what it called back with.
template <typename T>
Result<T> Await(const std::function<void(Answer<T>)>& start) {
  auto promise = std::make_shared<std::promise<Result<T>>>();
  auto answer = promise->get_future();
  start([promise](Result<T> result) { promise->set_value(std::move(result)); });
  return answer.get();
}

}  // namespace

struct S3Tier::Part {
  struct Whole {
    Mutex mutex;
    size_t left = 0;
    Units units;
    std::optional<Error> error;
    int64_t since = 0;
    GivenUp given_up;
    std::function<void(Result<Units>)> done;
  };
  std::shared_ptr<Whole> whole;
  NamedContent content;
  uint64_t extent = 0;
  uint64_t first = 0, count = 0;  // units in the extent
  size_t place = 0;               // index of the first one in whole->units
  std::string name;
  int doubts = 0;  // 0: uses a remembered table; 1: one read for this part; more: that one did not fit
};

S3Tier::S3Tier(S3Urls* urls) : urls_(urls) {
  for (size_t i = 0; i < kS3Threads; ++i) threads_.emplace_back([this] { Work(); });
}

S3Tier::~S3Tier() {
  std::shared_ptr<s3::Client> client;
  {
    MutexLock lock(mutex_);
    ending_ = true;
    client = std::move(client_);
  }
  client.reset();  // requests in progress fail; their callbacks are posted before this returns
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

// --- reading ---

void S3Tier::Fetch(const NamedContent& content, uint64_t first, uint64_t count, GivenUp given_up,
                   std::function<void(Result<Units>)> done) {
  if (count == 0 || content.size == 0) return done(Error(Code::kNotFound, "S3: nothing to fetch"));
  bool ask;
  {
    MutexLock lock(mutex_);
    ask = gate_.Ask();
  }
  if (!ask || breaker_.open(MonotonicMicros()))
    return done(Error(Code::kUnavailable, "S3: not asked: it has just failed, or has had nothing for a while"));
  auto whole = std::make_shared<Part::Whole>();
  whole->units.resize(count);
  whole->since = MonotonicMicros();
  whole->given_up = std::move(given_up);
  whole->done = std::move(done);
  std::vector<PartPtr> parts;
  const uint64_t per = content.units_per_extent();
  for (uint64_t unit = first; unit < first + count;) {
    auto part = std::make_shared<Part>();
    part->whole = whole;
    part->content = content;
    part->extent = unit / per;
    part->first = unit % per;
    part->count = std::min(first + count - unit, per - part->first);
    part->place = unit - first;
    part->name = content.NameOf(part->extent);
    unit += part->count;
    parts.push_back(std::move(part));
  }
  whole->left = parts.size();
  for (const PartPtr& part : parts) Begin(part);
}

bool S3Tier::resting() {
  if (breaker_.open(MonotonicMicros())) return true;
  MutexLock lock(mutex_);
  return !gate_.Ask();
}

int64_t S3Tier::patience() const {
  MutexLock lock(mutex_);
  return patience_.micros();
}

void S3Tier::GiveUp(const GivenUp& given_up) {
  if (given_up->exchange(true)) return;
  breaker_.Late(MonotonicMicros());
  // A single one is no problem: the next answer may be quick.
  if (!breaker_.open(MonotonicMicros())) return;
  Problem("S3: get: no answer before home's: check s3_endpoint and the network between here and there");
}

void S3Tier::Begin(const PartPtr& part) {
  const auto known = Recall(part->name);
  if (known && !*known) return Over(part, Error(Code::kNotFound, "S3: not there"));
  if (known) return GetUnits(part, *known);
  GetTable(part);
}

void S3Tier::GetTable(const PartPtr& part) {
  {
    MutexLock lock(mutex_);
    const auto [it, first] = asked_.try_emplace(part->name);
    if (!first) return it->second.push_back(part);
  }
  const uint64_t units = part->content.UnitsOf(part->extent);
  // If most of the extent or a small extent is wanted, it is read whole; else the table tells where the wanted part is.
  const bool whole = units <= kWholeUnits || part->count * 4 >= units * 3 || part->doubts > 1;
  s3::Request request{.max_bytes = s3::kMaxExtentObject, .what = "get", .given_up = part->whole->given_up};
  if (!whole) request.bytes = s3::ExtentHeaderBytes(units);
  Request(std::move(request), part->name, false, [this, part, whole](Result<std::string> bytes) {
    Result<TablePtr> table = bytes ? OpenTable(part->content, part->extent, *bytes) : Result<TablePtr>(bytes.error());
    const Code code = bytes ? Code::kOk : bytes.error().code();
    const bool asked = code == Code::kOk || code == Code::kNotFound || code == Code::kCorrupt;
    if (code == Code::kCorrupt) Corrupt(part->name, bytes.error());
    TableIsOver(part->name, asked ? std::nullopt : std::optional(bytes.error()));
    if (!table) return Over(part, table.error());
    if (whole) return OpenUnits(part, *table, *bytes, 0);
    part->doubts = std::max(part->doubts, 1);
    GetUnits(part, *table);
  });
}

void S3Tier::TableIsOver(const std::string& name, const std::optional<Error>& failure) {
  std::vector<PartPtr> waiting;
  {
    MutexLock lock(mutex_);
    waiting = std::move(asked_.extract(name).mapped());
  }
  // The table is known by now, or known to be absent.
  for (const PartPtr& part : waiting) failure ? Over(part, *failure) : Begin(part);
}

void S3Tier::GetUnits(const PartPtr& part, const TablePtr& table) {
  for (uint64_t i = part->first; i < part->first + part->count; ++i) {
    if (table->Has(i)) continue;
    // Another node may have added it since.
    if (part->doubts == 0 && Old(part->name)) return ReadAnew(part, table);
    return Over(part, Error(Code::kNotFound, "S3: not there"));
  }
  const uint64_t at = table->OffsetOf(part->first), end = table->OffsetOf(part->first + part->count);
  s3::Request request{
      .first = at, .bytes = end - at, .max_bytes = end - at, .what = "get", .given_up = part->whole->given_up};
  Request(std::move(request), part->name, false, [this, part, table, at](Result<std::string> bytes) {
    if (bytes) return OpenUnits(part, table, *bytes, at);
    if (bytes.error().code() == Code::kCorrupt) return DoesNotFit(part, table, false, bytes.error());
    Over(part, bytes.error());
  });
}

void S3Tier::ReadAnew(const PartPtr& part, const TablePtr& table) {
  {
    MutexLock lock(mutex_);
    const auto it = known_.find(part->name);
    if (it != known_.end() && it->second.table == table) {
      ages_.erase(it->second.age);
      known_.erase(it);
    }
  }
  ++part->doubts;
  Begin(part);
}

void S3Tier::DoesNotFit(const PartPtr& part, const TablePtr& table, bool one_piece, const Error& error) {
  if (!one_piece && part->doubts < kMostDoubts) return ReadAnew(part, table);
  if (one_piece) Corrupt(part->name, error);
  Over(part, error);
}

void S3Tier::OpenUnits(const PartPtr& part, const TablePtr& table, const std::string& bytes, uint64_t at) {
  const uint64_t base = part->extent * part->content.units_per_extent();
  Units units;
  std::vector<Digest> digests;
  for (uint64_t i = part->first; i < part->first + part->count; ++i) {
    if (!table->Has(i)) return Over(part, Error(Code::kNotFound, "S3: not there"));
    const uint64_t offset = table->OffsetOf(i);
    if (offset < at || offset - at > bytes.size()) {
      return DoesNotFit(part, table, at == 0, Error(Code::kCorrupt, "S3: the object is too short"));
    }
    const std::string_view stored = std::string_view(bytes).substr(offset - at, table->BytesOf(i));
    auto data = table->OpenUnit(i, stored, part->content.LengthOfUnit(base + i));
    if (!data) return DoesNotFit(part, table, at == 0, data.error());
    digests.push_back(table->digest(i));
    units.push_back({table->digest(i), *std::move(data)});
  }
  const bool all = part->first == 0 && part->count == store::UnitCount(part->content.size);
  if (all && store::ContentId(part->content.size, digests) != part->content.id) {
    const Error error(Code::kCorrupt, "S3: the content does not match its digest");
    Corrupt(part->name, error);
    return Over(part, error);
  }
  std::move(units.begin(), units.end(), part->whole->units.begin() + static_cast<ptrdiff_t>(part->place));
  Over(part, {});
}

void S3Tier::Over(const PartPtr& part, Status status) {
  Part::Whole& whole = *part->whole;
  {
    MutexLock lock(whole.mutex);
    if (!status && !whole.error) whole.error = std::move(status).error();
    if (--whole.left > 0) return;
  }
  if (whole.error) {
    MutexLock lock(mutex_);
    if (whole.error->code() == Code::kNotFound) {
      misses_ += whole.units.size();
      gate_.Miss();
    }
  } else {
    if (!*whole.given_up) hits_ += whole.units.size();
    MutexLock lock(mutex_);
    gate_.Hit();
    patience_.Took(MonotonicMicros() - whole.since);
  }
  if (whole.error) return whole.done(*std::move(whole.error));
  whole.done(std::move(whole.units));
}

Result<S3Tier::TablePtr> S3Tier::OpenTable(const NamedContent& content, uint64_t extent, const std::string& bytes,
                                           bool written) {
  const std::string name = content.NameOf(extent);
  const auto terms = urls_->terms();
  auto table = s3::ExtentTable::Open(terms ? terms->seal : "", name, content.UnitsOf(extent), bytes);
  if (!table) {
    Corrupt(name, table.error());
    return std::move(table).error();
  }
  auto shared = std::make_shared<const s3::ExtentTable>(*std::move(table));
  Remember(name, shared, written);
  return shared;
}

// --- writing ---

S3Tier::TablePtr S3Tier::Remembered(const NamedContent& content, uint64_t extent) {
  return Recall(content.NameOf(extent)).value_or(nullptr);
}

bool S3Tier::Damaged(const NamedContent& content, uint64_t extent) const {
  MutexLock lock(mutex_);
  return damaged_.contains(content.NameOf(extent));
}

Result<S3Tier::TablePtr> S3Tier::Remote(const NamedContent& content, uint64_t extent) {
  const std::string name = content.NameOf(extent);
  auto bytes = Await<std::string>([&](Answer<std::string> done) {
    Request({.bytes = s3::ExtentHeaderBytes(content.UnitsOf(extent)), .max_bytes = 65536, .what = "get"}, name, false,
            std::move(done));
  });
  if (!bytes) {
    const Code code = bytes.error().code();
    if (code == Code::kCorrupt) Corrupt(name, bytes.error());
    if (code == Code::kNotFound || code == Code::kCorrupt) return TablePtr();
    return std::move(bytes).error();
  }
  auto table = OpenTable(content, extent, *bytes);
  return table ? *table : TablePtr();
}

Result<std::vector<std::optional<std::string>>> S3Tier::ReadExtent(const NamedContent& content, uint64_t extent) {
  const std::string name = content.NameOf(extent);
  auto bytes = Await<std::string>([&](Answer<std::string> done) {
    Request({.max_bytes = s3::kMaxExtentObject, .what = "get"}, name, false, std::move(done));
  });
  if (!bytes) return std::move(bytes).error();
  VRUN_ASSIGN(TablePtr table, OpenTable(content, extent, *bytes));
  std::vector<std::optional<std::string>> units(table->units());
  const uint64_t base = extent * content.units_per_extent();
  for (uint64_t i = 0; i < table->units(); ++i) {
    if (!table->Has(i) || table->OffsetOf(i) > bytes->size()) continue;
    auto data = table->OpenUnit(i, std::string_view(*bytes).substr(table->OffsetOf(i), table->BytesOf(i)),
                                content.LengthOfUnit(base + i));
    if (data) units[i] = *std::move(data);
  }
  return units;
}

Status S3Tier::Write(const NamedContent& content, uint64_t extent,
                     const std::vector<std::optional<s3::ExtentUnit>>& units) {
  const std::string name = content.NameOf(extent);
  // The controller's first answer may still be missing; without its key nothing can be sealed.
  if (!urls_->terms()) return Error(Code::kUnavailable, "S3: the controller has not answered yet");
  auto body = std::make_shared<const std::string>(s3::SealExtent(urls_->terms()->seal, name, units));
  auto put = Await<std::string>([&](Answer<std::string> done) {
    Request({.method = s3::Method::kPut, .body = body, .what = "put", .tries = 3}, name, true, std::move(done));
  });
  if (!put) return std::move(put).error();
  ++written_;
  (void)OpenTable(content, extent, *body, true);
  return {};
}

// --- requests ---

void S3Tier::Request(s3::Request request, std::string name, bool put, std::function<void(Result<std::string>)> done) {
  const auto given_up = [of = request.given_up] { return of && *of; };
  if (given_up()) return done(Error(Code::kAborted, "S3: nobody waits for it any more"));
  if (!breaker_.Allow(MonotonicMicros())) return done(Error(Code::kUnavailable, "S3: not asked: it has just failed"));
  urls_->Get(name, put, MonotonicMicros(), [this, name, request, given_up, done](Result<std::string> url) mutable {
    const auto terms = urls_->terms();
    if (!url || !terms) {
      // A refusal or silence of the controller is also a reason to wait.
      Error error = url ? Error(Code::kUnavailable, "S3: the controller gave no key") : std::move(url).error();
      Failed(given_up(), error.message());
      return Post([done, error] { done(error); });
    }
    request.url = *std::move(url);
    if (request.tries == 0) request.tries = 1;  // home is asked instead
    auto client = ClientFor(*terms);
    if (!client) {
      breaker_.Dropped();
      return Post([done] { done(Error(Code::kAborted, "S3: the file system server ends")); });
    }
    client->Start(std::move(request), [this, name, given_up, done](Result<std::string> answer) {
      const Code code = answer ? Code::kOk : answer.error().code();
      const bool never_asked = code == Code::kAborted || code == Code::kExhausted;
      const bool answered = code == Code::kOk || code == Code::kNotFound || code == Code::kCorrupt;
      if (code == Code::kNotFound) Remember(name, nullptr);
      if (never_asked || (answered && given_up())) {
        breaker_.Dropped();
      } else if (answered) {
        breaker_.Succeeded();
      } else {
        Failed(given_up(), answer.error().message());
      }
      Post([done, answer = std::move(answer)]() mutable { done(std::move(answer)); });
    });
  });
}

void S3Tier::Failed(bool given_up, const std::string& problem) {
  ++errors_;
  if (given_up) return breaker_.Dropped();
  breaker_.Failed(MonotonicMicros());
  Problem(problem);
}

void S3Tier::Problem(const std::string& problem) {
  MutexLock lock(mutex_);
  if (std::exchange(problem_, problem) != problem) LogWarning("{}: home is asked instead", Escape(problem));
}

std::shared_ptr<s3::Client> S3Tier::ClientFor(const S3Urls::Terms& terms) {
  MutexLock lock(mutex_);
  if (ending_) return nullptr;
  if (!client_) {
    // A slower transfer would be slower than home.
    client_ = std::make_shared<s3::Client>(
        s3::ClientOptions{.connect_micros = 1'500'000, .transfer_micros = 10'000'000, .ca_pem = terms.ca_pem});
  }
  return client_;
}

void S3Tier::Corrupt(const std::string& name, const Error& error) {
  // If one object is damaged, thousands may be: log the first, the second, the fourth...
  const uint64_t count = ++corrupt_;
  if ((count & (count - 1)) == 0) LogWarning("{} ({} so far): home is asked instead", Escape(error.message()), count);
  {
    MutexLock lock(mutex_);
    if (damaged_.size() >= kMaxKnown) damaged_.clear();
    damaged_.insert(name);
  }
  Remember(name, nullptr);
}

bool S3Tier::Old(const std::string& name) const {
  MutexLock lock(mutex_);
  const auto it = known_.find(name);
  return it != known_.end() && MonotonicMicros() > it->second.until;
}

std::optional<S3Tier::TablePtr> S3Tier::Recall(const std::string& name) const {
  MutexLock lock(mutex_);
  if (damaged_.contains(name)) return TablePtr();
  const auto it = known_.find(name);
  if (it == known_.end() || (!it->second.table && MonotonicMicros() > it->second.until)) return std::nullopt;
  return it->second.table;
}

void S3Tier::Remember(const std::string& name, TablePtr table, bool written) {
  MutexLock lock(mutex_);
  if (written) damaged_.erase(name);
  if (const auto it = known_.find(name); it != known_.end()) {
    ages_.erase(it->second.age);
    known_.erase(it);
  }
  ages_.push_back(name);
  known_[name] = {std::move(table), MonotonicMicros() + kAbsentMicros, std::prev(ages_.end())};
  if (known_.size() <= kMaxKnown) return;
  known_.erase(ages_.front());
  ages_.pop_front();
}

// --- the workers ---

void S3Tier::Post(std::function<void()> work) {
  {
    MutexLock lock(mutex_);
    work_.push_back(std::move(work));
  }
  wake_.notify_one();
}

void S3Tier::Work() {
  for (;;) {
    std::function<void()> work;
    {
      MutexLock lock(mutex_);
      wake_.wait(lock, [this]() VRUN_REQUIRES(mutex_) { return stopping_ || !work_.empty(); });
      if (work_.empty()) return;
      work = std::move(work_.front());
      work_.pop_front();
    }
    work();
  }
}

void S3Tier::Describe(v1::S3Stat* stat) const {
  MutexLock lock(mutex_);
  const s3::ClientStats client = client_ ? client_->stats() : s3::ClientStats();
  stat->set_hit_units(hits_);
  stat->set_miss_units(misses_);
  stat->set_read_bytes(client.received_bytes);
  stat->set_written_bytes(client.sent_bytes);
  stat->set_written_objects(written_);
  stat->set_corrupt_objects(corrupt_);
  stat->set_dropped_objects(dropped_);
  stat->set_errors(errors_);
  if (breaker_.open(MonotonicMicros())) stat->set_problem(problem_);
}

}  // namespace vrun::node

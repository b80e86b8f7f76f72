// SPDX-License-Identifier: Apache-2.0
#include "vfs/testing/vfs_testing.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <utility>

#include "base/files.h"
#include "store/testing/names_testing.h"

namespace vrun::vfs {
namespace {

std::string ParentOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

tree::Entry TreeMaker::New(uint32_t mode) {
  tree::Entry entry;
  entry.mode = mode;
  entry.uid = 1000;
  entry.gid = 1000;
  entry.dev = 5;
  entry.ino = next_ino_++;
  entry.mtime_ns = entry.ctime_ns = now_++;
  return entry;
}

TreeMaker& TreeMaker::Put(const std::string& path, tree::Entry entry) {
  if (ParentOf(path) != "/" && nodes_.count(ParentOf(path)) == 0) Dir(ParentOf(path));
  entry.name = path.substr(path.rfind('/') + 1);
  nodes_[path] = std::move(entry);
  return *this;
}

TreeMaker& TreeMaker::File(const std::string& path, std::string content, uint32_t mode) {
  tree::Entry entry = New(S_IFREG | mode);
  entry.size = content.size();
  entry.blocks = (content.size() + 511) / 512;
  contents_[entry.version()] = std::move(content);
  return Put(path, std::move(entry));
}

TreeMaker& TreeMaker::Symlink(const std::string& path, std::string target) {
  tree::Entry entry = New(S_IFLNK | 0777);
  entry.size = target.size();
  entry.target = std::move(target);
  return Put(path, std::move(entry));
}

TreeMaker& TreeMaker::Dir(const std::string& path, uint32_t mode) {
  tree::Entry entry = New(S_IFDIR | mode);
  entry.ctime_ns = 0;
  entry.nlink = 0;
  return Put(path, std::move(entry));
}

TreeMaker& TreeMaker::HardLink(const std::string& path, const std::string& to) {
  tree::Entry& old = nodes_.at(to);
  std::string content = contents_.at(old.version());
  const tree::FileVersion before = old.version();
  const int64_t now = now_++;
  const uint32_t links = old.nlink + 1;
  for (auto& [name, entry] : nodes_) {
    if (entry.is_regular() && entry.version() == before) {
      entry.nlink = links;
      entry.ctime_ns = now;
    }
  }
  contents_[nodes_.at(to).version()] = std::move(content);
  return Put(path, nodes_.at(to));
}

TreeMaker& TreeMaker::Remove(const std::string& path) {
  nodes_.erase(path);
  for (auto it = nodes_.lower_bound(path + "/"); it != nodes_.end() && it->first.starts_with(path + "/");) {
    it = nodes_.erase(it);
  }
  return *this;
}

TreeMaker& TreeMaker::Edit(const std::string& path, std::string content) {
  tree::Entry& entry = nodes_.at(path);
  entry.size = content.size();
  entry.blocks = (content.size() + 511) / 512;
  entry.mtime_ns = entry.ctime_ns = now_++;
  contents_[entry.version()] = std::move(content);
  return *this;
}

tree::DirectoryPtr TreeMaker::MakeDirectory(const std::string& path) const {
  std::vector<tree::Entry> entries;
  std::map<std::string, tree::DirectoryPtr, std::less<>> children;
  const std::string prefix = path == "/" ? "/" : path + "/";
  for (auto it = nodes_.lower_bound(prefix); it != nodes_.end() && it->first.starts_with(prefix); ++it) {
    if (it->first.find('/', prefix.size()) != std::string::npos) continue;
    tree::Entry entry = it->second;
    if (entry.is_directory()) {
      const auto child = MakeDirectory(it->first);
      entry.child = child->digest();
      children[entry.name] = child;
    }
    entries.push_back(std::move(entry));
  }
  return tree::Directory::Make(std::move(entries), [&](std::string_view name) -> tree::DirectoryPtr {
    const auto it = children.find(name);
    return it == children.end() ? nullptr : it->second;
  });
}

tree::TreePtr TreeMaker::Make() const {
  tree::Entry root;
  root.mode = S_IFDIR | 0755;
  root.dev = 5;
  root.ino = 2;
  root.nlink = 0;
  root.mtime_ns = 1'600'000'000'000'000'000;
  const tree::DirectoryPtr directory = MakeDirectory("/");
  root.child = directory->digest();
  return tree::AssembleTree(std::move(root), directory);
}

// ---------------------------------------------------------------------------------------------------------------------

FakeSource::FakeSource() : thread_([this] { Run(); }) {}

FakeSource::~FakeSource() {
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void FakeSource::Index(const tree::DirectoryPtr& directory) {
  if (!directories_.emplace(directory->digest(), directory).second) return;
  for (size_t i = 0; i < directory->size(); ++i) {
    if (const auto child = directory->Child(i)) Index(child);
  }
}

void FakeSource::Add(const tree::TreePtr& snapshot) {
  MutexLock lock(mutex_);
  roots_[snapshot->id] = snapshot->root;
  Index(snapshot->directory);
}

Digest FakeSource::Add(const TreeMaker& maker) {
  const auto snapshot = maker.Make();
  Add(snapshot);
  MutexLock lock(mutex_);
  for (const auto& [version, content] : maker.contents()) contents_[version] = content;
  return snapshot->id;
}

void FakeSource::SetReader(Reader reader) {
  MutexLock lock(mutex_);
  reader_ = std::move(reader);
}

void FakeSource::Hold(bool on) {
  MutexLock lock(mutex_);
  hold_ = on;
  released_ = 0;
  changed_.notify_all();
}

void FakeSource::Release(size_t n) {
  MutexLock lock(mutex_);
  released_ = n == SIZE_MAX ? queue_.size() : released_ + n;
  changed_.notify_all();
}

bool FakeSource::WaitHeld(size_t n, int timeout_ms) {
  MutexLock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] { return queue_.size() >= n; });
}

void FakeSource::FailWith(std::function<std::optional<Error>(const Asked&)> fail) {
  MutexLock lock(mutex_);
  fail_ = std::move(fail);
}

void FakeSource::Tamper(std::function<void(FetchedRange*)> tamper) {
  MutexLock lock(mutex_);
  tamper_ = std::move(tamper);
}

void FakeSource::TellIds(bool on) {
  MutexLock lock(mutex_);
  tell_ids_ = on;
}

void FakeSource::DelayMicros(int64_t micros) {
  MutexLock lock(mutex_);
  delay_micros_ = micros;
}

void FakeSource::AnswerInline(bool on) {
  MutexLock lock(mutex_);
  inline_ = on;
}

std::vector<FakeSource::Asked> FakeSource::asked() {
  MutexLock lock(mutex_);
  return asked_;
}

size_t FakeSource::CountAsked(char what) {
  MutexLock lock(mutex_);
  return static_cast<size_t>(
      std::count_if(asked_.begin(), asked_.end(), [&](const Asked& a) { return a.what == what; }));
}

void FakeSource::ClearAsked() {
  MutexLock lock(mutex_);
  asked_.clear();
}

void FakeSource::Queue(const Asked& asked, std::function<void()> answer) {
  {
    MutexLock lock(mutex_);
    asked_.push_back(asked);
    if (!inline_) {
      queue_.push_back(std::move(answer));
      changed_.notify_all();
      return;
    }
  }
  answer();
}

void FakeSource::Run() {
  MutexLock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopped_ || (!queue_.empty() && (!hold_ || released_ > 0)); });
    if (stopped_) return;
    auto answer = std::move(queue_.front());
    queue_.pop_front();
    if (hold_) --released_;
    const int64_t delay = delay_micros_;
    if (delay > 0) changed_.wait_for(lock, std::chrono::microseconds(delay), [this] { return stopped_; });
    lock.unlock();
    answer();
    answer = nullptr;
    lock.lock();
  }
}

std::optional<Error> FakeSource::Failure(const Asked& asked) {
  std::function<std::optional<Error>(const Asked&)> fail;
  {
    MutexLock lock(mutex_);
    fail = fail_;
  }
  return fail ? fail(asked) : std::nullopt;
}

void FakeSource::FetchRoot(const Digest& tree, std::function<void(Result<tree::Entry>)> done) {
  const Asked asked{'r', "/"};
  Queue(asked, [this, asked, tree, done = std::move(done)] {
    if (auto error = Failure(asked)) return done(*std::move(error));
    std::optional<tree::Entry> entry;
    {
      MutexLock lock(mutex_);
      if (const auto it = roots_.find(tree); it != roots_.end()) entry = it->second;
    }
    if (entry) {
      done(*std::move(entry));
    } else {
      done(Error(Code::kNotFound, "no such tree"));
    }
  });
}

void FakeSource::FetchDirectory(const Digest&, const std::string& path, const Digest& digest,
                                std::function<void(Result<FetchedDirectory>)> done) {
  const Asked asked{'d', path};
  Queue(asked, [this, asked, digest, done = std::move(done)] {
    if (auto error = Failure(asked)) return done(*std::move(error));
    FetchedDirectory answer;
    {
      MutexLock lock(mutex_);
      const auto it = directories_.find(digest);
      if (it != directories_.end()) {
        // As it arrives over the wire: without its children.
        answer.directory = *tree::Directory::Parse(std::string(it->second->encoded()));
        for (uint32_t i = 0; tell_ids_ && i < answer.directory->size(); ++i) {
          const tree::Entry entry = answer.directory->At(i);
          const auto content = contents_.find(entry.version());
          if (entry.is_regular() && content != contents_.end())
            answer.known_ids.emplace_back(i, store::FinalId(content->second));
        }
      }
    }
    if (answer.directory) {
      done(std::move(answer));
    } else {
      done(Error(Code::kAborted, "the directory has changed"));
    }
  });
}

void FakeSource::SetResident(const std::string& path, std::vector<ResidentFile> files) {
  MutexLock lock(mutex_);
  resident_[path] = std::move(files);
}

void FakeSource::FetchResident(const Digest&, const std::string& path, const tree::FileVersion&, bool siblings,
                               std::function<void(Result<std::vector<ResidentFile>>)> done) {
  std::optional<std::vector<ResidentFile>> files;
  {
    MutexLock lock(mutex_);
    if (const auto it = resident_.find(path); it != resident_.end()) files = it->second;
  }
  if (!files) return done(Error(Code::kUnsupported, "no hints"));
  Queue({'e', path, siblings ? uint64_t{1} : 0, 0},
        [files = *std::move(files), done = std::move(done)] { done(files); });
}

void FakeSource::SetTrace(TraceTable table) {
  MutexLock lock(mutex_);
  trace_ = std::move(table);
}

void FakeSource::DenyTrace(int times) {
  MutexLock lock(mutex_);
  trace_denials_ = times;
}

void FakeSource::FetchTrace(const RunId&, const std::vector<Digest>& have,
                            std::function<void(Result<TraceTable>)> done) {
  std::optional<TraceTable> table;
  bool denied;
  {
    MutexLock lock(mutex_);
    table = trace_;
    denied = trace_denials_ > 0 && trace_denials_-- > 0;
  }
  if (denied) return done(Error(Code::kDenied, "no run of this node"));
  if (!table) return done(Error(Code::kUnsupported, "no traces"));
  if (std::find(have.begin(), have.end(), table->id) != have.end()) table->frames.clear();
  Queue({'t', "", have.size(), 0}, [table = *std::move(table), done = std::move(done)] { done(table); });
}

void FakeSource::FetchFrames(const RunId&, std::shared_ptr<const TraceTable> table, std::vector<uint32_t> frames,
                             std::function<void(const TraceFrame&)> arrived, std::function<void(Status)> done) {
  for (size_t i = 0; i < frames.size(); ++i) {
    const Asked asked{'p', "", frames[i], 0};
    Queue(asked, [this, asked, table, arrived, done, last = i + 1 == frames.size()] {
      if (auto error = Failure(asked)) {
        if (last) done(*std::move(error));
        return;
      }
      TraceFrame frame;
      frame.index = static_cast<uint32_t>(asked.offset);
      {
        MutexLock lock(mutex_);
        for (const TraceRange& range : table->frames[frame.index]) {
          const auto& file = table->files[range.file];
          const auto known = contents_.find(file.version);
          const std::string content =
              known != contents_.end() ? known->second : *reader_(file.path, file.version, 0, file.version.size);
          for (uint64_t unit = range.first; unit < range.first + range.count; ++unit) {
            const std::string data =
                content.substr(unit * store::UnitBytes(content.size()), store::UnitBytes(content.size()));
            frame.digests.push_back(store::UnitDigest(data));
            frame.data += data;
          }
        }
      }
      arrived(frame);
      if (last) done({});
    });
  }
}

void FakeSource::FetchRange(const Digest&, const std::string& path, const tree::FileVersion& version, uint64_t offset,
                            uint64_t length, Urgency urgency, std::function<void(Result<FetchedRange>)> done) {
  const Asked asked{urgency == Urgency::kAhead ? 'a' : 'f', path, offset, length};
  Queue(asked, [this, asked, version, done = std::move(done)] {
    if (auto error = Failure(asked)) return done(*std::move(error));
    Reader reader;
    std::function<void(FetchedRange*)> tamper;
    Result<std::string> data = Error(Code::kAborted, "the file has changed");
    FetchedRange range;
    range.offset = asked.offset;
    {
      MutexLock lock(mutex_);
      tamper = tamper_;
      if (const auto it = contents_.find(version); it != contents_.end()) {
        data = it->second.substr(asked.offset, asked.length);
        if (tell_ids_) range.object_id = store::FinalId(it->second);
      } else {
        reader = reader_;
      }
    }
    if (reader) data = reader(asked.path, version, asked.offset, asked.length);
    if (!data) return done(std::move(data).error());
    const uint64_t unit = store::UnitBytes(version.size);
    for (uint64_t at = 0; at < data->size(); at += unit) {
      std::string piece = data->substr(at, unit);
      const Digest digest = store::UnitDigest(piece);
      range.units.push_back({digest, std::move(piece)});
    }
    if (tamper) tamper(&range);
    done(std::move(range));
  });
}

void FakeSource::Borrow(const Digest&, const std::string& path, const tree::FileVersion&, std::function<void()> done) {
  Queue({'b', path, 0, 0}, [done = std::move(done)] {
    if (done) done();
  });
}

std::string Noise(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string out((size + 7) / 8 * 8, '\0');
  for (size_t i = 0; i < out.size(); i += 8) {
    const uint64_t value = random();
    std::copy_n(reinterpret_cast<const char*>(&value), 8, out.data() + i);
  }
  out.resize(size);
  return out;
}

TestDirectory::TestDirectory() {
  const char* base = std::getenv("TMPDIR");
  std::string path = std::string(base != nullptr && *base != '\0' ? base : "/var/tmp") + "/vrun-vfs-XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) std::abort();
  path_ = path;
}

TestDirectory::~TestDirectory() { (void)RemoveTree(path_); }

}  // namespace vrun::vfs

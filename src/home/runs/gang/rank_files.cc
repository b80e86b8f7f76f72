// SPDX-License-Identifier: Apache-2.0
#include "home/runs/gang/rank_files.h"

#include <algorithm>
#include <utility>

#include "base/escape.h"
#include "base/files.h"
#include "home/runs/gang/merged_streams.h"
#include "home/runs/gang/rank_streams.h"

namespace vrun::home {

RankFiles::RankFiles(EventLoop* loop, const RunFiles* run_files, uint64_t job, DetachedFiles files, Events events)
    : loop_(loop), run_files_(run_files), job_(job), files_(std::move(files)), events_(std::move(events)) {}

RankFiles::~RankFiles() {
  *alive_ = false;
  worker_.Drain();
}

void RankFiles::BeginAttempt(const std::vector<std::string>& nodes, uint32_t ranks_per_pod, bool fresh) {
  ranks_ = ranks_per_pod;
  ++generation_;
  streams_.clear();
  opened_.clear();
  fresh_ = fresh;
  Open(nodes);
}

void RankFiles::AddPods(const std::vector<std::string>& nodes) { Open(nodes); }

void RankFiles::Open(const std::vector<std::string>& nodes) {
  const size_t first = streams_.size();
  streams_.resize(first + nodes.size() * ranks_ * 2);
  for (size_t i = first; i < streams_.size(); ++i) {
    const uint32_t rank = static_cast<uint32_t>(i / 2);
    const RankNames names{rank, rank / ranks_, nodes[(i - first) / 2 / ranks_]};
    std::string path = run_files_->RankPath(job_, files_, names, i % 2 == 1);
    std::shared_ptr<UniqueFd>& fd = opened_[path];
    if (!fd) {
      fd = std::make_shared<UniqueFd>();
      worker_.Post([this, fd, path, fresh = fresh_ && !files_.append] {
        auto file = run_files_->OpenOutput(path, fresh);
        if (file) {
          *fd = std::move(*file);
        } else {
          TellFailure(file.error().message());
        }
      });
    }
    streams_[i].fd = fd;
  }
}

// On the worker.
void RankFiles::TellFailure(const std::string& text) {
  loop_->Post([this, alive = alive_, text] {
    if (!*alive || std::exchange(told_, true)) return;
    events_.on_notice(text + ": the output is in `vctl logs " + std::to_string(job_) + "` only");
  });
}

void RankFiles::Repeat() {
  ++generation_;
  for (Stream& stream : streams_) {
    stream.fresh = true;
    stream.held.clear();
  }
}

RankFiles::Stream* RankFiles::Find(uint32_t pod, v1::StreamId stream) {
  const RankOfStream of = SplitRankStream(stream);
  const size_t i = (pod * ranks_ + std::min(of.rank, ranks_ - 1)) * 2 + (of.fd == v1::STDERR ? 1 : 0);
  return i < streams_.size() ? &streams_[i] : nullptr;
}

uint64_t RankFiles::Wanted(uint32_t pod, v1::StreamId id, uint64_t least) const {
  const Stream* stream = const_cast<RankFiles*>(this)->Find(pod, id);
  return stream == nullptr || stream->fresh ? least : stream->begin + stream->held.size();
}

void RankFiles::Add(uint32_t pod, v1::StreamId id, uint64_t offset, std::string data, bool eof) {
  Stream* stream = Find(pod, id);
  if (stream == nullptr) return;
  if (std::exchange(stream->fresh, false)) stream->begin = offset;
  const uint64_t end = stream->begin + stream->held.size();
  if (offset > end) stream->begin += offset - end;
  if (const uint64_t known = stream->begin + stream->held.size() - offset; known < data.size()) {
    stream->held.append(data, known);
  }
  size_t bytes = eof ? stream->held.size() : EndOfLines(stream->held);
  if (bytes == 0 && stream->held.size() >= MergedStreams::kLongestLine) bytes = stream->held.size();
  if (bytes > 0 || eof) {
    std::string lines = stream->held.substr(0, bytes);
    stream->held.erase(0, bytes);
    Write(pod, id, stream, std::move(lines), eof);
  }
}

void RankFiles::Write(uint32_t pod, v1::StreamId id, Stream* to, std::string data, bool eof) {
  const uint64_t offset = std::exchange(to->begin, to->begin + data.size());
  const size_t known = static_cast<size_t>(std::min<uint64_t>(std::max(to->written, offset) - offset, data.size()));
  to->written = std::max(to->written, to->begin);
  worker_.Post([this, alive = alive_, pod, id, fd = to->fd, offset, known, data = std::move(data), eof,
                generation = generation_]() mutable {
    if (fd->get() >= 0 && known < data.size()) {
      Status written = WriteAll(fd->get(), std::string_view(data).substr(known));
      if (!written) TellFailure(written.error().message());
    }
    loop_->Post([this, alive = std::move(alive), pod, id, offset, data = std::move(data), eof, generation]() mutable {
      if (*alive && generation == generation_) events_.on_written(pod, id, offset, std::move(data), eof);
    });
  });
}

}  // namespace vrun::home

// SPDX-License-Identifier: Apache-2.0
#include "home/runs/gang/merged_streams.h"

#include <algorithm>
#include <utility>

#include "home/runs/gang/rank_streams.h"

namespace vrun::home {
namespace {

constexpr size_t kSegmentBytes = 256u << 10;

}  // namespace

size_t EndOfLines(std::string_view text) {
  size_t end = text.find_last_of("\n\r");
  // The newline after a carriage return belongs to the same line end, and may not be here yet.
  if (end != text.npos && text[end] == '\r' && end + 1 == text.size()) {
    end = end == 0 ? text.npos : text.find_last_of("\n\r", end - 1);
  }
  return end == text.npos ? 0 : end + 1;
}

MergedStreams::MergedStreams(MergeJournal* journal, bool label, Events events)
    : journal_(journal), label_(label), events_(std::move(events)) {}

void MergedStreams::BeginAttempt(uint32_t attempt, uint32_t pods, uint32_t ranks_per_pod) {
  pods_ = pods;
  ranks_ = ranks_per_pod;
  if (journal_->attempt() != attempt) journal_->BeginAttempt(attempt);
  for (int err : {0, 1}) {
    streams_[err].sources.assign(pods * ranks_per_pod, Source());
    Reset(err);
  }
}

void MergedStreams::AddPods(uint32_t pods) {
  pods_ += pods;
  for (int err : {0, 1}) {
    std::vector<Source>& sources = streams_[err].sources;
    const size_t first = sources.size();
    sources.resize(pods_ * ranks_);
    for (size_t i = first; i < sources.size(); ++i) {
      sources[i].merged = sources[i].confirmed = journal_->confirmed(err, static_cast<uint32_t>(i));
    }
  }
}

// Everything that is not confirmed comes again.
void MergedStreams::Reset(int err) {
  Stream& stream = streams_[err];
  stream.sent = journal_->head(err);
  stream.blocked = false;
  for (uint32_t i = 0; i < stream.sources.size(); ++i) {
    Source& source = stream.sources[i];
    const bool gone = source.gone;
    source = Source();
    source.merged = source.confirmed = journal_->confirmed(err, i);
    source.gone = gone;
    source.ended = gone;
  }
}

uint32_t MergedStreams::SourceOf(uint32_t pod, v1::StreamId stream) const {
  return pod * ranks_ + std::min(SplitRankStream(stream).rank, ranks_ - 1);
}

uint64_t MergedStreams::Wanted(uint32_t pod, v1::StreamId stream) const {
  const int err = SplitRankStream(stream).fd == v1::STDERR;
  const uint32_t source = SourceOf(pod, stream);
  return source < streams_[err].sources.size() ? streams_[err].sources[source].received() : 0;
}

bool MergedStreams::Ended(uint32_t pod, v1::StreamId stream) const {
  const int err = SplitRankStream(stream).fd == v1::STDERR;
  const uint32_t number = SourceOf(pod, stream);
  if (number >= streams_[err].sources.size()) return true;
  const Source& source = streams_[err].sources[number];
  return source.ended && source.confirmed >= source.received();
}

void MergedStreams::Add(uint32_t pod, v1::StreamId stream, uint64_t offset, std::string_view data, bool eof) {
  const int err = SplitRankStream(stream).fd == v1::STDERR;
  const uint32_t number = SourceOf(pod, stream);
  if (number >= streams_[err].sources.size()) return;
  Source& source = streams_[err].sources[number];
  if (offset > source.received()) {
    // After the loss of a journal: an earlier home has acknowledged what is missing. Lines around the gap are joined.
    source.merged = offset - source.held.size();
    if (source.fresh) source.confirmed = source.merged;
  }
  source.fresh = false;
  const uint64_t known = source.received() - offset;
  if (known < data.size()) source.held.append(data.substr(known));
  if (eof) source.ended = true;
  Work(err, number);
}

void MergedStreams::Drop(uint32_t pod) {
  for (int err : {0, 1}) {
    for (uint32_t i = pod * ranks_; i < (pod + 1) * ranks_ && i < streams_[err].sources.size(); ++i) {
      streams_[err].sources[i].ended = streams_[err].sources[i].gone = true;
    }
    Work(err, std::nullopt);
  }
}

// Not recursive: the reader may confirm, and so make room, while it is given something.
void MergedStreams::Work(int err, std::optional<uint32_t> source) {
  Stream& stream = streams_[err];
  if (!source || stream.blocked || stream.sent < journal_->tail(err)) stream.all = true;
  if (std::exchange(stream.busy, true)) {
    stream.all = true;
    return;
  }
  do {
    const bool all = std::exchange(stream.all, false);
    if (!RepeatSegments(err)) break;
    stream.blocked = false;
    if (all) {
      for (uint32_t i = 0; i < stream.sources.size() && !stream.blocked; ++i) stream.blocked = !MergeLines(err, i);
    } else {
      stream.blocked = !MergeLines(err, *source);
    }
  } while (stream.all);
  stream.busy = false;
}

// True: everything that was merged before is passed on.
bool MergedStreams::RepeatSegments(int err) {
  Stream& stream = streams_[err];
  while (stream.sent < journal_->tail(err)) {
    const MergeJournal::Segment segment = journal_->at(err, stream.sent);
    if (segment.source >= stream.sources.size()) {
      ++stream.sent;
      continue;
    }
    Source& source = stream.sources[segment.source];
    if (source.merged > segment.begin || source.received() < segment.begin + segment.bytes) {
      if (!source.gone) return false;
      // Lost with its pod: the reader sees a gap.
      ++stream.sent;
      continue;
    }
    PassOn(err, segment);
  }
  return true;
}

bool MergedStreams::MergeLines(int err, uint32_t number) {
  for (;;) {
    Source& source = streams_[err].sources[number];
    if (source.held.empty()) return true;
    const std::string_view window = std::string_view(source.held).substr(0, kSegmentBytes);
    size_t bytes = EndOfLines(window);
    if (bytes == 0 && (source.ended || source.held.size() >= kLongestLine)) bytes = window.size();
    // The rest of a stream that has ended is a line too.
    if (source.ended && bytes < window.size() && window.size() == source.held.size()) bytes = window.size();
    if (bytes == 0) return true;
    if (journal_->full(err)) return false;
    MergeJournal::Segment segment;
    segment.source = number;
    segment.bytes = static_cast<uint32_t>(bytes);
    segment.begin = source.merged;
    segment.merged_begin = journal_->end(err);
    segment.merged_end = segment.merged_begin + Rendered(number, window.substr(0, bytes)).size();
    journal_->Push(err, segment);
    PassOn(err, segment);
  }
}

void MergedStreams::PassOn(int err, const MergeJournal::Segment& segment) {
  Source& source = streams_[err].sources[segment.source];
  std::string text = Rendered(segment.source, std::string_view(source.held).substr(0, segment.bytes));
  source.held.erase(0, segment.bytes);
  source.merged += segment.bytes;
  ++streams_[err].sent;
  events_.on_merged(err == 1 ? v1::STDERR : v1::STDOUT, segment.merged_begin, std::move(text));
}

std::string MergedStreams::Rendered(uint32_t source, std::string_view text) const {
  if (!label_) return std::string(text);
  const std::string label = std::to_string(source) + ": ";
  std::string out;
  while (!text.empty()) {
    size_t end = text.find_first_of("\n\r");
    if (end != text.npos && text[end] == '\r' && end + 1 < text.size() && text[end + 1] == '\n') ++end;
    const bool whole = end != text.npos;
    out += label;
    out += text.substr(0, whole ? end + 1 : text.npos);
    if (!whole) out += '\n';
    text = whole ? text.substr(end + 1) : std::string_view();
  }
  return out;
}

void MergedStreams::Passed(v1::StreamId stream, uint64_t offset) {
  const int err = stream == v1::STDERR;
  Stream& s = streams_[err];
  std::vector<uint32_t> touched;
  while (journal_->head(err) < s.sent && journal_->at(err, journal_->head(err)).merged_end <= offset) {
    const uint32_t number = journal_->at(err, journal_->head(err)).source;
    journal_->Pop(err);
    if (number >= s.sources.size()) continue;
    s.sources[number].confirmed = std::max(s.sources[number].confirmed, journal_->confirmed(err, number));
    if (touched.empty() || touched.back() != number) touched.push_back(number);
  }
  std::sort(touched.begin(), touched.end());
  touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
  for (uint32_t number : touched) {
    events_.on_passed(number / ranks_, RankStream(number % ranks_, err == 1 ? v1::STDERR : v1::STDOUT),
                      s.sources[number].confirmed);
  }
  if (s.blocked) Work(err, std::nullopt);
}

void MergedStreams::Repeat(uint64_t stdout_offset, uint64_t stderr_offset) {
  for (int err : {0, 1}) {
    const uint64_t wanted = err == 1 ? stderr_offset : stdout_offset;
    if (journal_->tail(err) == 0) journal_->SetBase(err, wanted);
    // Also what is not passed on again yet: the new reader has it from elsewhere.
    streams_[err].sent = journal_->tail(err);
    Passed(err == 1 ? v1::STDERR : v1::STDOUT, wanted);
    Reset(err);
  }
}

}  // namespace vrun::home

// SPDX-License-Identifier: Apache-2.0
#include "cli/run/progress_line.h"

#include "base/files.h"
#include "cli/base/table.h"

namespace vrun::cli {
namespace {

// A run that starts at once shows nothing, because a line that flashes by is noise.
constexpr int64_t kBeforeFirstDraw = 200 * 1000;
constexpr int64_t kSilence = 2000 * 1000;
constexpr int64_t kBetweenLines = 10 * 1000 * 1000;

// The first `columns` characters of UTF-8 text.
std::string_view Cut(std::string_view text, size_t columns) {
  for (size_t i = 0, n = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) == 0x80) continue;
    if (n++ == columns) return text.substr(0, i);
  }
  return text;
}

}  // namespace

ProgressLineWriter::ProgressLineWriter(const Options& options, StreamProgress* shared, int64_t now_micros)
    : options_(options), shared_(shared), started_(now_micros) {}

void ProgressLineWriter::Update(const v1::Progress& progress) {
  std::string text = SafeLine(progress.text());
  if (text.empty()) return;
  if (text.find("›") != std::string::npos) {
    steps_.clear();  // the text from home has all steps
  } else if (!steps_.empty() && progress.state() == last_state_ && progress.state() == v1::PENDING) {
    steps_.back() = text;
  } else if (steps_.empty() || steps_.back() != text) {
    steps_.push_back(text);
  }
  last_state_ = progress.state();
  if (!steps_.empty()) {
    text.clear();
    for (const std::string& step : steps_) text += (text.empty() ? "" : " › ") + step;
  }
  text_ = std::move(text);
}

void ProgressLineWriter::Say(std::string text) {
  steps_.clear();
  text_ = std::move(text);
}

int64_t ProgressLineWriter::Tick(int64_t now) {
  if (options_.quiet || stopped_ || text_.empty()) return -1;
  if (options_.terminal) {
    if (now - started_ < kBeforeFirstDraw) return kBeforeFirstDraw - (now - started_);
    if (text_ != drawn_) Draw();
    return -1;
  }
  if (now - started_ < kSilence) return kSilence - (now - started_);
  if (text_ == printed_) return -1;
  if (printed_at_ != 0 && now - printed_at_ < kBetweenLines) return kBetweenLines - (now - printed_at_);
  printed_ = text_;
  printed_at_ = now;
  (void)WriteAll(options_.fd, "vrun: " + text_ + "\n");
  return -1;
}

void ProgressLineWriter::Draw() {
  if (shared_->line.load() == ProgressLine::kOutput) {
    stopped_ = true;
    return;
  }
  drawn_ = text_;
  std::string line = "\r" + std::string(Cut("vrun: " + text_, options_.columns - 1)) + "\x1b[K";
  (void)WriteAll(options_.fd, line);
  ProgressLine expected = ProgressLine::kNone;
  shared_->line.compare_exchange_strong(expected, ProgressLine::kDrawn);
  if (expected != ProgressLine::kOutput) return;
  // Output began while we drew, and home could not know of the line.
  (void)WriteAll(options_.fd, "\r\x1b[K");
  stopped_ = true;
}

void ProgressLineWriter::Erase() {
  ProgressLine expected = ProgressLine::kDrawn;
  if (shared_->line.compare_exchange_strong(expected, ProgressLine::kNone)) (void)WriteAll(options_.fd, "\r\x1b[K");
  drawn_.clear();
}

void ProgressLineWriter::Stop() {
  Erase();
  stopped_ = true;
}

void ProgressLineWriter::Print(std::string_view line, bool raw) {
  Erase();
  (void)WriteAll(options_.fd, std::string(line) + (raw ? "\r\n" : "\n"));
}

}  // namespace vrun::cli

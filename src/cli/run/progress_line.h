// SPDX-License-Identifier: Apache-2.0
// Shows on stderr what a run waits for: one updating line on a terminal, elsewhere whole lines after two seconds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/io/stream_progress.h"
#include "proto/local.pb.h"

namespace vrun::cli {

class ProgressLineWriter {
 public:
  struct Options {
    bool quiet = false;
    bool terminal = false;  // stderr is a terminal that understands "erase to the end of the line"
    size_t columns = 80;
    int fd = 2;
  };
  // `shared` tells home that a line is on the screen; it must outlive this.
  ProgressLineWriter(const Options& options, StreamProgress* shared, int64_t now_micros);

  void Update(const v1::Progress& progress);
  // Sets the text to show before home says anything, or instead of home's ("starting home").
  void Say(std::string text);
  // Draws what is due. Returns the microseconds until the next call is needed; -1: none.
  int64_t Tick(int64_t now_micros);
  // The command runs: stops drawing.
  void Stop();
  // Removes the line from the screen, if it is there.
  void Erase();
  // Prints a whole line that must not be lost. `raw`: the terminal is raw.
  void Print(std::string_view line, bool raw);

 private:
  void Draw();

  Options options_;
  StreamProgress* shared_;
  int64_t started_;
  std::string text_;  // text to show
  std::vector<std::string> steps_;
  v1::JobState last_state_ = v1::JOB_STATE_UNSPECIFIED;
  std::string drawn_;
  std::string printed_;
  int64_t printed_at_ = 0;
  bool stopped_ = false;
};

}  // namespace vrun::cli

// SPDX-License-Identifier: Apache-2.0
// The sink of one pod's run: passes everything on to the gang, with the pod's number.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "home/runs/gang/gang_run.h"

namespace vrun::home {

class GangRun::Pod : public JobRun::Sink {
 public:
  Pod(GangRun* gang, uint32_t number, uint32_t ranks) : gang_(gang), number_(number), ranks_(ranks) {}

  // Call first.
  void SetRun(std::unique_ptr<JobRun> run) { run_ = std::move(run); }
  JobRun* run() const { return run_.get(); }
  uint32_t number() const { return number_; }
  // None: it has not ended.
  const std::optional<Outcome>& outcome() const { return outcome_; }
  bool completing() const { return completing_ || outcome_; }
  void set_completing() { completing_ = true; }

  // The reader of the merged stream has everything below `offset` of this stream.
  void Passed(v1::StreamId stream, uint64_t offset);
  // The end of an output may have been passed on.
  void Progressed();
  // An earlier home has brought everything home.
  void SetEnded(const v1::ExitRecord& record);
  // The controller says that nothing more comes from it.
  void Abandon();

  // --- JobRun::Sink ---
  void OnProgress(v1::JobState state, const std::string& text, const std::string& node) override;
  void OnNotice(const std::string& text) override;
  void OnWriteNotice(const std::string& text) override;
  void OnStarted() override;
  void OnInputWanted(v1::StreamId stream, uint64_t offset) override;
  void OnInputAcked(v1::StreamId stream, uint64_t offset, bool closed, std::optional<uint64_t> taken) override;
  std::vector<v1::Descriptor> Descriptors() const override;
  void OnDisconnected() override;
  void OnOutput(v1::StreamId stream, uint64_t offset, std::string data, bool eof) override;
  uint64_t OutputWanted(v1::StreamId stream) override;
  bool OutputEnded(v1::StreamId stream) override;
  void OnReleasing(const Outcome& outcome) override;
  void OnEnded(const Outcome& outcome) override;

 private:
  GangRun* const gang_;
  const uint32_t number_;
  const uint32_t ranks_;
  std::unique_ptr<JobRun> run_;
  std::optional<Outcome> outcome_;
  bool completing_ = false;
};

}  // namespace vrun::home

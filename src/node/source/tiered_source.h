// SPDX-License-Identifier: Apache-2.0
// The order of sources for a tenant's content: the pool's S3 store for content that has a name and is there, else home.
// If the S3 store has not answered within S3Tier::patience, home is asked as well, and the first answer wins. Content
// from home is written to the S3 store in the background (s3_writer.h).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "node/s3/s3_tier.h"
#include "node/s3/s3_writer.h"
#include "vfs/content/source.h"
#include "vfs/timer_thread.h"

namespace vrun::node {

// Any thread. Owns none of them; all must outlive it, and home must have no pending callbacks when it is destroyed.
class TieredSource final : public vfs::Source {
 public:
  TieredSource(vfs::Source* home, S3Tier* tier, S3Writer* writer) : home_(home), tier_(tier), writer_(writer) {}

  void FetchRoot(const Digest& tree, std::function<void(Result<tree::Entry>)> done) override {
    home_->FetchRoot(tree, std::move(done));
  }
  void FetchDirectory(const Digest& tree, const std::string& path, const Digest& digest,
                      std::function<void(Result<vfs::FetchedDirectory>)> done) override {
    home_->FetchDirectory(tree, path, digest, std::move(done));
  }
  void FetchResident(const Digest& tree, const std::string& path, const tree::FileVersion& version, bool siblings,
                     std::function<void(Result<std::vector<vfs::ResidentFile>>)> done) override {
    home_->FetchResident(tree, path, version, siblings, std::move(done));
  }
  void FetchExtents(const Digest& tree, const std::string& path, const tree::FileVersion& version,
                    std::function<void(Result<vfs::Extents>)> done) override {
    home_->FetchExtents(tree, path, version, std::move(done));
  }
  void FetchTrace(const vfs::RunId& run, const std::vector<Digest>& have,
                  std::function<void(Result<vfs::TraceTable>)> done) override {
    home_->FetchTrace(run, have, std::move(done));
  }
  void FetchRange(const Digest& tree, const std::string& path, const tree::FileVersion& version, uint64_t offset,
                  uint64_t length, vfs::Urgency urgency, std::function<void(Result<vfs::FetchedRange>)> done) override;
  void FetchNamed(const store::ObjectId& id, const Digest& tree, const std::string& path,
                  const tree::FileVersion& version, uint64_t offset, uint64_t length, vfs::Urgency urgency,
                  std::function<void(Result<vfs::FetchedRange>)> done) override;
  void Borrow(const Digest& tree, const std::string& path, const tree::FileVersion& version,
              std::function<void()> done) override {
    home_->Borrow(tree, path, version, std::move(done));
  }
  // Each frame that is completely in the S3 store comes from there.
  void FetchFrames(const vfs::RunId& run, std::shared_ptr<const vfs::TraceTable> table, std::vector<uint32_t> frames,
                   std::function<void(const vfs::TraceFrame&)> arrived, std::function<void(Status)> done) override;

 private:
  class Range;
  class Frames;

  vfs::Source* const home_;
  S3Tier* const tier_;
  S3Writer* const writer_;
  vfs::TimerThread timer_;
};

}  // namespace vrun::node

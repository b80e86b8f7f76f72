// SPDX-License-Identifier: Apache-2.0
// All requests with one answer; the continuing ones are PeerWatch, TreeWatch and LiveStreams. Implemented in trees.cc,
// files.cc and traces.cc.
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "home/ahead/traces.h"
#include "home/root/tree_table.h"
#include "home/serve/peer_board.h"
#include "home/serve/requests/directories.h"
#include "home/serve/requests/request.h"
#include "home/serve/requests/unit_reader.h"

namespace vrun::home {

Result<v1::ContentReply> GetRoot(const TreeTable& trees, const v1::ContentRequest::GetRoot& get);
Result<v1::ContentReply> GetExtents(const ServedFiles& files, const v1::ContentRequest::GetExtents& get);
Result<v1::ContentReply> GetTrace(Traces& traces, const v1::ContentRequest::GetTrace& get);
Result<v1::ContentReply> PutTrace(Traces& traces, const v1::ContentRequest::PutTrace& put);

// Finds the directories that answer a request.
using FoundDirectories = Result<std::vector<tree::NewDirectory>>;
FoundDirectories FindDirectory(const TreeTable& trees, const v1::ContentRequest& request);
FoundDirectories FindTree(const TreeTable& trees, const v1::ContentRequest& request);

// GetDirectory and GetTree.
class GetDirectories : public Request {
 public:
  using Find = std::function<FoundDirectories(const TreeTable& trees, const v1::ContentRequest& request)>;
  GetDirectories(NodeStream* stream, v1::ContentRequest request, Urgency urgency, const TreeTable* trees,
                 const DigestCache* digests, Compressor* compressor, Find find)
      : Request(stream, std::move(request), urgency),
        trees_(trees),
        digests_(digests),
        compressor_(compressor),
        find_(std::move(find)) {}
  bool Step() override;

 private:
  const TreeTable* const trees_;
  const DigestCache* const digests_;
  Compressor* const compressor_;
  const Find find_;
  std::optional<Directories> directories_;
};

class GetRange : public Request {
 public:
  static constexpr uint64_t kMaxBytes = 64u << 20;

  GetRange(NodeStream* stream, v1::ContentRequest request, UnitReader* reader)
      : Request(stream, request, request.get_range().ahead() ? kAhead : kRanges), reader_(reader) {}
  bool Step() override;

 private:
  UnitReader* const reader_;
  uint64_t done_ = 0;  // bytes
};

class GetFrames : public Request {
 public:
  GetFrames(NodeStream* stream, v1::ContentRequest request, Traces* traces, const Signer* signer)
      : Request(stream, std::move(request), kAhead), traces_(traces), signer_(signer) {}
  bool Step() override;

 private:
  Traces* const traces_;
  const Signer* const signer_;
  int done_ = 0;  // frames
};

}  // namespace vrun::home

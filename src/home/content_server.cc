// SPDX-License-Identifier: Apache-2.0
#include "home/content_server.h"

#include "base/clock.h"
#include "home/content_session.h"

namespace vrun::home {

ContentServer::ContentServer(const SnapshotTable* trees, const ContentFiles* files, DigestCache* digests,
                             unsigned threads, const std::string& trace_directory, const std::string& home_id,
                             const std::string& peer_file)
    : trees_(trees),
      files_(files),
      digests_(digests),
      home_id_(home_id),
      hasher_(files,
              [digests](const tree::FileVersion& version, const store::ObjectId& id) {
                digests->Remember(version, id, WallMicros() * 1000);
                digests->Flush();  // the hasher runs when nothing else does
              }),
      traces_(trees, files, digests, trace_directory),
      peers_(peer_file),
      workers_("content", threads) {}

ContentServer::~ContentServer() { workers_.Stop(); }

std::shared_ptr<ContentSession> ContentServer::NewSession() { return std::make_shared<ContentSession>(this); }

}  // namespace vrun::home

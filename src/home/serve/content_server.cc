// SPDX-License-Identifier: Apache-2.0
#include "home/serve/content_server.h"

namespace vrun::home {

ContentServer::ContentServer(const TreeTable* trees, const ContentFiles* files, DigestCache* digests, unsigned threads,
                             const std::string& trace_directory, const std::string& home_id,
                             const std::string& peer_file)
    : trees_(trees),
      digests_(digests),
      ids_(files, digests),
      traces_(trees, files, digests, trace_directory),
      peers_(peer_file),
      signer_(&peers_, home_id),
      served_(trees, files, &lent_),
      workers_("content", threads) {}

ContentServer::~ContentServer() { workers_.Stop(); }

}  // namespace vrun::home

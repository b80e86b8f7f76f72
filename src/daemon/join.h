// SPDX-License-Identifier: Apache-2.0
// A machine joins a cluster: a one-time token becomes its certificate.
#pragma once

#include <string>

#include "base/result.h"
#include "node/agent/agent.h"

namespace vrun::daemon {

struct JoinOptions {
  std::string token;            // people/members.h; "": by an identity provider
  std::string directory;        // where ca.pem, NAME.pem, NAME.key and `joined` go
  std::string name;             // of this machine; "": its host name
  std::string role;             // "home" or "node"; "": whatever the token says
  std::string controller = {};  // without a token: people/address.h
};

// What a machine knows after it has joined: the lines of the file `joined`, NAME=VALUE.
struct Joined {
  std::string controller;  // HOST:PORT
  std::string role;        // "home" or "node"
  std::string name;        // as in the certificate
  std::string pool;        // of a node: the one that it must join; "": any
  std::string snapshots;   // HOST:PORT of the snapshot store; "": none
};

// Blocks for up to half a minute. The token is used up when this succeeds.
Result<Joined> Join(const JoinOptions& options);
// Without a token: prints what the person has to do at the identity provider to stdout, and waits until he has done it.
Result<Joined> JoinByLogin(const JoinOptions& options);
Status SaveJoined(const std::string& directory, const Joined& joined);
// kNotFound: this directory is of no machine that has joined.
Result<Joined> ReadJoined(const std::string& directory);

// `vrund join`. Returns the exit status; prints errors to stderr.
int JoinMain(const JoinOptions& options);
// Joins unless this node did before, and fills in what is empty: controller, name, pool, directory of certificates,
// the address where it listens.
// Returns the exit status; prints errors to stderr.
int BecomeNode(const std::string& token, node::AgentOptions* options);

}  // namespace vrun::daemon

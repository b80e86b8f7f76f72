// SPDX-License-Identifier: Apache-2.0
// Where things lie on this machine, and the user's configuration file. Used by the command line and by the daemons.
//
//   $VRUN_DIR set:  configuration $VRUN_DIR/config.toml, state $VRUN_DIR/state, socket $VRUN_DIR/home.sock
//   else XDG:       ~/.config/vrun/config.toml, ~/.local/state/vrun, $XDG_RUNTIME_DIR/vrun/home.sock
//
// The socket must fit in 107 bytes. Where it does not, or there is no runtime directory of the user's own, it lies in
// /run/vrun-UID, or else in /tmp/vrun-UID.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "base/result.h"

namespace vrun {

struct Places {
  std::string config_dir;  // config.toml, pki/
  std::string config_file;
  std::string state_dir;  // logs, caches and journals of the user's daemons
  std::string log_dir;
  std::string pki_dir;  // the authority that `vctl up` made, and its certificates
  std::string socket_dir;
  std::string socket;  // of the home daemon
};

// Reads a variable of the environment; nullptr when it is not set.
using GetEnv = std::function<const char*(const char*)>;

// The places of this process's user. Creates nothing. kInvalid: neither VRUN_DIR nor HOME is a usable absolute path.
Result<Places> FindPlaces();
Result<Places> FindPlaces(const GetEnv& env, uid_t uid);

// Makes config_dir, state_dir, log_dir and socket_dir (0700). kDenied when the socket's directory is a symlink, belongs
// to somebody else or is open to others: whoever owns it could answer in home's place.
Status MakePlaces(const Places& places, uid_t uid);
// Only the check of the socket's directory; what a client does before it trusts a socket there. kNotFound: not there.
Status CheckSocketDirectory(const Places& places, uid_t uid);

struct Config {
  std::string controller;        // HOST:PORT to dial; "": there is no cluster yet
  std::string snapshots;         // HOST:PORT of the snapshot store; "": there is none
  std::string credentials;       // directory of ca.pem, NAME.pem and NAME.key
  std::string credentials_name;  // NAME
  std::string pool = "local";    // where a run goes that names none
  // Or "error": a job whose writes conflict with what home has changed meanwhile has failed. ("beside": what it wrote
  // lies beside home's, and it is told.)
  std::string conflicts = "beside";
  std::string view = "live";  // or "frozen": what a run sees that says neither (batch jobs: frozen)
  std::string root = "/";     // directory of this machine that the jobs see as "/"
  // Of the node that `vctl up` starts on this machine:
  std::string cache_size;      // bound of its content caches, as "20G"; "": a quarter of their file system
  std::string cache_min_free;  // they shrink while that has less free, as "5G" or "10%"; "": 1 GiB, at most a tenth
  std::string kept_size;       // bound of what jobs leave there with --writes=keep, as "50G"; "": 50G
  std::string kept_days;       // how long that stays; "": 14
  // Each "auto", "on" or "off"; "": auto. `vrund node --fuse NAME=off` says the same.
  std::string fuse_passthrough;
  std::string fuse_push;
  std::string fuse_readdirplus;
  std::string fuse_no_open;
  std::string fuse_cpu_latency;
  // Of the controller that `vctl up` starts on this machine: an S3 store that the nodes' caches share.
  std::string s3_bucket;       // "": none
  std::string s3_endpoint;     // http[s]://HOST[:PORT]; "": Amazon's
  std::string s3_region;       // "": us-east-1
  std::string s3_credentials;  // file with the keys, as ~/.aws/credentials, mode 0600; absolute
  std::string s3_ca;           // PEM file of the endpoint's authority; absolute; "": the system's
  std::string s3_style;        // "path" or "host"; "": path, but for Amazon
  std::string s3_snapshots;    // "on": it keeps named snapshots too, as their home; "off" or "": it does not
  // Of the snapshot store that `vctl up` starts on this machine, with s3_snapshots:
  std::string snapshots_size;  // what of an owner's snapshots stays on its disk, as "100G"; "": all
};

// kNotFound when there is no file: the caller says what to do (`vctl up`). kInvalid with "FILE:LINE: " in front for
// what does not parse, has the wrong type, or is not known.
Result<Config> ReadConfig(const std::string& file);
Result<Config> ParseConfig(std::string_view text, const std::string& file);
// The text of a file that ParseConfig reads back as `config`.
std::string FormatConfig(const Config& config);
// Replaces the file as a whole; mode 0600.
Status WriteConfig(const std::string& file, const Config& config);

// HOST:PORT or [V6]:PORT; kInvalid otherwise. Port 0 is refused unless allowed (a listener's "any").
struct HostPort {
  std::string host;
  int port = 0;
};
Result<HostPort> ParseHostPort(std::string_view text, bool allow_port_zero = false);

// For whoever reads TOML: the line of the first letter outside of ASCII that is in no quotes and no comment, 0: there
// is none. The parser must not see one.
size_t LineOfBareLetterOutsideAscii(std::string_view text);

}  // namespace vrun

// SPDX-License-Identifier: Apache-2.0
// The paths used on this machine, and the user's configuration file. For the command line and the daemons.
//
//   $VRUN_DIR set:  configuration $VRUN_DIR/config.toml, state $VRUN_DIR/state, socket $VRUN_DIR/home.sock
//   else XDG:       ~/.config/vrun/config.toml, ~/.local/state/vrun, $XDG_RUNTIME_DIR/vrun/home.sock
//
// The socket path must fit in 107 bytes. If it does not, or the user has no runtime directory, the socket is in
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
  std::string pki_dir;  // the authority created by `vctl up`, and its certificates
  std::string socket_dir;
  std::string socket;  // the home daemon's socket
};

// Reads an environment variable; nullptr when it is not set.
using GetEnv = std::function<const char*(const char*)>;

// The paths of this process's user. Creates nothing. kInvalid: neither VRUN_DIR nor HOME is a usable absolute path.
Result<Places> FindPlaces();
Result<Places> FindPlaces(const GetEnv& env, uid_t uid);

// Creates config_dir, state_dir, log_dir and socket_dir (0700). kDenied when the socket's directory is a symlink,
// belongs to another user or is accessible to others: its owner could impersonate home.
Status MakePlaces(const Places& places, uid_t uid);
// Only checks the socket's directory; a client does so before it trusts a socket there. kNotFound: not there.
Status CheckSocketDirectory(const Places& places, uid_t uid);

struct Config {
  std::string controller;        // HOST:PORT to connect to, or several (CheckControllers); "": no cluster yet
  std::string snapshots;         // HOST:PORT of the snapshot store; "": none
  std::string credentials;       // directory of ca.pem, NAME.pem and NAME.key
  std::string credentials_name;  // NAME
  std::string pool = "local";    // default pool of a run
  // Or "error": a job whose writes conflict with home's changes fails. ("beside": its version is stored beside home's,
  // and the user is told.)
  std::string conflicts = "beside";
  // What jobs may give files at home: "plain": no setuid, setgid and file capabilities; "own": nor other owners than
  // this user; "any": all that this user may. Read when home starts.
  std::string job_writes = "plain";
  std::string view = "live";  // or "frozen": default view of a run (batch jobs: frozen)
  std::string away;           // "on": `vbatch` submits away jobs unless told otherwise; "off" or "": it does not
  std::string home_metrics;   // HOST:PORT where Prometheus reads home's figures; "": nowhere
  std::string root = "/";     // directory of this machine that the jobs see as "/"
  // For the node that `vctl up` starts on this machine:
  std::string cache_size;  // limit of its content caches, like "20G"; "": a quarter of their file system
  // they shrink while their file system has less free, like "5G" or "10%"; "": 1 GiB, at most a tenth
  std::string cache_min_free;
  std::string kept_size;     // limit of writes kept with --writes=keep, like "50G"; "": 50G
  std::string kept_days;     // how many days they stay; "": 14
  std::string node_metrics;  // HOST:PORT where Prometheus reads its figures; "": nowhere
  // For all daemons on this machine: traces of jobs, for a collector of OpenTelemetry (telemetry/settings.h).
  std::string traces_endpoint;  // as in CheckCollector; "": nowhere, unless the environment says so
  std::string traces_headers;   // file of headers for it, mode 0600; absolute; "": none
  std::string traces_ratio;     // part of the jobs that are traced, like "0.1"; "": all
  // Each "auto", "on" or "off"; "": auto. Same as `vrund node --fuse NAME=off`.
  std::string fuse_passthrough;
  std::string fuse_push;
  std::string fuse_readdirplus;
  std::string fuse_no_open;
  std::string fuse_cpu_latency;
  // For the controller that `vctl up` starts on this machine: an S3 store shared by the nodes' caches.
  std::string s3_bucket;       // "": none
  std::string s3_endpoint;     // http[s]://HOST[:PORT]; "": Amazon's
  std::string s3_region;       // "": us-east-1
  std::string s3_credentials;  // file with the keys, as ~/.aws/credentials, mode 0600; absolute
  std::string s3_ca;           // PEM file of the endpoint's certificate authority; absolute; "": the system's
  std::string s3_style;        // "path" or "host"; "": path, except for Amazon
  std::string s3_snapshots;    // "on": it also holds named snapshots; "off" or "": it does not
  // For the snapshot store that `vctl up` starts on this machine, with s3_snapshots:
  std::string snapshots_size;  // how much of an owner's snapshots stays on its disk, like "100G"; "": all
};

// kNotFound when there is no file: the caller says what to do (`vctl up`). kInvalid, starting with "FILE:LINE: ", for a
// syntax error, a wrong type or an unknown name.
Result<Config> ReadConfig(const std::string& file);
Result<Config> ParseConfig(std::string_view text, const std::string& file);
// Formats `config` so that ParseConfig reads it back.
std::string FormatConfig(const Config& config);
// Replaces the whole file; mode 0600.
Status WriteConfig(const std::string& file, const Config& config);

// HOST:PORT or [V6]:PORT; kInvalid otherwise. Port 0 (a listener's "any") must be allowed explicitly.
struct HostPort {
  std::string host;
  int port = 0;
};
Result<HostPort> ParseHostPort(std::string_view text, bool allow_port_zero = false);

// One HOST:PORT, or several with commas between, of an active controller and those that stand by. Each of several is a
// numeric IPv4 address.
Status CheckControllers(std::string_view text);

// http[s]://HOST[:PORT][/PATH] of a collector of OpenTelemetry, in ASCII, as libcurl is to call it. kInvalid says what
// else is in it, and never repeats what may be a secret: a password, a query.
Status CheckCollector(std::string_view url);
// "0.25". kInvalid unless 0 to 1.
Result<double> ParseRatio(std::string_view text);

// The line of the first non-ASCII letter outside quotes and comments; 0: none. The TOML parser must not see one.
size_t LineOfBareLetterOutsideAscii(std::string_view text);

}  // namespace vrun

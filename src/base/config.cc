// SPDX-License-Identifier: Apache-2.0
#include "base/config.h"

#include <arpa/inet.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "base/escape.h"
#include "base/files.h"

// Values or parse errors, no exceptions; nothing that prints.
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#define TOML_ENABLE_UNRELEASED_FEATURES 0
// Some of its assertions fail for input that it refuses a line later ("[#"). Without NDEBUG they would abort the
// process; with it, the compiler assumes them.
#pragma push_macro("NDEBUG")
#undef NDEBUG
#define TOML_ASSERT(expr) static_cast<void>(0)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#include <toml++/toml.h>
#pragma GCC diagnostic pop
#pragma pop_macro("NDEBUG")

namespace vrun {
namespace {

constexpr size_t kMaxSocketPath = sizeof(sockaddr_un{}.sun_path) - 1;
constexpr size_t kMaxConfigBytes = 1u << 20;

std::string Variable(const GetEnv& env, const char* name) {
  const char* value = env(name);
  return value == nullptr ? "" : value;
}

std::string WithoutFinalSlashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// An XDG variable counts only when it is absolute (the specification says to ignore others).
std::string XdgDirectory(const GetEnv& env, const char* name, const std::string& otherwise) {
  std::string value = Variable(env, name);
  return !value.empty() && value[0] == '/' ? WithoutFinalSlashes(value) : otherwise;
}

// Names a directory in a short path, so that two VRUN_DIRs do not share a socket.
std::string ShortName(std::string_view text) {
  uint64_t h = 14695981039346656037u;  // FNV-1a
  for (char c : text) h = (h ^ static_cast<unsigned char>(c)) * 1099511628211u;
  char buffer[17];
  std::snprintf(buffer, sizeof buffer, "%016llx", static_cast<unsigned long long>(h));
  return buffer;
}

bool IsOwnDirectory(const std::string& path, uid_t uid) {
  struct stat st;
  return ::lstat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == uid && (st.st_mode & 077) == 0;
}

// The same result for every process of the user, whatever its environment. Only root writes to /run, so this directory
// exists only for users for whom root created it.
std::string ShortDirectory(uid_t uid) {
  std::string name = "vrun-" + std::to_string(uid);
  std::string in_run = "/run/" + name;
  if (uid == 0 || IsOwnDirectory(in_run, uid)) return in_run;
  return "/tmp/" + name;
}

void ChooseSocket(std::string wanted_dir, std::string_view distinct, uid_t uid, Places* p) {
  if (wanted_dir.empty() || (wanted_dir + "/home.sock").size() > kMaxSocketPath) {
    wanted_dir = ShortDirectory(uid);
    if (!distinct.empty()) wanted_dir += "/" + ShortName(distinct);
  }
  p->socket_dir = std::move(wanted_dir);
  p->socket = p->socket_dir + "/home.sock";
}

Status CheckPrivateDirectory(const std::string& path, uid_t uid) {
  struct stat st;
  if (::lstat(path.c_str(), &st) != 0) return ErrnoError("socket directory " + Escape(path));
  std::string what = "socket directory " + Escape(path) + ": ";
  if (!S_ISDIR(st.st_mode)) return Error(Code::kDenied, what + "not a directory: remove it");
  if (st.st_uid != uid) {
    return Error(Code::kDenied, what + "belongs to user " + std::to_string(st.st_uid) +
                                    ": remove it, or set VRUN_DIR to a directory of your own");
  }
  if ((st.st_mode & 022) != 0) {
    return Error(Code::kDenied, what + "others may write there: chmod 700 it");
  }
  return {};
}

Error At(const std::string& file, const toml::source_position& where, const std::string& text) {
  return Error(Code::kInvalid, Escape(file) + ":" + std::to_string(where.line) + ": " + text);
}

}  // namespace

Result<Places> FindPlaces() {
  return FindPlaces([](const char* name) -> const char* { return std::getenv(name); }, ::geteuid());
}

Result<Places> FindPlaces(const GetEnv& env, uid_t uid) {
  Places p;
  std::string own = WithoutFinalSlashes(Variable(env, "VRUN_DIR"));
  if (!own.empty()) {
    if (own[0] != '/') {
      return Error(Code::kInvalid, "VRUN_DIR=" + Escape(own) + ": not an absolute path: start it with /");
    }
    p.config_dir = own;
    p.state_dir = own + "/state";
    ChooseSocket(own, own, uid, &p);
  } else {
    std::string home = WithoutFinalSlashes(Variable(env, "HOME"));
    if (home.empty() || home[0] != '/') {
      return Error(Code::kInvalid, "configuration: HOME is not set to an absolute path: set HOME or VRUN_DIR");
    }
    p.config_dir = XdgDirectory(env, "XDG_CONFIG_HOME", home + "/.config") + "/vrun";
    p.state_dir = XdgDirectory(env, "XDG_STATE_HOME", home + "/.local/state") + "/vrun";
    // A shell without a session (cron, su) must find the home daemon of a session: tries systemd's directory by name.
    std::string runtime = XdgDirectory(env, "XDG_RUNTIME_DIR", "/run/user/" + std::to_string(uid));
    ChooseSocket(IsOwnDirectory(runtime, uid) ? runtime + "/vrun" : "", "", uid, &p);
  }
  p.config_file = p.config_dir + "/config.toml";
  p.log_dir = p.state_dir + "/log";
  p.pki_dir = p.config_dir + "/pki";
  return p;
}

Status MakePlaces(const Places& p, uid_t uid) {
  for (const std::string* dir : {&p.config_dir, &p.state_dir, &p.log_dir, &p.socket_dir}) {
    VRUN_TRY(MakeDirs(*dir, 0700));
  }
  return CheckSocketDirectory(p, uid);
}

Status CheckSocketDirectory(const Places& p, uid_t uid) {
  VRUN_TRY(CheckPrivateDirectory(p.socket_dir, uid));
  // Below /tmp the parent must belong to the user too: its owner could replace the directory.
  size_t slash = p.socket_dir.rfind('/');
  if (p.socket_dir.starts_with("/tmp/vrun-") && slash > 4) {
    return CheckPrivateDirectory(p.socket_dir.substr(0, slash), uid);
  }
  return {};
}

Result<Config> ReadConfig(const std::string& file) {
  auto text = ReadFile(file, kMaxConfigBytes);
  if (!text) return std::move(text).error().With("configuration");
  return ParseConfig(*text, file);
}

namespace {

// The position of the first non-ASCII letter outside quotes and comments. In toml++ 3.3 such a letter in a bare key
// reaches an "unreachable", and no key of ours contains one.
std::optional<toml::source_position> BareLetterOutsideAscii(std::string_view text) {
  toml::source_position at{1, 1};
  char quote = 0;
  bool comment = false;
  for (size_t i = 0; i < text.size(); ++i, ++at.column) {
    const char c = text[i];
    if (c == '\n') {
      at = {at.line + 1, 0};
      quote = 0;  // multi-line strings are not supported
      comment = false;
    } else if (comment) {
      continue;
    } else if (quote != 0) {
      if (c == '\\' && quote == '"') {
        ++i;
        ++at.column;
      } else if (c == quote) {
        quote = 0;
      }
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '#') {
      comment = true;
    } else if (static_cast<unsigned char>(c) >= 0x80) {
      return at;
    }
  }
  return std::nullopt;
}

}  // namespace

size_t LineOfBareLetterOutsideAscii(std::string_view text) {
  const auto at = BareLetterOutsideAscii(text);
  return at ? at->line : 0;
}

Result<Config> ParseConfig(std::string_view text, const std::string& file) {
  if (const auto at = BareLetterOutsideAscii(text)) {
    return At(file, *at, "a letter outside of ASCII: put the text in quotes");
  }
  toml::parse_result parsed = toml::parse(text);
  if (!parsed) {
    const toml::parse_error& e = parsed.error();
    return At(file, e.source().begin, Escape(e.description()));
  }
  Config config;
  struct Field {
    std::string_view name;
    std::string* value;
  };
  const Field fields[] = {{"controller", &config.controller},
                          {"snapshots", &config.snapshots},
                          {"credentials", &config.credentials},
                          {"credentials_name", &config.credentials_name},
                          {"pool", &config.pool},
                          {"view", &config.view},
                          {"conflicts", &config.conflicts},
                          {"job_writes", &config.job_writes},
                          {"away", &config.away},
                          {"home_metrics", &config.home_metrics},
                          {"root", &config.root},
                          {"cache_size", &config.cache_size},
                          {"cache_min_free", &config.cache_min_free},
                          {"kept_size", &config.kept_size},
                          {"kept_days", &config.kept_days},
                          {"node_metrics", &config.node_metrics},
                          {"traces_endpoint", &config.traces_endpoint},
                          {"traces_headers", &config.traces_headers},
                          {"traces_ratio", &config.traces_ratio},
                          {"fuse_passthrough", &config.fuse_passthrough},
                          {"fuse_push", &config.fuse_push},
                          {"fuse_readdirplus", &config.fuse_readdirplus},
                          {"fuse_no_open", &config.fuse_no_open},
                          {"fuse_cpu_latency", &config.fuse_cpu_latency},
                          {"s3_bucket", &config.s3_bucket},
                          {"s3_endpoint", &config.s3_endpoint},
                          {"s3_region", &config.s3_region},
                          {"s3_credentials", &config.s3_credentials},
                          {"s3_ca", &config.s3_ca},
                          {"s3_style", &config.s3_style},
                          {"s3_snapshots", &config.s3_snapshots},
                          {"snapshots_size", &config.snapshots_size}};
  const toml::table& table = parsed.table();
  for (auto&& [key, node] : table) {
    const Field* known = nullptr;
    for (const Field& f : fields) {
      if (f.name == key.str()) known = &f;
    }
    if (known == nullptr) {
      std::string names;
      for (const Field& f : fields) names += (names.empty() ? "" : ", ") + std::string(f.name);
      return At(file, key.source().begin, "unknown setting " + Escape(key.str()) + ": known are " + names);
    }
    auto value = node.value_exact<std::string>();
    if (!value) return At(file, node.source().begin, std::string(known->name) + ": must be a string in quotes");
    if (value->find('\0') != std::string::npos) {
      return At(file, node.source().begin, std::string(known->name) + ": must not hold a zero byte");
    }
    *known->value = *std::move(value);
  }
  auto where = [&](std::string_view name) {
    const toml::node* node = table.get(name);
    return node == nullptr ? toml::source_position{1, 1} : node->source().begin;
  };
  for (const Field& field : fields) {
    const std::string& value = *field.value;
    if (!field.name.starts_with("fuse_") || value.empty() || value == "auto" || value == "on" || value == "off")
      continue;
    return At(file, where(field.name), std::string(field.name) + ": must be \"auto\", \"on\" or \"off\"");
  }
  if (!config.controller.empty()) {
    Status address = CheckControllers(config.controller);
    if (!address) return At(file, where("controller"), "controller: " + address.error().message());
  }
  if (!config.snapshots.empty()) {
    auto address = ParseHostPort(config.snapshots);
    if (!address) return At(file, where("snapshots"), "snapshots: " + address.error().message());
  }
  for (const auto& [name, value] :
       {std::pair("home_metrics", &config.home_metrics), {"node_metrics", &config.node_metrics}}) {
    if (value->empty()) continue;
    auto address = ParseHostPort(*value);
    if (!address) return At(file, where(name), std::string(name) + ": " + address.error().message());
  }
  if (!config.traces_endpoint.empty()) {
    Status address = CheckCollector(config.traces_endpoint);
    if (!address) return At(file, where("traces_endpoint"), "traces_endpoint: " + address.error().message());
  }
  if (!config.traces_ratio.empty()) {
    auto ratio = ParseRatio(config.traces_ratio);
    if (!ratio) return At(file, where("traces_ratio"), "traces_ratio: " + ratio.error().message());
  }
  for (std::string* path : {&config.root, &config.credentials}) {
    std::string_view name = path == &config.root ? "root" : "credentials";
    if (path == &config.credentials && path->empty()) continue;
    if (path->empty() || path->front() != '/') {
      return At(file, where(name), std::string(name) + ": not an absolute path: start it with /");
    }
    *path = WithoutFinalSlashes(std::move(*path));
  }
  for (const auto& [name, path] : {std::pair("s3_credentials", &config.s3_credentials),
                                   {"s3_ca", &config.s3_ca},
                                   {"traces_headers", &config.traces_headers}}) {
    if (!path->empty() && path->front() != '/') {
      return At(file, where(name), std::string(name) + ": not an absolute path: start it with /");
    }
  }
  if (!config.s3_bucket.empty() && config.s3_credentials.empty()) {
    return At(file, where("s3_bucket"), "s3_bucket: without s3_credentials: name the file with its keys");
  }
  if (!config.s3_style.empty() && config.s3_style != "path" && config.s3_style != "host") {
    return At(file, where("s3_style"), "s3_style: must be \"path\" or \"host\"");
  }
  if (!config.s3_snapshots.empty() && config.s3_snapshots != "on" && config.s3_snapshots != "off") {
    return At(file, where("s3_snapshots"), "s3_snapshots: must be \"on\" or \"off\"");
  }
  if (config.s3_snapshots == "on" && config.s3_bucket.empty()) {
    return At(file, where("s3_snapshots"), "s3_snapshots: without s3_bucket: name the bucket");
  }
  if (!config.snapshots_size.empty() && config.s3_snapshots != "on") {
    return At(file, where("snapshots_size"),
              "snapshots_size: without s3_snapshots = \"on\" nothing else has what the disk would lose");
  }
  if (config.view != "live" && config.view != "frozen") {
    return At(file, where("view"), "view: must be \"live\" or \"frozen\"");
  }
  if (config.job_writes != "plain" && config.job_writes != "own" && config.job_writes != "any") {
    return At(file, where("job_writes"), "job_writes: must be \"plain\", \"own\" or \"any\"");
  }
  if (config.conflicts != "beside" && config.conflicts != "error") {
    return At(file, where("conflicts"), "conflicts: must be \"beside\" or \"error\"");
  }
  if (!config.away.empty() && config.away != "on" && config.away != "off") {
    return At(file, where("away"), "away: must be \"on\" or \"off\"");
  }
  if (config.pool.empty()) return At(file, where("pool"), "pool: must not be empty");
  return config;
}

std::string FormatConfig(const Config& config) {
  // A TOML basic string, with escapes where needed. TOML cannot represent invalid UTF-8; WriteConfig detects that by
  // reading the result back.
  auto quoted = [](std::string_view s) {
    std::string out = "\"";
    for (char c : s) {
      auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') out.push_back('\\');
      if (byte < 0x20 || byte == 0x7f) {
        char buffer[8];
        std::snprintf(buffer, sizeof buffer, "\\u%04x", byte);
        out += buffer;
      } else {
        out.push_back(c);
      }
    }
    return out + "\"";
  };
  std::string out = "# Written by `vctl up`; edit as you like, it keeps what it does not need to change.\n";
  auto line = [&](std::string_view name, std::string_view value, std::string_view comment) {
    out += std::string(name) + " = " + quoted(value) + "  # " + std::string(comment) + "\n";
  };
  line("controller", config.controller, "HOST:PORT of the cluster's controller");
  line("credentials", config.credentials, "directory of ca.pem, NAME.pem and NAME.key");
  line("credentials_name", config.credentials_name, "NAME of the certificate in it");
  line("pool", config.pool, "where a run goes that names no pool");
  if (config.view != Config().view) line("view", config.view, "live or frozen: what a run sees that says neither");
  if (config.job_writes != Config().job_writes) {
    line("job_writes", config.job_writes, "plain, own or any: whether jobs may make files setuid, or give them away");
  }
  if (config.conflicts != Config().conflicts) {
    line("conflicts", config.conflicts, "beside or error: what a job comes to that wrote what home has changed, too");
  }
  if (!config.away.empty()) line("away", config.away, "on or off: whether batch jobs need this machine to the end");
  line("root", config.root, "the directory of this machine that the jobs see as /");
  if (!config.cache_size.empty()) line("cache_size", config.cache_size, "bound of the node's content caches");
  if (!config.cache_min_free.empty()) {
    line("cache_min_free", config.cache_min_free, "free space that the caches leave to others, as 5G or 10%");
  }
  const auto given = [&](std::string_view name, const std::string& value, std::string_view comment) {
    if (!value.empty()) line(name, value, comment);
  };
  given("snapshots", config.snapshots, "HOST:PORT of the snapshot store");
  given("kept_size", config.kept_size, "bound of what jobs leave on the node with --writes=keep");
  given("kept_days", config.kept_days, "how long it stays there");
  given("home_metrics", config.home_metrics, "HOST:PORT where Prometheus reads home's figures");
  given("node_metrics", config.node_metrics, "HOST:PORT where Prometheus reads the node's");
  given("traces_endpoint", config.traces_endpoint, "http[s]://HOST[:PORT] of a collector of traces");
  given("traces_headers", config.traces_headers, "file of headers for it, mode 0600");
  given("traces_ratio", config.traces_ratio, "part of the jobs that are traced, from 0 to 1");
  given("fuse_passthrough", config.fuse_passthrough, "auto, on or off: the kernel reads large files from the cache");
  given("fuse_push", config.fuse_push, "auto, on or off: small files go into the kernel ahead of their readers");
  given("fuse_readdirplus", config.fuse_readdirplus, "auto, on or off: listings give attributes");
  given("fuse_no_open", config.fuse_no_open, "auto, on or off: small files are opened without asking");
  given("fuse_cpu_latency", config.fuse_cpu_latency, "auto, on or off: processors stay awake while requests come fast");
  given("s3_bucket", config.s3_bucket, "S3 bucket that the nodes' caches share");
  given("s3_endpoint", config.s3_endpoint, "http[s]://HOST[:PORT] of the store");
  given("s3_region", config.s3_region, "of the bucket");
  given("s3_credentials", config.s3_credentials, "file with the keys, mode 0600; only the controller reads it");
  given("s3_ca", config.s3_ca, "authority of the store's certificate");
  given("s3_style", config.s3_style, "path: ENDPOINT/BUCKET; host: BUCKET.ENDPOINT");
  given("s3_snapshots", config.s3_snapshots, "on or off: the store keeps named snapshots too");
  given("snapshots_size", config.snapshots_size, "what of them stays on the snapshot store's disk");
  return out;
}

Status WriteConfig(const std::string& file, const Config& config) {
  std::string text = FormatConfig(config);
  auto back = ParseConfig(text, file);
  if (!back) return std::move(back).error().With("write the configuration");
  return WriteFileAtomic(file, text, 0600);
}

Status CheckControllers(std::string_view text) {
  const bool several = text.find(',') != std::string_view::npos;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    VRUN_ASSIGN(const HostPort one, ParseHostPort(text.substr(at, end - at)));
    in_addr numeric;
    if (several && ::inet_pton(AF_INET, one.host.c_str(), &numeric) != 1) {
      return Error(Code::kInvalid,
                   "address " + Escape(one.host) + ": of several controllers write numeric IPv4 addresses");
    }
    at = end + 1;
  }
  return {};
}

Status CheckCollector(std::string_view url) {
  constexpr size_t kMostUrl = 2000;
  // The @ of a password may stand anywhere where somebody has forgotten to encode it.
  if (url.find('@') != std::string_view::npos) {
    return Error(Code::kInvalid, "collector: an @ in its address: write user and password into a header");
  }
  const std::string shown = "collector " + Escape(url.substr(0, std::min<size_t>(url.find_first_of("?#"), 200)));
  const auto bad = [&](const char* why) {
    return Error(Code::kInvalid, shown + ": " + why + ": write http[s]://HOST[:PORT][/PATH]");
  };
  if (url.size() > kMostUrl) return bad("longer than 2000 bytes");
  const bool https = url.starts_with("https://");
  if (!https && !url.starts_with("http://")) return bad("begins with neither http:// nor https://");
  // libcurl is built without what other names than ASCII need (src/s3/curl_absent.c).
  for (const char c : url) {
    if (c <= ' ' || c > '~') return bad("a space or another character that no address has");
    if (c == '\\' || c == '"' || c == '<' || c == '>') return bad("a mark that no address has");
  }
  // What is added to the path would be part of them.
  if (url.find_first_of("?#") != std::string_view::npos) return bad("a query or a fragment");
  const std::string_view rest = url.substr(https ? 8 : 7);
  std::string host(rest.substr(0, rest.find('/')));
  if (host.empty() || host.front() == ':') return bad("no host");
  if (host.size() > 260) return bad("not a host name");
  for (const char c : host) {
    const bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!word && std::string_view("-._:[]").find(c) == std::string_view::npos) return bad("not a host name");
  }
  const size_t bracket = host.rfind(']');
  if (host.find(':', bracket == std::string::npos ? 0 : bracket) == std::string::npos) host += https ? ":443" : ":80";
  const auto address = ParseHostPort(host);
  if (!address) return address.error().With(shown);
  in6_addr numeric;
  if (host.front() == '[' && ::inet_pton(AF_INET6, address->host.c_str(), &numeric) != 1) {
    return bad("not an IPv6 address in the brackets");
  }
  return {};
}

Result<double> ParseRatio(std::string_view text) {
  double ratio = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ratio);
  if (error == std::errc() && end == text.data() + text.size() && ratio >= 0 && ratio <= 1) return ratio;
  return Error(Code::kInvalid, "ratio " + Escape(text.substr(0, 100)) + ": write a number from 0 to 1");
}

Result<HostPort> ParseHostPort(std::string_view text, bool allow_port_zero) {
  auto bad = [&](std::string_view why) {
    return Error(Code::kInvalid, "address " + Escape(text) + ": " + std::string(why) + ": write HOST:PORT");
  };
  size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return bad("no port");
  std::string_view host = text.substr(0, colon), port = text.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return bad("an IPv6 address needs brackets");
  }
  if (host.empty()) return bad("no host");
  for (char c : host) {
    auto byte = static_cast<unsigned char>(c);
    if (byte <= 0x20 || byte >= 0x7f || c == '/' || c == '[' || c == ']') return bad("not a host name");
  }
  int number = 0;
  if (port.empty() || port.size() > 5) return bad("not a port");
  for (char c : port) {
    if (c < '0' || c > '9') return bad("not a port");
    number = number * 10 + (c - '0');
  }
  if (number > 65535 || (number == 0 && !allow_port_zero)) return bad("a port is 1 to 65535");
  return HostPort{std::string(host), number};
}

}  // namespace vrun

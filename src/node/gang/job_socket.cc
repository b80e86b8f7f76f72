// SPDX-License-Identifier: Apache-2.0
#include "node/gang/job_socket.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "base/log.h"

namespace vrun::node {
namespace {

constexpr size_t kMostConnections = 1024;
constexpr size_t kMostBuffered = 1u << 20;  // of one request: it goes through the controller

}  // namespace

std::string EscapeValue(std::string_view value) {
  std::string out;
  for (char c : value) {
    if (c == '\n') {
      out += "\\n";
    } else {
      if (c == '\\') out += c;
      out += c;
    }
  }
  return out;
}

std::string UnescapeValue(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
    } else {
      out += text[++i] == 'n' ? '\n' : text[i];
    }
  }
  return out;
}

JobSocket::JobSocket(EventLoop* loop, Events events) : loop_(loop), events_(std::move(events)) {}

JobSocket::~JobSocket() { Close(); }

void JobSocket::Listen(UniqueFd listener) {
  if (!listener) return;
  listener_ = std::move(listener);
  Status added = loop_->Add(listener_.get(), EPOLLIN, [this](uint32_t) { Accept(); });
  if (!added) LogError("watch the job's socket: {}", added.error().message());
}

void JobSocket::Close() {
  if (listener_) loop_->Remove(listener_.get());
  listener_.Reset();
  while (!connections_.empty()) Drop(connections_.begin()->first);
}

void JobSocket::Drop(uint64_t id) {
  const auto it = connections_.find(id);
  if (it == connections_.end()) return;
  if (!it->second.ended) loop_->Remove(it->second.socket.get());
  connections_.erase(it);
}

void JobSocket::Accept() {
  for (;;) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    if (connections_.size() >= kMostConnections) continue;
    const uint64_t id = next_++;
    Status added = loop_->Add(socket.get(), EPOLLIN, [this, id](uint32_t) { Read(id); });
    if (added) connections_[id].socket = std::move(socket);
  }
}

void JobSocket::Drain() {
  if (!listener_) return;
  Accept();
  std::vector<uint64_t> all;
  for (const auto& [id, connection] : connections_) all.push_back(id);
  for (uint64_t id : all) Read(id);
}

void JobSocket::Read(uint64_t id) {
  for (;;) {
    const auto it = connections_.find(id);
    if (it == connections_.end() || it->second.ended) return;
    Connection& connection = it->second;
    char bytes[16 * 1024];
    const ssize_t n = ::read(connection.socket.get(), bytes, sizeof bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n > 0) connection.buffer.append(bytes, static_cast<size_t>(n));
    // The last line may lack its end.
    if (n <= 0 && !connection.buffer.empty() && connection.buffer.back() != '\n') connection.buffer += '\n';
    std::string buffer = std::move(connection.buffer);
    size_t begin = 0;
    for (size_t end; (end = buffer.find('\n', begin)) != std::string::npos; begin = end + 1) {
      Handle(id, std::string_view(buffer).substr(begin, end - begin));
    }
    if (!connections_.contains(id)) return;
    connection.buffer = buffer.substr(begin);
    if (connection.buffer.size() + connection.exec.ByteSizeLong() > kMostBuffered) {
      Write(id, "PROBLEM", "the request is too long");
      return Drop(id);
    }
    if (n > 0) continue;
    // A client that only waits for an answer may have closed its half.
    loop_->Remove(connection.socket.get());
    connection.ended = true;
    if (connection.unanswered == 0) Drop(id);
    return;
  }
}

void JobSocket::Handle(uint64_t id, std::string_view line) {
  const auto it = connections_.find(id);
  if (it == connections_.end() || line.empty()) return;
  Connection& connection = it->second;
  const size_t equals = line.find('=');
  const std::string_view key = line.substr(0, equals);
  const std::string value = equals == std::string_view::npos ? "" : UnescapeValue(line.substr(equals + 1));
  if (key == "SAVED") {
    if (value == "1") events_.on_saved();
  } else if (key == "MEMBERS") {
    connection.wants_members = true;
    Write(id, "MEMBERS", events_.members());
  } else if (key == "EXEC") {
    connection.has_exec = true;
    connection.pod = value;
    connection.exec.Clear();
  } else if (connection.has_exec && key == "ARG") {
    connection.exec.add_argv(value);
  } else if (connection.has_exec && key == "ENV" && value.find('=') != std::string::npos) {
    connection.exec.add_environment(value);
  } else if (connection.has_exec && key == "DIRECTORY") {
    connection.exec.set_directory(value);
  } else if (connection.has_exec && key == "START" && connection.exec.argv_size() > 0) {
    connection.has_exec = false;
    ++connection.unanswered;
    events_.on_exec(id, connection.pod, std::exchange(connection.exec, {}));
  } else {
    Write(id, "PROBLEM", "not understood: " + std::string(line.substr(0, 100)));
  }
}

void JobSocket::Answer(uint64_t id, const std::string& key, const std::string& value) {
  const auto it = connections_.find(id);
  if (it == connections_.end()) return;
  --it->second.unanswered;
  const bool last = it->second.ended && it->second.unanswered == 0;
  Write(id, key, value);
  if (last) Drop(id);
}

void JobSocket::TellMembers() {
  std::vector<uint64_t> all;
  for (const auto& [id, connection] : connections_) {
    if (connection.wants_members && !connection.ended) all.push_back(id);
  }
  for (uint64_t id : all) Write(id, "MEMBERS", events_.members());
}

void JobSocket::Write(uint64_t id, const std::string& key, const std::string& value) {
  const auto it = connections_.find(id);
  if (it == connections_.end()) return;
  const std::string line = key + "=" + EscapeValue(value) + "\n";
  const ssize_t n = ::send(it->second.socket.get(), line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n != static_cast<ssize_t>(line.size())) Drop(id);  // a client that asks and does not read is not waited for
}

}  // namespace vrun::node

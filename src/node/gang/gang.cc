// SPDX-License-Identifier: Apache-2.0
#include "node/gang/gang.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

namespace vrun::node {
namespace {

// Letters, digits, dots and hyphens, as in RFC 1123: what every program accepts as a host's name.
bool IsHostName(std::string_view name) {
  return !name.empty() && name.size() <= 63 && name[0] != '-' && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
         });
}

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) continue;
    out += c;
  }
  return out + '"';
}

}  // namespace

bool Gang::Is(const v1::StartAttempt& order) {
  return order.pods_size() > 1 || order.spec().gang().pods() > 1 || order.spec().gang().ranks_per_pod() > 1;
}

uint32_t Gang::ProcessesHere(const v1::StartAttempt& order) {
  if (order.spec().gang().launcher()) return order.placement().pod() == 0 ? 1 : 0;
  return std::max(1u, order.spec().gang().ranks_per_pod());
}

Gang::Gang(const v1::StartAttempt& order, const std::string& node)
    : job_(order.placement().job()), attempt_(order.placement().attempt()), pod_(order.placement().pod()) {
  std::map<std::string, uint32_t> numbers;
  for (const v1::GangPod& in : order.pods()) {
    Pod pod;
    pod.role = IsHostName(in.role()) ? in.role() : "worker";
    pod.name = pod.role + "-" + std::to_string(numbers[pod.role]++);
    pod.node = in.node();
    pod.address = in.host();
    pod.first_rank = in.first_rank();
    pod.ranks = std::max(1u, in.ranks());
    pod.gpus = in.gpus();
    pods_.push_back(std::move(pod));
  }
  if (pods_.empty() || pod_ >= pods_.size()) {
    pod_ = 0;
    pods_.assign(1, Pod{"worker-0", "", "worker", node, "127.0.0.1", 0, 1, order.spec().resources().gpus()});
    pods_[0].ranks = std::max(1u, order.spec().gang().ranks_per_pod());
  }
  std::set<std::string> names;
  bool distinct = true;
  for (const Pod& pod : pods_) distinct &= IsHostName(pod.node) && names.insert(pod.node).second;
  for (Pod& pod : pods_) {
    pod.host_name = distinct ? pod.node : pod.name;
    world_size_ += pod.ranks;
  }
}

std::optional<uint32_t> Gang::Find(std::string_view name) const {
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error == std::errc() && end == name.data() + name.size() && number < pods_.size()) return number;
  const auto find = [&](auto matches) -> std::optional<uint32_t> {
    const auto it = std::find_if(pods_.begin(), pods_.end(), matches);
    if (it == pods_.end()) return std::nullopt;
    return static_cast<uint32_t>(it - pods_.begin());
  };
  if (auto pod = find([&](const Pod& p) { return p.name == name || p.host_name == name; })) return pod;
  if (auto pod = find([&](const Pod& p) { return p.node == name || p.address == name; })) return pod;
  const std::string_view first = name.substr(0, name.find('.'));
  return find([&](const Pod& p) { return p.name == first || p.node.substr(0, p.node.find('.')) == first; });
}

std::string Gang::HostsLines() const {
  std::string lines;
  for (const Pod& pod : pods_) {
    if (pod.address.empty()) continue;
    lines += pod.address + "\t" + pod.name;
    if (IsHostName(pod.node)) lines += " " + pod.node;
    lines += "\n";
  }
  return lines;
}

std::string Gang::MembersJson() const {
  std::string out = "{\"job\": " + std::to_string(job_) + ", \"attempt\": " + std::to_string(attempt_) +
                    ", \"pod\": " + std::to_string(pod_) + ", \"pods\": [";
  for (size_t i = 0; i < pods_.size(); ++i) {
    const Pod& p = pods_[i];
    out += (i == 0 ? "" : ", ") + std::string("{\"pod\": ") + std::to_string(i) + ", \"name\": " + Quoted(p.name) +
           ", \"role\": " + Quoted(p.role) + ", \"node\": " + Quoted(p.node) + ", \"host\": " + Quoted(p.address) +
           ", \"first_rank\": " + std::to_string(p.first_rank) + ", \"ranks\": " + std::to_string(p.ranks) +
           ", \"gpus\": " + std::to_string(p.gpus) + "}";
  }
  return out + "]}";
}

v1::ExecInPod AnswerTo(const v1::ExecInPod& exec) {
  v1::ExecInPod answer;
  answer.set_job(exec.job());
  answer.set_attempt(exec.attempt());
  answer.set_pod(exec.pod());
  answer.set_from_pod(exec.from_pod());
  answer.set_id(exec.id());
  answer.set_ended(true);
  return answer;
}

}  // namespace vrun::node

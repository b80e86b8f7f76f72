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
    : job_(order.placement().job()), attempt_(order.placement().attempt()) {
  std::map<std::string, uint32_t> counts;
  for (const v1::GangPod& in : order.pods()) {
    Pod pod;
    pod.number = in.first_rank() / std::max(1u, in.ranks());
    pod.role = IsHostName(in.role()) ? in.role() : "worker";
    // A pod keeps its name when others leave.
    const auto others = static_cast<uint32_t>(pods_.size()) - counts[pod.role]++;
    pod.name = pod.role + "-" + std::to_string(pod.number - std::min(pod.number, others));
    pod.node = in.node();
    pod.address = in.host();
    pod.first_rank = in.first_rank();
    pod.ranks = std::max(1u, in.ranks());
    pod.gpus = in.gpus();
    pods_.push_back(std::move(pod));
  }
  const auto own = [&](const Pod& pod) { return pod.number == order.placement().pod(); };
  index_ = static_cast<size_t>(std::find_if(pods_.begin(), pods_.end(), own) - pods_.begin());
  if (index_ == pods_.size()) {  // a job of one pod, or a pod that leaves
    Pod pod{order.placement().pod(), "", "", "worker", node, "127.0.0.1", 0, 1, order.spec().resources().gpus()};
    pod.name = "worker-" + std::to_string(pod.number);
    pod.ranks = std::max(1u, order.spec().gang().ranks_per_pod());
    pod.first_rank = pod.number * pod.ranks;
    left_ = !pods_.empty();
    pods_.push_back(std::move(pod));
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
  const bool is_number = error == std::errc() && end == name.data() + name.size();
  const auto find = [&](auto matches) -> std::optional<uint32_t> {
    const auto it = std::find_if(pods_.begin(), pods_.end(), matches);
    if (it == pods_.end()) return std::nullopt;
    return it->number;
  };
  if (auto pod = find([&](const Pod& p) { return is_number && p.number == number; })) return pod;
  if (auto pod = find([&](const Pod& p) { return p.name == name || p.host_name == name; })) return pod;
  if (auto pod = find([&](const Pod& p) { return p.node == name || p.address == name; })) return pod;
  const std::string_view first = name.substr(0, name.find('.'));
  return find([&](const Pod& p) { return p.name == first || p.node.substr(0, p.node.find('.')) == first; });
}

std::string Gang::HostsLines() const {
  std::string lines;
  for (const Pod& pod : pods_) {
    if (pod.address.empty() || (left_ && pod.number == here().number)) continue;
    lines += pod.address + "\t" + pod.name;
    if (IsHostName(pod.node)) lines += " " + pod.node;
    lines += "\n";
  }
  return lines;
}

std::string Gang::MembersJson() const {
  std::string out = "{\"job\": " + std::to_string(job_) + ", \"attempt\": " + std::to_string(attempt_) +
                    ", \"pod\": " + std::to_string(pod()) + ", \"pods\": [";
  for (const Pod& p : pods_) {
    if (left_ && p.number == here().number) continue;
    out += (out.back() == '[' ? "" : ", ") + std::string("{\"pod\": ") + std::to_string(p.number) +
           ", \"name\": " + Quoted(p.name) + ", \"role\": " + Quoted(p.role) + ", \"node\": " + Quoted(p.node) +
           ", \"host\": " + Quoted(p.address) + ", \"first_rank\": " + std::to_string(p.first_rank) +
           ", \"ranks\": " + std::to_string(p.ranks) + ", \"gpus\": " + std::to_string(p.gpus) + "}";
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

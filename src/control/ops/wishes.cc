// SPDX-License-Identifier: Apache-2.0
#include "control/ops/wishes.h"

#include <strings.h>

#include <algorithm>
#include <set>

#include "base/escape.h"
#include "control/places/host_list.h"

namespace vrun::control {
namespace {

constexpr int kMostWishes = 256;
constexpr size_t kMostTextBytes = 256;
constexpr uint32_t kMostRetries = 1000;

std::string JoinedBy(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ",") + name;
  return all;
}

std::string ListOf(const std::set<std::string>& names) {
  constexpr size_t kMostNamed = 20;
  std::string text;
  size_t n = 0;
  for (const std::string& name : names) {
    if (n++ == kMostNamed) return text + ", ...";
    text += (text.empty() ? "" : ", ") + Escape(name);
  }
  return text;
}

// What the nodes of one pool have.
struct Offers {
  bool any_node = false;
  std::set<std::string> labels, gpu_types;
  bool rack = false, block = false, zone = false;
};

Offers OffersOf(State& state, const std::string& pool) {
  Offers out;
  for (const auto& [name, node] : state.nodes()) {
    if (node.row.pool != pool) continue;
    const v1::NodeFacts facts = state.FactsOf(node.row);
    out.any_node = true;
    out.labels.insert(facts.labels().begin(), facts.labels().end());
    out.rack = out.rack || !facts.rack().empty();
    out.block = out.block || !facts.block().empty();
    out.zone = out.zone || !facts.zone().empty();
    v1::Resources total;
    if (total.ParseFromString(node.row.total) && !total.gpu_type().empty()) out.gpu_types.insert(total.gpu_type());
  }
  return out;
}

// Nodes name their types in lower case ("h100"), unless an administrator named them.
void SpellAsNodes(const std::vector<NodeSize>& nodes, std::string* type) {
  const NodeSize* like = nullptr;
  for (const NodeSize& node : nodes) {
    if (node.gpu_type == *type) return;
    if (::strcasecmp(node.gpu_type.c_str(), type->c_str()) == 0) like = &node;
  }
  if (like != nullptr) *type = like->gpu_type;
}

Status CheckLevel(v1::TopologyLevel level, const Offers& offers, const std::string& where) {
  const auto nobody = [&](const char* name) {
    return Error(Code::kInvalid, "topology: no node of " + where + " says its " + name + ": leave the wish out, or " +
                                     "name it with `vrund node --" + name + "` or in a topology file");
  };
  if (!offers.any_node) return {};
  switch (level) {
    case v1::LEVEL_RACK: return offers.rack ? Status() : nobody("rack");
    case v1::LEVEL_BLOCK: return offers.block ? Status() : nobody("block");
    case v1::LEVEL_ZONE: return offers.zone ? Status() : nobody("zone");
    default: return {};
  }
}

Status CheckSizes(const v1::Scheduling& s) {
  const bool many = std::max({s.labels_size(), s.tolerations_size(), s.gpu_types_size(), s.deadline_steps_size(),
                              s.retries_size()}) > kMostWishes;
  if (many) return Error(Code::kInvalid, "submit: more than 256 labels, tolerations, types or rules: name fewer");
  for (const auto* list : {&s.labels(), &s.tolerations(), &s.gpu_types()}) {
    for (const std::string& text : *list) {
      if (text.empty() || text.size() > kMostTextBytes) {
        return Error(Code::kInvalid, "submit: a label, a taint or a type is empty or longer than 256 bytes");
      }
    }
  }
  for (const v1::TopologyLevel level : {s.required_level(), s.preferred_level(), s.segment_level()}) {
    if (!v1::TopologyLevel_IsValid(level)) {
      return Error(Code::kUnsupported, "submit: this controller does not know the level: choose another");
    }
  }
  for (const v1::RetryRule& rule : s.retries()) {
    if (rule.times() == 0 || rule.times() > kMostRetries) return Error(Code::kInvalid, "submit: retry 1 to 1000 times");
  }
  return {};
}

using Texts = google::protobuf::RepeatedPtrField<std::string>;

// Replaces lists by names, all of which are known.
Status Expand(State& state, Texts* texts) {
  if (texts->empty()) return {};
  VRUN_ASSIGN(std::vector<std::string> names, KnownNodes(state, JoinedBy({texts->begin(), texts->end()})));
  texts->Assign(names.begin(), names.end());
  return {};
}

// At least one of the nodes that it may use is in its pool.
Status CheckPool(State& state, const Texts& names, const std::string& pool) {
  const bool some = names.empty() || std::any_of(names.begin(), names.end(), [&](const std::string& name) {
                      return state.nodes().at(name).row.pool == pool;
                    });
  if (some) return {};
  return Error(Code::kInvalid, "node " + Escape(names[0]) + ": it is in pool " +
                                   Escape(state.nodes().at(names[0]).row.pool) + ", the job in pool " + Escape(pool) +
                                   ": choose one with -P");
}

}  // namespace

Result<std::vector<std::string>> KnownNodes(State& state, const std::string& list) {
  VRUN_ASSIGN(std::vector<std::string> names, ExpandHosts(list));
  for (const std::string& name : names) {
    if (!state.nodes().contains(name)) {
      return Error(Code::kNotFound, "node " + Escape(name) + ": no such node: `vctl nodes` lists them");
    }
  }
  return names;
}

Status CheckWishes(State& state, JobRow* job) {
  v1::Scheduling& s = job->scheduling;
  VRUN_TRY(CheckSizes(s));
  VRUN_TRY(Expand(state, s.mutable_nodes()));
  VRUN_TRY(Expand(state, s.mutable_excluded_nodes()));
  VRUN_TRY(CheckPool(state, s.nodes(), job->pool));
  const std::vector<NodeSize>& sizes = state.SizesOf(job->pool);
  if (!job->needs.gpu_type.empty()) SpellAsNodes(sizes, &job->needs.gpu_type);
  for (std::string& type : *s.mutable_gpu_types()) SpellAsNodes(sizes, &type);
  const bool asks = s.labels_size() + s.gpu_types_size() > 0 || s.required_level() != 0 || s.segment_level() != 0;
  if (!asks) return {};
  const Offers offers = OffersOf(state, job->pool);
  const std::string where = "pool " + Escape(job->pool);
  if (offers.any_node) {
    for (const std::string& label : s.labels()) {
      if (offers.labels.contains(label)) continue;
      return Error(Code::kInvalid,
                   "constraint " + Escape(label) + ": no node of " + where + " has this label: " +
                       (offers.labels.empty() ? "they have none" : "there are " + ListOf(offers.labels)));
    }
    for (const std::string& type : s.gpu_types()) {
      if (offers.gpu_types.contains(type)) continue;
      return Error(Code::kInvalid,
                   "GPU type " + Escape(type) + ": no node of " + where + " has it: " +
                       (offers.gpu_types.empty() ? "they have none" : "there are " + ListOf(offers.gpu_types)));
    }
  }
  VRUN_TRY(CheckLevel(s.required_level(), offers, where));
  return CheckLevel(s.segment_level(), offers, where);
}

}  // namespace vrun::control

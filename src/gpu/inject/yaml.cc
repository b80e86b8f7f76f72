// SPDX-License-Identifier: Apache-2.0
#include "gpu/inject/yaml.h"

#include <yaml.h>

#include <memory>

namespace vrun::gpu {
namespace {

constexpr int kMostDepth = 24;
constexpr size_t kMostNodes = 100'000;

struct Event {
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { yaml_event_delete(&event); }
  yaml_event_t event{};
};

class Parser {
 public:
  explicit Parser(std::string_view text) {
    VRUN_CHECK(yaml_parser_initialize(&parser_) == 1);
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()), text.size());
  }
  Parser(const Parser&) = delete;
  Parser& operator=(const Parser&) = delete;
  ~Parser() { yaml_parser_delete(&parser_); }

  Result<YamlNode> Parse() {
    for (const yaml_event_type_t expected : {YAML_STREAM_START_EVENT, YAML_DOCUMENT_START_EVENT}) {
      Event event;
      VRUN_TRY(Next(&event));
      if (event.event.type != expected) return Error(Code::kCorrupt, "no YAML document");
    }
    Event event;
    VRUN_TRY(Next(&event));
    return Node(event.event, 0);
  }

 private:
  Status Next(Event* event) {
    if (yaml_parser_parse(&parser_, &event->event) == 1) return {};
    return Error(Code::kCorrupt, "line " + std::to_string(parser_.problem_mark.line + 1) + ": " +
                                     (parser_.problem != nullptr ? parser_.problem : "bad YAML"));
  }

  Result<YamlNode> Node(const yaml_event_t& event, int depth) {
    if (depth > kMostDepth || ++nodes_ > kMostNodes) return Error(Code::kCorrupt, "too large or too deep");
    YamlNode node;
    switch (event.type) {
      case YAML_SCALAR_EVENT:
        if (event.data.scalar.anchor != nullptr) break;
        node.text.assign(reinterpret_cast<const char*>(event.data.scalar.value), event.data.scalar.length);
        return node;
      case YAML_SEQUENCE_START_EVENT:
        if (event.data.sequence_start.anchor != nullptr) break;
        node.kind = YamlNode::Kind::kSequence;
        for (;;) {
          Event next;
          VRUN_TRY(Next(&next));
          if (next.event.type == YAML_SEQUENCE_END_EVENT) return node;
          VRUN_ASSIGN(YamlNode item, Node(next.event, depth + 1));
          node.items.push_back(std::move(item));
        }
      case YAML_MAPPING_START_EVENT:
        if (event.data.mapping_start.anchor != nullptr) break;
        node.kind = YamlNode::Kind::kMapping;
        for (;;) {
          Event next;
          VRUN_TRY(Next(&next));
          if (next.event.type == YAML_MAPPING_END_EVENT) return node;
          VRUN_ASSIGN(YamlNode key, Node(next.event, depth + 1));
          if (key.kind != YamlNode::Kind::kScalar) return Error(Code::kCorrupt, "a key that is no text");
          Event value;
          VRUN_TRY(Next(&value));
          VRUN_ASSIGN(YamlNode member, Node(value.event, depth + 1));
          node.names.push_back(std::move(key.text));
          node.items.push_back(std::move(member));
        }
      default: break;
    }
    return Error(Code::kCorrupt, "an anchor or an alias: not used in such files");
  }

  yaml_parser_t parser_;
  size_t nodes_ = 0;
};

}  // namespace

const YamlNode* YamlNode::Get(std::string_view name) const {
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return &items[i];
  }
  return nullptr;
}

std::string YamlNode::Text(std::string_view name) const {
  const YamlNode* member = Get(name);
  return member != nullptr ? member->text : "";
}

const std::vector<YamlNode>& YamlNode::Items(std::string_view name) const {
  static const std::vector<YamlNode> none;
  const YamlNode* member = Get(name);
  return member != nullptr && member->kind == Kind::kSequence ? member->items : none;
}

Result<YamlNode> ParseYaml(std::string_view text) { return Parser(text).Parse(); }

}  // namespace vrun::gpu

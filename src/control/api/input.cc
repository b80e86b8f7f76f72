// SPDX-License-Identifier: Apache-2.0
#include "control/api/input.h"

#include <algorithm>
#include <cmath>

#include "base/escape.h"

namespace vrun::control {
namespace {

namespace pb = google::protobuf;
using Kind = pb::FieldDescriptor;

bool IsText(const pb::FieldDescriptor& field) { return field.cpp_type() == Kind::CPPTYPE_STRING; }

Error Bad(std::string_view name, std::string_view why) {
  return Error(Code::kInvalid, std::string(name) + ": " + std::string(why));
}

Result<Json> NumberOf(std::string_view name, std::string_view text, int64_t most) {
  const bool digits = !text.empty() && text.size() <= 16 && text.find_first_not_of("0123456789") == text.npos;
  const int64_t value = digits ? std::stoll(std::string(text)) : -1;
  if (value < 0 || value > most) return Bad(name, "write a number from 0 to " + std::to_string(most));
  return Json(value);
}

Result<Json> TextOf(const Parameter& p, const std::string& text) {
  if (!http::IsUtf8(text)) return Bad(p.name, "it is not UTF-8");
  const auto characters = std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
  if (characters > p.most) return Bad(p.name, "it has more than " + std::to_string(p.most) + " characters");
  const bool name = !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("._-+@").find(c) != std::string_view::npos;
  });
  if (p.is_name && !name) return Bad(p.name, "it is not a name");
  return Json(text);
}

Result<Json> EnumOf(const Parameter& p, const pb::EnumDescriptor& type, const std::string& text) {
  const pb::EnumValueDescriptor* value = type.FindValueByName(text);
  if (value != nullptr && value->number() != 0) return Json(text);
  std::string names;
  for (int i = 0; i < type.value_count(); ++i) {
    if (type.value(i)->number() != 0) names += (names.empty() ? "" : ", ") + type.value(i)->name();
  }
  return Bad(p.name, "write one of " + names);
}

// Of a path or a query.
Result<Json> ValueOfText(const Parameter& p, const pb::FieldDescriptor& field, const std::string& text) {
  switch (field.cpp_type()) {
    case Kind::CPPTYPE_BOOL:
      if (text != "true" && text != "false") return Bad(p.name, "write true or false");
      return Json(text == "true");
    case Kind::CPPTYPE_ENUM: return EnumOf(p, *field.enum_type(), text);
    case Kind::CPPTYPE_STRING: return TextOf(p, text);
    default: return NumberOf(p.name, text, p.most);
  }
}

// Of a body.
Result<Json> ValueOfJson(const Parameter& p, const pb::FieldDescriptor& field, const Json& json) {
  if (field.cpp_type() == Kind::CPPTYPE_BOOL) {
    if (!json.is_boolean()) return Bad(p.name, "it must be true or false");
    return json;
  }
  if (IsText(field) || field.cpp_type() == Kind::CPPTYPE_ENUM) {
    if (!json.is_string()) return Bad(p.name, "it must be a string");
    return ValueOfText(p, field, json.get<std::string>());
  }
  if (!json.is_number()) return Bad(p.name, "it must be a number");
  const double value = json.get<double>();
  if (value != std::floor(value) || value < 0 || value > static_cast<double>(p.most)) {
    return Bad(p.name, "it must be a whole number from 0 to " + std::to_string(p.most));
  }
  return Json(static_cast<int64_t>(value));
}

void Put(const Parameter& p, Json value, Input* input) {
  if (!p.field.empty()) input->request[Json::json_pointer(std::string(p.field))] = value;
  if (!p.filter.empty()) input->filter.emplace_back(p.filter, std::move(value));
}

Result<std::vector<std::string>> FieldsOf(const ApiRoute& route, const std::string& text) {
  const pb::Descriptor* item = ItemOf(route);
  std::vector<std::string> fields;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    fields.push_back(text.substr(at, end - at));
    at = end + 1;
    if (item->FindFieldByName(fields.back()) == nullptr) {
      return Bad("fields", "no " + item->name() + " has " + Escape(fields.back().substr(0, 100)) +
                               ": write names of its fields with commas between them");
    }
  }
  return fields;
}

Status ReadQuery(const ApiRoute& route, const http::Query& query, Input* input) {
  for (const auto& [name, text] : query) {
    const auto p = std::find_if(route.parameters.begin(), route.parameters.end(), [&](const Parameter& other) {
      return other.where == Where::kQuery && other.name == name;
    });
    if (p != route.parameters.end()) {
      VRUN_ASSIGN(Json value, ValueOfText(*p, *FieldOf(route, *p), text));
      Put(*p, std::move(value), input);
    } else if (name == "fields" && HasFields(route)) {
      VRUN_ASSIGN(input->fields, FieldsOf(route, text));
    } else if (name == "before" && !route.page_key.empty()) {
      VRUN_ASSIGN(const Json value, NumberOf(name, text, Parameter().most));
      input->before = value.get<uint64_t>();
    } else if (name == "limit" && !route.page_key.empty()) {
      VRUN_ASSIGN(const Json value, NumberOf(name, text, kMostPage));
      input->limit = value.get<uint32_t>();
      if (input->limit == 0) return Bad(name, "write a number from 1 to 1000");
    } else {
      return Bad(Escape(name.substr(0, 100)), "this path has no such parameter");
    }
  }
  return {};
}

Status ReadBody(const ApiRoute& route, const http::Request& request, Input* input) {
  if (request.body.empty()) return {};
  if (!http::IsJson(request)) return Error(Code::kUnsupported, "the body must be application/json");
  const Json body = Json::parse(request.body, nullptr, false);
  if (!body.is_object()) return Error(Code::kInvalid, "the body is not an object of JSON");
  for (const auto& [name, json] : body.items()) {
    const auto p = std::find_if(
        route.parameters.begin(), route.parameters.end(),
        [&, name = name](const Parameter& other) { return other.where == Where::kBody && other.name == name; });
    if (p == route.parameters.end()) return Error(Code::kInvalid, "the body has a member that is not known here");
    VRUN_ASSIGN(Json value, ValueOfJson(*p, *FieldOf(route, *p), json));
    Put(*p, std::move(value), input);
  }
  return {};
}

bool Fits(const Json& item, const Input& input) {
  return std::all_of(input.filter.begin(), input.filter.end(), [&](const auto& filter) {
    const Json::json_pointer at(filter.first);
    return item.contains(at) && item[at] == filter.second;
  });
}

Json OnlyFields(const Json& item, const std::vector<std::string>& fields) {
  Json kept = Json::object();
  for (const std::string& name : fields) {
    if (const auto at = item.find(name); at != item.end()) kept[name] = *at;
  }
  return kept;
}

Json GpusOf(const Json& nodes) {
  Json gpus = Json::array();
  for (const Json& node : nodes) {
    const Json& facts = node["facts"];
    const uint64_t count = node.contains("total") ? node["total"]["gpus"].get<uint64_t>() : 0;
    for (uint64_t i = 0; i < count && i < 32; ++i) {
      Json gpu = {{"node", node["name"]}, {"pool", node["pool"]}, {"node_state", node["state"]}, {"index", i}};
      const bool known = facts.contains("gpus") && i < facts["gpus"].size();
      gpu["type"] = known && facts["gpus"][i]["type"] != "" ? facts["gpus"][i]["type"] : node["total"]["gpu_type"];
      for (const char* name : {"uuid", "product", "problem"}) gpu[name] = known ? facts["gpus"][i][name] : Json("");
      gpu["memory_bytes"] = known ? facts["gpus"][i]["memory_bytes"] : Json(0);
      gpu["bad"] = facts.contains("bad_gpus") && (facts["bad_gpus"].get<uint64_t>() >> i & 1) != 0;
      gpu["users"] = Json::array();
      for (const Json& user : node["gpu_users"]) {
        if (user["gpu"] == i) gpu["users"].push_back(user);
      }
      gpus.push_back(std::move(gpu));
    }
  }
  return gpus;
}

}  // namespace

const pb::FieldDescriptor* FieldOf(const ApiRoute& route, const Parameter& parameter) {
  const Schema& schema = Schema::Get();
  if (!parameter.field.empty()) return schema.Field(route.request, parameter.field);
  const std::string items = route.list.empty() ? "" : "/" + std::string(route.list) + "/0";
  return schema.Field(route.reply, items + std::string(parameter.filter));
}

const pb::Descriptor* ItemOf(const ApiRoute& route) {
  return Schema::Get().Field(route.reply, "/" + std::string(route.list))->message_type();
}

Result<Input> ReadInput(const ApiRoute& route, const http::Call& call) {
  Input input;
  input.request = Json::parse(route.fixed);
  for (const Parameter& p : route.parameters) {
    if (p.where != Where::kPath) continue;
    VRUN_ASSIGN(Json value, ValueOfText(p, *FieldOf(route, p), call.path.at(std::string(p.name))));
    Put(p, std::move(value), &input);
  }
  VRUN_TRY(ReadQuery(route, call.query, &input));
  VRUN_TRY(ReadBody(route, call.request, &input));
  return input;
}

Result<Json> AnswerOf(const ApiRoute& route, const Input& input, Json reply) {
  if (route.shape == Shape::kProblems && !reply["problems"].empty()) {
    return Error(Code::kAborted, reply["problems"][0].get<std::string>());
  }
  if (!route.answer.empty()) {
    Json part = std::move(reply[Json::json_pointer(std::string(route.answer))]);
    return part;
  }
  if (route.list.empty()) return reply;
  if (route.shape == Shape::kGpus) return Json{{"gpus", GpusOf(reply["nodes"])}};
  Json items = Json::array();
  bool more = false;
  uint64_t last = 0;
  for (Json& item : reply[std::string(route.list)]) {
    if (!Fits(item, input)) continue;
    if (!route.page_key.empty()) {
      const uint64_t key = item[std::string(route.page_key)].get<uint64_t>();
      if (input.before != 0 && key >= input.before) continue;
      if (items.size() >= input.limit) {
        more = true;
        break;
      }
      last = key;
    }
    items.push_back(input.fields.empty() ? std::move(item) : OnlyFields(item, input.fields));
  }
  if (route.single) {
    if (items.empty()) return Error(Code::kNotFound, "there is none of this name");
    return std::move(items[0]);
  }
  reply[std::string(route.list)] = std::move(items);
  if (more) reply["next"] = last;
  return reply;
}

}  // namespace vrun::control

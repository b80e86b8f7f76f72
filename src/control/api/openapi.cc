// SPDX-License-Identifier: Apache-2.0
#include "control/api/openapi.h"

#include <set>

#include "control/api/input.h"
#include "control/api/routes.h"
#include "control/api/schema.h"
#include "http/message.h"

namespace vrun::control {
namespace {

namespace pb = google::protobuf;
using Kind = pb::FieldDescriptor;

// A component of the document: "Array.Range" of vrun.v1.Array.Range.
std::string NameOf(const pb::Descriptor& type) { return type.full_name().substr(std::string("vrun.v1.").size()); }

Json Reference(const std::string& name) { return {{"$ref", "#/components/schemas/" + name}}; }

// The comment beside or above a field.
std::string CommentOf(const pb::FieldDescriptor& field) {
  pb::SourceLocation at;
  if (!field.GetSourceLocation(&at)) return "";
  std::string text = !at.trailing_comments.empty() ? at.trailing_comments : at.leading_comments;
  std::string line;
  for (const char c : text) {
    const bool blank = c == '\n' || c == ' ';
    if (!blank || (!line.empty() && line.back() != ' ')) line += blank ? ' ' : c;
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

Json EnumNames(const pb::EnumDescriptor& type, bool with_first) {
  Json names = Json::array();
  for (int i = with_first ? 0 : 1; i < type.value_count(); ++i) names.push_back(type.value(i)->name());
  return names;
}

// The schema of one value of the field in an answer.
Json SchemaOf(const pb::FieldDescriptor& field, std::set<const pb::Descriptor*>* used) {
  switch (field.cpp_type()) {
    case Kind::CPPTYPE_INT32:
    case Kind::CPPTYPE_INT64: return {{"type", "integer"}};
    case Kind::CPPTYPE_UINT32:
    case Kind::CPPTYPE_UINT64: return {{"type", "integer"}, {"minimum", 0}};
    case Kind::CPPTYPE_FLOAT:
    case Kind::CPPTYPE_DOUBLE: return {{"type", "number"}};
    case Kind::CPPTYPE_BOOL: return {{"type", "boolean"}};
    case Kind::CPPTYPE_ENUM: return {{"type", "string"}, {"enum", EnumNames(*field.enum_type(), true)}};
    case Kind::CPPTYPE_STRING: return {{"type", "string"}};
    case Kind::CPPTYPE_MESSAGE: used->insert(field.message_type()); return Reference(NameOf(*field.message_type()));
  }
  return Json::object();
}

// `chosen`: its fields may be left out, because `fields` chooses them.
Json SchemaOf(const pb::Descriptor& type, bool chosen, std::set<const pb::Descriptor*>* used) {
  Json properties = Json::object(), required = Json::array();
  for (int i = 0; i < type.field_count(); ++i) {
    const pb::FieldDescriptor& field = *type.field(i);
    Json schema = SchemaOf(field, used);
    if (field.is_repeated()) schema = {{"type", "array"}, {"items", schema}};
    if (const std::string comment = CommentOf(field); !comment.empty()) schema["description"] = comment;
    properties[field.name()] = std::move(schema);
    if (AlwaysThere(field) && !chosen) required.push_back(field.name());
  }
  Json object = {{"type", "object"}, {"properties", std::move(properties)}};
  if (!required.empty()) object["required"] = std::move(required);
  return object;
}

Json SchemaOf(const ApiRoute& route, const Parameter& p) {
  const pb::FieldDescriptor& field = *FieldOf(route, p);
  switch (field.cpp_type()) {
    case Kind::CPPTYPE_BOOL: return {{"type", "boolean"}};
    case Kind::CPPTYPE_ENUM: return {{"type", "string"}, {"enum", EnumNames(*field.enum_type(), false)}};
    case Kind::CPPTYPE_STRING:
      if (p.is_name) return {{"type", "string"}, {"pattern", "^[A-Za-z0-9._+@-]{1,200}$"}};
      if (p.where == Where::kBody) return {{"type", "string"}, {"maxLength", p.most}};
      return {{"type", "string"}, {"maxLength", p.most}, {"pattern", "^[^\\u0000]*$"}};  // a URL has no NUL byte
    default: return {{"type", "integer"}, {"minimum", 0}, {"maximum", p.most}};
  }
}

Json QueryParameter(std::string_view name, Json schema, std::string_view about) {
  return {{"name", name}, {"in", "query"}, {"description", about}, {"schema", std::move(schema)}};
}

Json ParametersOf(const ApiRoute& route) {
  Json parameters = Json::array();
  for (const Parameter& p : route.parameters) {
    if (p.where == Where::kBody) continue;
    Json one = QueryParameter(p.name, SchemaOf(route, p), p.about);
    if (p.where == Where::kPath) {
      one["in"] = "path";
      one["required"] = true;
    }
    parameters.push_back(std::move(one));
  }
  if (!route.page_key.empty()) {
    parameters.push_back(QueryParameter("before", {{"type", "integer"}, {"minimum", 0}, {"maximum", Parameter().most}},
                                        "only those before this one: `next` of the page before"));
    parameters.push_back(QueryParameter(
        "limit", {{"type", "integer"}, {"minimum", 1}, {"maximum", kMostPage}, {"default", kDefaultPage}},
        "at most so many"));
  }
  if (HasFields(route)) {
    Json names = Json::array();
    const pb::Descriptor* item = ItemOf(route);
    for (int i = 0; i < item->field_count(); ++i) names.push_back(item->field(i)->name());
    Json one = QueryParameter(
        "fields", {{"type", "array"}, {"minItems", 1}, {"items", {{"type", "string"}, {"enum", std::move(names)}}}},
        "only these fields of the items, with commas between them");
    one["style"] = "form";
    one["explode"] = false;
    parameters.push_back(std::move(one));
  }
  return parameters;
}

Json BodyOf(const ApiRoute& route) {
  Json properties = Json::object();
  for (const Parameter& p : route.parameters) {
    if (p.where != Where::kBody) continue;
    Json schema = SchemaOf(route, p);
    schema["description"] = p.about;
    properties[std::string(p.name)] = std::move(schema);
  }
  if (properties.empty()) return nullptr;
  Json schema = {{"type", "object"}, {"properties", std::move(properties)}, {"additionalProperties", false}};
  return {{"required", false}, {"content", {{"application/json", {{"schema", std::move(schema)}}}}}};
}

Json GpuSchema(std::set<const pb::Descriptor*>* used) {
  const pb::Descriptor* user = Schema::Get().Message("GpuUser");
  used->insert(user);
  const Json text = {{"type", "string"}}, number = {{"type", "integer"}, {"minimum", 0}};
  Json properties = {{"node", text}, {"pool", text}, {"node_state", text}, {"index", number},
                     {"type", text}, {"uuid", text}, {"product", text},    {"memory_bytes", number}};
  properties["problem"] = {{"type", "string"}, {"description", "why no job gets it; \"\": nothing"}};
  properties["bad"] = {{"type", "boolean"}, {"description", "no job gets it"}};
  properties["users"] = {{"type", "array"}, {"items", Reference(NameOf(*user))}};
  Json required = Json::array();
  for (const auto& [name, schema] : properties.items()) required.push_back(name);
  return {{"type", "object"}, {"properties", std::move(properties)}, {"required", std::move(required)}};
}

Json AnswerSchema(const ApiRoute& route, std::set<const pb::Descriptor*>* used, Json* components) {
  const Schema& schema = Schema::Get();
  if (route.reply.empty()) {
    const Json text = {{"type", "string"}};
    return {{"type", "object"},
            {"properties", {{"version", text}, {"api", text}}},
            {"required", Json::array({"version", "api"})}};
  }
  if (route.shape == Shape::kGpus) {
    (*components)["GpuOfNode"] = GpuSchema(used);
    return {{"type", "object"},
            {"properties", {{"gpus", {{"type", "array"}, {"items", Reference("GpuOfNode")}}}}},
            {"required", Json::array({"gpus"})}};
  }
  const auto of = [&](const pb::Descriptor* type) {
    used->insert(type);
    return Reference(NameOf(*type));
  };
  if (route.single) return of(ItemOf(route));
  if (!route.answer.empty()) return of(schema.Field(route.reply, route.answer)->message_type());
  const pb::Descriptor* reply = schema.Message(route.reply);
  if (!HasFields(route)) return of(reply);
  Json answer = SchemaOf(*reply, false, used);
  const pb::Descriptor* item = ItemOf(route);
  const std::string some = NameOf(*item) + "Fields";
  (*components)[some] = SchemaOf(*item, true, used);
  answer["properties"][std::string(route.list)]["items"] = Reference(some);
  if (!route.page_key.empty()) {
    answer["properties"]["next"] = {{"type", "integer"},
                                    {"description", "`before` of the next page; absent: this is the last one"}};
  }
  return answer;
}

Json ProblemAnswer(int status) {
  return {{"description", http::StatusText(status)},
          {"content", {{"application/problem+json", {{"schema", Reference("Problem")}}}}}};
}

// "get"
std::string MethodOf(const ApiRoute& route) {
  std::string method;
  for (const char c : route.method) method += static_cast<char>(c - 'A' + 'a');
  return method;
}

Json OperationOf(const ApiRoute& route, std::set<const pb::Descriptor*>* used, Json* components) {
  Json operation = {{"summary", route.summary}};
  std::string id = MethodOf(route);
  for (const char c : route.path) id += c == '/' ? '_' : c == '{' || c == '}' ? ' ' : c;
  std::erase(id, ' ');
  operation["operationId"] = id;
  if (Json parameters = ParametersOf(route); !parameters.empty()) operation["parameters"] = std::move(parameters);
  if (Json body = BodyOf(route); !body.is_null()) operation["requestBody"] = std::move(body);
  Json schema = AnswerSchema(route, used, components);
  const bool events = route.events();
  Json content = {{events ? "text/event-stream" : "application/json", {{"schema", std::move(schema)}}}};
  if (events) content["text/event-stream"]["schema"] = {{"type", "string"}};
  Json answers = {{"200", {{"description", "OK"}, {"content", std::move(content)}}}};
  for (const int status : {400, 401, 403, 404, 405, 409, 413, 415, 429, 431, 500, 501, 503, 504}) {
    answers[std::to_string(status)] = ProblemAnswer(status);
  }
  operation["responses"] = std::move(answers);
  operation["x-vrun-scope"] = route.changes() ? "write" : "read";
  return operation;
}

Json ProblemSchema() {
  const Json text = {{"type", "string"}};
  return {{"type", "object"},
          {"description", "RFC 9457"},
          {"properties", {{"type", text}, {"title", text}, {"status", {{"type", "integer"}}}, {"detail", text}}},
          {"required", Json::array({"type", "title", "status", "detail"})}};
}

}  // namespace

std::string OpenApiDocument() {
  std::set<const pb::Descriptor*> used;
  Json components = {{"Problem", ProblemSchema()}};
  Json paths = Json::object();
  for (const ApiRoute& route : ApiRoutes()) {
    paths[std::string(kApiPrefix) + std::string(route.path)][MethodOf(route)] = OperationOf(route, &used, &components);
  }
  for (bool more = true; more;) {
    more = false;
    for (const pb::Descriptor* type : std::set(used)) {
      if (components.contains(NameOf(*type))) continue;
      components[NameOf(*type)] = SchemaOf(*type, false, &used);
      more = true;
    }
  }
  Json security = Json::array();
  security.push_back({{"token", Json::array()}});
  const Json document = {
      {"openapi", "3.1.0"},
      {"info",
       {{"title", "vrun"},
        {"version", VRUN_VERSION},
        {"description",
         "The controller of a vrun cluster. Times end in _us and are microseconds since 1970; sizes are "
         "bytes. `vctl token create` makes a token."},
        {"license", {{"name", "Apache-2.0"}, {"identifier", "Apache-2.0"}}}}},
      {"servers", Json::array({{{"url", "/"}}})},
      {"security", std::move(security)},
      {"paths", std::move(paths)},
      {"components",
       {{"schemas", std::move(components)},
        {"securitySchemes", {{"token", {{"type", "http"}, {"scheme", "bearer"}}}}}}}};
  return Text(document);
}

}  // namespace vrun::control

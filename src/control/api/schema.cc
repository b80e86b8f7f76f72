// SPDX-License-Identifier: Apache-2.0
#include "control/api/schema.h"

#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/util/json_util.h>

#include <cmath>
#include <memory>

// The FileDescriptorSet of control.proto and what it imports.
asm(".pushsection .rodata\n"
    ".balign 16\n"
    ".globl vrun_api_descriptors, vrun_api_descriptors_end\n"
    ".hidden vrun_api_descriptors, vrun_api_descriptors_end\n"
    "vrun_api_descriptors:\n"
    ".incbin \"" VRUN_API_DESCRIPTORS
    "\"\n"
    "vrun_api_descriptors_end:\n"
    ".byte 0\n"
    ".popsection\n");
extern "C" {
[[gnu::visibility("hidden")]] extern const char vrun_api_descriptors[];
[[gnu::visibility("hidden")]] extern const char vrun_api_descriptors_end[];
}

namespace vrun::control {
namespace {

namespace pb = google::protobuf;
using Kind = pb::FieldDescriptor;

Json ObjectOf(const pb::Message& message);

// One value; `at` -1: the field is not repeated.
Json ValueOf(const pb::Message& message, const pb::FieldDescriptor* field, int at) {
  const pb::Reflection& r = *message.GetReflection();
  const bool one = at < 0;
  switch (field->cpp_type()) {
    case Kind::CPPTYPE_INT32: return one ? r.GetInt32(message, field) : r.GetRepeatedInt32(message, field, at);
    case Kind::CPPTYPE_INT64: return one ? r.GetInt64(message, field) : r.GetRepeatedInt64(message, field, at);
    case Kind::CPPTYPE_UINT32: return one ? r.GetUInt32(message, field) : r.GetRepeatedUInt32(message, field, at);
    case Kind::CPPTYPE_UINT64: return one ? r.GetUInt64(message, field) : r.GetRepeatedUInt64(message, field, at);
    case Kind::CPPTYPE_BOOL: return one ? r.GetBool(message, field) : r.GetRepeatedBool(message, field, at);
    case Kind::CPPTYPE_FLOAT:
    case Kind::CPPTYPE_DOUBLE: {
      const bool wide = field->cpp_type() == Kind::CPPTYPE_DOUBLE;
      const double value = wide ? (one ? r.GetDouble(message, field) : r.GetRepeatedDouble(message, field, at))
                                : (one ? r.GetFloat(message, field) : r.GetRepeatedFloat(message, field, at));
      return std::isfinite(value) ? Json(value) : Json(0);
    }
    case Kind::CPPTYPE_ENUM: {
      const int number = one ? r.GetEnumValue(message, field) : r.GetRepeatedEnumValue(message, field, at);
      const pb::EnumValueDescriptor* value = field->enum_type()->FindValueByNumber(number);
      // A value of a newer version.
      return value != nullptr ? value->name() : field->enum_type()->value(0)->name();
    }
    case Kind::CPPTYPE_STRING: return one ? r.GetString(message, field) : r.GetRepeatedString(message, field, at);
    case Kind::CPPTYPE_MESSAGE:
      return ObjectOf(one ? r.GetMessage(message, field) : r.GetRepeatedMessage(message, field, at));
  }
  return nullptr;
}

Json ObjectOf(const pb::Message& message) {
  const pb::Reflection& r = *message.GetReflection();
  const pb::Descriptor& type = *message.GetDescriptor();
  Json object = Json::object();
  for (int i = 0; i < type.field_count(); ++i) {
    const pb::FieldDescriptor* field = type.field(i);
    if (!field->is_repeated()) {
      if (AlwaysThere(*field) || r.HasField(message, field)) object[field->name()] = ValueOf(message, field, -1);
      continue;
    }
    Json array = Json::array();
    for (int at = 0; at < r.FieldSize(message, field); ++at) array.push_back(ValueOf(message, field, at));
    object[field->name()] = std::move(array);
  }
  return object;
}

}  // namespace

bool AlwaysThere(const pb::FieldDescriptor& field) { return field.is_repeated() || !field.has_presence(); }

std::string Text(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

Schema& Schema::Get() {
  static Schema schema;
  return schema;
}

Schema::Schema() : factory_(&pool_) {
  pb::FileDescriptorSet files;
  VRUN_CHECK(
      files.ParseFromArray(vrun_api_descriptors, static_cast<int>(vrun_api_descriptors_end - vrun_api_descriptors)));
  for (const pb::FileDescriptorProto& file : files.file()) VRUN_CHECK(pool_.BuildFile(file) != nullptr);
}

const pb::Descriptor* Schema::Message(std::string_view name) const {
  const pb::Descriptor* found = pool_.FindMessageTypeByName("vrun.v1." + std::string(name));
  VRUN_CHECK(found != nullptr);
  return found;
}

const pb::FieldDescriptor* Schema::Field(std::string_view message, std::string_view pointer) const {
  const pb::Descriptor* type = Message(message);
  const pb::FieldDescriptor* field = nullptr;
  while (!pointer.empty()) {
    pointer.remove_prefix(1);
    const std::string_view name = pointer.substr(0, pointer.find('/'));
    pointer.remove_prefix(name.size());
    if (name == "0") continue;  // of a repeated field
    VRUN_CHECK(type != nullptr);
    field = type->FindFieldByName(std::string(name));
    VRUN_CHECK(field != nullptr);
    type = field->message_type();
  }
  VRUN_CHECK(field != nullptr);
  return field;
}

Result<std::string> Schema::ToBytes(std::string_view message, const Json& object) {
  const std::unique_ptr<pb::Message> made(factory_.GetPrototype(Message(message))->New());
  const auto parsed = pb::util::JsonStringToMessage(Text(object), made.get());
  if (!parsed.ok()) return Error(Code::kInvalid, std::string(parsed.message()));
  return made->SerializeAsString();
}

Result<Json> Schema::ToJson(std::string_view message, const std::string& bytes) {
  const std::unique_ptr<pb::Message> made(factory_.GetPrototype(Message(message))->New());
  if (!made->ParseFromString(bytes)) {
    return Error(Code::kInternal, "the answer is no " + std::string(message) + ": report this");
  }
  return ObjectOf(*made);
}

}  // namespace vrun::control

// SPDX-License-Identifier: Apache-2.0
// The protobuf schemas of the controller's calls as this program knows them while it runs, and their JSON.
//
// Messages are compiled without descriptors (LITE_RUNTIME); protoc writes the descriptors into a file that is linked
// in. JSON of an answer: names as in the schema; 64-bit integers are numbers; an enum is the name of its value; bytes
// are text, in which bytes that are not UTF-8 become U+FFFD. A field without presence is always there, also when it is
// 0.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/dynamic_message.h>

#define JSON_USE_IMPLICIT_CONVERSIONS 0
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace vrun::control {

using Json = nlohmann::ordered_json;

// Valid UTF-8, whatever is in it.
std::string Text(const Json& json);

class Schema {
 public:
  // Made by the first call. Any thread.
  static Schema& Get();

  // REQUIRES: there is one; "ListReply" is vrun.v1.ListReply.
  const google::protobuf::Descriptor* Message(std::string_view name) const;
  // The field at a JSON pointer: "/jobs/0/job". REQUIRES: there is one.
  const google::protobuf::FieldDescriptor* Field(std::string_view message, std::string_view pointer) const;
  // kInvalid: the object is no such message.
  Result<std::string> ToBytes(std::string_view message, const Json& object);
  // kInternal: the bytes are no such message.
  Result<Json> ToJson(std::string_view message, const std::string& bytes);

 private:
  Schema();

  google::protobuf::DescriptorPool pool_;
  google::protobuf::DynamicMessageFactory factory_;
};

// Whether a field of an answer is always there.
bool AlwaysThere(const google::protobuf::FieldDescriptor& field);

}  // namespace vrun::control

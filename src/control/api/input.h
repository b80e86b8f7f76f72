// SPDX-License-Identifier: Apache-2.0
// Checks what a request says against its row of the table, and makes the call's message of it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "control/api/routes.h"
#include "control/api/schema.h"
#include "http/router.h"

namespace vrun::control {

// Besides the parameters of the row.
struct Input {
  Json request;                                      // of the row's message
  std::vector<std::pair<std::string, Json>> filter;  // JSON pointer into an item, and its value
  std::vector<std::string> fields;                   // of the items; empty: all
  uint64_t before = 0;                               // of a page: only items with a lower key; 0: from the first
  uint32_t limit = kDefaultPage;
};

// The schema of a parameter's value.
const google::protobuf::FieldDescriptor* FieldOf(const ApiRoute& route, const Parameter& parameter);
// The message of the items of the row's list. REQUIRES: it has one.
const google::protobuf::Descriptor* ItemOf(const ApiRoute& route);
// Whether the items of the row's list are answered as they are, so that `fields` may choose among theirs.
inline bool HasFields(const ApiRoute& route) {
  return !route.list.empty() && !route.single && route.shape == Shape::kPlain;
}

// kInvalid: the reason, for the client. kUnsupported: the body is of another content type than JSON.
Result<Input> ReadInput(const ApiRoute& route, const http::Call& call);

// The answer of the row for the reply of its call. kNotFound, kAborted: why there is none.
Result<Json> AnswerOf(const ApiRoute& route, const Input& input, Json reply);

}  // namespace vrun::control

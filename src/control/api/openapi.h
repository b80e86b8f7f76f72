// SPDX-License-Identifier: Apache-2.0
// The OpenAPI 3.1 document of the API, made of the table (routes.h) and the schemas of the messages (schema.h).
#pragma once

#include <string>

namespace vrun::control {

// JSON. Made anew by each call.
std::string OpenApiDocument();

}  // namespace vrun::control

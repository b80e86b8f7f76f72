// SPDX-License-Identifier: Apache-2.0
// The REST API as a table. A row says which gRPC call a request makes and how its parts fill that call's message. The
// server, the checks of the input and the OpenAPI document are derived from it: a new call costs one row.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace vrun::control {

// All paths of the table begin with this.
inline constexpr std::string_view kApiPrefix = "/api/v1";

enum class Where { kPath, kQuery, kBody };

struct Parameter {
  std::string_view name;
  Where where = Where::kQuery;
  std::string_view field;   // JSON pointer into the request; its schema gives the type. "": none
  std::string_view filter;  // JSON pointer into the items of the answer's list, of which only those stay that have this
                            // value; "": none
  std::string_view about;
  int64_t most = 9'007'199'254'740'991;  // of a number, which is at least 0; of a text: characters
  bool is_name = false;                  // a text of 1 to 200 letters, digits and "._-+@"
};

// What the bytes of the answer become, if not simply its JSON.
enum class Shape { kPlain, kGpus, kProblems };

struct ApiRoute {
  std::string_view method;   // "GET"
  std::string_view path;     // below the prefix
  std::string_view call;     // of vrun.v1.Control: "List"; or "People/WhoAmI"; "": made by own_routes.cc itself
  std::string_view request;  // message
  std::string_view reply;    // message
  std::string_view summary;
  std::vector<Parameter> parameters = {};
  std::string_view fixed = "{}";   // JSON of the request before the parameters
  std::string_view answer = "";    // JSON pointer to the part of the reply that is the answer
  std::string_view list = "";      // of the answer: the field with its items; `fields` chooses among theirs
  std::string_view page_key = "";  // of an item: a number; the list is in descending order of it and comes in pages
  bool single = false;             // the answer is the one item that the filters leave; 404 without one
  Shape shape = Shape::kPlain;
  bool changes() const { return method != "GET"; }                                    // needs a token that may write
  bool events() const { return path.ends_with("/watch") || path.ends_with("/log"); }  // server-sent
};

std::span<const ApiRoute> ApiRoutes();

// Items of a page.
inline constexpr uint32_t kMostPage = 1000, kDefaultPage = 100;

}  // namespace vrun::control

// SPDX-License-Identifier: Apache-2.0
// --mail-type, --mail-user and --notify-url: who is told about a job.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "proto/common.pb.h"

namespace vrun::cli {

struct NotifyOptions {
  std::vector<std::string> events;  // as in v1::Notify
  bool asked = false;               // by --mail-type, with other words than NONE
  std::string mail_user;            // "": the controller knows it
  std::string url;
};

// "END,FAIL": replaces what was asked for before. kInvalid lists the words. In small letters too.
Status ParseMailType(const std::string& text, NotifyOptions* options);
Status ParseMailUser(const std::string& text, NotifyOptions* options);
Status ParseNotifyUrl(const std::string& text, NotifyOptions* options);
// Puts all of it into the request. Without --mail-type no mail is sent, whatever --mail-user says.
void ApplyNotify(const NotifyOptions& options, v1::RunSpec* spec);

// "mail to anna@example.org and POST to https://... on begin, end"; "" for nobody.
std::string NotifyText(const v1::Notify& notify);

}  // namespace vrun::cli

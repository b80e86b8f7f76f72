// SPDX-License-Identifier: Apache-2.0
// vctl secret: values that jobs get and that are nowhere but here and there. Needs no home daemon.
#include "cli/isolation/ctl_secret.h"

#include <termios.h>
#include <unistd.h>

#include <cstdio>

#include "base/clock.h"
#include "base/config.h"
#include "base/escape.h"
#include "base/files.h"
#include "base/secrets/secret_store.h"
#include "cli/base/json.h"
#include "cli/base/table.h"

namespace vrun::cli {
namespace {

enum Id { kFromFile };

constexpr OptionSpec kOptions[] = {{kFromFile, 0, "from-file", Argument::kRequired, "FILE",
                                    "set: the value is this file, byte for byte; -: what comes on stdin",
                                    Completes::kFiles}};

Status Validate(const CtlInvocation& invocation) {
  const auto& words = invocation.words.operands;
  const std::string action = words.empty() ? "list" : words[0];
  const bool named = action == "set" || action == "delete";
  if (!named && action != "list") {
    return Error(Code::kInvalid, Escape(action) + ": no such action: write set NAME, list or delete NAME");
  }
  if (invocation.Has(kFromFile) && action != "set") return Error(Code::kInvalid, "--from-file is for set");
  if (words.size() > (named ? 2 : 1)) {
    const std::string why = action == "set"
                                ? "a value in the command line is seen by everybody on this machine: write it "
                                  "to stdin, or name a file with --from-file"
                                : "unexpected";
    // Not repeated: it may be the value.
    return Error(Code::kInvalid, "a word too many: " + why);
  }
  if (!named) return {};
  if (words.size() < 2) return Error(Code::kInvalid, "no name: write " + action + " NAME");
  return CheckSecretName(words[1]);
}

// From the keyboard, without showing it.
Result<std::string> AskFor(const std::string& name) {
  termios shown{};
  const bool hidden = ::tcgetattr(0, &shown) == 0;
  termios modes = shown;
  modes.c_lflag &= ~static_cast<tcflag_t>(ECHO);
  // Before the question: an answer that comes at once would be shown, and dropped with what was typed before.
  if (hidden) ::tcsetattr(0, TCSAFLUSH, &modes);
  std::fprintf(stderr, "value of %s: ", Escape(name).c_str());
  std::string line(kMostSecretBytes + 1, '\0');
  const ssize_t n = ::read(0, line.data(), line.size());
  if (hidden) ::tcsetattr(0, TCSAFLUSH, &shown);
  std::fputc('\n', stderr);
  if (n <= 0) return Error(Code::kAborted, "no value");
  line.resize(static_cast<size_t>(n));
  return line;
}

Result<std::string> ReadStdin() {
  std::string out(kMostSecretBytes + 2, '\0');
  VRUN_ASSIGN(const size_t n, ReadUpTo(0, out.data(), out.size()));
  out.resize(n);
  return out;
}

Result<std::string> ValueFor(const CtlInvocation& invocation, const std::string& name) {
  const auto file = invocation.Value(kFromFile);
  if (file && *file == "-") return ReadStdin();
  if (file) return ReadFile(*file, kMostSecretBytes + 1);
  VRUN_ASSIGN(std::string value, ::isatty(0) == 1 ? AskFor(name) : ReadStdin());
  // What `echo` and the keyboard add.
  if (value.ends_with('\n')) value.pop_back();
  return value;
}

Result<int> List(const SecretStore& store, const CtlInvocation& invocation) {
  VRUN_ASSIGN(const std::vector<SecretStore::Entry> all, store.List());
  if (invocation.json()) {
    JsonWriter json;
    json.BeginObject().Key("schema").Int(kJsonSchema).Key("secrets").BeginArray();
    for (const SecretStore::Entry& e : all) {
      json.BeginObject().Key("name").String(e.name).Key("bytes").Uint(e.bytes);
      json.Key("changed").Time(e.changed_us).EndObject();
    }
    json.EndArray().EndObject();
    Print(json.Take());
    return 0;
  }
  Table table({"NAME", "BYTES", "CHANGED"});
  std::string names;
  for (const SecretStore::Entry& e : all) {
    table.Add({e.name, std::to_string(e.bytes), FormatRfc3339(e.changed_us)});
    names += e.name + "\n";
  }
  Print(invocation.format == OutputFormat::kName ? names : table.Format(invocation.headers));
  return 0;
}

Result<int> Run(const CtlInvocation& invocation) {
  VRUN_ASSIGN(const Places places, FindPlaces());
  const SecretStore store(places.state_dir);
  const auto& words = invocation.words.operands;
  if (words.empty() || words[0] == "list") return List(store, invocation);
  if (words[0] == "delete") {
    VRUN_TRY(store.Delete(words[1]));
    return 0;
  }
  VRUN_ASSIGN(const std::string value, ValueFor(invocation, words[1]));
  if (value.empty()) return Error(Code::kInvalid, "secret " + Escape(words[1]) + ": an empty value");
  VRUN_TRY(store.Set(words[1], value));
  return 0;
}

}  // namespace

const CtlCommand kCtlSecret{
    "secret", "[set NAME|list|delete NAME]", "values for jobs (`vrun --secret NAME`) that only they and you see",
    kOptions, Completes::kSecretActions,     Validate,
    Run};

}  // namespace vrun::cli

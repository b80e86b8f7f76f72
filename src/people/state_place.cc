// SPDX-License-Identifier: Apache-2.0
#include "people/state_place.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/escape.h"
#include "base/files.h"

namespace vrun::people {
namespace {

std::string NoteOf(const std::string& state_directory) { return state_directory + "/place"; }

}  // namespace

Status SaveStatePlace(const std::string& state_directory, StatePlace place) {
  const std::string note = NoteOf(state_directory);
  if (place.shared_directory == state_directory) place.shared_directory.clear();
  if (place.shared_directory.empty() && place.database.empty()) {
    if (::unlink(note.c_str()) != 0 && errno != ENOENT) return ErrnoError("remove " + Escape(note));
    return {};
  }
  if (!place.shared_directory.empty()) {
    std::error_code failed;
    place.shared_directory = std::filesystem::absolute(place.shared_directory, failed).string();
    if (failed) return Error(Code::kInvalid, Escape(place.shared_directory) + ": " + failed.message());
  }
  if ((place.shared_directory + place.database).find('\n') != std::string::npos) {
    return Error(Code::kInvalid, "the shared directory and the database must be one line each");
  }
  return WriteFileAtomic(note, place.shared_directory + "\n" + place.database + "\n", 0600);
}

Result<StatePlace> ReadStatePlace(const std::string& state_directory) {
  StatePlace place{state_directory, ""};
  Result<std::string> text = ReadFile(NoteOf(state_directory), 65536);
  if (!text && text.error().code() == Code::kNotFound) return place;
  if (!text) return std::move(text).error();
  const size_t end = text->find('\n');
  if (end == std::string::npos) return Error(Code::kCorrupt, Escape(NoteOf(state_directory)) + ": it is not whole");
  if (end > 0) place.shared_directory = text->substr(0, end);
  place.database = text->substr(end + 1, text->find('\n', end + 1) - end - 1);
  return place;
}

}  // namespace vrun::people

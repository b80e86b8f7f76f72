// SPDX-License-Identifier: Apache-2.0
#include "people/persons.h"

#include <dirent.h>

#include <algorithm>

#include "base/escape.h"
#include "base/files.h"

namespace vrun::people {
namespace {

constexpr size_t kMostBytes = 1u << 20;
constexpr int kMostMachines = 100;  // of one person

}  // namespace

Persons::Persons(const std::string& directory) : directory_(directory + "/persons/") {
  DIR* open = ::opendir(directory_.c_str());
  if (open == nullptr) return;
  while (const dirent* entry = ::readdir(open)) {
    v1::Person person;
    const auto text =
        entry->d_name[0] == '.' ? Error(Code::kNotFound, "") : ReadFile(directory_ + entry->d_name, kMostBytes);
    if (text && person.ParseFromString(*text) && person.user() == entry->d_name) persons_[person.user()] = person;
  }
  ::closedir(open);
}

std::optional<v1::Person> Persons::Find(const std::string& user) const {
  MutexLock lock(mutex_);
  const auto found = persons_.find(user);
  return found == persons_.end() ? std::nullopt : std::optional(found->second);
}

bool Persons::InGroup(const std::string& name, const std::string& group) const {
  const size_t at = name.find('@');
  if (at == std::string::npos) return false;
  MutexLock lock(mutex_);
  const auto found = persons_.find(name.substr(0, at));
  if (found == persons_.end()) return false;
  const auto has = [](const auto& list, const std::string& one) {
    return std::find(list.begin(), list.end(), one) != list.end();
  };
  return has(found->second.groups(), group) && has(found->second.machines(), name.substr(at + 1));
}

Status Persons::LogIn(const v1::Person& person, const std::string& machine) {
  MutexLock lock(mutex_);
  v1::Person now = person;
  const auto found = persons_.find(person.user());
  if (found != persons_.end()) {
    const v1::Person& before = found->second;
    if (before.issuer() != person.issuer() || before.subject() != person.subject()) {
      return Error(Code::kDenied, Escape(person.user()) + ": this name belongs to another account of the identity " +
                                      "provider: ask the cluster's administrator");
    }
    *now.mutable_machines() = before.machines();
  }
  auto& machines = *now.mutable_machines();
  if (std::find(machines.begin(), machines.end(), machine) == machines.end()) {
    if (machines.size() >= kMostMachines) {
      return Error(Code::kExhausted, Escape(person.user()) + ": has logged in on " + std::to_string(kMostMachines) +
                                         " machines, which is the limit: choose one of their names with --name");
    }
    machines.Add()->assign(machine);
  }
  VRUN_TRY(MakeDirs(directory_, 0700));
  VRUN_TRY(WriteFileAtomic(directory_ + now.user(), now.SerializeAsString(), 0600));
  persons_[now.user()] = std::move(now);
  return {};
}

}  // namespace vrun::people

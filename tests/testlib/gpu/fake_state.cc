// SPDX-License-Identifier: Apache-2.0
#include "fake_state.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace fake {

std::vector<std::string> Split(const std::string& text, char by) {
  std::vector<std::string> parts;
  size_t at = 0;
  while (at <= text.size() && !text.empty()) {
    const size_t end = text.find(by, at);
    parts.push_back(text.substr(at, end == text.npos ? text.npos : end - at));
    if (end == text.npos) break;
    at = end + 1;
  }
  return parts;
}

std::string ReadAll(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  std::string text;
  char buffer[4096];
  ssize_t n;
  while ((n = ::read(fd, buffer, sizeof buffer)) > 0) text.append(buffer, static_cast<size_t>(n));
  ::close(fd);
  return text;
}

std::string StateDirectory() {
  if (const char* given = ::getenv("VRUN_FAKE_GPUS")) return given;
  Dl_info info{};
  if (::dladdr(reinterpret_cast<void*>(&StateDirectory), &info) == 0 || info.dli_fname == nullptr) return "";
  char resolved[4096];
  if (::realpath(info.dli_fname, resolved) == nullptr) return "";
  std::string path = resolved;
  for (int up = 0; up < 4 && !path.empty(); ++up) path.resize(path.rfind('/') == path.npos ? 0 : path.rfind('/'));
  return path + "/fake";
}

bool State::Refresh() {
  if (directory_.empty()) directory_ = StateDirectory();
  struct stat st {};
  const std::string path = directory_ + "/gpus";
  if (::stat(path.c_str(), &st) != 0) return false;
  const int64_t changed = st.st_mtim.tv_sec * 1'000'000'000LL + st.st_mtim.tv_nsec;
  if (changed == changed_ && st.st_ino == inode_) return true;
  changed_ = changed;
  inode_ = st.st_ino;
  values_.clear();
  for (const std::string& line : Split(ReadAll(path), '\n')) {
    const size_t blank = line.find(' ');
    if (blank != line.npos) values_[line.substr(0, blank)] = line.substr(blank + 1);
  }
  return true;
}

std::string State::Text(const std::string& key, const std::string& otherwise) const {
  const auto it = values_.find(key);
  return it == values_.end() ? otherwise : it->second;
}

uint64_t State::Number(const std::string& key, uint64_t otherwise) const {
  const auto it = values_.find(key);
  return it == values_.end() ? otherwise : ::strtoull(it->second.c_str(), nullptr, 0);
}

std::string State::GpuText(uint32_t gpu, const char* field, const std::string& otherwise) const {
  return Text("gpu." + std::to_string(gpu) + "." + field, otherwise);
}

uint64_t State::GpuNumber(uint32_t gpu, const char* field, uint64_t otherwise) const {
  return Number("gpu." + std::to_string(gpu) + "." + field, otherwise);
}

static bool ParseProcess(const std::string& text, size_t skip, Process* out) {
  const std::vector<std::string> parts = Split(text, ':');
  if (parts.size() < skip + 2) return false;
  auto number = [&](size_t i) { return i < parts.size() ? ::strtoull(parts[i].c_str(), nullptr, 10) : 0; };
  if (skip == 0) {
    out->pid = static_cast<uint32_t>(number(0));
    skip = 1;
  }
  out->bytes = number(skip);
  out->sm = static_cast<uint32_t>(number(skip + 1));
  if (parts.size() > skip + 2) out->gpu_instance = static_cast<uint32_t>(number(skip + 2));
  return true;
}

std::vector<Process> State::Processes(uint32_t gpu) const {
  std::vector<Process> found;
  for (const std::string& text : Split(GpuText(gpu, "processes"), ',')) {
    Process p{};
    p.gpu_instance = ~0u;
    if (ParseProcess(text, 0, &p)) found.push_back(p);
  }
  DIR* proc = ::opendir("/proc");
  if (proc == nullptr) return found;
  while (const dirent* entry = ::readdir(proc)) {
    if (entry->d_name[0] < '0' || entry->d_name[0] > '9') continue;
    const std::string environment = '\0' + ReadAll(std::string("/proc/") + entry->d_name + "/environ");
    const std::string key = std::string(1, '\0') + "FAKE_GPU_USE=";
    const size_t at = environment.find(key);
    if (at == environment.npos) continue;
    const std::string value = environment.c_str() + at + key.size();
    Process p{};
    p.pid = static_cast<uint32_t>(::atoi(entry->d_name));
    p.gpu_instance = ~0u;
    if (::strtoul(value.c_str(), nullptr, 10) == gpu && ParseProcess(value, 1, &p)) found.push_back(p);
  }
  ::closedir(proc);
  return found;
}

std::vector<uint32_t> State::Xids(size_t* position) const {
  // Each line "GPU XID"; only whole lines count.
  const std::string text = ReadAll(directory_ + "/xids");
  std::vector<uint32_t> found;
  if (*position == static_cast<size_t>(-1)) {
    *position = text.size();
    return found;
  }
  const size_t end = text.find('\n', *position);
  if (end == text.npos) return found;
  unsigned gpu = 0, xid = 0;
  if (::sscanf(text.c_str() + *position, "%u %u", &gpu, &xid) == 2) found = {gpu, xid};
  *position = end + 1;
  return found;
}

Instances::Instances(const std::string& directory) : path_(directory + "/mig") {
  lock_ = ::open((directory + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_ >= 0) ::flock(lock_, LOCK_EX);
  for (const std::string& line : Split(ReadAll(path_), '\n')) {
    Instance i{};
    unsigned computes = 0;
    if (::sscanf(line.c_str(), "%u %u %u %u %u %u", &i.gpu, &i.id, &i.profile, &i.start, &i.size, &computes) != 6)
      continue;
    i.computes = computes != 0;
    all.push_back(i);
  }
}

Instances::~Instances() {
  if (lock_ >= 0) ::close(lock_);
}

void Instances::Save() {
  const std::string next = path_ + ".new";
  FILE* file = ::fopen(next.c_str(), "we");
  if (file == nullptr) return;
  for (const Instance& i : all) {
    ::fprintf(file, "%u %u %u %u %u %u\n", i.gpu, i.id, i.profile, i.start, i.size, i.computes ? 1u : 0u);
  }
  ::fclose(file);
  ::rename(next.c_str(), path_.c_str());
}

}  // namespace fake

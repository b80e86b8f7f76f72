// SPDX-License-Identifier: Apache-2.0
#include "tree/scan/mounts.h"

#include <sys/sysmacros.h>

#include <algorithm>
#include <charconv>

#include "base/files.h"
#include "tree/rules.h"

namespace vrun::tree {
namespace {

// mountinfo writes space, tab, newline and backslash as \ooo.
std::string Unescape(std::string_view field) {
  std::string out;
  for (size_t i = 0; i < field.size(); ++i) {
    auto octal = [&](size_t at) { return at < field.size() && field[at] >= '0' && field[at] <= '7'; };
    if (field[i] == '\\' && octal(i + 1) && octal(i + 2) && octal(i + 3)) {
      out += static_cast<char>((field[i + 1] - '0') << 6 | (field[i + 2] - '0') << 3 | (field[i + 3] - '0'));
      i += 3;
    } else {
      out += field[i];
    }
  }
  return out;
}

std::vector<std::string_view> Fields(std::string_view line) {
  std::vector<std::string_view> fields;
  while (!line.empty()) {
    const size_t end = std::min(line.find(' '), line.size());
    fields.push_back(line.substr(0, end));
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return fields;
}

bool ParseNumber(std::string_view text, uint32_t* out) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

struct Line {
  uint32_t id = 0;
  uint32_t parent = 0;
  Mount mount;
};

// "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue"
bool ParseLine(std::string_view line, Line* out) {
  Mount* mount = &out->mount;
  const std::vector<std::string_view> f = Fields(line);
  const size_t dash = static_cast<size_t>(std::find(f.begin(), f.end(), "-") - f.begin());
  if (f.size() < 7 || dash < 6 || dash + 2 >= f.size()) return false;
  uint32_t major_number = 0, minor_number = 0;
  const size_t colon = f[2].find(':');
  if (colon == std::string_view::npos || !ParseNumber(f[2].substr(0, colon), &major_number) ||
      !ParseNumber(f[2].substr(colon + 1), &minor_number)) {
    return false;
  }
  if (!ParseNumber(f[0], &out->id) || !ParseNumber(f[1], &out->parent)) return false;
  mount->dev = makedev(major_number, minor_number);
  mount->fs_root = Unescape(f[3]);
  mount->host_point = Unescape(f[4]);
  mount->type = Unescape(f[dash + 1]);
  mount->source = Unescape(f[dash + 2]);
  std::string_view options = dash + 3 < f.size() ? f[dash + 3] : std::string_view();
  mount->read_only = options == "ro" || options.starts_with("ro,");
  mount->included = LocalFileSystem(mount->type, mount->source);
  return true;
}

// The mounts that a path walk from the top can reach. A mount is hidden by another mount on its root, together with all
// mounts on it; or by one on the same parent at a higher directory.
std::vector<Mount> VisibleMounts(const std::vector<Line>& lines) {
  std::unordered_map<uint32_t, std::vector<const Line*>> children;
  std::unordered_set<uint32_t> ids;
  for (const Line& line : lines) ids.insert(line.id);
  std::vector<const Line*> open;
  for (const Line& line : lines) {
    // The top's parent is itself, or is not in this namespace.
    if (line.parent == line.id || !ids.contains(line.parent))
      open.push_back(&line);
    else
      children[line.parent].push_back(&line);
  }
  std::vector<Mount> visible;
  while (!open.empty()) {
    const Line* line = open.back();
    open.pop_back();
    const std::vector<const Line*>& on = children[line->id];
    auto cover = std::find_if(on.begin(), on.end(),
                              [&](const Line* c) { return c->mount.host_point == line->mount.host_point; });
    if (cover != on.end()) {
      open.push_back(*cover);
      continue;
    }
    visible.push_back(line->mount);
    for (const Line* child : on) {
      const bool covered = std::any_of(on.begin(), on.end(), [&](const Line* other) {
        return other->mount.host_point != child->mount.host_point &&
               IsBelow(child->mount.host_point, other->mount.host_point);
      });
      if (!covered) open.push_back(child);
    }
  }
  return visible;
}

}  // namespace

bool LocalFileSystem(std::string_view type, std::string_view source) {
  static constexpr std::string_view kLocal[] = {
      "ext4", "ext3",     "ext2",   "xfs",      "btrfs",    "zfs",   "bcachefs", "overlay", "aufs",    "f2fs",
      "jfs",  "reiserfs", "nilfs2", "vfat",     "msdos",    "exfat", "ntfs",     "ntfs3",   "fuseblk", "hfsplus",
      "udf",  "iso9660",  "erofs",  "squashfs", "ecryptfs", "tmpfs", "ramfs",    "rootfs",  "minix"};
  if (std::find(std::begin(kLocal), std::end(kLocal), type) != std::end(kLocal)) return true;
  return source.starts_with("/dev/") && !type.starts_with("fuse.") && type != "devtmpfs";
}

Result<MountTable> MountTable::Parse(std::string_view mountinfo, const std::string& root_path) {
  std::vector<Line> lines;
  std::unordered_set<uint32_t> ids;
  while (!mountinfo.empty()) {
    const size_t end = std::min(mountinfo.find('\n'), mountinfo.size());
    std::string_view text = mountinfo.substr(0, end);
    mountinfo.remove_prefix(std::min(end + 1, mountinfo.size()));
    if (text.empty()) continue;
    Line line;
    // A duplicate id would make the tree of mounts a graph.
    if (!ParseLine(text, &line) || !ids.insert(line.id).second)
      return Error(Code::kCorrupt, "/proc/self/mountinfo: a line does not parse");
    lines.push_back(std::move(line));
  }
  const std::string root = CleanPath(root_path);
  std::vector<Mount> below;
  Mount holder;
  bool found = false;
  for (Mount& mount : VisibleMounts(lines)) {
    if (IsBelow(root, mount.host_point)) {
      if (!found || mount.host_point.size() > holder.host_point.size()) holder = std::move(mount);
      found = true;
    } else if (IsBelow(mount.host_point, root)) {
      mount.point = root == "/" ? mount.host_point : mount.host_point.substr(root.size());
      below.push_back(std::move(mount));
    }
  }
  std::sort(below.begin(), below.end(), [](const Mount& a, const Mount& b) { return a.point < b.point; });
  if (!found) return Error(Code::kCorrupt, "/proc/self/mountinfo: no mount holds " + root);
  MountTable table;
  holder.point = "/";
  holder.included = true;
  holder.fs_root =
      CleanPath(holder.fs_root + "/" + root.substr(holder.host_point == "/" ? 0 : holder.host_point.size()));
  holder.host_point = root;
  table.mounts_.push_back(std::move(holder));
  for (Mount& mount : below) {
    // Mounts inside an excluded one are not reached.
    const bool reached = std::none_of(table.mounts_.begin(), table.mounts_.end(), [&](const Mount& above) {
      return !above.included && IsBelow(mount.point, above.point);
    });
    if (!reached) continue;
    if (!mount.included) {
      table.excluded_.insert(mount.point);
      const size_t slash = mount.point.rfind('/');
      table.excluded_in_[slash == 0 ? "/" : mount.point.substr(0, slash)].insert(mount.point.substr(slash + 1));
    }
    table.mounts_.push_back(std::move(mount));
  }
  return table;
}

Result<MountTable> MountTable::Read(const std::string& root) {
  VRUN_ASSIGN(const std::string text, ReadFile("/proc/self/mountinfo"));
  return Parse(text, root);
}

const std::unordered_set<std::string>* MountTable::ExcludedIn(const std::string& directory) const {
  auto at = excluded_in_.find(directory);
  return at == excluded_in_.end() ? nullptr : &at->second;
}

}  // namespace vrun::tree

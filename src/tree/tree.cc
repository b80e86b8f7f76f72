// SPDX-License-Identifier: Apache-2.0
#include "tree/tree.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "base/escape.h"
#include "tree/codec.h"
#include "tree/codec_internal.h"
#include "tree/directory_builder.h"

namespace vrun::tree {

bool Entry::is_directory() const { return S_ISDIR(mode); }
bool Entry::is_regular() const { return S_ISREG(mode); }
bool Entry::is_symlink() const { return S_ISLNK(mode); }

Directory::~Directory() {
  if (children_.empty()) return;
  // Released one by one: a very deep chain of directories must not recurse here.
  static thread_local std::vector<std::pair<uint32_t, DirectoryPtr>>* doomed = nullptr;
  if (doomed != nullptr) {
    std::move(children_.begin(), children_.end(), std::back_inserter(*doomed));
    return;
  }
  std::vector<std::pair<uint32_t, DirectoryPtr>> queue = std::move(children_);
  doomed = &queue;
  while (!queue.empty()) {
    DirectoryPtr last = std::move(queue.back().second);
    queue.pop_back();
  }
  doomed = nullptr;
}

DirectoryPtr Directory::Make(std::vector<Entry> entries,
                             const std::function<DirectoryPtr(std::string_view)>& children) {
  DirectoryBuilder builder;
  std::vector<DirectoryBuilder::NamedDirectory> loaded;
  for (const Entry& entry : entries) {
    VRUN_CHECK(builder.Add(entry));
    if (!entry.is_directory() || !children) continue;
    if (DirectoryPtr child = children(entry.name)) loaded.emplace_back(entry.name, std::move(child));
  }
  DirectoryPtr directory = std::move(builder).Finish(std::move(loaded));
  VRUN_CHECK(directory->size() == entries.size());
  return directory;
}

Result<DirectoryPtr> Directory::Parse(std::string encoded) {
  if (encoded.size() > kMaxEncodedBytes) return Error(Code::kCorrupt, "directory object: it is too large");
  std::shared_ptr<Directory> directory(new Directory);
  directory->encoded_ = std::move(encoded);
  directory->encoded_.shrink_to_fit();
  const std::string& all = directory->encoded_;
  std::string_view rest = all;
  VRUN_ASSIGN(const uint64_t count, DecodeCount(&rest));
  directory->offsets_.reserve(count);
  std::string_view previous;
  for (uint64_t i = 0; i < count; ++i) {
    const size_t offset = all.size() - rest.size();
    VRUN_ASSIGN(const Entry entry, DecodeEntry(&rest));
    std::string_view name = PeekName(all.data() + offset);
    if (i > 0 && name <= previous)
      return Error(Code::kCorrupt, "directory object: \"" + Escape(name) + "\" is out of order");
    previous = name;
    directory->offsets_.push_back(static_cast<uint32_t>(offset));
    DirectoryBuilder::AddTotals(PeekEntry(std::string_view(all).substr(offset)), directory.get());
  }
  if (!rest.empty()) return Error(Code::kCorrupt, "directory object: bytes follow the last entry");
  directory->digest_ = Sha256(all);
  return DirectoryPtr(std::move(directory));
}

std::string_view Directory::EncodedAt(size_t i) const {
  const size_t end = i + 1 < offsets_.size() ? offsets_[i + 1] : encoded_.size();
  return std::string_view(encoded_).substr(offsets_[i], end - offsets_[i]);
}

Entry Directory::At(size_t i) const {
  std::string_view bytes = EncodedAt(i);
  auto entry = DecodeEntry(&bytes);
  VRUN_CHECK(entry.has_value());
  return *std::move(entry);
}

std::string_view Directory::NameAt(size_t i) const { return PeekName(encoded_.data() + offsets_[i]); }

size_t Directory::Find(std::string_view name) const {
  auto at = std::lower_bound(offsets_.begin(), offsets_.end(), name, [this](uint32_t offset, std::string_view wanted) {
    return PeekName(encoded_.data() + offset) < wanted;
  });
  if (at == offsets_.end() || PeekName(encoded_.data() + *at) != name) return size();
  return static_cast<size_t>(at - offsets_.begin());
}

DirectoryPtr Directory::Child(size_t i) const {
  auto at = std::lower_bound(children_.begin(), children_.end(), i,
                             [](const auto& child, size_t index) { return child.first < index; });
  return at != children_.end() && at->first == i ? at->second : nullptr;
}

bool DirectoryBuilder::Push(size_t offset) {
  if (bytes_.size() > kMaxEncodedBytes - 64) {
    bytes_.resize(offset);
    return false;
  }
  std::string_view name = PeekName(bytes_.data() + offset);
  uint64_t prefix = 0;
  std::memcpy(&prefix, name.data(), std::min<size_t>(name.size(), sizeof prefix));
  items_.push_back(
      {__builtin_bswap64(prefix), static_cast<uint32_t>(offset), static_cast<uint32_t>(bytes_.size() - offset)});
  return true;
}

bool DirectoryBuilder::Add(const Entry& entry) {
  const size_t offset = bytes_.size();
  EncodeEntry(entry, &bytes_);
  return Push(offset);
}

bool DirectoryBuilder::AddEncoded(std::string_view encoded) {
  const size_t offset = bytes_.size();
  bytes_.append(encoded);
  return Push(offset);
}

bool DirectoryBuilder::Append(DirectoryBuilder other) {
  if (items_.empty()) {
    *this = std::move(other);
    return true;
  }
  if (bytes_.size() + other.bytes_.size() > kMaxEncodedBytes - 64) return false;
  const auto base = static_cast<uint32_t>(bytes_.size());
  bytes_ += other.bytes_;
  for (Item& item : other.items_) item.offset += base;
  items_.insert(items_.end(), other.items_.begin(), other.items_.end());
  return true;
}

void DirectoryBuilder::Remove(std::vector<std::string> names) {
  if (names.empty()) return;
  std::sort(names.begin(), names.end());
  std::erase_if(items_, [&](const Item& item) {
    return std::binary_search(names.begin(), names.end(), PeekName(bytes_.data() + item.offset), std::less<>());
  });
}

bool DirectoryBuilder::Less(const Item& a, const Item& b) const {
  if (a.prefix != b.prefix) return a.prefix < b.prefix;
  const int order = PeekName(bytes_.data() + a.offset).compare(PeekName(bytes_.data() + b.offset));
  return order != 0 ? order < 0 : a.offset < b.offset;
}

// Adds one entry at the front of `entry`; what is below a child is added with the child.
void DirectoryBuilder::AddTotals(const Peek& peek, Directory* directory) {
  Directory::Totals& totals = directory->totals_;
  ++totals.entries;
  if (S_ISDIR(peek.mode)) return;
  if (S_ISREG(peek.mode)) totals.bytes += peek.size;
  if (peek.nlink > 1) ++totals.linked;
  totals.min_ino = std::min(totals.min_ino, peek.ino);
  totals.max_ino = std::max(totals.max_ino, peek.ino);
}

std::shared_ptr<Directory> DirectoryBuilder::Assemble(std::vector<NamedDirectory> children) && {
  auto less = [this](const Item& a, const Item& b) { return Less(a, b); };
  if (!std::is_sorted(items_.begin(), items_.end(), less)) std::sort(items_.begin(), items_.end(), less);
  auto same_name = [this](const Item& a, const Item& b) {
    return a.prefix == b.prefix && PeekName(bytes_.data() + a.offset) == PeekName(bytes_.data() + b.offset);
  };
  items_.erase(std::unique(items_.begin(), items_.end(), same_name), items_.end());
  std::sort(children.begin(), children.end(), [](const auto& a, const auto& b) { return a.first < b.first; });

  std::shared_ptr<Directory> directory(new Directory);
  std::string& out = directory->encoded_;
  size_t total = 16;
  for (const Item& item : items_) total += item.length;
  out.reserve(total);
  EncodeCount(items_.size(), &out);
  directory->offsets_.reserve(items_.size());
  directory->children_.reserve(children.size());
  auto child = children.begin();
  for (const Item& item : items_) {
    const size_t offset = out.size();
    directory->offsets_.push_back(static_cast<uint32_t>(offset));
    out.append(bytes_, item.offset, item.length);
    std::string_view entry = std::string_view(out).substr(offset);
    const Peek peek = PeekEntry(entry);
    AddTotals(peek, directory.get());
    const std::string_view name = PeekName(entry.data());
    while (child != children.end() && child->first < name) ++child;
    if (child == children.end() || child->first != name || !child->second) continue;
    if (!S_ISDIR(peek.mode)) continue;
    const std::string_view digest = child->second->digest().view();
    out.replace(offset + peek.digest_at, digest.size(), digest);
    Directory::Totals& totals = directory->totals_;
    const Directory::Totals& below = child->second->totals();
    totals.entries += below.entries;
    totals.bytes += below.bytes;
    totals.linked += below.linked;
    totals.min_ino = std::min(totals.min_ino, below.min_ino);
    totals.max_ino = std::max(totals.max_ino, below.max_ino);
    directory->children_.emplace_back(static_cast<uint32_t>(directory->offsets_.size() - 1), std::move(child->second));
  }
  directory->digest_ = Sha256(out);
  return directory;
}

DirectoryPtr DirectoryBuilder::Finish(std::vector<NamedDirectory> children) && {
  std::shared_ptr<Directory> directory = std::move(*this).Assemble(std::move(children));
  DirectoryBuilder apart;
  std::vector<NamedDirectory> below;
  for (size_t i = 0; i < directory->size(); ++i) {
    const Peek peek = PeekEntry(directory->EncodedAt(i));
    if (S_ISDIR(peek.mode)) {
      const DirectoryPtr child = directory->Child(i);
      DirectoryPtr of_child = child ? child->apart() : nullptr;
      if (!of_child && !peek.xattrs) continue;
      if (!of_child) of_child = DirectoryBuilder().Assemble({});
      below.emplace_back(directory->NameAt(i), std::move(of_child));
    } else if (!peek.xattrs && !(S_ISREG(peek.mode) && peek.size >= kApartBytes)) {
      continue;
    }
    VRUN_CHECK(apart.AddEncoded(directory->EncodedAt(i)));
  }
  if (apart.size() > 0) directory->apart_ = std::move(apart).Assemble(std::move(below));
  return directory;
}

namespace {

std::shared_ptr<Tree> SnapshotOf(Entry root, DirectoryPtr directory) {
  auto snapshot = std::make_shared<Tree>();
  root.name.clear();
  root.child = directory->digest();
  snapshot->id = Sha256(EncodeRoot(root));
  snapshot->root = std::move(root);
  snapshot->entries = directory->totals().entries;
  snapshot->bytes = directory->totals().bytes;
  snapshot->directory = std::move(directory);
  return snapshot;
}

}  // namespace

TreePtr AssembleTree(Entry root, DirectoryPtr directory) {
  std::shared_ptr<Tree> snapshot = SnapshotOf(std::move(root), std::move(directory));
  DirectoryPtr apart = snapshot->directory->apart();
  if (!apart && !snapshot->root.xattrs.empty()) apart = Directory::Make({}, nullptr);
  if (apart) snapshot->apart = SnapshotOf(snapshot->root, std::move(apart));
  return snapshot;
}

namespace {

// The directory that contains the last component of `path`, and that component ("" for the root itself).
struct Place {
  DirectoryPtr directory;
  std::string_view name;
};

Error NoSuchPath(std::string_view path) { return Error(Code::kNotFound, Escape(path) + ": no such file in the tree"); }

Result<Place> Walk(const Tree& snapshot, std::string_view path) {
  if (!path.starts_with('/')) return Error(Code::kInvalid, Escape(path) + ": not an absolute path");
  Place place{snapshot.directory, {}};
  std::string_view rest = path;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('/'), rest.size());
    std::string_view component = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (component.empty() || component == ".") continue;
    if (component == "..") return Error(Code::kInvalid, Escape(path) + ": \"..\" is not looked up in a tree");
    if (!place.name.empty()) {
      const size_t i = place.directory->Find(place.name);
      DirectoryPtr child = i < place.directory->size() ? place.directory->Child(i) : nullptr;
      if (!child) return NoSuchPath(path);
      place.directory = std::move(child);
    }
    place.name = component;
  }
  return place;
}

}  // namespace

Result<Entry> Lookup(const Tree& snapshot, std::string_view path) {
  VRUN_ASSIGN(Place place, Walk(snapshot, path));
  if (place.name.empty()) return snapshot.root;
  const size_t i = place.directory->Find(place.name);
  if (i == place.directory->size()) return NoSuchPath(path);
  return place.directory->At(i);
}

Result<DirectoryPtr> LookupDirectory(const Tree& snapshot, std::string_view path) {
  VRUN_ASSIGN(Place place, Walk(snapshot, path));
  if (place.name.empty()) return place.directory;
  const size_t i = place.directory->Find(place.name);
  DirectoryPtr child = i < place.directory->size() ? place.directory->Child(i) : nullptr;
  if (!child) return Error(Code::kNotFound, Escape(path) + ": no such directory in the tree");
  return child;
}

}  // namespace vrun::tree

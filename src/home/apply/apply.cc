// SPDX-License-Identifier: Apache-2.0
// Numbers, content and durability. apply_names.cc has the operations on names.
#include "home/apply/apply.h"

#include <unistd.h>

#include <algorithm>

#include "base/escape.h"
#include "base/files.h"
#include "home/apply/apply_context.h"
#include "home/apply/conflict_policy.h"

namespace vrun::home {

using v1::WriteBack;

// --- messages ---

Status Applier::Apply(const WriteBack& message) {
  if (message.sequence() == 0) return Error(Code::kInvalid, "a write of the job without a number");
  if (refused_ != 0 && message.sequence() > refused_) return {};
  refused_ = 0;
  if (message.sequence() <= sequence()) return {};
  Status status;
  if (message.has_file_data()) {
    if (!file_ && ignore_data_) return {};
    status = TakeData(message);
  } else {
    DropFile();  // unfinished; it will be sent again
    ignore_data_ = false;
    VRUN_TRY(CheckRootPath(message.path()));
    status = Dispatch(message);
  }
  if (!status) {
    DropFile();
    ignore_data_ = true;
    return status;
  }
  if (!file_ && refused_ == 0) Settle(message.sequence());
  return {};
}

Status Applier::Dispatch(const WriteBack& message) {
  if (message.path() == "/" && !message.has_set_meta()) return Error(Code::kInvalid, "/: it can only get metadata");
  if (message.exclusive() && context_->options.live) return Claim(message);
  switch (message.op_case()) {
    case WriteBack::kPutFile: return BeginFile(message);
    case WriteBack::kMakeDirectory: return MakeDirectory(message);
    case WriteBack::kMakeSymlink: return MakeSymlink(message);
    case WriteBack::kMakeSpecial: return MakeSpecial(message);
    case WriteBack::kMakeHardLink: return MakeHardLink(message);
    case WriteBack::kRemove: return Remove(message);
    case WriteBack::kRename: return Rename(message);
    case WriteBack::kSetMeta: return SetMeta(message);
    case WriteBack::kFileData:
    case WriteBack::OP_NOT_SET: break;
  }
  return Error(Code::kUnsupported, Escape(message.path()) + ": unknown kind of write: update vrun at home");
}

uint64_t Applier::sequence() const { return context_->sequence; }

void Applier::Settle(uint64_t sequence) {
  if (sequence <= context_->sequence) return;
  context_->sequence = sequence;
  context_->journal.SetApplied(sequence);
}

// --- content ---

Status Applier::BeginFile(const WriteBack& message) {
  if (message.put_file().size() > static_cast<uint64_t>(INT64_MAX)) {
    return Error(Code::kInvalid, Escape(message.path()) + ": a file of an impossible size");
  }
  auto file = std::make_unique<IncomingFile>();
  VRUN_ASSIGN(file->place, context_->paths.FindOrMakeParents(message.path()));
  file->sequence = message.sequence();
  file->put = message.put_file();
  file->base = BaseOf(message);
  VRUN_ASSIGN(const bool begun, policy_->Begin(message, file.get()));
  if (begun) {
    file_ = std::move(file);
  } else {
    WantWhole(message.sequence());
  }
  return {};
}

Status Applier::TakeData(const WriteBack& message) {
  if (!file_ || message.path() != file_->place.asked || message.sequence() <= file_->sequence) {
    return Error(Code::kInvalid, Escape(message.path()) + ": the node sent data of a file before the file itself");
  }
  const v1::FileData& data = message.file_data();
  const uint64_t size = file_->put.size();
  if (data.offset() > size || data.data().size() > size - data.offset()) {
    return Error(Code::kInvalid, Escape(message.path()) + ": data beyond the end of the file");
  }
  Status status = policy_->Write(*file_, data);
  if (!status) return std::move(status).error().With("write " + Escape(file_->place.path));
  if (!data.data().empty()) file_->end = std::max(file_->end, data.offset() + data.data().size());
  bytes_ += data.data().size();
  return data.last() ? EndFile(message.sequence()) : Status();
}

Status Applier::EndFile(uint64_t sequence) {
  IncomingFile& file = *file_;
  // Needed even if nothing is missing: leading or trailing blocks of zeros may have been left out.
  const bool short_of = file.put.sparse() || file.end < file.put.size();
  if (!file.temporary.empty() && short_of && ::ftruncate(file.fd.get(), static_cast<off_t>(file.put.size())) != 0) {
    return ErrnoError("write " + Escape(file.place.path));
  }
  VRUN_ASSIGN(const bool put, policy_->Put(sequence, &file));
  if (!put) {
    WantWhole(file.sequence);
    DropFile();
    return {};
  }
  ++files_;
  context_->Touched(file.place, std::move(file.fd));
  file_.reset();
  return {};
}

// What was appended in place stays; a repetition continues from there.
void Applier::DropFile() {
  if (!file_) return;
  if (!file_->temporary.empty()) (void)RemoveName(file_->place.parent.get(), file_->temporary);
  file_.reset();
}

// --- durability ---

Result<uint64_t> Applier::Sync() {
  VRUN_TRY(context_->flush.Flush());
  context_->journal.SetDurable(sequence());
  return sequence();
}

Applier::Flushing Applier::BeginSync() {
  return {sequence(), std::make_shared<ApplyFlush>(std::exchange(context_->flush, ApplyFlush()))};
}

void Applier::EndSync(const Flushing& begun, bool flushed) {
  if (flushed) {
    context_->journal.SetDurable(begun.sequence);
  } else {
    context_->flush.TouchedEverything();  // covers more than necessary, but loses nothing
  }
}

Status Applier::Finish() {
  DropFile();
  VRUN_TRY(Sync());
  context_->journal.Remove();
  return {};
}

std::vector<v1::Applied> Applier::TakeApplied() { return std::exchange(context_->applied, {}); }

// --- beginning and end ---

Applier::Applier(std::unique_ptr<ApplyContext> context, std::unique_ptr<ConflictPolicy> policy)
    : context_(std::move(context)), policy_(std::move(policy)) {}

Applier::~Applier() { DropFile(); }

Result<std::unique_ptr<Applier>> Applier::Open(ApplyOptions options) {
  VRUN_ASSIGN(SafeRoot root, SafeRoot::Open(options.root));
  VRUN_ASSIGN(ApplyJournal journal, ApplyJournal::Open(options.journal, options.attempt));
  auto context = std::make_unique<ApplyContext>(std::move(options), std::move(root), std::move(journal));
  std::unique_ptr<ConflictPolicy> policy;
  if (context->options.live) {
    policy = MakeLivePolicy(context.get());
  } else {
    VRUN_ASSIGN(policy, MakeFrozenPolicy(context.get()));
  }
  std::unique_ptr<Applier> applier(new Applier(std::move(context), std::move(policy)));
  applier->taken_names_ = applier->context_->journal.refused();
  if (applier->sequence() > applier->context_->journal.durable_before()) (void)applier->Sync();
  return applier;
}

}  // namespace vrun::home

// SPDX-License-Identifier: Apache-2.0
// vctl logs
#include "base/files.h"
#include "cli/array/job_ids.h"
#include "cli/ctl/ctl.h"
#include "cli/run/job_log.h"

namespace vrun::cli {
namespace {

enum Id { kFollow };
constexpr OptionSpec kOptions[] = {
    {kFollow, 'f', "follow", Argument::kNone, "", "go on until the job is over; Ctrl-C leaves it running"}};

Result<int> Run(const CtlInvocation& invocation) {
  VRUN_ASSIGN(const v1::JobSelection job, ParseOneJob(invocation.words.operands[0]));
  VRUN_ASSIGN(HomeConnection home, HomeConnection::Make());
  VRUN_TRY(CopyLog(home, job, invocation.Has(kFollow)));
  return 0;
}

}  // namespace

Result<LogEnd> CopyLog(const HomeConnection& home, const v1::JobSelection& job, bool follow) {
  VRUN_ASSIGN(UniqueFd socket, home.ConnectOrStart());
  v1::ClientMessage message;
  v1::Query::ReadLog* read = message.mutable_query()->mutable_read_log();
  read->set_job(job.job());
  if (const auto element = ElementOf(job)) read->set_element(*element);
  read->set_follow(follow);
  VRUN_TRY(SendMessage(socket.get(), message));
  LogEnd end;
  for (;;) {
    // Quiet: a job without output is normal.
    VRUN_ASSIGN(v1::HomeMessage answer, ReceiveMessage(socket.get(), true));
    if (answer.has_error()) return FromWire(answer.error());
    if (answer.has_done()) return end;
    if (answer.has_finished()) {
      end.finished = std::move(*answer.mutable_finished());
      continue;
    }
    if (!answer.has_log()) return Error(Code::kInternal, "home: unexpected answer instead of a log");
    Status written = WriteAll(answer.log().is_stderr() ? 2 : 1, answer.log().data());
    if (!written) return std::move(written).error().With("logs");
    if (answer.log().is_note()) end.last_note = std::move(*answer.mutable_log()->mutable_data());
  }
}

const CtlCommand kCtlLogs{
    "logs", "[-f] ID", "what a job, or an element of an array, has printed", kOptions, Completes::kJobs, OneJob, Run};

}  // namespace vrun::cli

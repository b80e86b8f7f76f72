// SPDX-License-Identifier: Apache-2.0
#include "telemetry/telemetry.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "base/hash/blake3.h"
#include "base/log.h"
#include "base/thread/mutex.h"
#include "telemetry/exporter.h"

namespace vrun::telemetry {
namespace {

// Of the process. Spans are rare, so one lock does.
struct Process {
  Mutex mutex;
  Exporter* exporter VRUN_GUARDED_BY(mutex) = nullptr;
  Digest cluster VRUN_GUARDED_BY(mutex);
  Sampler sampler VRUN_GUARDED_BY(mutex);
};
Process& Here() {
  static Process process;
  return process;
}
std::atomic<bool> enabled = false;

// What a certificate says does not depend on how its lines are broken.
Digest ClusterOf(std::string_view pem) {
  constexpr std::string_view kBegin = "-----BEGIN CERTIFICATE-----";
  const size_t begin = pem.find(kBegin);
  if (begin != std::string_view::npos) pem.remove_prefix(begin + kBegin.size());
  pem = pem.substr(0, pem.find("-----END"));
  std::string text;
  for (const char c : pem) {
    if (c > ' ') text += c;
  }
  return Blake3("vrun cluster\n" + text);
}

template <size_t kBytes>
Id<kBytes> Cut(const Digest& digest) {
  Id<kBytes> id;
  std::copy_n(digest.bytes.begin(), kBytes, id.bytes.begin());
  if (id.is_zero()) id.bytes.back() = 1;  // which no name may be
  return id;
}

std::string HostName() {
  utsname name;
  return ::uname(&name) == 0 ? name.nodename : "";
}

Attributes ResourceOf(const Settings& settings, const std::string& service, const std::string& instance) {
  Attributes resource = {{"service.name", settings.service.empty() ? service : settings.service},
                         {"service.namespace", std::string("vrun")},
                         {"service.instance.id", instance},
                         {"service.version", std::string(VRUN_VERSION)},
                         {"host.name", HostName()},
                         {"process.pid", int64_t{::getpid()}},
                         {"telemetry.sdk.name", std::string("vrun")},
                         {"telemetry.sdk.language", std::string("cpp")},
                         {"telemetry.sdk.version", std::string(VRUN_VERSION)}};
  for (const auto& given : settings.resource) {
    const auto same =
        std::find_if(resource.begin(), resource.end(), [&](const auto& r) { return r.first == given.first; });
    same == resource.end() ? resource.push_back(given) : void(same->second = given.second);
  }
  return resource;
}

}  // namespace

Export::Export(std::unique_ptr<Exporter> exporter) : exporter_(std::move(exporter)) {
  MutexLock lock(Here().mutex);
  VRUN_CHECK(Here().exporter == nullptr);
  Here().exporter = exporter_.get();
  enabled = true;
}

Export::~Export() {
  MutexLock lock(Here().mutex);
  enabled = false;
  Here().exporter = nullptr;
}

Result<std::unique_ptr<Export>> Export::Begin(const Options& options, const std::string& service,
                                              const std::string& instance, std::string_view cluster) {
  VRUN_ASSIGN(const Settings settings,
              ReadSettings(options, [](const char* name) -> const char* { return std::getenv(name); }));
  if (settings.url.empty()) return std::unique_ptr<Export>();
  if (!cluster.empty()) UseCluster(cluster);
  {
    MutexLock lock(Here().mutex);
    Here().sampler = settings.sampler;
  }
  return std::unique_ptr<Export>(new Export(
      std::make_unique<Exporter>(settings, ResourceOf(settings, service, instance), MakeHttpSender(settings))));
}

std::unique_ptr<Export> Export::TryBegin(const Options& options, const std::string& service,
                                         const std::string& instance, std::string_view cluster) {
  auto begun = Begin(options, service, instance, cluster);
  if (begun) return *std::move(begun);
  LogWarning("traces are not sent: {}", begun.error().message());
  return nullptr;
}

bool Enabled() { return enabled.load(std::memory_order_relaxed); }

void UseCluster(std::string_view authority_pem) {
  const Digest cluster = ClusterOf(authority_pem);
  MutexLock lock(Here().mutex);
  Here().cluster = cluster;
}

void Emit(Span span) {
  if (!Enabled()) return;
  MutexLock lock(Here().mutex);
  if (Here().exporter != nullptr) Here().exporter->Put(std::move(span));
}

Counts Counted() {
  MutexLock lock(Here().mutex);
  if (Here().exporter == nullptr) return {};
  return {Here().exporter->sent(), Here().exporter->dropped()};
}

namespace {

std::pair<Digest, Sampler> ClusterAndSampler() {
  MutexLock lock(Here().mutex);
  return {Here().cluster, Here().sampler};
}

}  // namespace

JobTrace::JobTrace(uint64_t job, std::string_view trace_parent) : job_(job), cluster_(ClusterAndSampler().first) {
  const auto parent = ParseTraceParent(trace_parent);
  if (parent) {
    trace_ = parent->trace;
    caller_ = parent->span;
  } else {
    trace_ = Cut<16>(Blake3("trace\n" + std::string(cluster_.view()) + std::to_string(job)));
  }
  sampled_ = ClusterAndSampler().second.Takes(trace_, parent ? &*parent : nullptr);
}

SpanId JobTrace::Name(std::string_view span, uint32_t attempt, uint32_t pod) const {
  return Cut<8>(Blake3("span\n" + std::string(cluster_.view()) + std::to_string(job_) + "." + std::to_string(attempt) +
                       "." + std::to_string(pod) + "\n" + std::string(span)));
}

Span JobTrace::Make(std::string_view span, int64_t start_us, int64_t end_us, uint32_t attempt, uint32_t pod) const {
  Span made;
  made.trace = trace_;
  made.id = Name(span, attempt, pod);
  made.parent = root();
  made.name = span;
  made.start_us = start_us;
  made.end_us = end_us;
  // As text: 64 bits are more than a number of JSON.
  made.attributes.emplace_back("vrun.job.id", std::to_string(job_));
  if (attempt > 0) made.attributes.emplace_back("vrun.attempt", int64_t{attempt});
  return made;
}

Span JobTrace::MakeRoot(int64_t start_us, int64_t end_us) const {
  Span made = Make(kJob, start_us, end_us);
  made.parent = caller_;
  return made;
}

}  // namespace vrun::telemetry

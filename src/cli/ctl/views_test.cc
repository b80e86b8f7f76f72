// SPDX-License-Identifier: Apache-2.0
// Output for people and programs: tables, JSON, findings of the doctor, completions, statuses.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "cli/base/daemon_process.h"
#include "cli/base/exit_status.h"
#include "cli/base/json.h"
#include "cli/base/table.h"
#include "cli/ctl/job_view.h"
#include "cli/gpus/gpu_view.h"
#include "cli/host/host_facts.h"
#include "cli/host/local_cluster.h"
#include "cli/run/explain_io.h"
#include "cli/run/progress_line.h"
#include "cli/run/status_json.h"

namespace vrun::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

v1::JobInfo SomeJob() {
  v1::JobInfo job;
  job.set_job(12);
  job.set_name("bad\x1b[2Jname");
  job.set_pool("local");
  job.set_state(v1::FAILED);
  job.set_node("n1");
  job.set_submitted_us(1795219141000000);
  job.set_started_us(1795219142000000);
  job.set_ended_us(1795219145000000);
  job.add_argv("sh");
  job.add_argv("it's \xff");
  job.mutable_exit()->set_kind(v1::ExitRecord::EXITED);
  job.mutable_exit()->set_exit_code(7);
  return job;
}

v1::Finished RunWithIo() {
  v1::Finished finished;
  v1::IoReport* io = finished.mutable_io();
  for (const char* name : {"cache", "trace", "ahead", "demand"}) io->add_source()->set_name(name);
  io->set_wall_us(2'000'000);
  io->set_wire_bytes(1000);
  return finished;
}

TEST(ExplainIoTest, SaysWhereContentCameFromWhyAndWhatOfItWasInVain) {
  v1::Finished finished = RunWithIo();
  v1::IoReport* io = finished.mutable_io();
  v1::IoSource* ahead = io->mutable_source(2);
  ahead->set_fetched_units(40);
  ahead->set_fetched_bytes(640 << 10);
  ahead->set_used_units(30);
  ahead->set_unread_bytes(160 << 10);
  ahead->mutable_fetched()->set_last_us(1'500'000);
  io->set_files(7);
  io->set_link_busy_us(1'000'000);
  io->set_peer_bytes(5 << 20);
  io->set_s3_bytes(3 << 10);
  v1::IoFile* file = io->add_largest();
  file->set_path("/lib/unused.so");
  file->set_fetched_bytes(128 << 10);
  file->set_unread_bytes(128 << 10);
  file->set_source("ahead");
  EXPECT_EQ(
      FormatIo(finished),
      "SOURCE  FETCHED  UNITS  READ  UNREAD  FROM     UNTIL    WHY\n"
      "cache   -        -      0     -       -        -        was on the node already\n"
      "trace   0        0      0     0       -        -        read by earlier runs of this program\n"
      "ahead   640K     40     30    160K    0.000 s  1.500 s  home's page cache, libraries, files beside it\n"
      "demand  0        0      0     0       -        -        fetched when it was read\n"
      "7 files read, 1000 from home, 5.0M from other nodes, 3.0K from the S3 store; home's link busy 50 % of 2.000 s\n"
      "0 waits for content, 0.000 s in all\n"
      "FETCHED  UNREAD  SOURCE  FROM     UNTIL    FILE\n"
      "128K     128K    ahead   0.000 s  0.000 s  /lib/unused.so\n");
  io->clear_peer_bytes();
  io->clear_s3_bytes();
  io->set_warm(true);
  EXPECT_THAT(FormatIo(finished), AllOf(HasSubstr("1000 from home; "), HasSubstr("some of it was here before"),
                                        Not(HasSubstr("S3")), Not(HasSubstr("nothing was fetched"))));
}

TEST(ExplainIoTest, ARunThatFetchedNothingIsNoError) {
  EXPECT_THAT(FormatIo(RunWithIo()),
              AllOf(HasSubstr("nothing was fetched: all that was read was here already"), HasSubstr("page cache")));
}

TEST(ExplainIoTest, WithoutAReportItIsOneLine) {
  const std::string text = FormatIo({});
  EXPECT_THAT(text, HasSubstr("no node has reported"));
  EXPECT_EQ(text.find('\n'), text.size() - 1);
}

TEST(TableTest, ColumnsAlignAndNothingMovesTheCursor) {
  v1::JobList jobs;
  *jobs.add_jobs() = SomeJob();
  std::string text = FormatJobs(jobs, OutputFormat::kWide, true);
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, HasSubstr("bad\\x1b[2Jname"));
  EXPECT_THAT(text, HasSubstr("2026-11-20T"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  EXPECT_THAT(FormatJobs(jobs, OutputFormat::kTable, false), Not(HasSubstr("STATE")));
  EXPECT_EQ(FormatJobs(jobs, OutputFormat::kName, true), "12\n");
  Table t({"A", "B"});
  t.Add({"größer", ""});
  EXPECT_EQ(t.Format(true), "A       B\ngrößer  -\n");
}

TEST(JsonTest, TypesArePlainAndBytesAreAlwaysValid) {
  v1::JobList jobs;
  *jobs.add_jobs() = SomeJob();
  std::string text = FormatJobs(jobs, OutputFormat::kJson, true);
  EXPECT_THAT(text, HasSubstr("\"schema\": 1"));
  EXPECT_THAT(text, HasSubstr("\"job\": 12,"));
  EXPECT_THAT(text, HasSubstr("\"exit\": 7"));
  EXPECT_THAT(text, HasSubstr("\\u001b"));
  EXPECT_THAT(text, HasSubstr("it's \xef\xbf\xbd"));
  EXPECT_THAT(text, HasSubstr("\"ran_s\": 3.000000"));
  EXPECT_THAT(FormatJob(SomeJob(), OutputFormat::kJson), testing::StartsWith("{\n  \"schema\": 1,\n  \"job\": 12"));
  JsonWriter json;
  json.BeginObject().Key("a").BeginArray().EndArray().Key("b\"").Null().EndObject();
  EXPECT_EQ(json.Take(), "{\n  \"a\": [],\n  \"b\\\"\": null\n}\n");
}

TEST(ExitStatusTest, FollowsTheTableAndIsNeverZeroWithoutProof) {
  auto status = [](v1::ExitRecord::Kind kind, int code, int signal) {
    v1::ExitRecord r;
    r.set_kind(kind);
    r.set_exit_code(code);
    r.set_signal(signal);
    return ExitStatus(r);
  };
  EXPECT_EQ(status(v1::ExitRecord::EXITED, 0, 0), 0);
  EXPECT_EQ(status(v1::ExitRecord::EXITED, 255, 0), 255);
  EXPECT_EQ(status(v1::ExitRecord::EXITED, 256, 0), 255);
  EXPECT_EQ(status(v1::ExitRecord::SIGNALED, 0, 15), 143);
  EXPECT_EQ(status(v1::ExitRecord::SIGNALED, 0, 0), 255);
  EXPECT_EQ(status(v1::ExitRecord::NOT_FOUND, 0, 0), 127);
  EXPECT_EQ(status(v1::ExitRecord::NOT_EXECUTABLE, 0, 0), 126);
  EXPECT_EQ(status(v1::ExitRecord::START_FAILED, 0, 0), 125);
  EXPECT_EQ(status(v1::ExitRecord::TIME_LIMIT, 0, 0), 124);
  EXPECT_EQ(status(v1::ExitRecord::OUT_OF_MEMORY_KILL, 0, 0), 137);
  EXPECT_EQ(status(v1::ExitRecord::KIND_UNSPECIFIED, 0, 0), 255);
}

TEST(StatusJsonTest, TellsAlsoWhatNeverRan) {
  RunOutcome o;
  o.exit_status = 125;
  o.state = v1::FAILED;
  o.reason = "no";
  EXPECT_THAT(FormatStatus(o), HasSubstr("\"job\": null"));
  EXPECT_THAT(FormatStatus(o), HasSubstr("\"exit\": 125"));
  EXPECT_THAT(FormatStatus(o), HasSubstr("\"signal\": null"));
  EXPECT_FALSE(CheckStatusTarget("fd:x"));
  EXPECT_FALSE(CheckStatusTarget("fd:987"));
  EXPECT_FALSE(CheckStatusTarget("/"));
  EXPECT_TRUE(CheckStatusTarget("fd:2"));
}

// --- the doctor

HostFacts GoodHost() {
  HostFacts f;
  f.kernel = "6.18.44";
  f.fuse_exists = true;
  f.fuse_open = {true, 0};
  f.user_namespace = {true, 0};
  f.max_user_namespaces = 1000;
  f.filesystems = "nodev\tproc\nnodev\tfuse\nnodev\toverlay\n\text4\n";
  f.cgroup_v2_mount = "/sys/fs/cgroup";
  f.cgroup_v2_controllers = "cpuset cpu io memory pids\n";
  f.fanotify = {true, 0};
  f.inotify_watches = 500000;
  f.max_open_files = 20000;
  f.free_bytes = uint64_t{50} << 30;
  f.state_directory = "/";
  f.vrund = "/usr/bin/vrund";
  f.vrund_task = true;
  f.clock_synchronised = true;
  return f;
}

const Finding& Named(const std::vector<Finding>& all, const std::string& name) {
  static const Finding none;
  for (const Finding& f : all) {
    if (f.name == name) return f;
  }
  ADD_FAILURE() << "no check " << name;
  return none;
}

TEST(DoctorTest, AGoodHostIsFit) {
  for (const Finding& f : CheckAll(GoodHost())) EXPECT_NE(f.level, Level::kFail) << f.name << ": " << f.text;
}

TEST(DoctorTest, WhatIsMissingIsNamedWithWhatToDo) {
  struct Case {
    const char* name;
    void (*harm)(HostFacts*);
    const char *text, *what_to_do;
  };
  for (const Case& c : {
           Case{"fuse",
                [](HostFacts* f) {
                  f->fuse_exists = false;
                  f->fuse_open = {false, ENOENT};
                },
                "/dev/fuse does not exist", "modprobe fuse"},
           Case{"fuse",
                [](HostFacts* f) {
                  f->fuse_exists = false;
                  f->filesystems = "\text4\n";
                },
                "kernel has no FUSE", "CONFIG_FUSE_FS"},
           Case{"fuse",
                [](HostFacts* f) {
                  f->fuse_open = {false, EACCES};
                },
                "Permission denied", "--device /dev/fuse"},
           Case{"user-namespaces",
                [](HostFacts* f) {
                  f->user_namespace = {false, ENOSPC};
                  f->max_user_namespaces = 0;
                },
                "max_user_namespaces is 0", "sysctl -w user.max"},
           Case{"user-namespaces",
                [](HostFacts* f) {
                  f->user_namespace = {false, EPERM};
                  f->uid = 7;
                  f->unprivileged_userns_clone = 0;
                },
                "userns_clone is 0", "sysctl -w kernel.unpriv"},
           Case{"user-namespaces",
                [](HostFacts* f) {
                  f->user_namespace = {false, EINVAL};
                },
                "cannot be made", "CONFIG_USER_NS"},
           Case{"user-namespaces",
                [](HostFacts* f) {
                  f->user_namespace = {false, EPERM};
                },
                "not permitted", "SYS_ADMIN"},
           Case{"root", [](HostFacts* f) { f->uid = 1000; }, "user 1000", "sudo"},
           Case{"kernel", [](HostFacts* f) { f->kernel = "5.10.0-30-amd64"; }, "too old", "5.11 or newer"},
           Case{"kernel", [](HostFacts* f) { f->kernel = "strange"; }, "too old", "5.11"},
           Case{"overlayfs", [](HostFacts* f) { f->filesystems = "nodev\tfuse\n"; }, "no overlayfs",
                "modprobe overlay"},
           Case{"disk", [](HostFacts* f) { f->free_bytes = 1000; }, "1000 free", "make room"},
           Case{"programs", [](HostFacts* f) { f->vrund.clear(); }, "vrund is neither", "install"},
           Case{"programs", [](HostFacts* f) { f->vrund_task = false; }, "vrund-task is not beside", "install"},
           Case{"configuration", [](HostFacts* f) { f->config_error = "config.toml:3: bad"; }, "config.toml:3",
                "correct"},
           Case{"controller",
                [](HostFacts* f) {
                  f->configured = f->local_controller = f->home_running = true;
                  f->controller = "h:1";
                },
                "h:1 is not reached", "log"},
       }) {
    HostFacts facts = GoodHost();
    c.harm(&facts);
    const std::vector<Finding> all = CheckAll(facts);
    const Finding& f = Named(all, c.name);
    EXPECT_EQ(f.level, Level::kFail) << c.name << ": " << f.text;
    EXPECT_THAT(f.text, HasSubstr(c.text));
    EXPECT_THAT(f.what_to_do, HasSubstr(c.what_to_do));
  }
}

TEST(DoctorTest, WhatOnlyMakesItSlowerOrLessIsAWarning) {
  struct Case {
    const char* name;
    void (*harm)(HostFacts*);
  };
  for (const Case& c : {Case{"kernel", [](HostFacts* f) { f->kernel = "6.1.0-13-amd64"; }},
                        Case{"cgroups",
                             [](HostFacts* f) {
                               f->cgroup_v2_mount.clear();
                               f->cgroup_v2_controllers.clear();
                             }},
                        Case{"cgroups", [](HostFacts* f) { f->cgroup_v2_controllers = "hugetlb\n"; }},
                        Case{"fanotify",
                             [](HostFacts* f) {
                               f->fanotify = {false, EPERM};
                             }},
                        Case{"inotify",
                             [](HostFacts* f) {
                               f->fanotify = {false, EPERM};
                               f->inotify_watches = 8192;
                             }},
                        Case{"descriptors", [](HostFacts* f) { f->max_open_files = 1024; }},
                        Case{"port", [](HostFacts* f) { f->port_error = "in use"; }},
                        Case{"clock", [](HostFacts* f) { f->clock_skew_us = 3600ll * 1000000; }}}) {
    HostFacts facts = GoodHost();
    c.harm(&facts);
    const std::vector<Finding> all = CheckAll(facts);
    EXPECT_EQ(Named(all, c.name).level, Level::kWarn) << c.name;
    EXPECT_FALSE(Named(all, c.name).what_to_do.empty()) << c.name;
  }
  HostFacts hybrid = GoodHost();
  hybrid.cgroup_v2_controllers = "hugetlb\n";
  hybrid.cgroup_v1_controllers = "rw relatime cpu rw memory rw pids";
  EXPECT_EQ(Named(CheckAll(hybrid), "cgroups").level, Level::kOk);
}

TEST(DoctorTest, AMachineThatOnlySubmitsNeedsNoRootAndNoFuse) {
  HostFacts f = GoodHost();
  f.uid = 1000;
  f.fuse_exists = false;
  f.configured = true;
  f.controller = "far:7420";
  f.home_running = f.controller_connected = true;
  for (const Finding& finding : CheckAll(f)) EXPECT_NE(finding.level, Level::kFail) << finding.name;
}

TEST(DoctorTest, ThisHostCanBeExamined) {
  HostFacts f = GatherEssentials();
  EXPECT_FALSE(f.kernel.empty());
  EXPECT_FALSE(f.filesystems.empty());
}

// --- small parsers

TEST(ProcessTest, StartTimesComeFromBehindTheName) {
  EXPECT_EQ(*ParseStartTime("7 (a) b (c)) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 999 0"), 4242u);
  EXPECT_FALSE(ParseStartTime("7 (a) Z 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 999 0"));
  for (const char* bad : {"", ")", "7 (a)", "7 (a) S 1 2 3", "(((("}) EXPECT_FALSE(ParseStartTime(bad)) << bad;
  auto self = IdentifyProcess(::getpid());
  ASSERT_TRUE(self);
  EXPECT_TRUE(IsAlive(*self));
  self->start_time += 1;
  EXPECT_FALSE(IsAlive(*self));
}

TEST(ClusterTest, MountsBelowADirectoryDeepestFirst) {
  const char* text =
      "22 1 8:1 / / rw - ext4 /dev/a rw\n30 22 0:40 / /var/lib/vrun/node/views/1 ro - fuse vrun ro\n"
      "31 30 0:41 / /var/lib/vrun/node/tasks/a\\040b rw - overlay o rw\n32 22 0:42 / /var/lib/vrun/nodes rw - tmpfs t "
      "rw\n";
  EXPECT_EQ(MountsBelow(text, "/var/lib/vrun/node"),
            (std::vector<std::string>{"/var/lib/vrun/node/tasks/a b", "/var/lib/vrun/node/views/1"}));
  EXPECT_TRUE(MountsBelow("\n\ngarbage", "/x").empty());
}

TEST(ClusterTest, AnyAddressIsDialledOnTheLoopback) {
  EXPECT_EQ(DialAddress({"0.0.0.0", 7}), "127.0.0.1:7");
  EXPECT_EQ(DialAddress({"::", 7}), "[::1]:7");
  EXPECT_EQ(DialAddress({"10.0.0.1", 7}), "10.0.0.1:7");
}

TEST(FormatTest, SizesAndDurations) {
  EXPECT_EQ(FormatBytes(1000), "1000");
  EXPECT_EQ(FormatBytes(uint64_t{3} << 29), "1.5G");
  EXPECT_EQ(FormatDuration(7000000), "0:07");
  EXPECT_EQ(FormatDuration(3723ll * 1000000), "1:02:03");
  EXPECT_EQ(FormatDuration((3 * 86400 + 14706) * 1000000ll), "3-04:05:06");
}

// --- GPUs

v1::NodeList TwoNodes() {
  v1::NodeList nodes;
  v1::NodeInfo* node = nodes.add_nodes();
  node->set_name("n2");
  node->set_pool("lab");
  node->set_state("ready");
  node->mutable_total()->set_gpus(1);
  node->mutable_total()->set_gpu_type("a100");
  node = nodes.add_nodes();
  node->set_name("n1");
  node->set_pool("local");
  node->set_state("ready");
  node->mutable_total()->set_gpus(3);
  node->mutable_facts()->set_gpu_driver("580.1");
  for (int i = 0; i < 3; ++i) {
    v1::Gpu* gpu = node->mutable_facts()->add_gpus();
    gpu->set_uuid("GPU-" + std::to_string(i));
    gpu->set_type("h100");
    gpu->set_memory_bytes(uint64_t{80} << 30);
    gpu->set_mig(i == 1);
  }
  node->mutable_facts()->mutable_gpus(2)->set_problem("XID 79: gone\x1b[2J");
  for (int i = 0; i < 3; ++i) {
    v1::GpuUser* user = node->add_gpu_users();
    user->set_gpu(i == 2 ? 1 : 0);
    user->set_job(static_cast<uint64_t>(10 + i));
    user->set_user("anna");
    user->set_milli(i == 2 ? 125 : 250);
    if (i == 2) user->set_mig_profile("1g.10gb"), user->set_mig_start(4);
    if (i < 2) user->set_sharing(v1::GPU_MPS), user->mutable_usage()->set_utilization_percent(30);
  }
  return nodes;
}

TEST(GpuViewTest, OneLineAGpu) {
  EXPECT_EQ(FormatGpus(TwoNodes(), {}, OutputFormat::kTable, false),
            "n1  0  h100  80G  mps   10:0.25 anna, 11:0.25 anna  60 %  ok\n"
            "n1  1  h100  80G  mig   12:1g.10gb@4 anna           -     ok\n"
            "n1  2  h100  80G  free  -                           -     XID 79: gone\\x1b[2J\n"
            "n2  0  a100  -    free  -                           -     ok\n");
  EXPECT_EQ(FormatGpus(TwoNodes(), {"lab", {}}, OutputFormat::kName, false), "n2:0\n");
  EXPECT_EQ(FormatGpus(TwoNodes(), {"", {"n2"}}, OutputFormat::kName, false), "n2:0\n");
  EXPECT_NE(FormatGpus(TwoNodes(), {}, OutputFormat::kWide, false).find("GPU-1"), std::string::npos);
  const std::string json = FormatGpus(TwoNodes(), {}, OutputFormat::kJson, false);
  EXPECT_NE(json.find("\"mig_profile\": \"1g.10gb\""), std::string::npos);
}

TEST(GpuViewTest, WhatAJobUsed) {
  v1::JobInfo job;
  EXPECT_EQ(UseText(job), "");
  job.mutable_resources()->set_gpus(2);
  job.mutable_resources()->set_gpu_type("h100");
  v1::GpuUsage* use = job.mutable_gpu_usage();
  EXPECT_EQ(UseText(job), "") << "nothing metered yet";
  use->set_metered_us(100'000'000);
  use->set_busy_us(166'000'000);
  use->set_memory_peak_bytes(uint64_t{71} << 30);
  use->set_energy_mj(1'512'000'000);
  EXPECT_EQ(UseText(job), "83 % of 2 x h100, 71G peak, 0.42 kWh");
}

TEST(GpuViewTest, TheBusiestFirst) {
  v1::JobList jobs;
  for (const auto& [id, percent] : {std::pair(1, 10), std::pair(2, 90), std::pair(3, -1)}) {
    v1::JobInfo* job = jobs.add_jobs();
    job->set_job(static_cast<uint64_t>(id));
    job->set_state(v1::RUNNING);
    job->mutable_resources()->set_gpu_milli(250);
    if (percent >= 0) job->mutable_gpu_usage()->set_utilization_percent(static_cast<uint32_t>(percent));
  }
  jobs.add_jobs()->set_state(v1::RUNNING);  // without GPUs
  EXPECT_EQ(FormatTop(jobs, OutputFormat::kName, false), "2\n1\n3\n");
}

TEST(CompletionTest, EveryShownOptionAndCommandIsOffered) {
  for (const CtlCommand* c : CtlCommands()) {
    EXPECT_FALSE(c->summary.empty());
    EXPECT_NE(c->validate, nullptr);
    EXPECT_NE(c->run, nullptr);
  }
}

// --- the progress line

class ProgressTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::pipe2(fds_, O_CLOEXEC | O_NONBLOCK), 0);
    auto memory = CreateStreamProgress();
    ASSERT_TRUE(memory);
    auto map = StreamProgressMap::Map(memory->get());
    ASSERT_TRUE(map);
    map_.emplace(*std::move(map));
  }
  void TearDown() override {
    ::close(fds_[0]);
    ::close(fds_[1]);
  }
  ProgressLineWriter Make(bool terminal, bool quiet = false) {
    return ProgressLineWriter({quiet, terminal, 40, fds_[1]}, &**map_, 0);
  }
  std::string Written() {
    char buffer[4096];
    ssize_t n = ::read(fds_[0], buffer, sizeof buffer);
    return n > 0 ? std::string(buffer, static_cast<size_t>(n)) : "";
  }
  static v1::Progress At(v1::JobState state, const char* text) {
    v1::Progress p;
    p.set_state(state);
    p.set_text(text);
    return p;
  }
  int fds_[2];
  std::optional<StreamProgressMap> map_;
};

TEST_F(ProgressTest, ATerminalGetsOneUpdatingLineThatIsErased) {
  auto line = Make(true);
  line.Update(At(v1::PENDING, "queued, 3rd"));
  EXPECT_GT(line.Tick(1000), 0);
  EXPECT_EQ(Written(), "");  // too early: it would only flash by
  EXPECT_EQ(line.Tick(300000), -1);
  EXPECT_EQ(Written(), "\rvrun: queued, 3rd\x1b[K");
  line.Update(At(v1::PENDING, "queued, 2nd"));
  line.Update(At(v1::STARTING, "starting node\x1b[2J"));
  line.Tick(400000);
  EXPECT_EQ(Written(), "\rvrun: queued, 2nd › starting node\\x1b[2\x1b[K");
  line.Stop();
  EXPECT_EQ(Written(), "\r\x1b[K");
  line.Update(At(v1::RUNNING, "running"));
  line.Tick(500000);
  EXPECT_EQ(Written(), "");
}

TEST_F(ProgressTest, WhenOutputHasBegunNothingIsDrawnOrErased) {
  auto line = Make(true);
  line.Update(At(v1::PENDING, "queued"));
  line.Tick(300000);
  Written();
  // Plays home, which found the line drawn, erased it, and writes.
  EXPECT_EQ((*map_)->line.exchange(ProgressLine::kOutput), ProgressLine::kDrawn);
  line.Update(At(v1::STARTING, "starting"));
  line.Tick(400000);
  line.Stop();
  EXPECT_EQ(Written(), "");
}

TEST_F(ProgressTest, ElsewhereALineComesAfterTwoSecondsOfSilence) {
  auto line = Make(false);
  line.Update(At(v1::PENDING, "queued"));
  EXPECT_GT(line.Tick(1000000), 0);
  EXPECT_EQ(Written(), "");
  line.Tick(2000001);
  EXPECT_EQ(Written(), "vrun: queued\n");
  line.Update(At(v1::PENDING, "queued, 1st"));
  EXPECT_GT(line.Tick(3000000), 0);
  EXPECT_EQ(Written(), "");
  line.Tick(13000000);
  EXPECT_EQ(Written(), "vrun: queued, 1st\n");
  auto quiet = Make(false, true);
  quiet.Update(At(v1::PENDING, "queued"));
  quiet.Tick(60000000);
  EXPECT_EQ(Written(), "");
}

}  // namespace
}  // namespace vrun::cli

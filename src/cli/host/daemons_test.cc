// SPDX-License-Identifier: Apache-2.0
// Starting and stopping daemons: many clients start one home, and `vctl up` and `vctl down` with fake daemons.
#include <arpa/inet.h>
#include <dirent.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/mman.h>

#include "base/command_path.h"
#include "cli/base/daemon_process.h"
#include "cli/testing/fake_home_test_util.h"

namespace vrun::cli {
namespace {

using testing::HasSubstr;
using Words = std::vector<std::string>;

// A vrund in Python. Home answers every request with the frame in answer.bin; all roles record their starts.
constexpr const char* kFakeVrund = R"(#!/usr/bin/python3
import os, signal, socket, struct, sys, threading, time
here = os.environ["VRUN_DIR"]
role, args = sys.argv[1], sys.argv[2:]
with open(here + "/started", "a") as f:
    f.write(role + " " + " ".join(args) + "\n")
if role == "pki":
    if os.path.exists(here + "/pki-fails"):
        sys.exit("vrund pki: no key today: try tomorrow")
    sys.exit(0)
ready = int(args[args.index("--ready-fd") + 1])
if os.path.exists(here + "/" + role + "-fails"):
    os.write(ready, ("error: " + role + " is unwell: let it rest\n").encode())
    sys.exit(1)
if os.path.exists(here + "/" + role + "-dies"):
    print("last words of " + role, file=sys.stderr)
    sys.exit(1)
answer = open(here + "/answer.bin", "rb").read()
if role == "home":
    path = here + "/home.sock"
    if os.path.exists(path):
        os.unlink(path)
    s = socket.socket(socket.AF_UNIX)
    s.bind(path)
    os.chmod(path, 0o600)
    s.listen(50)
    def serve(c):
        head = c.recv(8)
        if len(head) == 8:
            body = b""
            while len(body) < struct.unpack("<II", head)[0]:
                body += c.recv(65536)
            if body == b"\x2a\x02\x12\x00":   # Query{shutdown}
                os._exit(0)
            c.sendall(struct.pack("<II", len(answer), 0) + answer)
        c.close()
    os.write(ready, b"ok\n")
    os.close(ready)
    while True:
        c, _ = s.accept()
        threading.Thread(target=serve, args=(c,)).start()
os.write(ready, b"ok\n")
os.close(ready)
while True:
    signal.pause()
)";

class DaemonsTest : public FakeHomeTest {
 protected:
  void SetUp() override {
    FakeHomeTest::SetUp();
    if (::access("/usr/bin/python3", X_OK) != 0) GTEST_SKIP() << "needs python3 for the fake daemons";
    WriteProgram("vrund", kFakeVrund);
    v1::HomeMessage finished;
    finished.mutable_finished()->mutable_record()->set_kind(v1::ExitRecord::EXITED);
    finished.mutable_finished()->set_job(7);
    Answer(finished);
  }
  void TearDown() override {
    for (const std::string& name : {std::string("home"), std::string("controller")}) {
      for (pid_t pid : Pids(name)) ::kill(pid, SIGKILL);
    }
    FakeHomeTest::TearDown();
  }
  void WriteProgram(const std::string& name, const std::string& text) {
    UniqueFd out(::open((dir_ + "/bin/" + name).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755));
    ASSERT_TRUE(WriteAll(out.get(), text));
  }
  void Answer(const v1::HomeMessage& message) {
    ASSERT_TRUE(WriteFileAtomic(dir_ + "/v/answer.bin", message.SerializeAsString(), 0600));
  }
  void AnswerStatus() {
    v1::HomeMessage status;
    status.mutable_status()->set_root("/");
    status.mutable_status()->set_controller_connected(true);
    Answer(status);
  }
  void Touch(const std::string& name) { ASSERT_TRUE(WriteFileAtomic(dir_ + "/v/" + name, "", 0600)); }
  int Started(const std::string& role) {
    auto text = ReadFile(dir_ + "/v/started");
    int n = 0;
    std::string all = "\n" + (text ? *text : "");
    for (size_t at = 0; (at = all.find("\n" + role + " ", at)) != std::string::npos; ++at) ++n;
    return n;
  }
  // Pids of our fake daemons, which run the program in our directory.
  std::vector<pid_t> Pids(const std::string& role) {
    std::vector<pid_t> out;
    DIR* proc = ::opendir("/proc");
    while (dirent* e = ::readdir(proc)) {
      auto cmdline = ReadFile(std::string("/proc/") + e->d_name + "/cmdline", 65536);
      if (!cmdline || e->d_name[0] < '1' || e->d_name[0] > '9') continue;
      std::string wanted = dir_ + "/bin/vrund" + std::string(1, '\0') + role + std::string(1, '\0');
      if (cmdline->find(wanted) != std::string::npos) out.push_back(std::atoi(e->d_name));
    }
    ::closedir(proc);
    return out;
  }
  // Runs to the end and returns status, stdout and stderr.
  struct Ended {
    int status;
    std::string out, err;
  };
  Ended Vctl(Words args) {
    auto child = Start(std::move(args), {}, {}, "vctl");
    Ended e;
    e.status = child->Wait();
    e.out = child->Out();
    e.err = child->Err();
    return e;
  }
};

TEST_F(DaemonsTest, ClientsThatStartAtOnceStartOneHome) {
  std::vector<std::unique_ptr<Child>> runs;
  for (int i = 0; i < 6; ++i) runs.push_back(Start({"x"}));
  for (auto& run : runs) EXPECT_EQ(run->Wait(), 0) << run->Err();
  EXPECT_EQ(Started("home"), 1);
}

TEST_F(DaemonsTest, AStaleSocketIsNoHome) {
  Listen();
  listener_.Reset();  // the socket file stays
  ASSERT_TRUE(PathExists(socket_path()));
  auto run = Start({"x"});
  EXPECT_EQ(run->Wait(), 0) << run->Err();
  EXPECT_EQ(Started("home"), 1);
}

TEST_F(DaemonsTest, AHomeThatCannotStartIs125WithItsOwnWords) {
  Touch("home-fails");
  auto run = Start({"x"});
  EXPECT_EQ(run->Wait(), 125);
  std::string err = run->Err();
  EXPECT_THAT(err, HasSubstr("home is unwell: let it rest"));
  EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
}

TEST_F(DaemonsTest, AHomeThatDiesSilentlyIsToldWithItsLastLogLine) {
  Touch("home-dies");
  auto run = Start({"x"});
  EXPECT_EQ(run->Wait(), 125);
  EXPECT_THAT(run->Err(), HasSubstr("last words of home"));
}

TEST_F(DaemonsTest, NoProgramToStartIs125AndSaysWhatToDo) {
  ASSERT_EQ(::unlink((dir_ + "/bin/vrund").c_str()), 0);
  auto run = Start({"x"});
  EXPECT_EQ(run->Wait(), 125);
  EXPECT_THAT(run->Err(), HasSubstr("neither beside this program nor in PATH"));
}

TEST_F(DaemonsTest, ADirectoryThatCannotBeMadeIs125AndOneLine) {
  environment_ = {"VRUN_DIR=/proc/no-such-place", "PATH=/usr/bin"};
  auto run = Start({"x"});
  EXPECT_EQ(run->Wait(), 125);
  std::string err = run->Err();
  EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
}

TEST_F(DaemonsTest, TheDaemonKeepsNothingOfOurs) {
  int inherited[2];
  ASSERT_EQ(::pipe2(inherited, 0), 0);  // like a job server's pipe: no close-on-exec
  auto run = Start({"x"}, {.in = inherited[0]});
  EXPECT_EQ(run->Wait(), 0) << run->Err();
  ::close(inherited[1]);
  // The daemon is alive. If it held the write end, there would be no end of the stream.
  pollfd p{inherited[0], POLLIN, 0};
  ASSERT_EQ(::poll(&p, 1, kPatienceMs), 1);
  EXPECT_NE(p.revents & POLLHUP, 0);
  ::close(inherited[0]);
}

TEST_F(DaemonsTest, UpStartsRepairsAndDownStopsAll) {
  AnswerStatus();
  Ended up = Vctl({"up", "--no-node"});
  ASSERT_EQ(up.status, 0) << up.err;
  EXPECT_THAT(up.out, HasSubstr("vrun is up: controller 127.0.0.1:"));
  ASSERT_EQ(Pids("controller").size(), 1u);
  ASSERT_EQ(Pids("home").size(), 1u);
  auto config = ReadFile(dir_ + "/v/config.toml");
  ASSERT_TRUE(config);
  EXPECT_THAT(*config, HasSubstr("controller = \"127.0.0.1:"));
  EXPECT_THAT(*config, HasSubstr(dir_ + "/v/pki/home"));

  Ended again = Vctl({"up", "--no-node"});
  EXPECT_EQ(again.status, 0);
  EXPECT_THAT(again.out, HasSubstr("up already"));
  EXPECT_EQ(Started("controller"), 1);

  pid_t controller = Pids("controller")[0];
  auto process = IdentifyProcess(controller);
  ASSERT_TRUE(process);
  ASSERT_TRUE(StopProcess(*process, 5000));
  Ended repaired = Vctl({"up", "--no-node", "-o", "json"});
  EXPECT_EQ(repaired.status, 0) << repaired.err;
  EXPECT_THAT(repaired.out, HasSubstr("\"started\": true"));
  EXPECT_EQ(Started("controller"), 2);
  EXPECT_EQ(Started("home"), 1);
  EXPECT_EQ(*ReadFile(dir_ + "/v/config.toml"), *config);

  Ended status = Vctl({"status", "-o", "json"});
  EXPECT_EQ(status.status, 0);
  EXPECT_THAT(status.out, HasSubstr("\"controller_connected\": true"));

  Ended down = Vctl({"down"});
  EXPECT_EQ(down.status, 0) << down.err;
  EXPECT_TRUE(Pids("controller").empty());
  EXPECT_TRUE(Pids("home").empty());
  Ended nothing = Vctl({"down"});
  EXPECT_EQ(nothing.status, 0);
  EXPECT_THAT(nothing.out, HasSubstr("down already"));
}

TEST_F(DaemonsTest, DownSparesAProcessThatOnlyHasThePid) {
  AnswerStatus();
  ASSERT_EQ(Vctl({"up", "--no-node"}).status, 0);
  // Simulates that the controller died and its pid was reused, by this process.
  auto self = IdentifyProcess(::getpid());
  ASSERT_TRUE(self);
  self->start_time += 1;
  ASSERT_TRUE(WritePidFile(dir_ + "/v/state/cluster/controller.pid", *self));
  EXPECT_EQ(Vctl({"down"}).status, 0);  // and this process still runs
}

TEST_F(DaemonsTest, UpTellsWhoseFaultItIs) {
  AnswerStatus();
  Touch("pki-fails");
  Ended pki = Vctl({"up", "--no-node"});
  EXPECT_EQ(pki.status, 1);
  EXPECT_THAT(pki.err, HasSubstr("no key today"));
  ASSERT_EQ(::unlink((dir_ + "/v/pki-fails").c_str()), 0);
  Touch("controller-fails");
  Ended controller = Vctl({"up", "--no-node", "-o", "json"});
  EXPECT_EQ(controller.status, 1);
  EXPECT_THAT(controller.out, HasSubstr("controller is unwell"));
  EXPECT_THAT(controller.out, HasSubstr("\"code\": \"unavailable\""));
  EXPECT_EQ(Vctl({"up", "--listen", "nowhere"}).status, 2);
}

TEST_F(DaemonsTest, UpDoesNotTakeOverTheConfigurationOfAnotherCluster) {
  AnswerStatus();
  std::string config = "controller = \"far.example:7420\"\n";
  ASSERT_TRUE(WriteFileAtomic(dir_ + "/v/config.toml", config, 0600));
  Ended up = Vctl({"up", "--no-node"});
  EXPECT_EQ(up.status, 1);
  EXPECT_THAT(up.err, HasSubstr("far.example:7420"));
  EXPECT_EQ(*ReadFile(dir_ + "/v/config.toml"), config);
  EXPECT_EQ(Started("controller"), 0);
}

TEST_F(DaemonsTest, AnOccupiedPortIsSaidAndADefaultOneIsAvoided) {
  UniqueFd busy(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t n = sizeof a;
  ASSERT_EQ(::bind(busy.get(), reinterpret_cast<sockaddr*>(&a), n), 0);
  ASSERT_EQ(::listen(busy.get(), 1), 0);
  ASSERT_EQ(::getsockname(busy.get(), reinterpret_cast<sockaddr*>(&a), &n), 0);
  AnswerStatus();
  Ended up = Vctl({"up", "--no-node", "--listen", "127.0.0.1:" + std::to_string(ntohs(a.sin_port))});
  EXPECT_EQ(up.status, 1);
  EXPECT_THAT(up.err, HasSubstr("Address already in use"));
  EXPECT_EQ(Started("controller"), 0);
}

TEST_F(DaemonsTest, QueriesPrintAnswersAndErrors) {
  v1::HomeMessage jobs;
  v1::JobInfo* job = jobs.mutable_jobs()->add_jobs();
  job->set_job(12);
  job->set_name("named");
  job->set_state(v1::COMPLETED);
  job->mutable_exit()->set_kind(v1::ExitRecord::EXITED);
  job->mutable_exit()->set_exit_code(3);
  Answer(jobs);
  EXPECT_THAT(Vctl({"jobs", "--all"}).out, HasSubstr("named"));
  EXPECT_THAT(Vctl({"-o", "json", "job", "12"}).out, HasSubstr("\"exit\": 3"));
  EXPECT_EQ(Vctl({"wait", "12"}).status, 3);
  EXPECT_EQ(Vctl({"job", "abc"}).status, 2);
  EXPECT_EQ(Vctl({"jbos"}).status, 2);
  EXPECT_THAT(Vctl({"jbos"}).err, HasSubstr("did you mean jobs?"));

  for (pid_t pid : Pids("home")) {
    auto process = IdentifyProcess(pid);
    EXPECT_TRUE(!process || StopProcess(*process, 5000));
  }
  v1::HomeMessage error;
  error.mutable_error()->set_code(static_cast<int>(Code::kNotFound));
  error.mutable_error()->set_message("job 99: no such job: `vctl jobs --all` lists yours");
  Answer(error);
  Ended missing = Vctl({"job", "99"});
  EXPECT_EQ(missing.status, 1);
  EXPECT_EQ(missing.err, "vctl: job 99: no such job: `vctl jobs --all` lists yours\n");
  EXPECT_THAT(Vctl({"job", "99", "-o", "json"}).out, HasSubstr("\"code\": \"not-found\""));
}

TEST_F(DaemonsTest, HelpAndVersionNeedNoPlaceAndNoDaemon) {
  environment_ = {"PATH=/usr/bin"};
  for (const char* program : {"vrun", "vbatch", "vctl"}) {
    auto help = Start({"--help"}, {}, {}, program);
    EXPECT_EQ(help->Wait(), 0);
    EXPECT_THAT(help->Out(), HasSubstr("usage: "));
    auto version = Start({"--version"}, {}, {}, program);
    EXPECT_EQ(version->Wait(), 0);
    EXPECT_THAT(version->Out(), testing::MatchesRegex(std::string(program) + " [0-9]+\\.[0-9]+\\.[0-9]+\n"));
  }
  EXPECT_EQ(Started("home"), 0);
}

TEST_F(DaemonsTest, CompletionsKnowEveryOptionAndAreValid) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    Ended e = Vctl({"completion", shell});
    EXPECT_EQ(e.status, 0);
    for (const char* word : {"vrun", "vbatch", "writes", "doctor", "parsable", "node-state-dir"}) {
      EXPECT_THAT(e.out, HasSubstr(word)) << shell;
    }
    if (std::string(shell) != "bash") continue;
    ASSERT_TRUE(WriteFileAtomic(dir_ + "/completion.bash", e.out, 0600));
    Child check(
        "/bin/bash",
        {"-c", "source " + dir_ +
                   "/completion.bash && COMP_WORDS=(vctl jo) COMP_CWORD=1 && _vctl && "
                   "echo ${COMPREPLY[@]} && COMP_WORDS=(vrun --quie) COMP_CWORD=1 && _vrun && echo ${COMPREPLY[@]}"},
        {"PATH=/usr/bin:/bin"}, {});
    EXPECT_EQ(check.Wait(), 0) << check.Err();
    EXPECT_EQ(check.Out(), "jobs job\n--quiet\n");
  }
  EXPECT_EQ(Vctl({"completion", "tcsh"}).status, 2);
}

// --- vbatch

TEST_F(DaemonsTest, VbatchPrintsTheId) {
  v1::HomeMessage accepted;
  accepted.mutable_accepted()->set_job(12);
  Answer(accepted);
  auto plain = Start({"--", "true"}, {}, {}, "vbatch");
  EXPECT_EQ(plain->Wait(), 0) << plain->Err();
  EXPECT_EQ(plain->Out(), "Submitted batch job 12\n");
  auto parsable = Start({"--parsable", "true"}, {}, {}, "vbatch");
  EXPECT_EQ(parsable->Wait(), 0);
  EXPECT_EQ(parsable->Out(), "12\n");
  EXPECT_EQ(Start({"-o", "x-%q", "true"}, {}, {}, "vbatch")->Wait(), 2);
}

class BatchTest : public FakeHomeTest {
 protected:
  v1::Run Submit(Words args) {
    auto vbatch = Start(std::move(args), {}, {}, "vbatch");
    Conversation home = AcceptOne();
    v1::Run run = home.Receive().run();
    home.fds.clear();
    home.Accept(7);
    EXPECT_EQ(vbatch->Wait(), 0) << vbatch->Err();
    return run;
  }
};

TEST_F(BatchTest, AScriptBringsItsOptionsAndTheCommandLineWins) {
  Listen();
  std::string path = dir_ + "/job.sh";
  ASSERT_TRUE(WriteFileAtomic(path, "#!/bin/sh -e\n#SBATCH -J named -c 3\n#VRUN -o out-%x-%j.txt\necho\n", 0755));
  v1::Run run = Submit({"-c", "1", "-D", "/project/dir", path, "argument"});
  EXPECT_EQ(Words(run.spec().command().argv().begin(), run.spec().command().argv().end()), (Words{path, "argument"}));
  EXPECT_EQ(run.spec().name(), "named");
  EXPECT_EQ(run.spec().resources().milli_cpus(), 1000u);
  EXPECT_EQ(run.stdout_path(), "/project/dir/out-named-%j.txt");
  EXPECT_TRUE(run.detached());

  ASSERT_EQ(::chmod(path.c_str(), 0644), 0);
  run = Submit({path});
  EXPECT_EQ(Words(run.spec().command().argv().begin(), run.spec().command().argv().end()),
            (Words{"/bin/sh", "-e", path}));
  ASSERT_EQ(::chmod(path.c_str(), 0755), 0);
  run = Submit({"--", path});
  EXPECT_EQ(run.spec().resources().milli_cpus(), 0u);
}

TEST_F(BatchTest, AScriptOnStdinTravelsWithTheRequest) {
  Listen();
  UniqueFd script(::memfd_create("script", MFD_CLOEXEC));
  const std::string text = "#!/bin/sh\n#SBATCH -c 3\necho $1\n";
  ASSERT_TRUE(WriteAll(script.get(), text));
  for (const Words& words : {Words{}, Words{"-", "a"}, Words{"/dev/stdin", "a"}}) {
    ASSERT_EQ(::lseek(script.get(), 0, SEEK_SET), 0);
    auto vbatch = Start(words, {.in = script.get()}, {}, "vbatch");
    Conversation home = AcceptOne();
    const v1::Run run = home.Receive().run();
    home.fds.clear();
    home.Accept(7);
    EXPECT_EQ(vbatch->Wait(), 0) << vbatch->Err();
    EXPECT_EQ(run.spec().command().script(), text);
    EXPECT_EQ(run.spec().command().argv(0), kScriptPath);
    EXPECT_EQ(run.spec().command().argv_size(), words.empty() ? 1 : 2);
    EXPECT_EQ(run.spec().resources().milli_cpus(), 3000u);
  }
  const v1::Run run = Submit({"--wrap", "echo one; exit 3"});
  EXPECT_EQ(Words(run.spec().command().argv().begin(), run.spec().command().argv().end()),
            (Words{"/bin/sh", "-c", "echo one; exit 3"}));
  EXPECT_EQ(run.spec().name(), "wrap");
}

TEST_F(BatchTest, WhatCannotStartIsRefusedBeforeHomeHearsOfIt) {
  const std::string dos = dir_ + "/dos.sh", plain = dir_ + "/plain", value = dir_ + "/value.sh";
  ASSERT_TRUE(WriteFileAtomic(dos, "#!/bin/sh\r\necho\r\n", 0755));
  ASSERT_TRUE(WriteFileAtomic(plain, "text\n", 0644));
  ASSERT_TRUE(WriteFileAtomic(value, "#!/bin/sh\n#SBATCH --mem=lots\n", 0755));
  struct Case {
    Words words;
    int status;
    std::string said;
  };
  for (const Case& c :
       {Case{{"typo.sh"}, 127, "typo.sh: command not found in PATH: install it or give its path"},
        Case{{dir_ + "/typo.sh"}, 127, dir_ + "/typo.sh: not in the mirrored root: check the path"},
        Case{{"/tmp/no-such-program"}, 127, "/tmp/no-such-program: not in the mirrored root"},
        Case{{plain}, 126, plain + ": Permission denied: chmod +x or name another file"},
        Case{{dos}, 2, dos + ":1: DOS line ends"}, Case{{value}, 2, value + ":2: --mem: lots: not a size"},
        Case{{"--wrap", "x", "true"}, 2, "--wrap: there is a command too"},
        Case{{}, 2, "no command, and no script on standard input"},
        Case{{"-"}, 2, "standard input:1: the first line names no interpreter"}}) {
    auto vbatch = Start(c.words, {}, {}, "vbatch");
    EXPECT_EQ(vbatch->Wait(), c.status) << c.said;
    EXPECT_EQ(vbatch->Out(), "");
    EXPECT_THAT(vbatch->Err(), testing::StartsWith("vbatch: " + c.said));
  }
}

TEST_F(BatchTest, WhoFollowsGetsTheOutputAloneOnStdout) {
  Listen();
  for (bool quiet : {true, false}) {
    auto vbatch = Start(quiet ? Words{"-f", "-q", "true"} : Words{"-f", "true"}, {}, {}, "vbatch");
    {
      Conversation home = AcceptOne();
      home.Receive();
      home.fds.clear();
      home.Accept(7);
    }
    Conversation log = AcceptOne();
    EXPECT_TRUE(log.Receive().query().read_log().follow());
    v1::HomeMessage message;
    message.mutable_log()->set_data("out\n");
    log.Send(message);
    message.mutable_finished()->set_exit_status(124);
    message.mutable_finished()->set_reason("time limit of 1 s reached");
    log.Send(message);
    message.mutable_done();
    log.Send(message);
    EXPECT_EQ(vbatch->Wait(), 124);
    EXPECT_EQ(vbatch->Out(), "out\n");
    EXPECT_EQ(vbatch->Err(), std::string(quiet ? "" : "Submitted batch job 7\n") + "vrun: time limit of 1 s reached\n");
  }
}

TEST_F(BatchTest, ARootThatIsADirectoryIsTakenOffThePaths) {
  ASSERT_TRUE(MakeDirs(dir_ + "/root/home", 0755));
  ASSERT_TRUE(WriteFileAtomic(dir_ + "/v/config.toml", "root = \"" + dir_ + "/root\"\n", 0600));
  ASSERT_TRUE(WriteFileAtomic(dir_ + "/root/home/job.sh", "#!/bin/sh\n", 0755));
  // It could not start, because its interpreter is not there.
  auto refused = Start({dir_ + "/root/home/job.sh"}, {}, {}, "vbatch");
  EXPECT_EQ(refused->Wait(), 127);
  EXPECT_THAT(refused->Err(), HasSubstr("job.sh: its interpreter /bin/sh is not in the mirrored root"));
  ASSERT_TRUE(MakeDirs(dir_ + "/root/bin", 0755));
  ASSERT_TRUE(WriteFileAtomic(dir_ + "/root/bin/sh", "", 0755));
  Listen();
  v1::Run run = Submit({"-D", dir_ + "/root/home", dir_ + "/root/home/job.sh"});
  EXPECT_EQ(run.spec().command().argv(0), "/home/job.sh");
  EXPECT_EQ(run.spec().command().directory(), "/home");
}

}  // namespace
}  // namespace vrun::cli

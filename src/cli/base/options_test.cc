// SPDX-License-Identifier: Apache-2.0
// Command lines, and the option lines of scripts.
#include <gtest/gtest.h>

#include <csignal>
#include <tuple>

#include "cli/base/values.h"
#include "cli/request/job_command.h"
#include "cli/request/log_path.h"
#include "cli/request/run_options.h"
#include "cli/request/scheduling.h"
#include "cli/request/script_options.h"

namespace vrun::cli {
namespace {

using Words = std::vector<std::string>;

std::string ErrorOf(const Words& words) {
  auto parsed = ParseRun(words);
  return parsed ? "" : parsed.error().message();
}

TEST(RunOptionsTest, OptionsStopAtTheFirstWordThatIsNone) {
  auto o = ParseRun(Words{"-P", "gpu", "printf", "-P", "x", "--", "--help"});
  ASSERT_TRUE(o);
  EXPECT_EQ(o->spec.pool(), "gpu");
  EXPECT_EQ(o->command, (Words{"printf", "-P", "x", "--", "--help"}));
  EXPECT_FALSE(o->help);
}

TEST(RunOptionsTest, DashesEndTheOptionsAndAreNoPartOfTheCommand) {
  auto o = ParseRun(Words{"-q", "--", "-weird", "--", "a"});
  ASSERT_TRUE(o);
  EXPECT_EQ(o->command, (Words{"-weird", "--", "a"}));
  EXPECT_TRUE(o->after_dashes);
  EXPECT_TRUE(ParseRun(Words{"--"})->command.empty());
}

TEST(RunOptionsTest, ArgumentsStayBytesForByte) {
  Words odd{"", " ", "a b", "'", "$HOME", "*", "\n", "\\", "\xff\xfe", "-", "--x=y"};
  Words words{"--", "cmd"};
  words.insert(words.end(), odd.begin(), odd.end());
  auto o = ParseRun(words);
  ASSERT_TRUE(o);
  EXPECT_EQ(Words(o->command.begin() + 1, o->command.end()), odd);
}

TEST(RunOptionsTest, AllFormsOfAValueAreTheSame) {
  for (const Words& w : {Words{"-c", "4", "x"}, Words{"-c4", "x"}, Words{"--cpus-per-task", "4", "x"},
                         Words{"--cpus-per-task=4", "x"}, Words{"-qc4", "x"}, Words{"-c=4", "x"}}) {
    auto o = ParseRun(w);
    ASSERT_TRUE(o) << o.error().message();
    EXPECT_EQ(o->spec.resources().milli_cpus(), 4000u);
    EXPECT_EQ(o->command, Words{"x"});
  }
}

TEST(RunOptionsTest, NAloneIsSshsAndWithANumberSlurms) {
  for (const Words& w : {Words{"-n", "x", "1"}, Words{"-qn", "x", "1"}, Words{"-nq", "x", "1"},
                         Words{"--no-stdin", "x", "1"}, Words{"-n", "--", "x", "1"}}) {
    auto o = ParseRun(w);
    ASSERT_TRUE(o) << o.error().message();
    EXPECT_TRUE(o->no_stdin);
    EXPECT_EQ(o->command, (Words{"x", "1"}));
  }
  for (const Words& w :
       {Words{"-n", "1", "x"}, Words{"-n1", "x"}, Words{"--ntasks=1", "x"}, Words{"--ntasks", "1", "x"}}) {
    auto o = ParseRun(w);
    ASSERT_TRUE(o) << o.error().message();
    EXPECT_FALSE(o->no_stdin);
    EXPECT_EQ(o->command, Words{"x"});
  }
  EXPECT_EQ(ParseRun(Words{"-n", "2", "x"})->gang.tasks, 2u);
}

TEST(RunOptionsTest, ADashAloneIsAWord) { EXPECT_EQ(ParseRun(Words{"-", "x"})->command, (Words{"-", "x"})); }

TEST(RunOptionsTest, UnknownOptionsAreNamedWithTheNearestOne) {
  EXPECT_EQ(ErrorOf({"--poll", "x"}), "--poll: unknown option: did you mean --pool? (--help lists all)");
  EXPECT_EQ(ErrorOf({"--no-such-option", "x"}), "--no-such-option: unknown option: --help lists all");
  EXPECT_NE(ErrorOf({"--quite"}).find("did you mean --quiet"), std::string::npos);
  EXPECT_NE(ErrorOf({"-Z"}).find("-Z: unknown option"), std::string::npos);
  EXPECT_EQ(ErrorOf({"--bad\n\x1b[2J"}).find('\n'), std::string::npos);
  EXPECT_EQ(ErrorOf({"--bad\x1b[2J"}).find('\x1b'), std::string::npos);
}

TEST(RunOptionsTest, OptionsOfSlurmThatAreNotThereAreRefusedByName) {
  for (const Words& w : {Words{"--gres=craynetwork:2", "x"}, Words{"-a", "0-3", "x"}, Words{"--propagate=NONE", "x"},
                         Words{"--wrap=x"}, Words{"--x11"}, Words{"--exclusive", "x"}, Words{"-o", "file", "x"}}) {
    EXPECT_NE(ErrorOf(w).find("not supported yet"), std::string::npos) << w[0] << ": " << ErrorOf(w);
  }
  EXPECT_TRUE(ParseRun(Words{"-N1", "-n", "1", "x"}));
}

TEST(RunOptionsTest, OptionsOfSlurmThatChangeNothingAreAccepted) {
  const auto o = ParseBatch(Words{"--wckey=w", "--comment", "a remark", "--ntasks-per-node=1", "-s", "-mblock",
                                  "--get-user-env", "--get-user-env=10L", "--propagate", "-v", "-Q",
                                  "--mail-user=me@there", "--mail-type=NONE", "--kill-on-invalid-dep=yes", "x"});
  ASSERT_TRUE(o) << o.error().message();
  EXPECT_EQ(o->command, Words{"x"});
  EXPECT_TRUE(o->quiet);
  EXPECT_TRUE(o->notes.empty());
  for (const auto& [gres, count, type] : {std::tuple("gpu", 1u, ""), std::tuple("gpu:2", 2u, ""),
                                          std::tuple("gpu:a100", 1u, "a100"), std::tuple("gpu:a100:4", 4u, "a100")}) {
    const auto gpus = ParseBatch(Words{std::string("--gres=") + gres, "x"});
    ASSERT_TRUE(gpus) << gres << gpus.error().message();
    EXPECT_EQ(gpus->spec.resources().gpus(), count) << gres;
    EXPECT_EQ(gpus->spec.resources().gpu_type(), type) << gres;
  }
  EXPECT_EQ(ParseBatch(Words{"--gpus-per-node=h100:2", "x"})->spec.resources().gpus(), 2u);
  EXPECT_TRUE(ParseBatch(Words{"--open-mode=append", "x"})->append_output);
  EXPECT_FALSE(ParseBatch(Words{"--open-mode=sideways", "x"}));
}

TEST(LogPathTest, SlurmsPatterns) {
  const LogNames names{"a/b", "anna"};
  auto path = [&](const char* pattern) { return ExpandLogPath(pattern, names).value_or("refused"); };
  EXPECT_EQ(path("out-%j-%A-%J.txt"), "out-%j-%j-%j.txt");
  EXPECT_EQ(path("%x.%u.%N.%s"), "a_b.anna.%N.batch");
  EXPECT_EQ(path("%4j-%a-%3a-%n-%t"), "%4j-0-000-0-0");
  EXPECT_EQ(*ExpandLogPath("%t-%2n-%N", {"a", "b", true}), "%t-%2n-%N");
  EXPECT_EQ(path("%99j"), "%10j");
  EXPECT_EQ(path("100%%-%"), "100%%-%%");
  EXPECT_EQ(path("\\%j"), "%%j");
  EXPECT_EQ(path("%q"), "refused");
  EXPECT_EQ(ParseBatch(Words{"-o", "x-%q", "x"}).error().message().substr(0, 35),
            "--output: x-%q: unknown pattern %q:");
}

TEST(RunOptionsTest, WhatTheSchedulerIsTold) {
  auto options = ParseRun(Words{"-A", "vision", "--class=production", "--signal=B:USR1@60", "--requeue", "x"});
  ASSERT_TRUE(options) << options.error().message();
  EXPECT_EQ(options->spec.scheduling().team(), "vision");
  EXPECT_EQ(options->spec.scheduling().class_(), v1::PRODUCTION);
  EXPECT_EQ(options->spec.scheduling().signal(), SIGUSR1);
  EXPECT_EQ(options->spec.scheduling().grace_s(), 60u);
  EXPECT_TRUE(options->spec.scheduling().signal_shell_only());
  EXPECT_TRUE(options->spec.scheduling().requeue());
  EXPECT_FALSE(ParseRun(Words{"x"})->spec.scheduling().has_requeue());
  const v1::Scheduling undisturbed = ParseRun(Words{"--requeue", "--no-requeue", "x"})->spec.scheduling();
  EXPECT_TRUE(undisturbed.has_requeue() && !undisturbed.requeue());
  EXPECT_EQ(ParseRun(Words{"--nice", "5", "x"})->spec.command().nice(), 5);
  EXPECT_EQ(ParseRun(Words{"--nice=-20", "x"})->spec.command().nice(), -20);
  EXPECT_FALSE(ParseRun(Words{"x"})->spec.command().has_nice());
  for (const char* bad : {"20", "-21", "x", "", "-", "1.5"}) {
    EXPECT_NE(ErrorOf({std::string("--nice=") + bad, "x"}).find("not a niceness"), std::string::npos) << bad;
  }
  EXPECT_EQ(ErrorOf({"--class", "urgent", "x"}),
            "--class: urgent: unknown class: write scavenger, experiment, training, production or inference");
  for (const char* bad : {"USR3", "USR1@", "KILL", "@60", "", "B:", ":USR1", "X:USR1", "RUSR1"}) {
    EXPECT_NE(ErrorOf({"--signal", bad, "x"}).find("not a signal"), std::string::npos) << bad;
  }
}

TEST(RunOptionsTest, TheSignalAheadOfTheEndIsWrittenAsSlurmWritesIt) {
  auto plain = ParseEndSignal("USR1");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->grace_s, 60u) << "Slurm's default";
  EXPECT_FALSE(plain->shell_only || plain->may_meet_maintenance);
  EXPECT_EQ(ParseEndSignal("10@65535")->grace_s, 65535u);
  EXPECT_EQ(ParseEndSignal("SIGUSR2@0")->grace_s, 1u);
  EXPECT_TRUE(ParseEndSignal("R:USR1@30")->may_meet_maintenance);
  EXPECT_FALSE(ParseEndSignal("R:USR1@30")->shell_only);
  auto both = ParseEndSignal("RB:SIGTERM@5");
  ASSERT_TRUE(both);
  EXPECT_TRUE(both->shell_only && both->may_meet_maintenance);
}

TEST(RunOptionsTest, BadValuesNameTheOption) {
  EXPECT_NE(ErrorOf({"--mem", "lots", "x"}).find("--mem: lots: not a size"), std::string::npos);
  EXPECT_NE(ErrorOf({"-t", "1:2:3:4", "x"}).find("--time: 1:2:3:4: not a time limit"), std::string::npos);
  EXPECT_NE(ErrorOf({"-P", "", "x"}).find("--pool: an empty value"), std::string::npos);
  EXPECT_NE(ErrorOf({"-P"}).find("-P: needs a value"), std::string::npos);
  EXPECT_NE(ErrorOf({"--quiet=yes", "x"}).find("takes no value"), std::string::npos);
  EXPECT_NE(ErrorOf({"--export=ALL,", "x"}).find("--export"), std::string::npos);
}

TEST(ValuesTest, MemoryAsSlurmCountsIt) {
  struct Case {
    const char* text;
    uint64_t bytes;
  };
  for (const Case& c :
       {Case{"16G", 16ull << 30}, Case{"512m", 512ull << 20}, Case{"4000", 4000ull << 20}, Case{"1.5T", 3ull << 39},
        Case{"64K", 64ull << 10}, Case{"2GB", 2ull << 30}, Case{"2GiB", 2ull << 30}, Case{"0", 0}}) {
    ASSERT_TRUE(ParseMemory(c.text)) << c.text;
    EXPECT_EQ(*ParseMemory(c.text), c.bytes) << c.text;
  }
  for (const char* bad :
       {"", "G", "-1", "1X", "1GG", "1.G", "1e3", "99999999999999999999", "99999999T", "1 G", "0x10", "1.2345G"}) {
    EXPECT_FALSE(ParseMemory(bad)) << bad;
  }
}

TEST(ValuesTest, TimeLimitsInAllOfSlurmsForms) {
  struct Case {
    const char* text;
    uint64_t seconds;
  };
  for (const Case& c :
       {Case{"30", 1800}, Case{"0:01", 1}, Case{"1:30", 90}, Case{"2:00:00", 7200}, Case{"1-12", 129600},
        Case{"1-0:30", 88200}, Case{"1-02:03:04", 93784}, Case{"0", 0}, Case{"UNLIMITED", 0}, Case{"infinite", 0}}) {
    ASSERT_TRUE(ParseTimeLimit(c.text)) << c.text;
    EXPECT_EQ(*ParseTimeLimit(c.text), c.seconds) << c.text;
  }
  for (const char* bad : {"", ":", "1:", "a", "1-", "-1", "1:2:3:4", "1.5", "99999999999999", "1 0"}) {
    EXPECT_FALSE(ParseTimeLimit(bad)) << bad;
  }
}

TEST(ValuesTest, MomentsInSlurmsForms) {
  ::setenv("TZ", "Europe/Berlin", 1);
  ::tzset();
  constexpr int64_t kNow = 1795278600'000000;  // 2026-11-21 17:30 there, 16:30 UTC
  struct Case {
    const char* text;
    int64_t seconds;  // from that time
  };
  for (const Case& c :
       {Case{"now", 0}, Case{"now+90", 90}, Case{"now+90minutes", 5400}, Case{"now+1hour", 3600},
        Case{"now+2d", 172800}, Case{"18:00", 1800}, Case{"17:30:01", 1}, Case{"17:30", 86400}, Case{"midnight", 23400},
        Case{"tomorrow", 23400}, Case{"noon", 66600}, Case{"today", -63000}, Case{"2026-11-22", 23400},
        Case{"2026-11-21T18:30:05", 3605}, Case{"2026-11-21T18:30Z", 7200}, Case{"2027-07-01T00:00", 19114200}}) {
    const auto at = ParseMoment(c.text, kNow);
    ASSERT_TRUE(at) << c.text << ": " << at.error().message();
    EXPECT_EQ((*at - kNow) / 1'000'000, c.seconds) << c.text;
  }
  for (const char* bad : {"",
                          "now+",
                          "now-1",
                          "now+1 hour",
                          "now+1fortnight",
                          "now+99999999999999999999s",
                          "24:00",
                          "12:60",
                          "12",
                          "12:",
                          ":12",
                          "1:2:3:4",
                          "2026-02-30",
                          "2026-13-01",
                          "2026-11-21T",
                          "2026-11",
                          "2026-11-21T25:00",
                          "21.11.2026",
                          "Z",
                          "2026-04-31Z",
                          "teatime"}) {
    EXPECT_FALSE(ParseMoment(bad, kNow)) << bad;
  }
  EXPECT_TRUE(ParseDeadline("hard:18:00", kNow)->hard);
  EXPECT_FALSE(ParseDeadline("18:00", kNow)->hard);
  for (const char* bad : {"hard:", "hard", "now", "2026-11-21T17:00", "soft:18:00"}) {
    EXPECT_FALSE(ParseDeadline(bad, kNow)) << bad;
  }
  ::unsetenv("TZ");
  ::tzset();
}

TEST(ValuesTest, JobsToComeAfter) {
  const auto both = ParseDependencies("afterok:1:2,afterany:3,afterok:4");
  ASSERT_TRUE(both);
  EXPECT_EQ(both->after_ok, (std::vector<uint64_t>{1, 2, 4}));
  EXPECT_EQ(both->after_any, std::vector<uint64_t>{3});
  const auto all = ParseDependencies("singleton,after:1,afternotok:2:3,aftercorr:4");
  ASSERT_TRUE(all) << all.error().message();
  EXPECT_TRUE(all->singleton);
  EXPECT_EQ(all->after_start, std::vector<uint64_t>{1});
  EXPECT_EQ(all->after_not_ok, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(all->after_corresponding, std::vector<uint64_t>{4});
  for (const char* bad : {"", "1", "afterok", "afterok:", "afterok:0", "afterok:1:", "afterok:1,", ",afterok:1",
                          "afterok:1?afterany:2", "after:1+5", "afterok:1_3", "singleton:1", "singleton,", "expand:1",
                          "afterok:x", "afterok:-1", "afterok:99999999999999999999"}) {
    EXPECT_FALSE(ParseDependencies(bad)) << bad;
  }
}

TEST(ValuesTest, CpusGpusAndIds) {
  EXPECT_EQ(*ParseCpus("0.5"), 500u);
  for (const char* bad : {"0", "", "-1", "x", "1000000", "0.0001"}) EXPECT_FALSE(ParseCpus(bad)) << bad;
  EXPECT_EQ(ParseGpus("2")->count, 2u);
  EXPECT_EQ(ParseGpus("h100:8")->type, "h100");
  for (const char* bad : {"", ":", ":2", "h100:", "h100", "a b:1", "1:2:3", "-1"}) EXPECT_FALSE(ParseGpus(bad)) << bad;
  EXPECT_EQ(*ParseJobId("12"), 12u);
  for (const char* bad : {"", "0", "-1", "1x", "18446744073709551616", "9223372036854775808"})
    EXPECT_FALSE(ParseJobId(bad)) << bad;
}

TEST(ScriptTest, OptionLinesCountUntilTheFirstCommand) {
  auto s = ParseScript(
      "#!/bin/sh -e\n\n# a comment\n#SBATCH -J first --time=2:00  # an hour\n#VRUN -c 2 -J 'second name'\n"
      "#SBATCHING is no option line\n#SBATCH --output=\"a b-%j.txt\"\necho\n#SBATCH -c 99\n",
      "job.sh");
  ASSERT_TRUE(s) << s.error().message();
  EXPECT_EQ(s->interpreter, (Words{"/bin/sh", "-e"}));
  RunOptions o;
  ASSERT_TRUE(ApplyOptions(s->options, &o));
  EXPECT_EQ(o.spec.name(), "second name");
  EXPECT_EQ(o.spec.scheduling().limit_s(), 120u);
  EXPECT_EQ(o.spec.resources().milli_cpus(), 2000u);
  EXPECT_EQ(o.output, "a b-%j.txt");
}

TEST(ScriptTest, MistakesAreNamedWithFileAndLine) {
  struct Case {
    const char *text, *expected;
  };
  for (const Case& c : {Case{"#!/bin/sh\n#SBATCH --nope\n", "job.sh:2: --nope: unknown option"},
                        Case{"#!/bin/sh\n\n#SBATCH -q normal\n", "job.sh:3: -q: not supported yet"},
                        Case{"#!/bin/sh\n#VRUN -J 'open\n", "job.sh:2: a quote"},
                        Case{"#!/bin/sh\n#VRUN word\n", "job.sh:2: word: not an option"},
                        Case{"#!/bin/sh\r\necho\r\n", "job.sh:1: DOS line ends"},
                        Case{"#!/bin/sh\necho\necho\r\n", "job.sh:3: DOS line ends"},
                        Case{"#!/bin/sh\n#SBATCH --mem-per-cpu=1G\n", "job.sh:2: --mem-per-cpu: not supported yet"}}) {
    auto s = ParseScript(c.text, "job.sh");
    ASSERT_FALSE(s) << c.text;
    EXPECT_TRUE(s.error().message().starts_with(c.expected)) << s.error().message();
  }
}

TEST(ScriptTest, AValueThatIsRefusedIsNamedWithFileAndLineToo) {
  struct Case {
    const char *line, *expected;
  };
  for (const Case& c : {Case{"#SBATCH --mem=lots", "job.sh:3: --mem: lots: not a size"},
                        Case{"#SBATCH -N 0", "job.sh:3: --nodes: 0: not a number of nodes"},
                        Case{"#SBATCH --qos=normal", "job.sh:3: --qos: normal: unknown class"},
                        Case{"#SBATCH -o out-%q", "job.sh:3: --output: out-%q: unknown pattern %q"}}) {
    const auto s = ParseScript(std::string("#!/bin/sh\n\n") + c.line + "\n", "job.sh");
    ASSERT_TRUE(s) << c.line;
    RunOptions o;
    const Status applied = ApplyOptions(s->options, &o);
    ASSERT_FALSE(applied) << c.line;
    EXPECT_TRUE(applied.error().message().starts_with(c.expected)) << applied.error().message();
  }
  // Shell archives contain binary data.
  EXPECT_TRUE(ParseScript(std::string_view("#!/bin/sh\nexit\n\0\r\n", 18), "setup.run"));
}

TEST(ScriptTest, AnythingIsParsedOrRefusedButNeverCrashes) {
  for (std::string_view text :
       {std::string_view("#SBATCH"), std::string_view("#!"), std::string_view("#VRUN \\"),
        std::string_view("#VRUN \"\\"), std::string_view("#VRUN a\0b", 9), std::string_view("")}) {
    (void)ParseScript(text, "x");
  }
}

TEST(EnvironmentTest, WhatBelongsToThisMachineStaysHere) {
  std::vector<std::string> from{"A=1",
                                "SSH_AUTH_SOCK=x",
                                "DISPLAY=:0",
                                "DBUS_SESSION_BUS_ADDRESS=x",
                                "SLURM_JOB_ID=7",
                                "CUDA_VISIBLE_DEVICES=0",
                                "NVIDIA_VISIBLE_DEVICES=0",
                                "XDG_RUNTIME_DIR=/r",
                                "WAYLAND_DISPLAY=w",
                                "VRUN_DIR=/v",
                                "B=a\nb=c",
                                "PWD=/old",
                                "XDG_DATA_HOME=/d",
                                "ODD"};
  RunOptions o;
  EXPECT_EQ(FilterEnvironment(from, o, "/new"),
            (std::vector<std::string>{"A=1", "B=a\nb=c", "PWD=/new", "XDG_DATA_HOME=/d", "ODD"}));
}

TEST(EnvironmentTest, ExportChoosesAddsAndReplaces) {
  std::vector<std::string> from{"A=1", "B=2", "HOME=/h", "PATH=/bin", "DISPLAY=:0"};
  auto with = [&](const char* value) { return FilterEnvironment(from, *ParseRun(Words{"--export", value, "x"}), "/"); };
  EXPECT_EQ(with("NONE"), (std::vector<std::string>{"HOME=/h", "PATH=/bin"}));
  EXPECT_EQ(with("A,C=3,MISSING"), (std::vector<std::string>{"HOME=/h", "PATH=/bin", "A=1", "C=3"}));
  EXPECT_EQ(with("ALL,A=9,DISPLAY"), (std::vector<std::string>{"A=9", "B=2", "HOME=/h", "PATH=/bin", "DISPLAY=:0"}));
}

TEST(IdentityTest, UsersComeFromPasswdOrTheEnvironment) {
  std::string_view passwd = "root:x:0:0:root:/root:/bin/sh\nbroken\nanna:x:1000:1000:Anna,,,:/home/anna:/bin/zsh\n";
  auto env = [](const char* name) -> const char* { return std::string_view(name) == "LOGNAME" ? "otto" : nullptr; };
  EXPECT_EQ(FindUser(1000, passwd, env).name, "anna");
  EXPECT_EQ(FindUser(1000, passwd, env).home, "/home/anna");
  EXPECT_EQ(FindUser(5, passwd, env).name, "otto");
  EXPECT_EQ(FindUser(5, passwd, env).home, "/");
  EXPECT_EQ(FindUser(5, "", [](const char*) -> const char* { return nullptr; }).name, "uid5");
}

TEST(PathsTest, AreAbsoluteAndSeenFromTheRoot) {
  EXPECT_EQ(InRoot("/srv/root/a", "/srv/root"), "/a");
  EXPECT_EQ(InRoot("/srv/root", "/srv/root"), "/");
  EXPECT_EQ(InRoot("/srv/rootless", "/srv/root"), "/srv/rootless");
  EXPECT_EQ(InRoot("/a", "/"), "/a");
  EXPECT_EQ(Absolute("b/./c//", "/a"), "/a/b/c");
  EXPECT_EQ(Absolute("../b", "/a"), "/a/../b");
  EXPECT_EQ(Absolute("/", "/a"), "/");
}

}  // namespace
}  // namespace vrun::cli

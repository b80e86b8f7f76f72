// SPDX-License-Identifier: Apache-2.0
// Which command lines share a trace.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "home/ahead/trace.h"
#include "home/testing/trace_testing.h"
#include "proto/common.pb.h"

namespace vrun::home {
namespace {

Digest KeyOf(const std::vector<std::string>& argv, const std::vector<std::string>& environment = {}) {
  return TraceOf(Command(argv, environment), "/").key;
}

TEST(TraceOfTest, ProgramScriptAndSearchPathsAreTheKey) {
  const Digest train = KeyOf({"python3", "train.py", "--lr", "0.1"});
  EXPECT_EQ(train, KeyOf({"python3", "-u", "/project/train.py", "--lr", "0.2"}));
  EXPECT_NE(train, KeyOf({"python3", "test.py"}));
  EXPECT_NE(train, KeyOf({"python3.11", "train.py"}));
  EXPECT_NE(train, KeyOf({"python3", "-m", "train.py"}));
  EXPECT_NE(KeyOf({"python3", "-c", "import a"}), KeyOf({"python3", "-c", "import b"}));
  EXPECT_NE(KeyOf({"bash", "-c", "a"}), KeyOf({"python3", "-c", "a"}));
  EXPECT_EQ(KeyOf({"cat", "a"}), KeyOf({"cat", "b"}));
  EXPECT_NE(KeyOf({"./cat"}), KeyOf({"cat"}));
  EXPECT_EQ(KeyOf({"./cat"}), KeyOf({"/project/./cat"}));
  EXPECT_NE(train, KeyOf({"python3", "train.py"}, {"PYTHONPATH=/x"}));
  EXPECT_EQ(train, KeyOf({"python3", "train.py"}, {"COLUMNS=80"}));
  EXPECT_EQ(KeyOf({"x"}, {"PATH=/a", "PYTHONPATH=/b"}), KeyOf({"x"}, {"PYTHONPATH=/b", "PATH=/a"}));
  EXPECT_NE(TraceOf(Command({"x"}), "/").key, TraceOf(Command({"x"}), "/other").key);
  EXPECT_NE(KeyOf({}), KeyOf({"x"}));
}

TEST(TraceOfTest, WhatThisCommandLineNamesIsItsOwn) {
  const auto cat = TraceOf(Command({"cat", "a", "/data/b", "--from=c", "-v"}), "/");
  for (const char* path : {"/project/a", "/data/b", "/project/c", "/project/a/below"})
    EXPECT_TRUE(cat.Names(path)) << path;
  for (const char* path : {"/project/ab", "/data/b/below", "/usr/lib/libc.so.6", "/project"})
    EXPECT_FALSE(cat.Names(path)) << path;
  const auto python = TraceOf(Command({"python3", "train.py", "data"}), "/");
  EXPECT_FALSE(python.Names("/project/train.py"));
  EXPECT_TRUE(python.Names("/project/data/1"));
  // A system directory is not data of this run.
  EXPECT_FALSE(TraceOf(Command({"ls", "/usr"}), "/").Names("/usr/lib/libc.so.6"));
}

TEST(TraceOfTest, WhereNoFileSaysWhatIsMeantTheDirectoryDoes) {
  using Argv = std::vector<std::string>;
  const auto of = [](const Argv& argv, const std::string& directory) {
    return TraceOf(Command(argv, {}, directory), "/");
  };
  for (const Argv& argv : std::vector<Argv>{{"make", "-j8"},
                                            {"/usr/bin/make"},
                                            {"pytest"},
                                            {"python3", "-m", "pytest"},
                                            {"python3", "-c", "import model"},
                                            {"bash", "-c", "make"},
                                            {"torchrun", "-m", "pkg.train"},
                                            {"python3"}}) {
    EXPECT_EQ(of(argv, "/a").key, of(argv, "/b").key) << argv[0];
    EXPECT_NE(of(argv, "/a").here, of(argv, "/b").here) << argv[0];
    EXPECT_EQ(of(argv, "/a").here, of(argv, "/a").here) << argv[0];
  }
  for (const Argv& argv : std::vector<Argv>{{"python3", "/p/train.py"},
                                            {"torchrun", "/p/train.py"},
                                            {"uv", "run", "/p/train.py"},
                                            {"bash", "/p/run.sh"}}) {
    EXPECT_EQ(of(argv, "/a").here, of(argv, "/b").here) << argv[0];
    EXPECT_EQ(of(argv, "/a").here, of(argv, "/a").key) << argv[0];
  }
  EXPECT_EQ(of({"./train"}, "/a").here, of({"./train"}, "/a").key);
}

// The words that say what is run; all these command lines must give the same.
using Words = std::vector<std::string>;

TEST(TraceOfTest, OptionsOfInterpretersAreNotTheirScripts) {
  const std::vector<std::pair<Words, Words>> same = {
      {{"python3", "a.py"}, {"python3", "-X", "dev", "a.py"}},
      {{"python3", "a.py"}, {"python3", "-uW", "ignore", "-Xdev", "--", "a.py"}},
      {{"python3", "a.py"}, {"python3", "--check-hash-based-pycs", "never", "-B", "a.py"}},
      {{"python3", "-m", "pkg"}, {"python3", "-X", "dev", "-um", "pkg", "-m", "x"}},
      {{"python3", "-c", "text"}, {"python3", "-W", "ignore", "-ctext"}},
      {{"bash", "x.sh"}, {"bash", "-o", "pipefail", "x.sh"}},
      {{"bash", "x.sh"}, {"bash", "-euo", "pipefail", "+x", "--rcfile", "rc", "x.sh", "-c"}},
      {{"bash", "-c", "text"}, {"bash", "-eo", "pipefail", "-lc", "text", "argument"}},
      {{"perl", "x.pl"}, {"perl", "-I", "lib", "-MList::Util", "-w", "x.pl"}},
      {{"perl", "-e", "text"}, {"perl", "-Mstrict", "-lne", "text", "data"}},
      {{"ruby", "x.rb"}, {"ruby", "-r", "json", "-Ilib", "x.rb"}},
      {{"node", "x.js"}, {"node", "--require", "y", "-r", "z", "--inspect", "x.js"}},
      {{"julia", "x.jl"}, {"julia", "--project=.", "-t", "8", "-O2", "--threads", "auto", "x.jl"}},
      {{"Rscript", "x.R"}, {"Rscript", "--vanilla", "x.R"}},
  };
  for (const auto& [plain, with] : same) {
    EXPECT_EQ(KeyOf(plain), KeyOf(with)) << with[0] << " " << with[1];
    Words other = with;
    std::replace(other.begin(), other.end(), plain.back(), "other-" + plain.back());
    EXPECT_TRUE(other == with || KeyOf(other) != KeyOf(with)) << with[0] << " " << with[1];
  }
  const auto run = TraceOf(Command({"python3", "-X", "dev", "a.py", "data"}), "/");
  EXPECT_FALSE(run.Names("/project/a.py"));
  EXPECT_TRUE(run.Names("/project/data"));
  EXPECT_EQ(KeyOf({"python3", "-"}), KeyOf({"python3"}));
}

TEST(TraceOfTest, WhatOnlyRunsAnotherIsLookedThrough) {
  const Digest plain = KeyOf({"python3", "a.py"});
  for (const Words& before : std::vector<Words>{{"env", "X=1", "-u", "Y"},
                                                {"/usr/bin/env"},
                                                {"nohup"},
                                                {"nice", "-n", "5"},
                                                {"nice", "-5"},
                                                {"timeout", "-s", "KILL", "--foreground", "5m"},
                                                {"stdbuf", "-oL", "-e", "0"},
                                                {"setsid", "-w"},
                                                {"time", "-f", "%e"},
                                                {"numactl", "--cpunodebind", "0", "--membind=0"},
                                                {"ionice", "-c", "2", "-n", "7"},
                                                {"chrt", "-f", "50"},
                                                {"taskset", "-c", "0-3"},
                                                {"xargs", "-n", "1", "-P4"},
                                                {"nohup", "env", "X=1", "nice"}}) {
    Words a = before, b = before;
    for (const char* word : {"python3", "a.py", "data"}) a.push_back(word);
    for (const char* word : {"python3", "b.py"}) b.push_back(word);
    EXPECT_EQ(KeyOf(a), plain) << before[0];
    EXPECT_NE(KeyOf(b), plain) << before[0];
    EXPECT_FALSE(TraceOf(Command(a), "/").Names("/project/a.py")) << before[0];
    EXPECT_TRUE(TraceOf(Command(a), "/").Names("/project/data")) << before[0];
  }
  EXPECT_EQ(KeyOf({"env", "PYTHONPATH=/x", "python3", "a.py"}, {"PYTHONPATH=/y"}),
            KeyOf({"python3", "a.py"}, {"PYTHONPATH=/x"}));
  EXPECT_NE(KeyOf({"env"}), KeyOf({"timeout", "5"}));
}

TEST(TraceOfTest, LaunchersHaveAKeyForEachScript) {
  for (const Words& before :
       std::vector<Words>{{"torchrun", "--nproc_per_node", "8", "--rdzv-endpoint=x:1", "--standalone"},
                          {"torchrun", "--some-new-option", "value"},
                          {"accelerate", "launch", "--config_file", "c.yaml", "--multi_gpu"},
                          {"deepspeed", "--num_gpus", "8"},
                          {"uv", "run", "--with", "numpy"},
                          {"uv", "run", "python3", "-X", "dev"},
                          {"poetry", "run", "python3"},
                          {"conda", "run", "-n", "env", "--no-capture-output", "python3"},
                          {"mpirun", "-np", "4", "--mca", "btl", "self", "python3"},
                          {"nohup", "torchrun"},
                          {"python3", "-m", "torch.distributed.run", "--nnodes", "2"}}) {
    Words a = before, b = before;
    for (const char* word : {"a.py", "--data", "data"}) a.push_back(word);
    b.push_back("b.py");
    EXPECT_NE(KeyOf(a), KeyOf(b)) << before[0];
    EXPECT_NE(KeyOf(a), KeyOf({"python3", "a.py"})) << before[0];
    const TraceSubject run = TraceOf(Command(a), "/");
    EXPECT_FALSE(run.Names("/project/a.py")) << before[0];
    EXPECT_TRUE(run.Names("/project/data")) << before[0];
    a.back() = "other";
    EXPECT_EQ(run.key, KeyOf(a)) << before[0];
  }
  EXPECT_EQ(KeyOf({"torchrun", "a.py"}), KeyOf({"torchrun", "--nproc-per-node", "8", "a.py"}));
  EXPECT_EQ(KeyOf({"torchrun", "-m", "pkg.a"}), KeyOf({"torchrun", "--nnodes", "2", "--module", "pkg.a", "x.py"}));
  EXPECT_NE(KeyOf({"torchrun", "-m", "pkg.a"}), KeyOf({"torchrun", "-m", "pkg.b"}));
  EXPECT_EQ(KeyOf({"deepspeed", "train"}), KeyOf({"deepspeed", "--new-flag", "train", "--lr", "1"}));
  EXPECT_NE(KeyOf({"uv", "run", "pytest"}), KeyOf({"uv", "run", "mypy"}));
}

TEST(TraceOfTest, WhatALaterHomeIsToKnowIsEnough) {
  const v1::Command command =
      Command({"env", "X=1", "python3", "a.py", "data"}, {"PATH=/bin", "SECRET=1", "PYTHONPATH=/x"});
  const v1::Command part = TracedPart(command);
  EXPECT_EQ(part.environment_size(), 2);
  EXPECT_EQ(TraceOf(part, "/r").key, TraceOf(command, "/r").key);
  EXPECT_EQ(TraceOf(part, "/r").named, TraceOf(command, "/r").named);
}

}  // namespace
}  // namespace vrun::home

// SPDX-License-Identifier: Apache-2.0
// Carry and Apply together: home ends up with exactly the changes made in an overlay.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <random>

#include "base/files.h"
#include "home/apply/apply.h"
#include "home/root/deny_list.h"
#include "node/carry/carry.h"
#include "tree_model.h"

namespace vrun {
namespace {

using home::Applier;
using home::ApplyOptions;
using node::Carry;
using node::CarryOptions;
using vrun::v1::WriteBack;

uint64_t EnvironmentNumber(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

// Makes a private mount namespace, so that the mounts end with the test.
bool HaveMounts() {
  static const bool have = ::geteuid() == 0 && ::unshare(CLONE_NEWNS) == 0 &&
                           ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  return have;
}

class WriteBackTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!HaveMounts()) GTEST_SKIP() << "needs root and mount namespaces";
    ::alarm(600);
    std::string pattern = "/var/tmp/vrun-writeback-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    base_ = pattern;
    Reset();
  }
  void TearDown() override {
    Unmount();
    if (!base_.empty()) {
      EXPECT_TRUE(RemoveTree(base_).has_value());
    }
    ::alarm(0);
  }

  std::string lower() const { return base_ + "/lower"; }
  std::string upper() const { return base_ + "/upper"; }
  std::string merged() const { return base_ + "/merged"; }

  void Reset() {
    Unmount();
    for (const char* name : {"lower", "upper", "work", "merged", "journal"}) {
      ASSERT_TRUE(RemoveTree(base_ + "/" + name).has_value());
    }
    for (const char* name : {"lower", "upper", "work", "merged"}) {
      ASSERT_EQ(::mkdir((base_ + "/" + name).c_str(), 0755), 0);
    }
  }

  void Mount() {
    ASSERT_TRUE(node::PrepareUpper(upper(), lower(), "").has_value());
    std::string options = "lowerdir=" + lower() + ",upperdir=" + upper() + ",workdir=" + base_ +
                          "/work,redirect_dir=on,metacopy=on,index=off,volatile";
    if (::mount("overlay", merged().c_str(), "overlay", 0, options.c_str()) != 0) {
      GTEST_SKIP() << "no overlay with redirect_dir and metacopy here: " << std::strerror(errno);
    }
    mounted_ = true;
  }
  void Unmount() {
    if (mounted_) {
      EXPECT_EQ(::umount2(merged().c_str(), 0), 0);
    }
    mounted_ = false;
  }

  std::vector<WriteBack> Series(uint64_t after = 0) {
    CarryOptions options;
    options.upper = upper();
    options.lower = lower();
    options.job = 7;
    std::vector<WriteBack> out;
    auto carry = Carry::Open(options);
    if (!carry) {
      ADD_FAILURE() << carry.error().message();
      return out;
    }
    EXPECT_TRUE((*carry)->Restart(after).has_value());
    for (;;) {
      auto message = (*carry)->Next();
      if (!message) {
        ADD_FAILURE() << message.error().message();
        return out;
      }
      if (!*message) break;
      EXPECT_LT((*message)->ByteSizeLong(), 1200u * 1024);
      out.push_back(**std::move(message));
    }
    if (!out.empty()) {
      EXPECT_EQ((*carry)->End().sequence(), out.back().sequence());
    }
    return out;
  }

  std::unique_ptr<Applier> NewApplier(bool journal) {
    ApplyOptions options;
    options.root = lower();
    options.job = 7;
    options.attempt = 1;
    if (journal) options.journal = base_ + "/journal";
    options.notice = [this](const std::string& text) { notices_.push_back(text); };
    options.rules = [rules = home::DenyList({.root = lower(), .writes = home::JobWrites::kAny}).Current()] {
      return rules;
    };
    auto applier = Applier::Open(std::move(options));
    EXPECT_TRUE(applier.has_value());
    return *std::move(applier);
  }

  static std::string Short(const WriteBack& m) {
    std::string out = std::to_string(m.sequence()) + " " + m.path() + " op " + std::to_string(m.op_case());
    if (m.has_rename()) out += " from " + m.rename().from();
    if (m.has_make_hard_link()) out += " to " + m.make_hard_link().existing();
    return out + (m.has_base() ? " base" : "");
  }
  std::string Story(const test::RandomWork& work, const std::vector<WriteBack>& series) {
    std::string out = "done in the overlay:\n";
    for (const std::string& line : work.log()) out += "  " + line + "\n";
    out += "carried:\n";
    for (const WriteBack& m : series) {
      if (!m.has_file_data()) out += "  " + Short(m) + "\n";
    }
    for (const std::string& notice : notices_) out += "notice: " + notice + "\n";
    return out;
  }
  static std::set<ino_t> SharedInodes(const test::Description& d) {
    std::set<ino_t> out;
    for (const auto& [path, one] : d) {
      if (!S_ISDIR(one.mode) && one.nlink > 1) out.insert(one.ino);
    }
    return out;
  }

  std::string base_;
  bool mounted_ = false;
  std::vector<std::string> notices_;
};

// Whether the message is the last of an operation, which home may have acknowledged.
bool EndsOperation(const WriteBack& m) { return !m.has_put_file() && (!m.has_file_data() || m.file_data().last()); }

class Random : public WriteBackTest {
 protected:
  // Applies the whole series with this strategy, and compares the result.
  template <typename ApplyAll>
  void Check(uint64_t seed, int steps, ApplyAll apply_all, bool hard_links = true) {
    SCOPED_TRACE("VRUN_SEED=" + std::to_string(seed));
    Reset();
    notices_.clear();
    std::mt19937_64 random(seed);
    test::RandomWork tree(lower(), seed);
    tree.BuildTree(40, hard_links);
    test::Description before = test::Describe(lower());
    Mount();
    if (IsSkipped()) return;
    test::RandomWork work(merged(), seed + 1);
    for (int i = 0; i < steps; ++i) work.Step();
    test::Description want = test::Describe(merged());
    Unmount();
    std::vector<WriteBack> series = Series();
    apply_all(series, before, want, random);
    if (IsSkipped()) return;
    std::string differences = test::Differences(want, test::Describe(lower()), SharedInodes(before));
    EXPECT_EQ(differences, "") << Story(work, series);
    if (HasFailure()) return;
  }
};

TEST_F(Random, EverythingArrivesAsTheCommandLeftIt) {
  uint64_t count = EnvironmentNumber("VRUN_SEEDS", 80);
  uint64_t first = EnvironmentNumber("VRUN_SEED", 1);
  std::random_device device;
  for (uint64_t i = 0; i < count && !HasFailure() && !IsSkipped(); ++i) {
    uint64_t seed = i < count / 2 || count == 1 ? first + i : device();
    Check(seed, 10 + static_cast<int>(seed % 150), [&](const auto& series, const auto&, const auto&, auto&) {
      auto applier = NewApplier(false);
      for (const WriteBack& m : series) {
        auto status = applier->Apply(m);
        EXPECT_TRUE(status.has_value()) << status.error().message();
      }
      EXPECT_TRUE(applier->Finish().has_value());
      EXPECT_TRUE(notices_.empty()) << notices_.front();
    });
  }
}

TEST_F(Random, ARestartedCarryTellsTheSame) {
  for (uint64_t seed = 1000; seed < 1005 && !HasFailure() && !IsSkipped(); ++seed) {
    Check(seed, 100, [&](const auto& series, const auto&, const auto&, auto&) {
      for (size_t i = 0; i < series.size(); ++i) {
        if (!EndsOperation(series[i])) continue;
        std::vector<WriteBack> rest = Series(series[i].sequence());
        ASSERT_EQ(rest.size(), series.size() - i - 1);
        for (size_t k = 0; k < rest.size(); ++k) {
          ASSERT_EQ(rest[k].sequence(), series[i + 1 + k].sequence());
          ASSERT_EQ(rest[k].path(), series[i + 1 + k].path());
          if (rest[k].has_make_symlink()) continue;  // reading a link changes its atime
          ASSERT_EQ(rest[k].SerializeAsString(), series[i + 1 + k].SerializeAsString());
        }
      }
      auto applier = NewApplier(false);
      for (const WriteBack& m : series) ASSERT_TRUE(applier->Apply(m).has_value());
    });
  }
}

// Home stops anywhere and continues from any operation that it may have acknowledged. Without a journal a file with
// several names may then seem changed, so those runs have no such files.
TEST_F(Random, AHomeThatIsRestartedEverywhereEndsTheSame) {
  uint64_t count = EnvironmentNumber("VRUN_SEEDS", 25);
  uint64_t first = EnvironmentNumber("VRUN_SEED", 5000);
  for (uint64_t seed = first; seed < first + count && !HasFailure() && !IsSkipped(); ++seed) {
    bool journal = seed % 3 != 0;
    Check(
        seed, 20 + static_cast<int>(seed % 100),
        [&](const auto& series, const auto&, const auto&, auto& random) {
          size_t next = 0;
          size_t farthest = 0;
          while (next < series.size()) {
            auto applier = NewApplier(journal);
            size_t stop = std::min(series.size(), farthest + 1 + random() % 5);
            for (; next < stop; ++next) {
              auto status = applier->Apply(series[next]);
              ASSERT_TRUE(status.has_value()) << status.error().message();
              if (random() % 50 == 0) {
                ASSERT_TRUE(applier->Sync().has_value());
              }
            }
            farthest = next;
            if (next == series.size()) break;
            // Return to the start of an operation.
            next = random() % 3 == 0 ? random() % (next + 1) : next - std::min<size_t>(next, random() % 6);
            while (next > 0 && !EndsOperation(series[next - 1])) --next;
          }
          EXPECT_TRUE(!journal || notices_.empty()) << notices_.front();
        },
        journal);
  }
}

// kill -9 at any moment leaves no half-written file, and the next home completes it. Content that the command only
// appended is appended in place, so a part of it may be there.
TEST_F(Random, AKilledHomeLeavesOldOrNewFiles) {
  auto* progress = static_cast<std::atomic<uint64_t>*>(
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  for (uint64_t seed = 9000; seed < 9010 && !HasFailure() && !IsSkipped(); ++seed) {
    Check(seed, 100, [&](const auto& series, const auto& before, const auto& want, auto& random) {
      std::set<std::string> known;
      for (const auto* d : {&before, &want}) {
        for (const auto& [path, one] : *d) known.insert(one.content);
      }
      const auto is_partly_appended = [&](const std::string& content) {
        const auto begins_with = [](const std::string& all) {
          return [&](const auto& one) { return all.starts_with(one.second.content); };
        };
        return std::any_of(before.begin(), before.end(), begins_with(content)) &&
               std::any_of(want.begin(), want.end(),
                           [&](const auto& one) { return one.second.content.starts_with(content); });
      };
      size_t next = 0;
      for (int kills = 0; kills < 5; ++kills) {
        if (series.size() == next) break;
        size_t at = next + random() % (series.size() - next);
        progress->store(next);
        pid_t child = ::fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
          ::alarm(60);
          auto applier = NewApplier(true);
          for (size_t i = next; i < series.size(); ++i) {
            if (!applier->Apply(series[i])) ::_exit(3);
            progress->store(i + 1);
          }
          ::_exit(0);
        }
        while (progress->load() < at && ::waitpid(child, nullptr, WNOHANG) == 0) ::sched_yield();
        ::kill(child, SIGKILL);
        ::waitpid(child, nullptr, 0);
        for (const auto& [path, one] : test::Describe(lower())) {
          bool temporary = path.find("/.vrun-7-s-") != std::string::npos;
          ASSERT_TRUE(temporary || !S_ISREG(one.mode) || known.contains(one.content) || is_partly_appended(one.content))
              << path << " is half written";
        }
        next = progress->load() - std::min<uint64_t>(progress->load(), random() % 20);
        while (next > 0 && !EndsOperation(series[next - 1])) --next;
      }
      auto applier = NewApplier(true);
      for (size_t i = next; i < series.size(); ++i) {
        auto status = applier->Apply(series[i]);
        ASSERT_TRUE(status.has_value()) << status.error().message();
      }
      EXPECT_TRUE(notices_.empty()) << notices_.front();
    });
  }
  ::munmap(progress, 4096);
}

}  // namespace
}  // namespace vrun

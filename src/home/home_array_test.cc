// SPDX-License-Identifier: Apache-2.0
// Arrays from outside: a client, a controller that makes elements into jobs, and a node.
#include <csignal>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "home/testing/home_testing.h"

namespace vrun::home {
namespace {

class HomeArrayTest : public HomeTest {
 protected:
  struct Element {
    uint64_t job;
    uint32_t index;
  };

  uint64_t SubmitArray(std::function<void(v1::Run*)> more = nullptr) {
    Client client = StartRun([&](v1::Run* run) {
      run->set_detached(true);
      run->mutable_array()->add_ranges()->set_last(9);
      if (more) more(run);
    });
    return client.Accepted();
  }
  // The next watch; its job is `job`.
  std::shared_ptr<WatchInbox> WatchOf(uint64_t job) {
    auto watch = watches_.Next();
    EXPECT_EQ(watch->Next([](const v1::WatchRequest&) { return true; }).job(), job);
    return watch;
  }
  void Tell(WatchInbox* watch, uint64_t array, const std::vector<Element>& started) {
    v1::JobEvent event;
    event.set_state(v1::RUNNING);
    MutexLock lock(mutex_);
    states_[array] = v1::RUNNING;
    for (const Element& e : started) {
      states_[e.job] = v1::RUNNING;
      elements_[e.job] = {array, e.index};
      v1::ArrayElement* element = event.add_started();
      element->set_job(e.job);
      element->set_index(e.index);
    }
    watch->Send(event);
  }
  // The controller places an element. Returns its connection at the node, and what home asked of it.
  std::pair<std::shared_ptr<TaskInbox>, v1::Attach> Place(uint64_t job) {
    auto watch = WatchOf(job);
    v1::JobEvent event;
    event.set_state(v1::STARTING);
    *event.mutable_placement() = PlacementOf(job);
    watch->Send(event);
    kept_.push_back(std::move(watch));
    auto task = tasks_.Next();
    const v1::Attach attach = NextAttach(task.get());
    EXPECT_EQ(attach.job(), job);
    EXPECT_TRUE(attach.detached());
    return {task, attach};
  }
  void End(TaskInbox* task, uint64_t job, uint64_t offset, const std::string& output) {
    task->Send(OutputOf(v1::STDOUT, offset, output, true));
    task->Send(OutputOf(v1::STDERR, 0, "", true));
    const v1::ExitRecord record = Exited(task, job, 0);
    WritesEnd(task, 0);
    Released(task);
    Ended(job, record);
  }
  std::string Output(uint64_t array, uint32_t index) {
    return ReadFile(root_ / ("project/vrun-" + std::to_string(array) + "_" + std::to_string(index) + ".out"))
        .value_or("no file");
  }
  bool Forgotten(uint64_t job) {
    for (int i = 0; i < 400; ++i, ::usleep(50'000)) {
      if (!std::filesystem::exists(vrun_ / ("state/runs/" + std::to_string(job)))) return true;
    }
    return false;
  }

  std::vector<std::shared_ptr<WatchInbox>> kept_;
};

TEST_F(HomeArrayTest, ElementsRunAsTheControllerMakesThemJobs) {
  place_ = false;
  const uint64_t array = SubmitArray([](v1::Run* run) { run->set_stderr_path("/project/errors-%a-%A"); });
  auto watch = WatchOf(array);
  EXPECT_EQ(Output(array, 3), "no file");
  root_.Put("project/data", "changed after the submission\n");
  Tell(watch.get(), array, {{201, 3}});
  auto [first, first_attach] = Place(201);
  Attached(first.get(), false);
  Started(first.get());
  End(first.get(), 201, 0, "third\n");
  Tell(watch.get(), array, {{202, 7}});
  auto [second, second_attach] = Place(202);
  // Both see the root of the submission.
  EXPECT_EQ(first_attach.tree(), second_attach.tree());
  Attached(second.get(), false);
  Started(second.get());
  End(second.get(), 202, 0, "seventh\n");
  EXPECT_TRUE(Forgotten(201));
  EXPECT_TRUE(Forgotten(202));
  EXPECT_EQ(Output(array, 3), "third\n");
  EXPECT_EQ(Output(array, 7), "seventh\n");
  EXPECT_EQ(ReadFile(root_ / ("project/errors-7-" + std::to_string(array))).value_or("no file"), "");
  v1::JobEvent end;
  end.set_state(v1::COMPLETED);
  watch->Send(end);
  EXPECT_TRUE(Forgotten(array));
}

TEST_F(HomeArrayTest, ANewHomeContinuesWithWhatIsThere) {
  place_ = false;
  const uint64_t array = SubmitArray();
  auto watch = WatchOf(array);
  Tell(watch.get(), array, {{201, 0}, {202, 1}});
  std::map<uint64_t, std::shared_ptr<TaskInbox>> tasks;
  std::string tree;
  for (const uint64_t job : {201, 202}) {
    auto [task, attach] = Place(job);
    Attached(task.get(), false);
    Started(task.get());
    tasks[job] = task;
    tree = attach.tree();
  }
  tasks[202]->Send(OutputOf(v1::STDOUT, 0, "before ", false));
  EXPECT_EQ(tasks[202]->Next([](const v1::TaskUp& up) { return up.has_ack(); }).ack().offset(), 7u);
  // The controller does not know yet that the first one has ended.
  tasks[201]->Send(OutputOf(v1::STDOUT, 0, "all of it\n", true));
  tasks[201]->Send(OutputOf(v1::STDERR, 0, "", true));
  const v1::ExitRecord record = Exited(tasks[201].get(), 201, 0);
  WritesEnd(tasks[201].get(), 0);
  Released(tasks[201].get());
  EXPECT_TRUE(Forgotten(201));
  root_.Put("project/data", "changed after the submission\n");
  StopHome(SIGKILL);
  kept_.clear();
  ASSERT_EQ(StartHome(), "ok\n");
  watch = WatchOf(array);
  Tell(watch.get(), array, {{201, 0}, {202, 1}, {203, 2}});
  // Those that run attach at once, the new one when it is placed.
  for (uint64_t job = 0; job != 203;) {
    auto of = watches_.Next();
    job = of->Next([](const v1::WatchRequest&) { return true; }).job();
    if (job == 203) {
      v1::JobEvent event;
      event.set_state(v1::STARTING);
      *event.mutable_placement() = PlacementOf(job);
      of->Send(event);
    }
    kept_.push_back(std::move(of));
  }
  std::map<uint64_t, v1::Attach> attached;
  for (int i = 0; i < 3; ++i) {
    auto task = tasks_.Next();
    const v1::Attach attach = NextAttach(task.get());
    attached[attach.job()] = attach;
    tasks[attach.job()] = task;
  }
  ASSERT_EQ(attached.size(), 3u);
  for (const uint64_t job : {202, 203}) {
    EXPECT_EQ(attached[job].tree(), tree);
    Attached(tasks[job].get(), job == 202);
    if (job == 203) Started(tasks[job].get());
  }
  End(tasks[202].get(), 202, 7, "after\n");
  End(tasks[203].get(), 203, 0, "new\n");
  EXPECT_TRUE(Forgotten(202));
  EXPECT_TRUE(Forgotten(203));
  EXPECT_EQ(Output(array, 0), "all of it\n");
  EXPECT_EQ(Output(array, 1), "before after\n");
  EXPECT_EQ(Output(array, 2), "new\n");
}

TEST_F(HomeArrayTest, ALostWatchIsOpenedAgainAndNothingBeginsTwice) {
  place_ = false;
  const uint64_t array = SubmitArray();
  auto watch = WatchOf(array);
  Tell(watch.get(), array, {{201, 0}});
  auto [task, attach] = Place(201);
  Attached(task.get(), false);
  Started(task.get());
  End(task.get(), 201, 0, "once\n");
  EXPECT_TRUE(Forgotten(201));
  watch->Break();
  watch = WatchOf(array);
  Tell(watch.get(), array, {{201, 0}, {202, 1}});
  auto [second, second_attach] = Place(202);
  EXPECT_EQ(Output(array, 0), "once\n");
}

TEST_F(HomeArrayTest, AnArrayIsRefusedInTheForegroundAndWithoutADirectoryForItsOutput) {
  Client client = StartRun([](v1::Run* run) { run->mutable_array()->add_ranges()->set_last(9); });
  const auto said = client.Next([](const v1::HomeMessage& m) { return m.has_error() || m.has_accepted(); });
  EXPECT_TRUE(said.error().message().starts_with("an array runs in the background")) << said.error().message();
  client = StartRun([](v1::Run* run) {
    run->set_detached(true);
    run->mutable_array()->add_ranges()->set_last(9);
    run->set_stdout_path("/nowhere/%a");
  });
  const auto refused = client.Next([](const v1::HomeMessage& m) { return m.has_error() || m.has_accepted(); });
  EXPECT_TRUE(refused.error().message().find("/nowhere/") != std::string::npos) << refused.error().message();
  EXPECT_EQ(CancelSignal(101), SIGTERM);
}

}  // namespace
}  // namespace vrun::home

// SPDX-License-Identifier: Apache-2.0
// Arrays against a simple model: whatever is asked for and whenever the controller is stopped, each element runs once
// or never, and the counts are exact.
#include <random>

#include "control/testing/array_testing.h"
#include "sched/engine/inspect.h"

namespace vrun::control {
namespace {

struct Model {
  uint32_t count = 0, most = 0;
  std::set<uint32_t> cancelled;  // asked for before they began
  std::map<uint32_t, int> ends;  // of elements that have ended: exit code
  std::map<uint32_t, v1::StartAttempt> running;
  std::set<uint32_t> began;
};

class ArrayPropertyTest : public ArrayStateTest, public ::testing::WithParamInterface<int> {
 protected:
  v1::Register Node() {
    v1::Register node = SimpleNode("n1", 40);
    for (const auto& [id, model] : models_) {
      for (const auto& [index, start] : model.running) {
        *node.add_attempts() = ReportOf(start.placement(), v1::RUNNING);
      }
    }
    return node;
  }
  void TakeOrders() {
    while (!sent_.empty()) ASSERT_NO_FATAL_FAILURE(TakeSome());
  }
  void TakeSome() {
    const std::vector<v1::StartAttempt> starts = Orders();
    const std::vector<v1::ControllerMessage> stops = Stops();
    sent_.clear();
    for (const v1::StartAttempt& start : starts) {
      Model& model = models_.at(start.parent_array());
      ASSERT_TRUE(model.began.insert(start.array_index()).second)
          << "element " << start.array_index() << " of " << start.parent_array() << " began twice";
      ASSERT_FALSE(model.cancelled.contains(start.array_index()));
      model.running.emplace(start.array_index(), start);
      Runs(start);
    }
    for (const v1::ControllerMessage& message : stops) {
      for (auto& [id, model] : models_) {
        for (auto it = model.running.begin(); it != model.running.end();) {
          if (it->second.placement().job() != message.stop().job()) {
            ++it;
            continue;
          }
          const v1::StartAttempt start = it->second;
          model.ends[it->first] = 143;
          it = model.running.erase(it);
          Report("n1", control::ExitOf(start.placement(), v1::CANCELLED, v1::ExitRecord::CANCELLED_BY_USER, 0));
        }
      }
    }
  }
  void Check() {
    uint64_t waiting = 0;
    for (const auto& [id, model] : models_) {
      if (model.most > 0) ASSERT_LE(model.running.size(), model.most);
      const v1::JobInfo info = InfoOf(id);
      const v1::ArrayInfo& counts = info.array_info();
      uint64_t completed = 0, failed = 0;
      for (const auto& [index, code] : model.ends) {
        completed += code == 0 ? 1 : 0;
        failed += code != 0 && code != 143 ? 1 : 0;
      }
      ASSERT_EQ(counts.completed(), completed);
      ASSERT_EQ(counts.failed(), failed);
      ASSERT_EQ(counts.running(), model.running.size());
      ASSERT_EQ(counts.waiting(), model.count - model.began.size() - model.cancelled.size());
      const bool over = model.ends.size() + model.cancelled.size() == model.count;
      ASSERT_EQ(IsEnd(info.state()), over) << id;
      if (over) ASSERT_EQ(info.state() == v1::COMPLETED, completed == model.count);
      waiting += counts.waiting();
    }
    ASSERT_LE(sched::core::Waiting(state_->scheduler()).size(), waiting);
  }

  std::map<uint64_t, Model> models_;
};

TEST_P(ArrayPropertyTest, EachElementRunsOnceOrNever) {
  std::mt19937 random(static_cast<uint32_t>(GetParam()));
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  Register(Node());
  std::set<uint64_t> unfinished;
  for (int step = 0; step < 100; ++step) {
    unfinished.clear();
    for (const auto& [id, model] : models_) {
      if (model.ends.size() + model.cancelled.size() < model.count) unfinished.insert(id);
    }
    const uint32_t what = below(12);
    if (what < 2 && models_.size() < 6) {
      Model model;
      model.count = 1 + below(200);
      model.most = below(3) == 0 ? 1 + below(10) : 0;
      v1::SubmitRequest request = ArrayJob("r" + std::to_string(step), {{0, model.count - 1, 1}}, model.most);
      request.mutable_spec()->mutable_scheduling()->set_hold(below(5) == 0);
      models_[Submit(request).job()] = model;
    } else if (what == 2) {
      Restart();
      Register(Node());
    } else if (what < 6 && !unfinished.empty()) {
      auto it = unfinished.begin();
      std::advance(it, below(static_cast<uint32_t>(unfinished.size())));
      Model& model = models_.at(*it);
      const uint32_t first = below(model.count), last = first + below(model.count - first), by = 1 + below(3);
      if (what == 3) {
        ASSERT_EQ(Cancel(*it, {{first, last, by}}), "");
        for (uint32_t i = first; i <= last; i += by) {
          if (!model.began.contains(i)) model.cancelled.insert(i);
        }
      } else {
        (void)Change(*it, what == 4 ? v1::ChangeJobs::HOLD : v1::ChangeJobs::RELEASE, {{first, last, by}});
      }
    } else {
      for (auto& [id, model] : models_) {
        for (uint32_t i = below(20); i > 0 && !model.running.empty(); --i) {
          auto it = model.running.begin();
          std::advance(it, below(static_cast<uint32_t>(model.running.size())));
          const v1::StartAttempt start = it->second;
          const int code = below(4) == 0 ? 1 : 0;
          model.ends[it->first] = code;
          model.running.erase(it);
          Ends(start, code);
        }
      }
    }
    ASSERT_NO_FATAL_FAILURE(TakeOrders());
    ASSERT_NO_FATAL_FAILURE(Check()) << "step " << step;
  }
  // In the end all that was not cancelled has run.
  for (const uint64_t id : unfinished) (void)Change(id, v1::ChangeJobs::RELEASE, {});
  for (bool any = true; any;) {
    ASSERT_NO_FATAL_FAILURE(TakeOrders());
    any = false;
    for (auto& [id, model] : models_) {
      while (!model.running.empty()) {
        any = true;
        const v1::StartAttempt start = model.running.begin()->second;
        model.ends[model.running.begin()->first] = 0;
        model.running.erase(model.running.begin());
        Ends(start, 0);
      }
    }
  }
  ASSERT_NO_FATAL_FAILURE(Check());
  for (const auto& [id, model] : models_) ASSERT_EQ(model.ends.size() + model.cancelled.size(), model.count);
  ASSERT_TRUE(state_->jobs().empty());
}

INSTANTIATE_TEST_SUITE_P(Random, ArrayPropertyTest, ::testing::Range(0, 6));

}  // namespace
}  // namespace vrun::control

// SPDX-License-Identifier: Apache-2.0
// NVML, the inventory, MIG, health and metering, against the fake driver.
#include <gtest/gtest.h>

#include <fstream>

#include "gpu/gpu_names.h"
#include "gpu/health.h"
#include "gpu/inventory.h"
#include "gpu/meter.h"
#include "gpu/mig.h"
#include "gpu/nvml.h"
#include "gpu/testing/fake_machine.h"

namespace vrun::gpu {
namespace {

std::unique_ptr<Nvml> Open(const FakeMachine& driver) {
  Result<std::unique_ptr<Nvml>> nvml = Nvml::Open(driver.root());
  VRUN_CHECK(nvml.has_value());
  return std::move(*nvml);
}

TEST(GpuNamesTest, TypesOfProducts) {
  EXPECT_EQ(GpuType("NVIDIA H100 80GB HBM3"), "h100");
  EXPECT_EQ(GpuType("NVIDIA H200"), "h200");
  EXPECT_EQ(GpuType("NVIDIA A100-SXM4-80GB"), "a100-80");
  EXPECT_EQ(GpuType("NVIDIA A100-SXM4-40GB"), "a100");
  EXPECT_EQ(GpuType("Tesla T4"), "t4");
  EXPECT_EQ(GpuType("NVIDIA GeForce RTX 4090"), "rtx-4090");
  EXPECT_EQ(GpuType("NVIDIA A3000 Laptop GPU"), "a3000-laptop-gpu");
  EXPECT_EQ(GpuType("\x01 ,,"), "gpu");
  EXPECT_EQ(MigModel("NVIDIA H200"), "h200-141gb");
  EXPECT_EQ(MigModel("Tesla T4"), "");
}

TEST(GpuNamesTest, ProfilesOfAnH200AsDecision32FoundThem) {
  const uint64_t card = 143771ull << 20;
  EXPECT_EQ(MigProfileName(1, 16384, card, false), "1g.18gb");
  EXPECT_EQ(MigProfileName(1, 16384, card, true), "1g.18gb+me");
  EXPECT_EQ(MigProfileName(1, 33280, card, false), "1g.35gb");
  EXPECT_EQ(MigProfileName(3, 71424, card, false), "3g.71gb");
  EXPECT_EQ(MigProfileName(7, 143360, card, false), "7g.141gb");
}

TEST(NvmlTest, AMachineWithoutADriverIsNoError) {
  EXPECT_EQ(Nvml::Open("/var/tmp/there/is/none").error().code(), Code::kNotFound);
  FakeMachine driver;
  driver.SetAll("broken", "1");
  EXPECT_EQ(Nvml::Open(driver.root()).error().code(), Code::kUnavailable);
}

TEST(InventoryTest, WhatIsThere) {
  FakeMachine driver(4);
  const auto nvml = Open(driver);
  auto inventory = TakeInventory(nvml.get());
  ASSERT_TRUE(inventory) << inventory.error().message();
  ASSERT_EQ(inventory->gpus.size(), 4u);
  EXPECT_EQ(inventory->driver, "580.159.04");
  EXPECT_EQ(inventory->Type(), "h100");
  EXPECT_EQ(inventory->MemoryBytes(), 81559ull << 20);
  EXPECT_EQ(inventory->mig_model, "");
  EXPECT_EQ(inventory->groups, (std::vector<uint32_t>{3, 12})) << "by NUMA node";
  const v1::Gpu& second = inventory->gpus[1];
  EXPECT_EQ(second.uuid(), "GPU-1");
  EXPECT_EQ(second.pci_bus_id(), "00000000:11:00.0");
  EXPECT_EQ(second.numa_node(), 0u);
  EXPECT_TRUE(second.mps());
  EXPECT_FALSE(second.mig());
  EXPECT_EQ(second.problem(), "");
}

TEST(InventoryTest, NvlinkDecidesWhoIsClose) {
  FakeMachine driver(4);
  driver.Set(0, "nvlink", "2");
  driver.Set(2, "nvlink", "0");
  driver.Set(1, "nvlink", "3");
  driver.Set(3, "nvlink", "1");
  EXPECT_EQ(TakeInventory(Open(driver).get())->groups, (std::vector<uint32_t>{5, 10}));
}

TEST(InventoryTest, ALostGpuKeepsItsNumberAndTheOthersGoOn) {
  FakeMachine driver(3);
  driver.Set(1, "lost", "1");
  auto inventory = TakeInventory(Open(driver).get());
  ASSERT_TRUE(inventory);
  EXPECT_EQ(inventory->gpus.size(), 3u);
  EXPECT_NE(inventory->gpus[1].problem(), "");
  EXPECT_EQ(inventory->BadMask(), 2u);
  EXPECT_EQ(inventory->gpus[2].type(), "h100");
}

// --- MIG

class MigTest : public ::testing::Test {
 protected:
  MigTest() {
    driver_.Set(0, "mig", "1");
    nvml_ = Open(driver_);
    inventory_ = *TakeInventory(nvml_.get());
  }
  MigInstances Make() { return MigInstances(nvml_.get(), driver_.root() + "/state", driver_.root() + "/proc"); }
  const v1::Gpu& gpu() { return inventory_.gpus[0]; }

  FakeMachine driver_;
  std::unique_ptr<Nvml> nvml_;
  Inventory inventory_;
};

TEST_F(MigTest, ProfilesHaveTheNamesThatPeopleUse) {
  EXPECT_EQ(inventory_.mig_model, "h100-80gb");
  EXPECT_FALSE(gpu().mps());
  std::set<std::string> names;
  const std::vector<Nvml::MigProfile> profiles = *nvml_->MigProfiles(*nvml_->At(0));
  for (const auto& p : profiles) {
    names.insert(MigProfileName(p.slices, p.memory_mib, gpu().memory_bytes(), p.media));
  }
  EXPECT_EQ(names,
            (std::set<std::string>{"1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"}));
}

TEST_F(MigTest, AnInstanceIsMadeWhereItWasPlacedAndDestroyedAfterwards) {
  MigInstances mig = Make();
  auto small = mig.Take(0, gpu(), "1g.10gb", 6);
  ASSERT_TRUE(small) << small.error().message();
  auto large = mig.Take(0, gpu(), "3g.40gb", 0);
  ASSERT_TRUE(large) << large.error().message();
  EXPECT_NE(small->uuid, large->uuid);
  EXPECT_EQ(small->gpu_instance_cap, 3 + small->gpu_instance * 9);
  EXPECT_EQ(small->compute_instance_cap, small->gpu_instance_cap + 1);
  EXPECT_EQ(driver_.Instances(), "0 1 19 6 1 1\n0 2 9 0 4 1\n");

  EXPECT_EQ(mig.Take(0, gpu(), "1g.10gb", 2).error().code(), Code::kExhausted) << "the large one lies there";
  EXPECT_EQ(mig.Take(0, gpu(), "5g.50gb", 0).error().code(), Code::kNotFound);
  EXPECT_EQ(mig.Take(1, inventory_.gpus[1], "1g.10gb", 0).error().code(), Code::kUnsupported);

  ASSERT_TRUE(mig.Give(0, gpu(), 6));
  ASSERT_TRUE(mig.Give(0, gpu(), 6)) << "again";
  EXPECT_EQ(driver_.Instances(), "0 2 9 0 4 1\n");
}

TEST_F(MigTest, AnInstanceInUseIsDestroyedLater) {
  MigInstances mig = Make();
  const auto made = mig.Take(0, gpu(), "2g.20gb", 2);
  ASSERT_TRUE(made);
  driver_.Set(0, "processes", "1:1048576:10:" + std::to_string(made->gpu_instance));
  EXPECT_EQ(mig.Give(0, gpu(), 2).error().code(), Code::kExists);
  EXPECT_EQ(mig.Recover(inventory_.gpus, {}).size(), 1u);
  driver_.Set(0, "processes", "");
  EXPECT_TRUE(mig.Recover(inventory_.gpus, {}).empty());
  EXPECT_EQ(driver_.Instances(), "");
}

TEST_F(MigTest, AfterAKillOnlyWhatWasMadeForTheDeadIsDestroyed) {
  auto mig = std::make_unique<MigInstances>(Make());
  // The administrator's own, which a pod may use.
  const auto profiles = *nvml_->MigProfiles(*nvml_->At(0));
  ASSERT_TRUE(nvml_->CreateInstance(*nvml_->At(0), profiles[0], 5));
  ASSERT_TRUE(mig->Take(0, gpu(), "1g.10gb", 0));
  ASSERT_TRUE(mig->Take(0, gpu(), "1g.10gb", 1));
  ASSERT_TRUE(mig->Take(0, gpu(), "1g.10gb", 5));
  mig = std::make_unique<MigInstances>(Make());
  EXPECT_TRUE(mig->Recover(inventory_.gpus, {{"GPU-0", 1}}).empty());
  EXPECT_EQ(driver_.Instances(), "0 1 19 5 1 1\n0 3 19 1 1 1\n");
  ASSERT_TRUE(mig->Give(0, gpu(), 5)) << "it is not ours";
  ASSERT_TRUE(mig->Give(0, gpu(), 1));
  EXPECT_EQ(driver_.Instances(), "0 1 19 5 1 1\n");
}

TEST_F(MigTest, WhatWasBegunBeforeAKillIsMadeAnew) {
  // The file and the GPU instance are there, but its compute instance is not.
  std::ofstream(driver_.root() + "/state/GPU-0.3") << "1g.10gb\n";
  std::ofstream(driver_.root() + "/fake/mig") << "0 4 19 3 1 0\n";
  const auto made = Make().Take(0, gpu(), "1g.10gb", 3);
  ASSERT_TRUE(made) << made.error().message();
  EXPECT_EQ(driver_.Instances(), "0 1 19 3 1 1\n");
}

TEST(MigMinorTest, OnlyTheExactKeyCounts) {
  const std::string minors = "config 1\ngpu1/gi1/access 12\ngpu1/gi11/access 13\ngpu1/gi2/access x\ngpu1/gi3/access";
  EXPECT_EQ(*MigMinor(minors, "gpu1/gi1/access"), 12u);
  EXPECT_EQ(*MigMinor(minors, "gpu1/gi11/access"), 13u);
  EXPECT_EQ(MigMinor(minors, "gpu1/gi2/access").error().code(), Code::kCorrupt);
  EXPECT_EQ(MigMinor(minors, "gpu1/gi3/access").error().code(), Code::kNotFound);
}

// --- health

TEST(HealthTest, MeaningsOfXids) {
  EXPECT_TRUE(MeaningOfXid(31).own);
  EXPECT_FALSE(MeaningOfXid(31).gpu);
  EXPECT_TRUE(MeaningOfXid(79).gpu);
  EXPECT_FALSE(MeaningOfXid(79).own);
  EXPECT_FALSE(MeaningOfXid(94).gpu);
  EXPECT_EQ(XidText(79), "XID 79: GPU has fallen off the bus");
  EXPECT_EQ(XidText(4711), "XID 4711");
  EXPECT_FALSE(MeaningOfXid(4711).gpu);
}

TEST(HealthTest, LinesOfTheKernelsLog) {
  const auto line = ParseXidLine("3,1234,5678,-;NVRM: Xid (PCI:0000:00:06): 31, pid=1294, name=python3, Ch 0000000b");
  ASSERT_TRUE(line);
  EXPECT_EQ(line->pci, "0000:00:06");
  EXPECT_EQ(line->number, 31u);
  EXPECT_EQ(line->pid, 1294u);
  EXPECT_TRUE(SamePci(line->pci, "00000000:00:06.0"));
  EXPECT_FALSE(SamePci(line->pci, "00000000:00:16.0"));
  EXPECT_EQ(ParseXidLine("NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off")->pid,
            0u);
  EXPECT_EQ(ParseXidLine("NVRM: Xid (PCI:0000:1b:00): 45, name=pid=7")->pid, 0u) << "a program's name is no pid";
  EXPECT_FALSE(ParseXidLine("NVRM: Xid (PCI:0000:1b:00"));
  EXPECT_FALSE(ParseXidLine("NVRM: loading"));
}

TEST(HealthTest, TheLogIsReadFromNowOn) {
  FakeMachine driver;
  const std::string path = driver.root() + "/kmsg";
  std::ofstream(path) << "3,1,1,-;NVRM: Xid (PCI:0000:00:06): 13, pid=1\n";
  auto log = KernelLog::Open(path);
  ASSERT_TRUE(log);
  EXPECT_TRUE(log->Read().empty());
  std::ofstream(path, std::ios::app) << "3,2,2,-;NVRM: Xid (PCI:0000:00:06): 31, pid=2\n3,3,3,-;NVRM: Xid (PCI:00";
  ASSERT_EQ(log->Read().size(), 1u);
  std::ofstream(path, std::ios::app) << "00:00:06): 43, pid=3\n";
  const auto lines = log->Read();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].number, 43u);
}

TEST(HealthTest, ProblemsOfReadings) {
  FakeMachine driver;
  const auto nvml = Open(driver);
  EXPECT_EQ(Problem(Read(nvml.get(), 0), false), "");
  driver.Set(0, "temperature", "84");
  EXPECT_EQ(Problem(Read(nvml.get(), 0), false), "");
  EXPECT_TRUE(IsTemperature(Problem(Read(nvml.get(), 0), true))) << "it must cool down by some degrees";
  driver.Set(0, "temperature", "90");
  EXPECT_EQ(Problem(Read(nvml.get(), 0), false), "too hot: 90 degrees Celsius, it slows down at 87");
  driver.Set(0, "remap_pending", "1");
  EXPECT_EQ(Problem(Read(nvml.get(), 0), false), "memory rows wait to be remapped: reset it");
  driver.Set(0, "lost", "1");
  EXPECT_NE(Problem(Read(nvml.get(), 0), false).find("fallen off the bus"), std::string::npos);
}

TEST(HealthTest, XidsComeAsEvents) {
  FakeMachine driver;
  const auto nvml = Open(driver);
  driver.Xid(0, 13);
  auto events = nvml->Watch();
  ASSERT_TRUE(events);
  EXPECT_EQ((*events)->Wait(20).error().code(), Code::kTimeout) << "it was before";
  driver.Xid(1, 79);
  const auto xid = (*events)->Wait(5000);
  ASSERT_TRUE(xid);
  EXPECT_EQ(xid->gpu, 1u);
  EXPECT_EQ(xid->number, 79u);
}

// --- metering

TEST(MeterTest, AWholeGpuAndASharedOne) {
  FakeMachine driver;
  const auto nvml = Open(driver);
  Meter meter(nvml.get());
  meter.Add("1.1", {1, 1, 0, {0}, 1000, false, std::nullopt});
  meter.Add("2.1", {2, 1, 0, {1}, 250, true, std::nullopt});
  meter.Add("3.1", {3, 1, 0, {1}, 500, true, std::nullopt});
  driver.Set(0, "processes", "70:1073741824:80");
  driver.Set(1, "processes", "80:1048576:20,81:2097152:60");
  const auto pod_of = [](uint32_t, uint32_t pid) { return std::string(pid == 80 ? "2.1" : pid == 81 ? "3.1" : "1.1"); };
  ::usleep(50'000);
  const auto usages = meter.Tick(pod_of);
  ASSERT_EQ(usages.size(), 3u);
  EXPECT_EQ(usages[0].utilization_percent(), 80u);
  EXPECT_EQ(usages[0].memory_bytes(), 1073741824u);
  EXPECT_TRUE(usages[0].has_sm_us());
  EXPECT_NEAR(static_cast<double>(usages[0].busy_us()), static_cast<double>(usages[0].metered_us()) * 0.8, 2000);
  EXPECT_EQ(usages[1].utilization_percent(), 20u);
  EXPECT_EQ(usages[1].memory_bytes(), 1048576u);
  EXPECT_FALSE(usages[1].has_sm_us());
  EXPECT_EQ(usages[2].utilization_percent(), 60u);
  EXPECT_GT(usages[0].energy_mj(), usages[2].energy_mj());
  driver.Set(0, "processes", "");
  const auto last = meter.Remove("1.1");
  ASSERT_TRUE(last);
  EXPECT_EQ(last->memory_bytes(), 0u);
  EXPECT_EQ(last->memory_peak_bytes(), 1073741824u);
  EXPECT_FALSE(meter.Remove("1.1"));
}

TEST(MeterTest, JobFilesForTheExporter) {
  FakeMachine driver;
  ASSERT_TRUE(WriteJobFile(driver.root(), "2.1", {7, 9}));
  EXPECT_EQ(*ReadFile(driver.root() + "/2.1"), "7\n9\n");
  ASSERT_TRUE(WriteJobFile(driver.root(), "2.1", {}));
  ASSERT_TRUE(WriteJobFile(driver.root(), "2.1", {}));
  EXPECT_FALSE(PathExists(driver.root() + "/2.1"));
}

}  // namespace
}  // namespace vrun::gpu

// SPDX-License-Identifier: Apache-2.0
//
// The probed figures of the machine against the kernel's own numbers, and the default budget for
// machines and containers of other sizes.
#include "platform/machine.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "base/units.h"
#include "support/child_process.h"
#include "support/test_directory.h"

namespace tencache {
namespace {

TEST(MachineTest, AgreesWithTheKernel) {
  struct sysinfo info = {};
  ASSERT_EQ(sysinfo(&info), 0);
  const MachineMemory memory = probe_memory();
  EXPECT_EQ(memory.total_bytes, uint64_t{info.totalram} * info.mem_unit);
  EXPECT_EQ(memory.swap_bytes, uint64_t{info.totalswap} * info.mem_unit);
  EXPECT_GT(memory.available_bytes, 0u);
  EXPECT_LE(memory.available_bytes, memory.total_bytes);
  EXPECT_GE(memory.map_count_max, 1024u);
  const std::string& pages = memory.huge_pages;
  EXPECT_TRUE(pages == "always" || pages == "madvise" || pages == "never" || pages == "absent")
      << pages;
  EXPECT_LT(memory.cgroup_limit_bytes.value_or(0), memory.total_bytes);
}

// A machine of 8 GiB, made of files, whose process is in the cgroup /job.
class CgroupsTest : public ::testing::Test {
 protected:
  CgroupsTest() {
    write("proc/meminfo", "MemTotal: " + std::to_string(8 * kGiB / kKiB) + " kB\n");
    write("proc/self/cgroup", "0::/job\n1:memory:/job\n");
  }
  void write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = std::filesystem::path(directory_.path()) / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  void write_group(const std::string& folder, uint64_t limit_bytes, uint64_t used_bytes) const {
    write("sys/fs/cgroup" + folder + "/memory.max", std::to_string(limit_bytes));
    write("sys/fs/cgroup" + folder + "/memory.current", std::to_string(used_bytes));
  }
  void write_old_group(const std::string& folder, uint64_t limit_bytes, uint64_t used_bytes) const {
    const std::string files = "sys/fs/cgroup/memory" + folder;
    write(files + "/memory.limit_in_bytes", std::to_string(limit_bytes));
    write(files + "/memory.usage_in_bytes", std::to_string(used_bytes));
  }
  MachineMemory probe() const { return probe_memory(directory_.path()); }

  TestDirectory directory_;
};

TEST_F(CgroupsTest, TheLimitThatLeavesLeastCounts) {
  write_group("", 6 * kGiB, 5 * kGiB);
  write_group("/job", 2 * kGiB, kGiB / 2);
  write("sys/fs/cgroup/memory.stat", "active_file 7\ninactive_file 4096\n");
  EXPECT_EQ(probe().cgroup_limit_bytes, 6 * kGiB);
  EXPECT_EQ(probe().cgroup_used_bytes, 5 * kGiB - 4096);
  write_old_group("/job", kGiB, kGiB / 2);
  EXPECT_EQ(probe().cgroup_limit_bytes, kGiB);
}

TEST_F(CgroupsTest, ALimitAboveAllMemoryHidesNone) {
  write_group("", 10 * kGiB, 8 * kGiB);
  write_group("/job", 6 * kGiB, kGiB);
  EXPECT_EQ(probe().cgroup_limit_bytes, 6 * kGiB);
  EXPECT_EQ(probe().cgroup_used_bytes, kGiB);
}

TEST_F(CgroupsTest, TheRootCountsWhereTheGroupIsNotToBeSeen) {
  write_group("", 3 * kGiB, kGiB);
  EXPECT_EQ(probe().cgroup_limit_bytes, 3 * kGiB);
}

TEST_F(CgroupsTest, AnUnlimitedGroupHasNoLimit) {
  write("sys/fs/cgroup/job/memory.max", "max\n");
  write_old_group("/job", uint64_t{0x7FFFFFFFFFFFF000}, kGiB);
  EXPECT_EQ(probe().cgroup_limit_bytes, std::nullopt);
}

MachineMemory machine(uint64_t available_bytes) {
  MachineMemory memory;
  memory.total_bytes = 64 * kGiB;
  memory.available_bytes = available_bytes;
  return memory;
}

TEST(DefaultBudgetTest, LeavesATenthOfWhatIsAvailable) {
  const DefaultBudget budget = default_device_budget(machine(40 * kGiB));
  EXPECT_EQ(budget.bytes, 36 * kGiB);
  EXPECT_EQ(budget.reason, "40.0 GiB available less a reserve of 4.00 GiB");
}

TEST(MachineTest, UsableProcessorsAreThoseOfTheAffinity) {
  const double all = usable_processors();
  EXPECT_GT(all, 0);
  EXPECT_LE(all, static_cast<double>(std::thread::hardware_concurrency()));
  const int outcome = run_in_child([] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_LE(usable_processors(), 1);
  });
  EXPECT_EQ(outcome, 0);
}

TEST(DefaultBudgetTest, LeavesAGibibyteOnSmallMachines) {
  EXPECT_EQ(default_device_budget(machine(3 * kGiB)).bytes, 2 * kGiB);
  EXPECT_EQ(default_device_budget(machine(kGiB)).bytes, 512 * kMiB) << "half at most";
}

TEST(DefaultBudgetTest, IsSharedByTheRanksOfOneLaunch) {
  MachineMemory memory = machine(40 * kGiB);
  memory.local_ranks = 4;
  const DefaultBudget budget = default_device_budget(memory);
  EXPECT_EQ(budget.bytes, 9 * kGiB);
  EXPECT_EQ(budget.reason, "40.0 GiB available less a reserve of 4.00 GiB, shared by 4 ranks");
}

TEST(DefaultBudgetTest, LeavesAddressesForWhatLeavesMemory) {
  MachineMemory memory = machine(40 * kGiB);
  memory.address_bytes_left = 16 * kGiB;
  const DefaultBudget budget = default_device_budget(memory);
  EXPECT_EQ(budget.bytes, 4 * kGiB);
  EXPECT_NE(budget.reason.find("ulimit -v"), std::string::npos) << budget.reason;
  memory.address_bytes_left = 1024 * kGiB;
  EXPECT_EQ(default_device_budget(memory).bytes, 36 * kGiB);
}

TEST(MachineTest, TellsTheAddressesThatALimitLeaves) {
  const int outcome = run_in_child([] {
    EXPECT_EQ(address_bytes_left(), std::nullopt);
    const rlimit limit = {uint64_t{1} << 50, uint64_t{1} << 50};
    ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    const std::optional<uint64_t> left = address_bytes_left();
    ASSERT_TRUE(left.has_value());
    EXPECT_LT(*left, uint64_t{1} << 50);
    EXPECT_GT(*left, 0u);
  });
  EXPECT_EQ(outcome, 0);
}

TEST(DefaultBudgetTest, RanksAreWhatTorchrunTells) {
  setenv("LOCAL_WORLD_SIZE", "3", 1);
  EXPECT_EQ(probe_memory().local_ranks, 3u);
  for (const char* nonsense : {"0", "many", ""}) {
    setenv("LOCAL_WORLD_SIZE", nonsense, 1);
    EXPECT_EQ(probe_memory().local_ranks, 1u) << nonsense;
  }
  unsetenv("LOCAL_WORLD_SIZE");
  EXPECT_EQ(probe_memory().local_ranks, 1u);
}

TEST(DefaultBudgetTest, ObeysTheCgroup) {
  MachineMemory memory = machine(40 * kGiB);
  memory.cgroup_limit_bytes = 8 * kGiB;
  memory.cgroup_used_bytes = 2 * kGiB;
  const DefaultBudget budget = default_device_budget(memory);
  EXPECT_EQ(budget.bytes, 5 * kGiB);
  EXPECT_NE(budget.reason.find("6.00 GiB left under the cgroup limit of 8.00 GiB"),
            std::string::npos)
      << budget.reason;
}

TEST(DefaultBudgetTest, IgnoresACgroupThatLeavesMoreThanTheMachine) {
  MachineMemory memory = machine(4 * kGiB);
  memory.cgroup_limit_bytes = 32 * kGiB;
  EXPECT_EQ(default_device_budget(memory).bytes, default_device_budget(machine(4 * kGiB)).bytes);
}

TEST(DefaultBudgetTest, IsNeverBelowItsLeast) {
  MachineMemory memory = machine(40 * kGiB);
  memory.cgroup_limit_bytes = kGiB;
  memory.cgroup_used_bytes = 2 * kGiB;  // above its limit, while memory is reclaimed
  EXPECT_EQ(default_device_budget(memory).bytes, 128 * kMiB);
  EXPECT_EQ(default_device_budget(machine(0)).bytes, 128 * kMiB);
}

TEST(DefaultHostBudgetTest, LeavesAFifthOfWhatIsAvailable) {
  const DefaultBudget budget = default_host_budget(machine(40 * kGiB));
  EXPECT_EQ(budget.bytes, 32 * kGiB);
  EXPECT_EQ(budget.reason, "40.0 GiB available less a reserve of 8.00 GiB");
  EXPECT_EQ(default_host_budget(machine(5 * kGiB)).bytes, 3 * kGiB) << "two GiB at least";
  EXPECT_EQ(default_host_budget(machine(kGiB)).bytes, 512 * kMiB) << "half at most";
}

TEST(DefaultHostBudgetTest, ObeysTheCgroupAndIsSharedByRanks) {
  MachineMemory memory = machine(40 * kGiB);
  memory.cgroup_limit_bytes = 24 * kGiB;
  memory.cgroup_used_bytes = 4 * kGiB;
  memory.local_ranks = 3;
  EXPECT_EQ(bytes_left(memory), 20 * kGiB);
  const DefaultBudget budget = default_host_budget(memory);
  EXPECT_EQ(budget.bytes, 16 * kGiB / 3 / kMiB * kMiB) << "never more than the share";
  EXPECT_EQ(budget.reason,
            "20.0 GiB left under the cgroup limit of 24.0 GiB less a reserve of 4.00 GiB, shared "
            "by 3 ranks");
}

TEST(DefaultHostBudgetTest, IsNothingWhereLittleIsLeft) {
  for (const uint64_t available_bytes : {uint64_t{0}, 200 * kMiB}) {
    const DefaultBudget budget = default_host_budget(machine(available_bytes));
    EXPECT_EQ(budget.bytes, 0U);
    EXPECT_NE(budget.reason.find("less than 128 MiB"), std::string::npos) << budget.reason;
  }
}

}  // namespace
}  // namespace tencache

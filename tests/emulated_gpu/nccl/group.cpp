// SPDX-License-Identifier: Apache-2.0
#include "group.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "errors.h"
#include "launch.h"

namespace emulated_gpu::nccl {

namespace {

struct Group {
  std::vector<std::function<ncclResult_t()>> meetings;
  std::vector<Batch> batches;
  ncclResult_t result = ncclSuccess;
};

// How many ncclGroupStart calls this thread is in, and the group that it has open.
thread_local int depth = 0;
thread_local Group open_group;

void note(Group* group, ncclResult_t result) {
  if (group->result == ncclSuccess) group->result = result;
}

void meet_all(Group* group) {
  std::vector<ncclResult_t> results(group->meetings.size(), ncclSuccess);
  std::vector<std::thread> threads;
  for (size_t i = 1; i < results.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = group->meetings[i](); });
  }
  if (!results.empty()) results[0] = group->meetings[0]();
  for (std::thread& thread : threads) thread.join();
  for (const ncclResult_t result : results) note(group, result);
}

}  // namespace

void start_group() { ++depth; }

ncclResult_t end_group() {
  if (depth == 0) return fail(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--depth > 0) return ncclSuccess;
  Group group = std::exchange(open_group, {});
  if (group.result == ncclSuccess) meet_all(&group);
  if (group.result == ncclSuccess) note(&group, launch(std::move(group.batches)));
  return group.result;
}

ncclResult_t meet_in_group(std::function<ncclResult_t()> meet) {
  if (depth == 0) return meet();
  open_group.meetings.push_back(std::move(meet));
  return ncclSuccess;
}

ncclResult_t launch_in_group(std::shared_ptr<Communicator> communicator, cudaStream_t stream,
                             Operation operation) {
  std::vector<Batch> alone;
  std::vector<Batch>& batches = depth == 0 ? alone : open_group.batches;
  auto batch = std::find_if(batches.begin(), batches.end(),
                            [&](const Batch& each) { return each.communicator == communicator; });
  if (batch == batches.end()) batch = batches.insert(batch, {std::move(communicator), stream});
  if (batch->stream != stream) {
    return note_in_group(
        fail(ncclInvalidUsage, "several streams of one communicator in a group are not emulated"));
  }
  batch->operations.push_back(std::move(operation));
  return depth == 0 ? launch(std::move(alone)) : ncclSuccess;
}

ncclResult_t note_in_group(ncclResult_t result) {
  if (depth > 0) note(&open_group, result);
  return result;
}

}  // namespace emulated_gpu::nccl

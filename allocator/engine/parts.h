// SPDX-License-Identifier: Apache-2.0
//
// Parts: the objects of one engine, so that each of them can call the others by name. The engine
// fills them in while it is made; once the first thread runs, they do not change. A null part does
// not exist in this engine. There is no mover in strict mode, and no disk there or where a GPU has
// none below it. There is no op_timer, prefetcher, cursor, upcoming, neighbours, learner or machine
// where nothing is planned, and no timer where the host's clock tells an op's time.
//
// EngineHooks: what an engine asks of the process around it. Each hook may be empty.
//
// Threads: any may read.
#pragma once

#include <functional>

namespace tencache {

class Chaos;
class DiskTier;
class Gate;
class Heap;
class Learner;
class MachineMeter;
class Mover;
class Neighbours;
class Evictor;
class OpTimer;
class PlanCursor;
class Prefetcher;
class Recorder;
class UpcomingUses;
struct LearnedPlan;
struct Stats;

struct EngineHooks {
  /// The thread that arms calls this once, with no lock held. Mostly that is a thread that
  /// allocates.
  std::function<void()> on_arm;
  /// The evictor and chaos mode call this often: pins that outlived their op may be released now.
  std::function<void()> before_pass;
  /// The evictor calls this once, when the first extents have left.
  std::function<void()> on_first_spill;
  /// The learner calls this for every plan but that of a stored period.
  std::function<void(const LearnedPlan&)> on_learned_plan;
};

struct Parts {
  Heap* heap = nullptr;
  Mover* mover = nullptr;
  const DiskTier* disk = nullptr;
  bool has_host = false;  // host memory lies below the device
  Recorder* recorder = nullptr;
  Stats* stats = nullptr;
  OpTimer* op_timer = nullptr;
  OpTimer* wait_timer = nullptr;
  Gate* gate = nullptr;
  Evictor* evictor = nullptr;
  Prefetcher* prefetcher = nullptr;
  UpcomingUses* upcoming = nullptr;
  Neighbours* neighbours = nullptr;
  PlanCursor* cursor = nullptr;
  Learner* learner = nullptr;
  MachineMeter* machine = nullptr;
  Chaos* chaos = nullptr;  // null outside chaos mode
  const EngineHooks* hooks = nullptr;
};

}  // namespace tencache

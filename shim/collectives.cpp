// SPDX-License-Identifier: Apache-2.0
#include "collectives.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>
#include <ATen/core/stack.h>
#include <c10/util/ScopeExit.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "abi/tencache.h"
#include "dispatch_keys.h"
#include "operator_table.h"
#include "tensor_walk.h"
#include "thread_state.h"

#if __has_include(<torch/csrc/distributed/c10d/Work.hpp>)
#include <torch/csrc/distributed/c10d/Work.hpp>
#define TENCACHE_HAS_C10D 1
#else
#define TENCACHE_HAS_C10D 0
#endif

namespace tencache::shim {

#if TENCACHE_HAS_C10D

namespace {

// The number of ops with a kernel of ours. install_collectives() writes it; any thread reads it.
std::atomic<size_t> kernel_count{0};

constexpr char kWorkClass[] = "__torch__.torch.classes.c10d.Work";

using Work = ::c10d::Work;
using WorkPointer = c10::intrusive_ptr<Work>;

// Whether the Work is implemented in Python.
bool is_python_work(const Work& work) {
  return std::strstr(typeid(work).name(), "PyWork") != nullptr;
}

// Whether NCCL does the work, on a stream of a GPU.
bool is_nccl_work(const Work& work) {
  return std::strstr(typeid(work).name(), "WorkNCCL") != nullptr;
}

struct Pending {
  // A weak reference, so that the Work counts as finished once nobody else refers to it. The Work's
  // destructor also waits for this reference, and the Work's tensors stay until the next collective
  // looks at the list.
  c10::weak_intrusive_ptr<Work> work;
  // A strong reference. The evictor's thread takes one to ask the Work and must not drop it. For
  // NCCL we hold one from the start: its stream keeps working when nobody refers to the Work any
  // more.
  WorkPointer kept;
  tencache_hold* hold;
  bool is_python;
  bool is_nccl;
};

struct PendingList {
  std::mutex mutex;
  // `mutex` guards the entries. No thread holds it while it asks or destroys a Work: both may take
  // the GIL.
  std::vector<Pending> entries;
};

// The list is never destroyed: a process group's threads may outlive static destruction.
PendingList& pending() {
  static auto* const instance = new PendingList;
  return *instance;
}

// Takes all entries off the list while they are examined, so that no two threads release the same
// hold.
std::vector<Pending> take_all() {
  PendingList& list = pending();
  const std::lock_guard lock(list.mutex);
  return std::exchange(list.entries, {});
}

void put_back(std::vector<Pending> entries) {
  PendingList& list = pending();
  const std::lock_guard lock(list.mutex);
  std::move(entries.begin(), entries.end(), std::back_inserter(list.entries));
}

// Whether the Work has completed. After a fault of the GPU the query throws, and we say no. The
// program hears of the fault from its own calls, not from our question; until then the tensors
// stay.
bool has_completed(Work& work) noexcept {
  // In this mode the query does not invalidate a CUDA graph that somebody captures.
  constexpr int kRelaxed = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED
  const int mode_before = tencache_exchange_capture_mode(kRelaxed);
  const auto restore = c10::make_scope_exit([mode_before] {
    if (mode_before >= 0) tencache_exchange_capture_mode(mode_before);
  });
  try {
    return work.isCompleted();
  } catch (...) {
    return false;
  }
}

// Whether the Work is done with its tensors. It is done when it has completed. Unless it is NCCL's,
// it is also done when nobody else refers to it: then it has either run to its end or will never
// run.
bool is_finished(const Pending& entry, const WorkPointer& work) {
  const bool is_forgotten = !work || (work.use_count() == 1 && !entry.is_nccl);
  return is_forgotten || has_completed(*work);
}

void give_up_hold(Pending* entry) {
  tencache_unhold(entry->hold);
  entry->hold = nullptr;
}

void hold_until_completed(const WorkPointer& work, tencache_hold* hold) {
  const bool is_nccl = is_nccl_work(*work);
  std::vector<Pending> entry;
  entry.push_back({c10::weak_intrusive_ptr<Work>(work), is_nccl ? work : WorkPointer(), hold,
                   is_python_work(*work), is_nccl});
  put_back(std::move(entry));
}

// Note [Groups]: NCCL starts what a thread gives it inside a group when the group ends, and the
// Work that the end returns stands for all of it. Calls inside the group return no Work, or one
// that seems completed. So their tensors are held until the group's Work has completed. A Group has
// the depth of a thread's groups within groups, and the holds of their calls.
struct Group {
  uint32_t depth = 0;
  std::vector<tencache_hold*> holds;
};
thread_local Group t_group;

void begin_group() { ++t_group.depth; }

// Returns the holds of the outermost group when that ends.
std::vector<tencache_hold*> leave_group() {
  if (t_group.depth > 0) --t_group.depth;
  if (t_group.depth > 0) return {};
  return std::exchange(t_group.holds, {});
}

void end_group(std::optional<WorkPointer> work) {
  for (tencache_hold* hold : leave_group()) {
    if (work.has_value() && *work) {
      hold_until_completed(*work, hold);
    } else {  // nothing has started
      tencache_unhold(hold);
    }
  }
}

// Leaves a group that failed. Collectives that it has started may run for ever, so their tensors
// stay for good.
void abandon_group() { leave_group(); }

// The kernel of one collective.
class CollectiveKernel final : public c10::OperatorKernel {
 public:
  CollectiveKernel(const OperatorInfo& info, const c10::FunctionSchema& schema, size_t work_index)
      : info_(info),
        argument_count_(schema.arguments().size()),
        return_count_(schema.returns().size()),
        work_index_(work_index),
        async_index_(schema.argumentIndexWithName("async_op")) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) const {
    // The call consumes the arguments; we gather accesses again afterwards from these copies.
    const auto arguments = torch::jit::last(*stack, argument_count_);
    const std::vector<c10::IValue> kept(arguments.begin(), arguments.end());
    op.redispatchBoxed(keys & kBelowBackendSelect, stack);
    release_completed_collectives();
    const c10::IValue& result = torch::jit::peek(*stack, work_index_, return_count_);
    const WorkPointer work = result.isCustomClass() ? result.toCustomClass<Work>() : WorkPointer();
    const bool is_grouped = t_group.depth > 0 && (!work || is_nccl_work(*work));
    if (!is_grouped && (!work || is_in_order(*work, kept))) return;
    AccessList& accesses = cleared_thread_accesses();
    add_arguments(info_, kept, accesses);
    tencache_hold* hold = tencache_hold_accesses(accesses.data(), accesses.count(), 1);
    // The core gives no hold in a capture, where the Work must not be asked, nor on the per-thread
    // stream.
    if (hold == nullptr) return;
    if (is_grouped) {
      t_group.holds.push_back(hold);
    } else if (is_python_work(*work) || !has_completed(*work)) {
      hold_until_completed(work, hold);
    } else {
      tencache_unhold(hold);
    }
  }

 private:
  // Whether NCCL queued this work on the op's own stream, which the gate has recorded.
  bool is_in_order(const Work& work, const std::vector<c10::IValue>& arguments) const {
    return async_index_.has_value() && !arguments[*async_index_].toBool() && is_nccl_work(work);
  }

  const OperatorInfo& info_;  // lives for ever
  const size_t argument_count_;
  const size_t return_count_;
  const size_t work_index_;
  const std::optional<int> async_index_;  // of the argument async_op, if there is one
};

// The index of the op's return that is its Work.
std::optional<size_t> find_work(const c10::FunctionSchema& schema) {
  for (size_t index = 0; index < schema.returns().size(); ++index) {
    const auto named = schema.returns()[index].type()->cast<c10::NamedType>();
    if (named && named->name().has_value() && named->name()->qualifiedName() == kWorkClass) {
      return index;
    }
  }
  return std::nullopt;
}

// Defines the ops through which Python tells of groups. Python can give a Work to an op, but not to
// a C function.
torch::Library* install_groups() {
  auto* const library =
      new torch::Library(torch::Library::FRAGMENT, "tencache", std::nullopt, __FILE__, __LINE__);
  library->def("begin_group() -> ()", &begin_group);
  library->def("abandon_group() -> ()", &abandon_group);
  library->def((std::string("end_group(") + kWorkClass + "? work) -> ()").c_str(), &end_group);
  return library;
}

}  // namespace

void install_collectives() {
  static std::mutex mutex;
  static torch::Library* library = nullptr;  // guarded by mutex; never destroyed
  static torch::Library* groups = nullptr;   // guarded by mutex; never destroyed
  const std::lock_guard lock(mutex);
  if (groups == nullptr) groups = install_groups();
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with("c10d::")) continue;
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op.has_value() || op->hasKernelForDispatchKey(c10::DispatchKey::BackendSelect)) continue;
    const std::optional<size_t> work_index = find_work(op->schema());
    if (!work_index.has_value()) continue;
    if (library == nullptr) {
      library = new torch::Library(torch::Library::IMPL, "c10d", c10::DispatchKey::BackendSelect,
                                   __FILE__, __LINE__);
    }
    OperatorInfo& info = operator_info(op->schema());
    library->impl(c10::toString(name).c_str(),
                  torch::CppFunction::makeFromBoxedFunctor(
                      std::make_unique<CollectiveKernel>(info, op->schema(), *work_index)));
    info.keeps_inputs.store(false, std::memory_order_relaxed);
    kernel_count.fetch_add(1, std::memory_order_relaxed);
  }
}

size_t collective_count() { return kernel_count.load(std::memory_order_relaxed); }

void release_completed_collectives() {
  std::vector<Pending> unfinished;
  for (Pending& entry : take_all()) {
    WorkPointer work = entry.kept ? std::move(entry.kept) : entry.work.lock();
    if (entry.hold != nullptr && is_finished(entry, work)) give_up_hold(&entry);
    if (entry.hold == nullptr) continue;
    if (entry.is_nccl) entry.kept = std::move(work);
    unfinished.push_back(std::move(entry));
  }
  if (!unfinished.empty()) put_back(std::move(unfinished));
}

void poll_collectives() {
  std::vector<Pending> remaining;
  for (Pending& entry : take_all()) {
    if (entry.hold != nullptr && !entry.is_python) {
      if (!entry.kept) entry.kept = entry.work.lock();
      if (is_finished(entry, entry.kept)) give_up_hold(&entry);
    }
    // Keep every reference until a thread of the program looks. Dropping one, even a weak one, may
    // destroy the Work and its tensors and so take the GIL, and the thread that holds the GIL may
    // be waiting for this thread to make room.
    remaining.push_back(std::move(entry));
  }
  if (!remaining.empty()) put_back(std::move(remaining));
}

void lock_collectives() { pending().mutex.lock(); }
void unlock_collectives() { pending().mutex.unlock(); }

void forget_collectives() {
  // Leak the entries in the child: destroying a Work could wait for threads that only the parent
  // has.
  static auto* const forgotten = new std::vector<Pending>;
  std::move(pending().entries.begin(), pending().entries.end(), std::back_inserter(*forgotten));
  pending().entries.clear();
}

size_t pending_collectives() {
  PendingList& list = pending();
  const std::lock_guard lock(list.mutex);
  return static_cast<size_t>(
      std::count_if(list.entries.begin(), list.entries.end(),
                    [](const Pending& entry) { return entry.hold != nullptr; }));
}

#else  // PyTorch was built without distributed, so there are no collectives.

void install_collectives() {}
size_t collective_count() { return 0; }
void release_completed_collectives() {}
void poll_collectives() {}
void lock_collectives() {}
void unlock_collectives() {}
void forget_collectives() {}
size_t pending_collectives() { return 0; }

#endif

}  // namespace tencache::shim

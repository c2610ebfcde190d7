// SPDX-License-Identifier: Apache-2.0
//
// Reading: what the program reads while the object lives, by other means than an op: a checkpoint
// that is written from the tensors' own memory. Extents are fetched, which compares their hash, and
// stay, until they take half of the budget. A tensor for which the rest of that half is too small
// is read through its cold mapping. Before and after that, the slot below is compared with its
// hash. Bytes that the disk has changed end the process, before anybody believes that the
// checkpoint is written.
//
// In a forked child nothing can be fetched, so everything is read through mappings there.
//
// Readings are no ops: nobody learns from them.
//
// Threads: one; a Reading may end on another. It may live across a fork and end in both processes.
#pragma once

#include <span>
#include <vector>

#include "engine/engine.h"
#include "memory/extent.h"

namespace tencache {

class Reading {
 public:
  /// `addresses` lie anywhere inside the engine's extents; others are ignored.
  Reading(Engine& engine, std::span<const void* const> addresses);
  ~Reading();
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

 private:
  void check_mapped();

  Engine& engine_;
  Hold* hold_ = nullptr;
  std::vector<Extent*> mapped_;  // read through their mappings
};

}  // namespace tencache

// SPDX-License-Identifier: Apache-2.0
#include "fork_guard.h"

#include <pthread.h>

#include "collectives.h"
#include "operator_table.h"

namespace tencache::shim {
namespace {

void before_fork() {
  lock_operator_table();
  lock_collectives();
}

void after_fork_in_parent() {
  unlock_collectives();
  unlock_operator_table();
}

void after_fork_in_child() {
  forget_collectives();
  unlock_collectives();
  unlock_operator_table();
}

}  // namespace

void install_fork_guard() {
  pthread_atfork(&before_fork, &after_fork_in_parent, &after_fork_in_child);
}

}  // namespace tencache::shim

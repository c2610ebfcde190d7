// SPDX-License-Identifier: Apache-2.0
// The boxed kernel of one operator: queues the operator's CPU kernel in the current stream, over
// aliases of device memory. Where Meta knows the results' shapes the program runs ahead; where it
// does not, or they depend on data, the call waits. OpInfo holds what the schema says, and the
// shapes found, under shapes_mutex. OpInfo lives for ever, since tasks refer to it. Any thread may
// call a kernel.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "operators/device_queue.h"

namespace tencache {

struct OpInfo {
  std::string name;
  bool mutates_only = false;  // returns nothing but its own arguments, and none is out=
  bool has_out = false;
  bool has_meta = false;
  bool waits = false;  // always
  bool is_layer_norm_backward = false;
  int generator = -1;         // the argument's place
  std::vector<bool> written;  // by argument
  std::vector<int> returned;  // which argument each result is; -1: a fresh tensor
  // By what they follow from: the results of the Meta kernel, and its arguments where some are
  // out=.
  struct Shapes {
    Stack results;
    std::vector<IValue> arguments;
  };
  std::mutex shapes_mutex;
  std::unordered_map<std::string, std::shared_ptr<const Shapes>> shapes;
};
OpInfo* describe(const OperatorHandle& op, const std::string& name);

class EmulatedKernel final : public c10::OperatorKernel {
 public:
  explicit EmulatedKernel(OpInfo* info) : info_(*info) {}
  void operator()(const OperatorHandle& op, DispatchKeySet, Stack* stack);

 private:
  static void narrow_statistics(Stack* host);
  void check_devices(const std::vector<IValue>& arguments, c10::DeviceIndex device) const;
  Stack host_arguments(const std::vector<IValue>& arguments, c10::DeviceIndex device,
                       Ranges* ranges, bool with_out, MakeGenerator* generator);
  static Tensor clone_of(const Tensor& t);
  bool is_out(size_t argument) const;
  std::shared_ptr<const OpInfo::Shapes> shapes(const OperatorHandle& op,
                                               const std::vector<IValue>& arguments);
  bool try_queue(const OperatorHandle& op, const std::vector<IValue>& arguments,
                 c10::DeviceIndex device, std::vector<IValue>* results);
  static void fit(const IValue& argument, const IValue& meta);
  void wait_for(const OperatorHandle& op, const std::vector<IValue>& arguments,
                c10::DeviceIndex device, std::vector<IValue>* results);
  void put(const Tensor& target, const Tensor& made, c10::DeviceIndex device);

  OpInfo& info_;
};

}  // namespace tencache

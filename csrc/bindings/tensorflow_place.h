/// The place where an op's kernel works: the CPU, or one of TensorFlow's GPUs.
///
/// GPUs are accessed through TensorFlow only, so no CUDA header is needed: TensorFlow gives a
/// kernel the compute stream, and copies for it. In a TensorFlow without GPUs these kernels are
/// unused and harmless.

#pragma once

#include <cstdint>
#include <cstring>
#include <future>

#include "csrc/bindings/driver_interface.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/platform/stream_executor.h"

namespace hvd_sparse {

namespace tf = tensorflow;

/// The place of one kernel.
class KernelPlace {
 public:
  explicit KernelPlace(tf::OpKernelConstruction* context)
      : on_gpu_(context->device_type() == tf::DeviceType(tf::DEVICE_GPU)) {}

  bool on_gpu() const { return on_gpu_; }

  /// Finds the origin of memory that earlier kernels write: the GPU's compute stream, or the CPU.
  absl::Status Find(tf::OpKernelContext* context, HvdSparseOrigin* origin) const {
    *origin = {0, 0};
    if (!on_gpu_) return absl::OkStatus();
    const tf::DeviceContext* const device = context->op_device_context();
    void* const stream = device == nullptr || device->stream() == nullptr
                             ? nullptr
                             : device->stream()->platform_specific_handle().stream;
    if (stream == nullptr) {
      return absl::UnimplementedError("TensorFlow does not say which stream computes on its GPU");
    }
    *origin = {1, reinterpret_cast<std::uintptr_t>(stream)};  // NOLINT: the core takes a number
    return absl::OkStatus();
  }

  /// Copies to a tensor of the same size; on a GPU, as work of the compute stream.
  absl::Status Copy(tf::OpKernelContext* context, const tf::Tensor& from, tf::Tensor* to) const {
    if (!on_gpu_) {
      std::memcpy(to->data(), from.data(), from.TotalBytes());
      return absl::OkStatus();
    }
    std::promise<absl::Status> given;  // set once the copy is enqueued, which is soon
    context->op_device_context()->CopyTensorInSameDevice(
        &from, static_cast<tf::Device*>(context->device()), to,
        [&given](const absl::Status& status) { given.set_value(status); });
    return given.get_future().get();
  }

  /// Returns a variable's memory, to be written in place: from now on readers of the variable get a
  /// copy.
  absl::Status OwnMemory(tf::OpKernelContext* context, int input, tf::Tensor* memory) const {
    tf::core::RefCountPtr<tf::Var> variable;
    absl::Status status =
        tf::LookupResource(context, tf::HandleFromInput(context, input), &variable);
    if (!status.ok()) return status;
    const tf::mutex_lock lock(*variable->mu());
    if (variable->tensor()->dtype() != tf::DT_FLOAT) {
      return absl::InvalidArgumentError("residual and velocity must be float32");
    }
    if (!variable->copy_on_read_mode.load()) {
      if (!variable->tensor()->RefCountIsOne()) {
        tf::Tensor copy;
        status = context->allocate_temp(tf::DT_FLOAT, variable->tensor()->shape(), &copy);
        if (status.ok()) status = Copy(context, *variable->tensor(), &copy);
        if (!status.ok()) return status;
        *variable->tensor() = copy;
      }
      variable->copy_on_read_mode.store(true);
    }
    *memory = *variable->tensor();
    return absl::OkStatus();
  }

 private:
  const bool on_gpu_;
};

}  // namespace hvd_sparse

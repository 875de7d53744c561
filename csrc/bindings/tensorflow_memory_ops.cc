/// Ops that return addresses of TensorFlow's memory and its compute stream.
///
///     HvdSparseAddress    the address of a tensor's memory
///     HvdSparseStream     the stream that computes here
///     HvdSparseOverwrite  copies to the memory of a tensor that nobody else uses
///
/// They serve measurements before the first step, in eager mode. Tensors lie on the device where
/// the op runs.

#include <cstdint>

#include "csrc/bindings/tensorflow_place.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace hvd_sparse {
namespace {

/// Returns the address of a tensor's memory as a number.
class AddressOp : public tf::OpKernel {
 public:
  explicit AddressOp(tf::OpKernelConstruction* context) : tf::OpKernel(context) {}

  void Compute(tf::OpKernelContext* context) override {
    tf::Tensor* address = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, tf::TensorShape({}), &address));
    address->scalar<std::int64_t>()() =
        reinterpret_cast<std::intptr_t>(context->input(0).data());  // NOLINT: it is the result
  }
};

/// Returns the GPU's compute stream as a number; 0 on the CPU.
class StreamOp : public tf::OpKernel {
 public:
  explicit StreamOp(tf::OpKernelConstruction* context) : tf::OpKernel(context), place_(context) {}

  void Compute(tf::OpKernelContext* context) override {
    HvdSparseOrigin origin{};
    OP_REQUIRES_OK(context, place_.Find(context, &origin));
    tf::Tensor* stream = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, tf::TensorShape({}), &stream));
    stream->scalar<std::int64_t>()() = static_cast<std::int64_t>(origin.stream);
  }

 private:
  const KernelPlace place_;
};

/// Overwrites a tensor in place, in the order of the compute stream.
class OverwriteOp : public tf::OpKernel {
 public:
  explicit OverwriteOp(tf::OpKernelConstruction* context)
      : tf::OpKernel(context), place_(context) {}

  void Compute(tf::OpKernelContext* context) override {
    tf::Tensor into = context->input(0);  // shares the memory
    const tf::Tensor& source = context->input(1);
    OP_REQUIRES(context, into.shape() == source.shape(),
                absl::InvalidArgumentError("into and source must have the same shape"));
    OP_REQUIRES_OK(context, place_.Copy(context, source, &into));
  }

 private:
  const KernelPlace place_;
};

REGISTER_OP("HvdSparseAddress")
    .Attr("T: {float, double, half, bfloat16}")
    .Input("memory: T")
    .Output("address: int64")
    .SetShapeFn(tf::shape_inference::ScalarShape)
    .Doc("Where the memory of a tensor begins.");

REGISTER_OP("HvdSparseStream")
    .Output("stream: int64")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape)
    .Doc("The stream that computes here, as a number.");

REGISTER_OP("HvdSparseOverwrite")
    .Input("into: float")
    .Input("source: float")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs)
    .Doc("Copies to the memory of a tensor that nobody else uses.");

REGISTER_KERNEL_BUILDER(Name("HvdSparseAddress").Device(tf::DEVICE_CPU), AddressOp);
REGISTER_KERNEL_BUILDER(Name("HvdSparseStream").Device(tf::DEVICE_CPU), StreamOp);
REGISTER_KERNEL_BUILDER(Name("HvdSparseOverwrite").Device(tf::DEVICE_CPU), OverwriteOp);

REGISTER_KERNEL_BUILDER(Name("HvdSparseAddress").Device(tf::DEVICE_GPU).HostMemory("address"),
                        AddressOp);
REGISTER_KERNEL_BUILDER(Name("HvdSparseStream").Device(tf::DEVICE_GPU).HostMemory("stream"),
                        StreamOp);
REGISTER_KERNEL_BUILDER(Name("HvdSparseOverwrite").Device(tf::DEVICE_GPU), OverwriteOp);

}  // namespace
}  // namespace hvd_sparse

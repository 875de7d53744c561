#include "csrc/devices/stream_work_for.h"

#include "csrc/base/error.h"
#ifdef HVD_SPARSE_WITH_CUDA
#include "csrc/cuda/step/stream_work.h"
#endif

namespace hvd_sparse {
namespace {

void RequireCuda(Device device) {
  Require(!device.IsCpu(), "work for a stream needs a device cuda:0 or the like, got ",
          device.Name());
}

}  // namespace

#ifdef HVD_SPARSE_WITH_CUDA

std::unique_ptr<StreamWork> MergeWorkOn(Device device, const SparseBlock& own,
                                        const SparseBlock& theirs, std::int64_t k) {
  RequireCuda(device);
  return cuda::MakeMergeWork(device.index, own, theirs, k);
}

std::unique_ptr<StreamWork> PassWorkOn(Device device, GradView gradient, Span<float> residual,
                                       float threshold, std::int64_t k) {
  RequireCuda(device);
  return cuda::MakePassWork(device.index, gradient, residual, threshold, k);
}

std::unique_ptr<StreamWork> SelectWorkOn(Device device, GradView gradient, Span<float> residual,
                                         std::int64_t k) {
  RequireCuda(device);
  return cuda::MakeSelectWork(device.index, gradient, residual, k);
}

std::unique_ptr<StreamWork> StepWorkOn(Device device, const std::vector<GradView>& gradients,
                                       Span<float> residual, const std::vector<std::int64_t>& ks,
                                       const std::vector<GradView>& outputs) {
  RequireCuda(device);
  return cuda::MakeStepWork(device.index, gradients, residual, ks, outputs);
}

#else

namespace {

std::unique_ptr<StreamWork> RefuseWork(Device device) {
  RequireCuda(device);
  Throw(ErrorKind::kUnavailable, "this build of hvd_sparse has no CUDA, and work for ",
        device.Name(), " needs it: build it with HVD_SPARSE_WITH_CUDA=1");
}

}  // namespace

std::unique_ptr<StreamWork> MergeWorkOn(Device device, const SparseBlock&, const SparseBlock&,
                                        std::int64_t) {
  return RefuseWork(device);
}

std::unique_ptr<StreamWork> PassWorkOn(Device device, GradView, Span<float>, float, std::int64_t) {
  return RefuseWork(device);
}

std::unique_ptr<StreamWork> SelectWorkOn(Device device, GradView, Span<float>, std::int64_t) {
  return RefuseWork(device);
}

std::unique_ptr<StreamWork> StepWorkOn(Device device, const std::vector<GradView>&, Span<float>,
                                       const std::vector<std::int64_t>&,
                                       const std::vector<GradView>&) {
  return RefuseWork(device);
}

#endif

}  // namespace hvd_sparse

#include "csrc/cuda/work.h"

#include <map>
#include <memory>

namespace hvd_sparse::cuda {
namespace {

/// Pinned memory beyond which a call waits for the ones before it, rather than take still more.
constexpr std::size_t kMostStaged = std::size_t{64} << 20;

/// This thread's workspace on a device, which is the current one.
Workspace& OwnWorkspace(int device) {
  thread_local std::map<int, std::unique_ptr<Workspace>> of_device;
  std::unique_ptr<Workspace>& own = of_device[device];
  if (own == nullptr) own = std::make_unique<Workspace>();
  return *own;
}

}  // namespace

Work::Work(int device) : current_(device), workspace_(OwnWorkspace(device)) {
  if (workspace_.busy) {
    if (workspace_.staging.used() < kMostStaged) return;  // what it uses stays its own
    workspace_.stream.Synchronize();
    workspace_.busy = false;
  }
  workspace_.scratch.Reset();
  workspace_.staging.Reset();
}

Work::~Work() {
  if (finished_) return;
  workspace_.busy = true;
  if (left_) return;
  if (cudaStreamSynchronize(workspace_.stream.get()) == cudaSuccess) workspace_.busy = false;
}

void Work::Finish() {
  workspace_.stream.Synchronize();
  NoteDone();
}

void Work::NoteDone() {
  workspace_.busy = false;
  finished_ = true;
}

const Stream& OwnStream(int device) {
  const OnDevice current(device);
  return OwnWorkspace(device).stream;
}

}  // namespace hvd_sparse::cuda

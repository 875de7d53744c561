#include "csrc/cuda/base/work.h"

#include <map>
#include <memory>

namespace hvd_sparse::cuda {
namespace {

/// Bytes of pinned memory beyond which a call waits for earlier ones instead of allocating more.
constexpr std::size_t kMostStaged = std::size_t{64} << 20;

/// Returns this thread's workspace on `device`, which is the current device.
Workspace& OwnWorkspace(int device) {
  thread_local std::map<int, std::unique_ptr<Workspace>> of_device;
  std::unique_ptr<Workspace>& own = of_device[device];
  if (own == nullptr) own = std::make_unique<Workspace>();
  return *own;
}

}  // namespace

Work::Work(int device) : current_(device), workspace_(OwnWorkspace(device)) {
  if (workspace_.busy) {
    if (workspace_.staging.used() < kMostStaged) return;  // work in flight keeps its memory
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

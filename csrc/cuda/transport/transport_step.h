/// Whole steps of a bucket over a transport between devices: runs DeviceExchange for an exchange,
/// copies its thresholds, reports the outcome, and undoes a step.
///
/// Until a step is committed, every value that it took can be put back:
///
///     ended after Select                      the selected block holds what left the residual
///     ended later, also by an abort           the stream has run to its end, on undefined data
///                                             perhaps, which reaches the residual at selected
///                                             entries and where narrow gradients are rounded, and
///                                             the velocity at selected entries: the former values
///                                             of all these were saved before
///     refused on the device                   the device has put all back; doing so again changes
///                                             nothing

#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "csrc/collectives/device_step.h"
#include "csrc/cuda/base/device_transport.h"
#include "csrc/cuda/base/memory.h"
#include "csrc/cuda/base/step_marks.h"
#include "csrc/cuda/step/device_exchange.h"
#include "csrc/cuda/transport/gpu_transport.h"

namespace hvd_sparse::cuda {

class TransportStep final : public DeviceStep {
 public:
  /// Allocates on the current device, which is `device`. `transport` moves its memory, and must
  /// outlive this object.
  TransportStep(const BucketSpec& spec, std::uint32_t id, int device, GpuTransport* transport);

  ~TransportStep() override;

  StreamHandle select_stream() const override;
  StreamHandle exchange_stream() const override;
  void Select(const Launch& launch) override;
  void Exchange() override;
  bool Arrived(double seconds) override;
  const DeviceStepReport& report() const override { return report_; }
  void PutBack() override;

 private:
  /// A transport that marks the first and the last message of a step.
  class Marked final : public CountedTransport {
   public:
    Marked(DeviceTransport* transport, StepMarks* marks)
        : CountedTransport(transport), marks_(*marks) {}
    void Exchange(int peer, const void* send, void* recv, std::int64_t bytes,
                  cudaStream_t stream) override;

   private:
    StepMarks& marks_;
  };

  void Divide(Divider* divider);
  void RenewStates();
  void Report();

  const int device_;
  GpuTransport& gpu_transport_;
  const cudaStream_t select_stream_, stream_;
  const std::string messages_name_, what_;

  StepMarks marks_;
  Marked transport_;
  DeviceExchange exchange_;

  const std::int64_t segments_;
  SelectionState* states_ = nullptr;          // the device's copy
  char* former_ = nullptr;                    // memory of a block: see LaunchNoteFormer
  float* masked_ = nullptr;                   // by selected entry: see SettleArgs
  const DeviceBytes memory_;                  // of all three
  std::vector<SelectionState> known_states_;  // last content of the framework's array
  PinnedArray<SelectionState> sent_states_, fetched_states_;
  PinnedArray<DeviceBlockHeader> selected_, reduced_;  // one each

  // State of the last step.
  DeviceLaunch launch_;
  Span<SelectionState> framework_states_;
  bool is_selected_ = false;                        // select_stream_ has the first part of it
  bool is_written_ = false;                         // and stream_ the second
  std::unique_ptr<GpuTransport::Waiting> waiting_;  // for its end; null before the first
  DeviceStepReport report_;
};

}  // namespace hvd_sparse::cuda

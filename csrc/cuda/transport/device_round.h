/// What the collectives between devices share: a round of messages between all ranks, begun and
/// ended by the CPU, and memory for it.

#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "csrc/base/sparse_block.h"
#include "csrc/base/types.h"
#include "csrc/collectives/sparse_allreduce.h"
#include "csrc/cuda/base/device_transport.h"
#include "csrc/cuda/base/work.h"
#include "csrc/cuda/transport/gpu_transport.h"

namespace hvd_sparse::cuda {

/// Memory of the device for the messages of a network, whose rounds follow each other. It only
/// grows.
class MessageRoom {
 public:
  /// `transport` must outlive this object.
  explicit MessageRoom(const DeviceTransport* transport) : transport_(*transport) {}

  /// Returns at least `bytes` bytes on the current device, undefined, valid until the next call. No
  /// work may use the memory of the call before. Growing waits for the device: so all ranks pass
  /// the same number, and none has messages in flight.
  char* Fit(std::size_t bytes);

 private:
  const DeviceTransport& transport_;
  std::unique_ptr<MessageBytes> memory_;
};

/// A round: work on this thread's stream, which ends when the CPU has waited for it.
class DeviceRound {
 public:
  /// `name` is that of the round in statistics and errors. `counted` counts the messages over
  /// `transport`; all must outlive this object.
  DeviceRound(const std::string& name, int device, GpuTransport* transport,
              CountedTransport* counted, CollectiveContext* ctx);

  Work& work() { return work_; }
  cudaStream_t stream() { return work_.stream(); }
  const std::string& what() const { return what_; }

  /// Enqueues messages to and from all other ranks, by rank, kMessagesAtOnce at a time; those
  /// without bytes are left out. On two ranks, lengths are equal.
  void MoveAmongAll(const std::vector<DeviceOut>& out, const std::vector<DeviceIn>& in);

  /// Waits for all work, and notes times and bytes in the context. Throws the error that ended the
  /// exchange, before anything that was received is read.
  void End();

 private:
  CollectiveContext& ctx_;
  GpuTransport& gpu_transport_;
  CountedTransport& counted_;
  RoundTimes times_;
  const std::string what_;
  Work work_;
};

// ---- Entries as messages that are as long as they are many: indices, then values ----------------

constexpr std::int64_t kEntryBytes = sizeof(Index) + sizeof(float);

/// Writes the entries `range` of a finished block to `message`; returns its end.
char* PutEntries(const SparseBlock& block, Range range, char* message);

/// Makes `block` of a message with `count` entries of `peer`, with that header but for its count.
/// Throws, as for a message between CPUs, if positions do not ascend within the bucket, or a value
/// is not finite and the verdict is.
void TakeEntries(const char* message, std::int64_t count, const BlockHeader& header, int peer,
                 const CollectiveContext& ctx, SparseBlock* block);

/// Makes `block`, which keeps its header but for the count, of a sum. Throws ExchangeFailed, which
/// names `what`, unless positions ascend within the bucket.
void ReplaceBySum(const Index* indices, const float* values, std::int64_t count,
                  const std::string& what, const CollectiveContext& ctx, SparseBlock* block);

}  // namespace hvd_sparse::cuda

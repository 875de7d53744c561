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
#include "csrc/cuda/base/device_block.h"
#include "csrc/cuda/base/device_transport.h"
#include "csrc/cuda/base/work.h"
#include "csrc/cuda/transport/gpu_transport.h"

namespace hvd_sparse::cuda {

/// Memory for the messages of a network, whose rounds follow each other: on the device, and pinned
/// memory of the CPU. It only grows.
///
/// Allocating waits for whatever runs on the device, which may be another library's kernel that
/// waits for another rank. If that rank in turn waited for a message of this one, all would wait
/// for ever. So memory grows on all ranks in the same call, and none goes on to its messages before
/// all have it.
class MessageRoom {
 public:
  /// `transport` must outlive this object.
  explicit MessageRoom(const DeviceTransport* transport) : transport_(*transport) {}

  /// Divides the memory: `on_device(Divider*)` and `pinned(Divider*)` take their pieces, which are
  /// undefined, and valid until the next call. No work may use the memory of the call before.
  ///
  /// Collective: the pieces are as long on all ranks, which have agreed on `header`.
  template <typename OnDevice, typename Pinned>
  void Divide(BlockHeader* header, CollectiveContext* ctx, OnDevice on_device, Pinned pinned) {
    Fit(SizeOfAll(on_device), SizeOfAll(pinned), header, ctx);
    Divider device_divider(memory_->get()), pinned_divider(staging_->get());
    on_device(&device_divider);
    pinned(&pinned_divider);
  }

 private:
  void Fit(std::size_t on_device, std::size_t pinned, BlockHeader* header, CollectiveContext* ctx);

  const DeviceTransport& transport_;
  std::unique_ptr<MessageBytes> memory_;
  std::unique_ptr<PinnedBytes> staging_;
};

/// A round: work on a thread's stream, which ends when the CPU has waited for it. It allocates
/// nothing.
class DeviceRound {
 public:
  /// `name` is that of the round in statistics and errors; `work` has nothing in flight. `counted`
  /// counts the messages over `transport`; all must outlive this object.
  DeviceRound(const std::string& name, Work* work, GpuTransport* transport,
              CountedTransport* counted, CollectiveContext* ctx);

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
  Work& work_;
};

/// Returns the header of an empty block on a device that has the bucket, the step and the k of one
/// on the CPU.
DeviceBlockHeader IdentityOf(const BlockHeader& header);

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

#include "csrc/cuda/transport/transport_collectives.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/base/process.h"
#include "csrc/comm/loopback_communicator.h"
#include "csrc/comm/patience.h"
#include "csrc/cuda/base/check.h"
#include "csrc/cuda/base/device_transport.h"
#include "csrc/cuda/base/stream.h"
#include "csrc/cuda/kernels/launches.h"
#include "csrc/cuda/kernels/merge_work.h"
#include "csrc/cuda/transport/device_allgather.h"
#include "csrc/cuda/transport/device_reduce.h"
#include "csrc/cuda/transport/device_round.h"
#include "csrc/cuda/transport/device_shard_topk.h"
#include "csrc/cuda/transport/gpu_transport.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse::cuda {
namespace {

/// Waits for a stream when destroyed, so that memory in use is not freed, whatever is thrown.
class FinishesFirst {
 public:
  explicit FinishesFirst(cudaStream_t stream) : stream_(stream) {}
  ~FinishesFirst() { (void)cudaStreamSynchronize(stream_); }
  FinishesFirst(const FinishesFirst&) = delete;
  FinishesFirst& operator=(const FinishesFirst&) = delete;

 private:
  const cudaStream_t stream_;
};

/// The transport of a single rank, which calls `check` while it waits for its device.
class Alone final : public GpuTransport {
 public:
  Alone(Communicator* comm, int device, const std::function<void()>& check)
      : GpuTransport(comm, device), check_(check) {}

  const char* Name() const override { return "nothing"; }
  void Move(Span<const DeviceOut>, Span<const DeviceIn>, cudaStream_t) override {}
  void Check() override { check_(); }

 private:
  std::string AwaitedRanks() const override { return "none"; }

  const std::function<void()>& check_;
};

/// Returns the seconds of each call's work except the first one's, whose end is where timing
/// begins.
std::vector<double> TimedOnStream(cudaStream_t stream, int repetitions, const std::string& what,
                                  const AwaitStream& await, const std::function<void()>& give) {
  std::deque<Event> ends;
  const FinishesFirst finishes(stream);
  for (int i = 0; i <= repetitions; ++i) {
    give();
    ends.emplace_back(Timing::kKept).Record(stream);
  }
  await(stream, what);
  std::vector<double> seconds;
  for (std::size_t i = 1; i < ends.size(); ++i) {
    seconds.push_back(Event::SecondsBetween(ends[i - 1], ends[i]));
  }
  return seconds;
}

/// Returns a block with entries at first, first + 2, ..., whose magnitudes are in no order.
SparseBlock BlockAt(Index first, std::int64_t entries) {
  SparseBlock block;
  block.Reset(entries);
  for (std::int64_t i = 0; i < entries; ++i) {
    const auto drawn = static_cast<std::uint32_t>(i + first) * 2654435761u;  // Knuth's hash
    block.indices()[i] = first + static_cast<Index>(2 * i);
    block.values()[i] = 1.0f + static_cast<float>(drawn >> 8);
  }
  block.Finish(entries);
  return block;
}

void RequireEntries(std::int64_t entries) {
  Require(entries >= 1 && entries <= kMostToMerge, "entries must lie in [1, ", kMostToMerge,
          "], got ", entries);
}

class TransportCollectives final : public GpuCollectives {
 public:
  TransportCollectives(int device, std::unique_ptr<GpuTransport> transport)
      : device_(device), transport_(std::move(transport)), room_(transport_.get()) {}

  void EndTrial() override { transport_->EndTrial(); }

  std::unique_ptr<DeviceReduce> Reduce(const std::string& collective) override {
    if (collective == "allgather") {
      return std::make_unique<DeviceAllgather>(device_, transport_.get(), &room_);
    }
    if (collective == "gtopk") return std::make_unique<TransportGTopK>(device_, transport_.get());
    if (collective == "shard_topk") {
      return std::make_unique<DeviceShardTopK>(device_, transport_.get(), &room_);
    }
    Throw(ErrorKind::kInvalidArgument, "'", collective, "' has no rounds between devices");
  }

  std::vector<double> TimedSwaps(int peer, std::int64_t bytes, int repetitions) override {
    const OnDevice current(device_);
    transport_->Begin("swaps between devices");
    return cuda::TimedSwaps(transport_.get(), peer, bytes, repetitions, transport_->stream(),
                            Await());
  }

  std::vector<double> TimedMerges(std::int64_t entries, int repetitions) override {
    return cuda::TimedMerges(device_, entries, repetitions, Await());
  }

  std::vector<double> TimedCopies(std::int64_t entries, int repetitions) override {
    return cuda::TimedCopies(device_, entries, repetitions, [this] { transport_->Check(); });
  }

 private:
  AwaitStream Await() {
    return
        [this](cudaStream_t stream, const std::string& what) { transport_->Await(stream, what); };
  }

  const int device_;
  const std::unique_ptr<GpuTransport> transport_;
  MessageRoom room_;  // of all collectives: one runs at a time
};

}  // namespace

std::vector<double> TimedSwaps(DeviceTransport* transport, int peer, std::int64_t bytes,
                               int repetitions, cudaStream_t stream, const AwaitStream& await) {
  const MessageBytes sent(*transport, static_cast<std::size_t>(bytes)),
      received(*transport, static_cast<std::size_t>(bytes));
  sent.Clear(stream);
  const std::string what = Concat("swaps of ", bytes, " bytes between devices");
  return TimedOnStream(stream, repetitions, what, await, [&] {
    transport->Exchange(peer, sent.get(), received.get(), bytes, stream);
  });
}

std::vector<double> TimedMerges(int device, std::int64_t entries, int repetitions,
                                const AwaitStream& await) {
  RequireEntries(entries);
  const OnDevice current(device);
  const Stream stream;
  const auto work = MakeMergeWork(device, BlockAt(0, entries), BlockAt(1, entries), entries);
  return TimedOnStream(stream.get(), repetitions, "merges on a device", await,
                       [&] { work->Enqueue(HandleOf(stream.get())); });
}

std::vector<double> TimedCopies(int device, std::int64_t entries, int repetitions,
                                const std::function<void()>& check) {
  RequireEntries(entries);
  LoopbackCommunicator comm(std::make_shared<LoopbackWorld>(1), 0);
  Alone transport(&comm, device, check);
  TransportGTopK reduce(device, &transport);
  CollectiveScratch scratch;
  SparseBlock block = BlockAt(0, entries);
  std::vector<double> seconds;
  for (int i = 0; i <= repetitions; ++i) {
    CollectiveContext ctx{comm, CpuKernels(), scratch, entries, entries, "a block handed over"};
    const double begin = SteadySeconds();
    reduce.Run(&block, ctx);
    if (i > 0) seconds.push_back(SteadySeconds() - begin);  // the first one allocates
  }
  return seconds;
}

void LoadKernels(int device) {
  TimedMerges(device, 1, 0, [](cudaStream_t stream, const std::string&) {
    Check(cudaStreamSynchronize(stream), "finish its work");
  });
}

std::unique_ptr<GpuCollectives> MakeGpuCollectives(int device,
                                                   std::unique_ptr<GpuTransport> transport) {
  return std::make_unique<TransportCollectives>(device, std::move(transport));
}

}  // namespace hvd_sparse::cuda

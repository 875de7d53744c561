/// Thread ranks that share a device, with a transport that copies from one rank's memory to
/// another's.
///
/// It waits for the stream before it announces a message's address, which no production transport
/// may do.

#ifndef HVD_SPARSE_TESTS_CSRC_CUDA_LOOPBACK_TRANSPORT_H_
#define HVD_SPARSE_TESTS_CSRC_CUDA_LOOPBACK_TRANSPORT_H_

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/cuda/base/check.h"
#include "csrc/cuda/base/device_transport.h"

namespace hvd_sparse {

/// The state that the ranks share: at most one message from each rank to each other is in flight.
class TransportWorld {
 public:
  explicit TransportWorld(int size) : size_(size) {}
  int size() const { return size_; }

  void Offer(int from, int to, const void* data, std::int64_t bytes) {
    const std::lock_guard lock(mutex_);
    offers_[{from, to}] = {data, bytes};
    changed_.notify_all();
  }
  std::pair<const void*, std::int64_t> Await(int from, int to) {
    std::unique_lock lock(mutex_);
    Wait(&lock, [&] { return offers_.count({from, to}) > 0; });
    return offers_[{from, to}];
  }
  void Accept(int from, int to) {
    const std::lock_guard lock(mutex_);
    offers_.erase({from, to});
    changed_.notify_all();
  }
  void AwaitAccepted(int from, int to) {
    std::unique_lock lock(mutex_);
    Wait(&lock, [&] { return offers_.count({from, to}) == 0; });
  }

 private:
  template <typename Holds>
  void Wait(std::unique_lock<std::mutex>* lock, Holds holds) {
    if (changed_.wait_for(*lock, std::chrono::seconds(60), holds)) return;
    Throw(ErrorKind::kTimeout, "no peer has come");
  }

  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int, int>, std::pair<const void*, std::int64_t>> offers_;
};

class LoopbackTransport final : public cuda::DeviceTransport {
 public:
  LoopbackTransport(std::shared_ptr<TransportWorld> world, int rank)
      : world_(std::move(world)), rank_(rank) {}

  int Rank() const override { return rank_; }
  int Size() const override { return world_->size(); }

  void Move(Span<const cuda::DeviceOut> out, Span<const cuda::DeviceIn> in,
            cudaStream_t stream) override {
    cuda::Check(cudaStreamSynchronize(stream), "finish its work");
    ++exchanges_;
    for (const auto& [peer, data, bytes] : out) {
      Require(peer != rank_ && peer >= 0 && peer < Size(), "peer must be another rank, got ", peer);
      world_->Offer(rank_, peer, data, bytes);
    }
    for (const auto& [peer, to, bytes] : in) {
      const auto [data, offered] = world_->Await(peer, rank_);
      Require(offered == bytes, "the message has ", offered, " bytes, expected ", bytes);
      cuda::Check(
          cudaMemcpyAsync(to, data, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream),
          "copy");
      cuda::Check(cudaStreamSynchronize(stream), "finish its work");
      world_->Accept(peer, rank_);
    }
    for (const auto& message : out) world_->AwaitAccepted(rank_, message.peer);
  }

  int exchanges() const { return exchanges_; }

 private:
  const std::shared_ptr<TransportWorld> world_;
  const int rank_;
  int exchanges_ = 0;
};

/// Runs a program on each of `size` ranks.
inline void OnDeviceRanks(int size, const std::function<void(LoopbackTransport&)>& program) {
  const auto world = std::make_shared<TransportWorld>(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      LoopbackTransport transport(world, rank);
      program(transport);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_CUDA_LOOPBACK_TRANSPORT_H_

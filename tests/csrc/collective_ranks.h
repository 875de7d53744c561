/// Collectives on ranks that are threads.

#ifndef HVD_SPARSE_TESTS_CSRC_COLLECTIVE_RANKS_H_
#define HVD_SPARSE_TESTS_CSRC_COLLECTIVE_RANKS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/base/sparse_block.h"
#include "csrc/collectives/sparse_allreduce.h"
#include "csrc/comm/loopback_communicator.h"

namespace hvd_sparse {

/// Runs `program` on `size` ranks, whose communicators are constructed like a LoopbackCommunicator.
template <typename Rank = LoopbackCommunicator>
void OnRanks(int size, const std::function<void(Communicator&)>& program) {
  auto world = std::make_shared<LoopbackWorld>(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Rank comm(world, rank);
      program(comm);
    });
  }
  for (auto& thread : threads) thread.join();
}

/// Changes the messages that a rank receives.
class TamperingCommunicator final : public Communicator {
 public:
  using Change = std::function<void(Incoming*)>;

  TamperingCommunicator(Communicator* comm, Change change)
      : comm_(*comm), change_(std::move(change)) {}

  int Rank() const override { return comm_.Rank(); }
  int Size() const override { return comm_.Size(); }
  void Fail(ErrorKind kind, const std::string& reason) override { comm_.Fail(kind, reason); }
  void Check() override { comm_.Check(); }
  void Transfer(Span<const Outgoing> out, Span<Incoming> in, const std::string& what) override {
    comm_.Transfer(out, in, what);
    for (Incoming& message : in) change_(&message);
  }

 private:
  Communicator& comm_;
  const Change change_;
};

/// Makes rank `waiting` wait until all others have called this; they do not wait.
inline void WaitForOthers(Communicator& comm, int waiting) {
  if (comm.Rank() != waiting) {
    const std::vector<Outgoing> out{{waiting, nullptr, 0}};
    comm.Transfer(out, {}, "a test");
    return;
  }
  std::vector<Incoming> in;
  for (int peer = 0; peer < comm.Size(); ++peer) {
    if (peer != waiting) in.push_back({peer, nullptr, 0});
  }
  comm.Transfer({}, in, "a test");
}

/// Returns a block of k entries at first, first + stride, ... with values value, value + 1, ...
inline SparseBlock BlockOf(std::int64_t k, Index first, Index stride, float value) {
  SparseBlock block;
  block.Reset(k);
  for (std::int64_t i = 0; i < k; ++i) {
    block.indices()[i] = first + static_cast<Index>(i) * stride;
    block.values()[i] = value + static_cast<float>(i);
  }
  block.Finish(k);
  return block;
}

/// Makes owners of shards send on all that arrives, and keep nothing.
inline void SendOnAllSums(CollectiveContext* ctx) {
  ctx->take_sums = [ctx](std::vector<SparseBlock>* arrived, SparseBlock* sums) {
    const Verdict verdict = sums->header().verdict;
    sums->CopyFrom(ctx->SumInRankOrder(arrived));
    sums->header().verdict.Note(verdict);
  };
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_COLLECTIVE_RANKS_H_

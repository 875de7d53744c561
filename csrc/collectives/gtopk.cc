/// gTop-k: the k largest entries of the sum, approximately, in log2 P rounds.
///
///     a (+) b = TopK(a + b, k);  round r: swap blocks with rank XOR 2^r, keep a (+) b
///
/// Rounds: log2 P for a power of two, else floor(log2 P) + 2.
/// Sent by each rank: 8 k log2 P bytes (+ headers); a guest 8 k, its host 8 k more.
/// Use it where latency and bytes both count: many ranks, small density. The result is not always
/// the exact top-k of the sum: an entry that a merge drops may have grown in a later one.
///
/// What a merge drops must stay in somebody's residual. Every entry of a rank's running block
/// therefore carries the survived bit: is this rank's own value part of it? It is set when the cube
/// starts, so that a host answers for its guest too; an entry that came from a partner alone has
/// none, even if this rank had sent and lost the same index before.
///
/// Shi et al., "A Distributed Synchronous SGD Algorithm with Global Top-k Sparsification for Low
/// Bandwidth Networks", ICDCS 2019, https://arxiv.org/abs/1901.04359; recursive doubling instead of
/// its tree and broadcast, any P, and the survived bits are ours.

#include "csrc/base/error.h"
#include "csrc/collectives/collectives.h"
#include "csrc/collectives/topology.h"

namespace hvd_sparse {
namespace {

void Send(const SparseBlock& block, int peer, CollectiveContext& ctx, const char* round) {
  const Outgoing out{peer, block.message(), block.message_bytes()};
  ctx.Transfer({&out, 1}, {}, round);
}

/// Receives a block; one of another k than ours still has room, and Agree refuses it.
void Receive(SparseBlock* block, int peer, CollectiveContext& ctx, const char* round) {
  block->Reset(ctx.capacity);
  Incoming in{peer, block->message(), block->max_message_bytes()};
  ctx.Transfer({}, {&in, 1}, round);
  block->ParseInPlace(in.bytes);
}

void Swap(const SparseBlock& own, SparseBlock* theirs, int peer, CollectiveContext& ctx,
          const std::string& round) {
  theirs->Reset(ctx.capacity);
  const Outgoing out{peer, own.message(), own.message_bytes()};
  Incoming in{peer, theirs->message(), theirs->max_message_bytes()};
  ctx.Transfer({&out, 1}, {&in, 1}, round);
  theirs->ParseInPlace(in.bytes);
}

}  // namespace

void GTopK::Trim(std::int64_t k, Span<float> residual, const Kernels& kernels,
                 SparseBlock* selected) const {
  selected->Finish(kernels.KeepTopK(k, 0, selected->count(), selected, residual));
}

void GTopK::Run(SparseBlock* block, CollectiveContext& ctx) const {
  const FoldedCube cube{ctx.comm.Rank(), ctx.comm.Size()};
  SparseBlock& theirs = ctx.scratch.theirs;

  if (cube.IsGuest()) {
    Send(*block, cube.Host(), ctx, "gtopk, to the host");
    Receive(&theirs, cube.Host(), ctx, "gtopk, from the host");
    ctx.Agree(block, theirs, cube.Host());
    block->CopyFrom(theirs);
    return;
  }

  if (cube.HasGuest()) {
    Receive(&theirs, cube.Guest(), ctx, "gtopk, from the guest");
    ctx.Agree(block, theirs, cube.Guest());
    ctx.MergeInto(block, theirs);
    ctx.KeepTopK(block);
  }
  MarkSurvived(block);

  int round = 0;
  for (int distance = 1; distance < cube.Core(); distance *= 2) {
    const int partner = cube.Partner(distance);
    Swap(*block, &theirs, partner, ctx, Concat("gtopk, round ", ++round));
    ctx.Agree(block, theirs, partner);
    ctx.MergeInto(block, theirs);
    ctx.KeepTopK(block);
  }

  if (cube.HasGuest()) Send(*block, cube.Guest(), ctx, "gtopk, to the guest");
}

}  // namespace hvd_sparse

/// Recursive doubling: the sum of everything selected, in log2 P rounds of swap and add.
///
///     round r: swap running sums with rank XOR 2^r, keep a + b
///
/// Rounds: log2 P for a power of two, else floor(log2 P) + 2.
/// Sent by each rank: 8 m bytes a round (+ headers), where m is the count of its running sum: k in
/// the first round, at most twice as much in every further one, so between 8 k log2 P where all
/// ranks selected the same entries and 8 k (P - 1) where no two did; a guest sends 8 k, its host
/// 8 times the count of the whole sum more. Never more than 4 numel a round: past half of the
/// bucket's numel a sum is sent as a plain array. Exact: everything selected is delivered.
/// Use it where ranks select much the same entries, or where an allgather would send more than the
/// bucket holds.
///
/// A sum becomes dense once its count, after a merge, has passed half of the numel. Partners hold
/// the same sum after a merge, so they decide alike; the partner of the next round may not, and
/// then dense + sparse is dense. Where a sum may be dense at all (which every rank can tell from
/// capacity and numel) a short message before it says what follows.
///
/// Renggli et al., "SparCML: High-performance sparse communication for machine learning", SC 2019,
/// https://arxiv.org/abs/1802.08021 (SSAR_Recursive_double); any P, and the announcement, are ours.

#include <algorithm>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/collectives/collectives.h"
#include "csrc/collectives/topology.h"

namespace hvd_sparse {
namespace {

/// The form of the message that follows an announcement.
enum class Form : std::uint64_t { kSparse = 0x6573726170730001u, kDense = 0x65736e6564000001u };

/// A rank's running sum: in its block, or dense in the scratch memory.
class RunningSum {
 public:
  RunningSum(SparseBlock* block, CollectiveContext* ctx) : block_(*block), ctx_(*ctx) {
    MakeDenseIfShorter();
  }

  /// Sends the sum, which holds the blocks of at most `ranks` ranks.
  void Send(int peer, int ranks, Content content, const std::string& round) {
    Announce(peer, ranks, /*sends=*/true, /*receives=*/false, round);
    SendWhole(peer, content, round);
  }

  /// Receives the peer's sum, of at most `ranks` ranks; it is then in `theirs`.
  void Receive(int peer, int ranks, const std::string& round) {
    Announce(peer, ranks, /*sends=*/false, /*receives=*/true, round);
    ReceiveWhole(peer, ranks, round);
  }

  /// Rounds the sum to the wire type; see CollectiveContext::Narrow. A dense sum is sent as
  /// float32.
  void Narrow(bool keeps_errors) {
    if (form_ == Form::kSparse) ctx_.Narrow(&block_, keeps_errors);
  }

  /// Sends to and receives from the same peer.
  void Swap(int peer, int ranks, const std::string& round) {
    Announce(peer, ranks, /*sends=*/true, /*receives=*/true, round);
    if (form_ != their_form_) {  // one after the other; the dense side receives first
      if (form_ == Form::kSparse) SendWhole(peer, Content::kSums, round);
      ReceiveWhole(peer, ranks, round);
      if (form_ == Form::kDense) SendWhole(peer, Content::kSums, round);
    } else if (form_ == Form::kSparse) {
      ctx_.Swap(&block_, &ctx_.scratch.theirs, RoomFor(ranks), peer, round);
    } else {
      Identify();
      const Outgoing out{peer, ctx_.scratch.dense.message(), ctx_.scratch.dense.message_bytes()};
      TransferDense({&out, 1}, peer, round);
    }
  }

  /// sum += theirs
  void Add() {
    DenseBlock& dense = ctx_.scratch.dense;
    DenseBlock& their_dense = ctx_.scratch.their_dense;
    if (form_ == Form::kSparse && their_form_ == Form::kSparse) {
      ctx_.MergeInto(&block_, ctx_.scratch.theirs);
      MakeDenseIfShorter();
      return;
    }
    bool finite = true;
    if (form_ == Form::kSparse) {
      finite = their_dense.Add(block_);
      TakeOver();
    } else if (their_form_ == Form::kSparse) {
      finite = dense.Add(ctx_.scratch.theirs);
    } else {
      finite = dense.Add(their_dense);
    }
    if (!finite) block_.header().verdict.Note(Verdict::Overflow());
  }

  /// sum = theirs
  void TakeOver() {
    form_ = their_form_;
    if (form_ == Form::kDense) {
      std::swap(ctx_.scratch.dense, ctx_.scratch.their_dense);
    } else {
      block_.CopyFrom(ctx_.scratch.theirs);
    }
  }

  /// Writes the sum to the block, whatever its form.
  void Finish() {
    if (form_ == Form::kDense) ctx_.scratch.dense.ToBlock(&block_);
    MarkSurvived(&block_);
  }

 private:
  /// True if a sum of `ranks` blocks may be dense. All ranks agree, also about their partners'
  /// sums.
  bool MayBeDense(int ranks) const { return 2 * ranks * ctx_.capacity > ctx_.numel; }

  std::int64_t RoomFor(int ranks) const { return std::min(ranks * ctx_.capacity, ctx_.numel / 2); }

  void MakeDenseIfShorter() {
    if (2 * block_.count() <= ctx_.numel) return;
    DenseBlock& dense = ctx_.scratch.dense;
    dense.Reset(ctx_.numel);
    dense.Clear();
    dense.Add(block_);
    form_ = Form::kDense;
  }

  /// Tells the peer in which form a sum of `ranks` ranks comes, and learns that of theirs, unless
  /// none can be dense.
  void Announce(int peer, int ranks, bool sends, bool receives, const std::string& round) {
    their_form_ = Form::kSparse;
    if (!MayBeDense(ranks)) return;
    const Outgoing out{peer, &form_, sizeof(form_)};
    Incoming in{peer, &their_form_, sizeof(their_form_)};
    ctx_.Transfer({&out, sends ? 1 : 0}, {&in, receives ? 1 : 0}, round);
    const bool known = their_form_ == Form::kSparse || their_form_ == Form::kDense;
    if (!receives || (in.bytes == sizeof(their_form_) && known)) return;
    Throw(ErrorKind::kDisagreement, "the ranks disagree: in ", ctx_.what, " rank ",
          ctx_.comm.RankInExchange(peer),
          " does not say in which form its sum comes: do all ranks use the same density?");
  }

  /// Copies the block's header, which identifies the sum in either form, to the dense sum.
  void Identify() { ctx_.scratch.dense.Identify(block_.header()); }

  void SendWhole(int peer, Content content, const std::string& round) {
    if (form_ == Form::kSparse) return ctx_.Send(block_, peer, round, content);
    Identify();
    const Outgoing out{peer, ctx_.scratch.dense.message(), ctx_.scratch.dense.message_bytes()};
    ctx_.Transfer({&out, 1}, {}, round);
  }

  void ReceiveWhole(int peer, int ranks, const std::string& round) {
    if (their_form_ == Form::kDense) return TransferDense({}, peer, round);
    ctx_.Receive(&block_, &ctx_.scratch.theirs, RoomFor(ranks), peer, round);
  }

  /// Receives a dense sum while sending `out`.
  void TransferDense(Span<const Outgoing> out, int peer, const std::string& round) {
    DenseBlock& theirs = ctx_.scratch.their_dense;
    theirs.Reset(ctx_.numel);
    Incoming in{peer, theirs.message(), theirs.message_bytes()};
    ctx_.Transfer(out, {&in, 1}, round);
    ctx_.Reading(peer, [&] {
      theirs.ParseInPlace(in.bytes);
      theirs.CheckValues();
    });
    ctx_.AgreeOnFormat(theirs.header().format, peer);
    ctx_.Agree(&block_.header(), theirs.header(), peer);
  }

  SparseBlock& block_;
  CollectiveContext& ctx_;
  Form form_ = Form::kSparse, their_form_ = Form::kSparse;
};

}  // namespace

void RunRecursiveDoubling(SparseBlock* block, CollectiveContext& ctx) {
  const FoldedCube cube{ctx.comm.Rank(), ctx.comm.Size()};
  RunningSum sum(block, &ctx);

  if (cube.IsGuest()) {
    sum.Narrow(/*keeps_errors=*/true);
    sum.Send(cube.Host(), 1, Content::kSums, "recursive doubling, to the host");
    sum.Receive(cube.Host(), cube.size, "recursive doubling, from the host");
    sum.TakeOver();
    return sum.Finish();
  }

  if (cube.HasGuest()) {
    sum.Receive(cube.Guest(), 1, "recursive doubling, from the guest");
    sum.Add();
  }

  const int ranks_at_a_corner = cube.size > cube.Core() ? 2 : 1;
  int round = 0;
  for (int distance = 1; distance < cube.Core(); distance *= 2) {
    sum.Narrow(cube.IsLowest(distance));
    sum.Swap(cube.Partner(distance), ranks_at_a_corner * distance,
             Concat("recursive doubling, round ", ++round));
    sum.Add();
  }

  if (cube.HasGuest()) {
    sum.Send(cube.Guest(), cube.size, Content::kVerbatim, "recursive doubling, to the guest");
  }
  sum.Finish();
}

}  // namespace hvd_sparse

/// Some of an exchange's ranks, as a communicator of their own: first, first + stride, ...
///
/// A view: messages are sent over the whole communicator, and a failure ends the exchange on all
/// its ranks. While a group is in use, its ranks must not use the whole communicator.

#pragma once

#include <deque>
#include <string>
#include <vector>

#include "csrc/comm/communicator.h"

namespace hvd_sparse {

class GroupCommunicator final : public Communicator {
 public:
  /// Groups `size` ranks of `whole`, which include this rank. `whole` must outlive the group.
  GroupCommunicator(Communicator* whole, int first, int stride, int size)
      : whole_(*whole), first_(first), stride_(stride), size_(size) {}

  int Rank() const override { return (whole_.Rank() - first_) / stride_; }
  int Size() const override { return size_; }
  int RankInExchange(int rank) const override {
    return whole_.RankInExchange(first_ + stride_ * rank);
  }

  WaitLimits Limits() const override { return whole_.Limits(); }

  void Transfer(Span<const Outgoing> out, Span<Incoming> in, const std::string& what) override;
  void Begin(Span<const Outgoing> out, Span<Incoming> in, const std::string& what) override;
  void Wait() override;

  std::string DeviceMemoryProblem() const override { return whole_.DeviceMemoryProblem(); }

  void Fail(ErrorKind kind, const std::string& reason) override { whole_.Fail(kind, reason); }
  void Check() override { whole_.Check(); }
  void Acknowledge() override { whole_.Acknowledge(); }

 private:
  /// A transfer in flight, with the ranks of the whole communicator, and what it was begun with.
  struct Flight {
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
    Span<Incoming> given;
  };

  Communicator& whole_;
  const int first_, stride_, size_;
  std::deque<Flight> flights_;
};

}  // namespace hvd_sparse

/// Ranks that are threads of this process, connected by TCP.

#ifndef HVD_SPARSE_TESTS_CSRC_TCP_RANKS_H_
#define HVD_SPARSE_TESTS_CSRC_TCP_RANKS_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/comm/lifeline.h"
#include "csrc/comm/tcp_communicator.h"
#include "tests/csrc/lifeline_testing.h"

namespace hvd_sparse {

/// The communicators of all ranks; if `watched`, each has a lifeline.
class TcpRanks {
 public:
  explicit TcpRanks(int size, const WaitLimits& limits = {}, bool watched = true) {
    std::vector<TcpPort> ports(static_cast<std::size_t>(size));
    std::vector<std::string> addresses;
    for (const TcpPort& port : ports) addresses.push_back(port.Address());
    auto lifelines = Lifelines(watched ? size : 0);
    lifelines.resize(ports.size());
    for (int rank = 0; rank < size; ++rank) {
      const TcpOptions options{rank, addresses, limits};
      const auto at = static_cast<std::size_t>(rank);
      ranks_.push_back(MakeTcpCommunicator(options, &ports[at], std::move(lifelines[at])));
    }
  }

  Communicator& operator[](int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }

  /// Destroys this rank's communicator.
  void Leave(int rank) { ranks_[static_cast<std::size_t>(rank)].reset(); }

  /// Runs `body` on every rank, each in its own thread.
  void Run(const std::function<void(Communicator&)>& body) {
    std::vector<std::thread> threads;
    for (auto& rank : ranks_) threads.emplace_back([&] { body(*rank); });
    for (auto& thread : threads) thread.join();
  }

  /// Returns the connected lifelines of `size` ranks.
  static std::vector<std::shared_ptr<Lifeline>> Lifelines(int size) {
    std::vector<std::shared_ptr<Lifeline>> lifelines;
    for (int rank = 0; rank < size; ++rank) {
      lifelines.push_back(std::make_shared<Lifeline>(rank, size, kName));
    }
    if (size == 0) return lifelines;
    const std::string address = lifelines[0]->Listen();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        lifelines[static_cast<std::size_t>(rank)]->Connect(rank == 0 ? "" : address, 20);
      });
    }
    for (auto& thread : threads) thread.join();
    return lifelines;
  }

 private:
  std::vector<std::unique_ptr<Communicator>> ranks_;
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_TCP_RANKS_H_

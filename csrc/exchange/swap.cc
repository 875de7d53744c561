#include "csrc/exchange/swap.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <string>

#include "csrc/base/error.h"
#include "csrc/base/process.h"
#include "csrc/collectives/collectives.h"

namespace hvd_sparse {
namespace {

using Clock = std::chrono::steady_clock;

/// Provides `buffers` buffers of `bytes` bytes. All their pages are written, so that the first
/// message costs no more than the others.
void Prepare(std::size_t buffers, std::int64_t bytes, std::vector<Buffer>* memory) {
  if (memory->size() < buffers) memory->resize(buffers);
  for (std::size_t i = 0; i < buffers; ++i) {
    Buffer& buffer = (*memory)[i];
    const std::int64_t before = buffer.size();
    buffer.Reserve(bytes);
    if (buffer.size() == before) continue;
    std::memset(buffer.data(), 0, static_cast<std::size_t>(buffer.size()));
  }
}

/// Returns the seconds of each of `repetitions` transfers of `bytes` bytes to and from these ranks.
std::vector<double> Timed(Communicator* comm, const std::vector<int>& to,
                          const std::vector<int>& from, std::int64_t bytes, int repetitions,
                          const std::string& what, std::vector<Buffer>* memory) {
  const ShortSleeps punctual;  // as on the exchange's own thread
  Prepare(1 + from.size(), bytes, memory);
  std::vector<Outgoing> out;
  for (int peer : to) out.push_back({peer, memory->front().data(), bytes});
  std::vector<double> seconds;
  seconds.reserve(static_cast<std::size_t>(repetitions));
  for (int i = 0; i < repetitions; ++i) {
    const auto start = Clock::now();
    std::vector<Incoming> in;
    for (int peer : from) in.push_back({peer, (*memory)[1 + in.size()].data(), bytes});
    comm->Transfer(out, in, what);
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    for (const Incoming& message : in) {
      if (message.bytes == bytes) continue;
      Throw(ErrorKind::kDisagreement, "the ranks disagree: rank ", comm->Rank(), " swaps ", bytes,
            " bytes with rank ", message.peer, ", which sent ", message.bytes);
    }
  }
  return seconds;
}

}  // namespace

void RequireSwap(const Communicator& comm, int peer, std::int64_t bytes, int repetitions) {
  Require(peer >= 0 && peer < comm.Size() && peer != comm.Rank(),
          "peer must be another rank in [0, ", comm.Size(), "), got ", peer, " on rank ",
          comm.Rank());
  RequireMessages(bytes, repetitions);
}

void RequireMessages(std::int64_t bytes, int repetitions) {
  Require(bytes >= 0, "bytes must not be negative, got ", bytes);
  Require(repetitions >= 0, "repetitions must not be negative, got ", repetitions);
}

std::vector<double> TimedSwaps(Communicator* comm, int peer, std::int64_t bytes, int repetitions,
                               std::vector<Buffer>* memory) {
  return Timed(comm, {peer}, {peer}, bytes, repetitions, Concat("a swap of ", bytes, " bytes"),
               memory);
}

std::vector<double> TimedSpreads(Communicator* comm, int peers, std::int64_t bytes, int repetitions,
                                 std::vector<Buffer>* memory) {
  const int rank = comm->Rank(), size = comm->Size();
  std::vector<int> to, from;
  for (int distance = 1; distance <= peers; ++distance) {
    to.push_back((rank + distance) % size);
    from.push_back((rank + size - distance) % size);
  }
  return Timed(comm, to, from, bytes, repetitions,
               Concat("messages of ", bytes, " bytes to ", peers, " ranks"), memory);
}

void AgreeOnSwaps(Communicator* comm, int peer, std::int64_t bytes, int repetitions,
                  std::vector<Buffer>* memory) {
  const std::array<std::int64_t, 2> own{bytes, repetitions};
  Prepare(2, sizeof(own), memory);
  Buffer &sent = (*memory)[0], &received = (*memory)[1];
  std::memcpy(sent.data(), own.data(), sizeof(own));
  const Outgoing out{peer, sent.data(), sizeof(own)};
  Incoming in{peer, received.data(), sizeof(own)};
  comm->Transfer({&out, 1}, {&in, 1}, "agreeing on swaps between devices");
  std::array<std::int64_t, 2> theirs{};
  if (in.bytes == in.capacity) std::memcpy(theirs.data(), received.data(), sizeof(theirs));
  if (theirs == own) return;
  Throw(ErrorKind::kDisagreement, "the ranks disagree: rank ", comm->Rank(), " swaps ", own[0],
        " bytes ", own[1], " times between devices, rank ", peer, " ", theirs[0], " bytes ",
        theirs[1], " times");
}

std::vector<std::vector<double>> GatheredNumbers(Communicator* comm,
                                                 const std::vector<double>& numbers,
                                                 const std::string& what,
                                                 std::vector<Buffer>* memory) {
  const int rank = comm->Rank(), size = comm->Size();
  const auto bytes = static_cast<std::int64_t>(numbers.size() * sizeof(double));
  Prepare(static_cast<std::size_t>(size), bytes, memory);  // this rank's numbers, and the others'
  std::memcpy(memory->front().data(), numbers.data(), static_cast<std::size_t>(bytes));
  std::vector<std::vector<double>> rows(static_cast<std::size_t>(size), numbers);
  for (int first = 1; first < size; first += kMessagesAtOnce) {
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
    for (int distance = first; distance < std::min(size, first + kMessagesAtOnce); ++distance) {
      out.push_back({(rank + distance) % size, memory->front().data(), bytes});
      void* place = (*memory)[static_cast<std::size_t>(distance)].data();
      in.push_back({(rank + size - distance) % size, place, bytes});
    }
    comm->Transfer(out, in, what);
    for (const Incoming& message : in) {
      if (message.bytes != bytes) {
        Throw(ErrorKind::kDisagreement, "the ranks disagree: rank ", rank, " sent ", bytes,
              " bytes to rank ", message.peer, ", which sent ", message.bytes, ", in ", what);
      }
      std::memcpy(rows[static_cast<std::size_t>(message.peer)].data(), message.data,
                  static_cast<std::size_t>(bytes));
    }
  }
  return rows;
}

}  // namespace hvd_sparse

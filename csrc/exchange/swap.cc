#include "csrc/exchange/swap.h"

#include <array>
#include <chrono>
#include <cstring>
#include <string>

#include "csrc/base/error.h"
#include "csrc/base/short_sleeps.h"

namespace hvd_sparse {
namespace {

using Clock = std::chrono::steady_clock;

/// All pages are written: the first message is to cost no more than the others.
void Prepare(std::int64_t bytes, std::vector<Buffer>* memory) {
  memory->resize(2);
  for (Buffer& buffer : *memory) {
    const std::int64_t before = buffer.size();
    buffer.Reserve(bytes);
    if (buffer.size() == before) continue;
    std::memset(buffer.data(), 0, static_cast<std::size_t>(buffer.size()));
  }
}

}  // namespace

void RequireSwap(const Communicator& comm, int peer, std::int64_t bytes, int repetitions) {
  Require(peer >= 0 && peer < comm.Size() && peer != comm.Rank(),
          "peer must be another rank in [0, ", comm.Size(), "), got ", peer, " on rank ",
          comm.Rank());
  Require(bytes >= 0, "bytes must not be negative, got ", bytes);
  Require(repetitions >= 0, "repetitions must not be negative, got ", repetitions);
}

std::vector<double> TimedSwaps(Communicator* comm, int peer, std::int64_t bytes, int repetitions,
                               std::vector<Buffer>* memory) {
  const ShortSleeps punctual;  // as on the exchange's own thread
  Prepare(bytes, memory);
  Buffer &sent = (*memory)[0], &received = (*memory)[1];
  const std::string what = Concat("a swap of ", bytes, " bytes");
  std::vector<double> seconds;
  seconds.reserve(static_cast<std::size_t>(repetitions));
  for (int i = 0; i < repetitions; ++i) {
    const auto start = Clock::now();
    const Outgoing out{peer, sent.data(), bytes};
    Incoming in{peer, received.data(), bytes};
    comm->Transfer({&out, 1}, {&in, 1}, what);
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    if (in.bytes != bytes) {
      Throw(ErrorKind::kDisagreement, "the ranks disagree: rank ", comm->Rank(), " swaps ", bytes,
            " bytes with rank ", peer, ", which sent ", in.bytes);
    }
  }
  return seconds;
}

void AgreeOnSwaps(Communicator* comm, int peer, std::int64_t bytes, int repetitions,
                  std::vector<Buffer>* memory) {
  const std::array<std::int64_t, 2> own{bytes, repetitions};
  Prepare(sizeof(own), memory);
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

}  // namespace hvd_sparse

#include "csrc/cuda/transport/trial.h"

#include <algorithm>
#include <string>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/collectives/collectives.h"
#include "csrc/cuda/base/device_transport.h"

namespace hvd_sparse::cuda {
namespace {

/// Returns the bytes of the message to, and from, the i-th peer.
std::int64_t BytesOf(int i) { return std::int64_t{i == 0 ? 256 : 1} << 10; }

std::int64_t BytesOfAll(int peers) { return BytesOf(0) + (peers - 1) * BytesOf(1); }

/// Writes a message, whose bytes differ from those of every other pair of ranks.
void WriteMessage(int sender, int receiver, std::int64_t bytes, std::uint8_t* message) {
  auto word = static_cast<std::uint32_t>(sender) * 65536u + static_cast<std::uint32_t>(receiver);
  for (std::int64_t i = 0; i < bytes; ++i) {
    word = word * 1664525u + 1013904223u;  // Numerical Recipes' generator
    message[i] = static_cast<std::uint8_t>(word >> 24);
  }
}

}  // namespace

Trial::Trial(int size)
    : peers_(std::min(size - 1, kMessagesAtOnce)),
      staged_(BytesOfAll(peers_)),
      sent_(static_cast<std::size_t>(staged_.size())),
      received_(static_cast<std::size_t>(staged_.size())) {}

void Trial::Run(GpuTransport* transport) {
  const int rank = transport->Rank(), size = transport->Size();
  auto* const sent = static_cast<std::uint8_t*>(sent_.get());
  auto* const received = static_cast<std::uint8_t*>(received_.get());
  std::vector<DeviceOut> out;
  std::vector<DeviceIn> in;
  std::int64_t at = 0;
  for (int i = 0; i < peers_; at += BytesOf(i++)) {
    out.push_back({(rank + 1 + i) % size, sent + at, BytesOf(i)});
    in.push_back({(rank + size - 1 - i) % size, received + at, BytesOf(i)});
    WriteMessage(rank, out.back().peer, BytesOf(i), staged_.data() + at);
  }
  const std::string what = Concat("messages that try ", transport->Name());
  transport->Begin(what);
  staged_.SendTo(sent, stream_.get());
  transport->Move(out, in, stream_.get());
  transport->Await(stream_.get(), what);
  staged_.FetchFrom(received, stream_.get());
  stream_.Synchronize();
  std::vector<std::uint8_t> expected(static_cast<std::size_t>(BytesOf(0)));
  at = 0;
  for (const DeviceIn& message : in) {
    WriteMessage(message.peer, rank, message.bytes, expected.data());
    const std::uint8_t* const begin = staged_.data() + at;
    if (!std::equal(begin, begin + message.bytes, expected.begin())) {
      Throw(ErrorKind::kExchangeFailed, "of ", what, ", that of rank ", message.peer,
            " arrived changed");
    }
    at += message.bytes;
  }
}

}  // namespace hvd_sparse::cuda

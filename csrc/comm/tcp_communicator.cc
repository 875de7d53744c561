#include "csrc/comm/tcp_communicator.h"

#include <poll.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <exception>
#include <optional>
#include <set>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/comm/in_flight_messages.h"
#include "csrc/comm/lifeline_communicator.h"
#include "csrc/comm/tcp_rendezvous.h"
#include "csrc/comm/tcp_stream.h"

namespace hvd_sparse {
namespace {

// A peer's death breaks its connections at once but reaches the lifeline via rank 0: the time to
// wait for the lifeline's report.
constexpr double kVerdictSeconds = 5.0;

// The longest sleep while this rank waits only for arrivals, which wake it.
constexpr std::chrono::seconds kLongestSleep(1);

class TcpCommunicator final : public LifelineCommunicator {
 public:
  TcpCommunicator(int rank, std::vector<ListenAddress> addresses, Listener listener,
                  const WaitLimits& limits, std::shared_ptr<Lifeline> lifeline)
      : LifelineCommunicator(std::move(lifeline), limits),
        rank_(rank),
        connections_(this->lifeline() == nullptr ? 1 : this->lifeline()->connections()),
        streams_(addresses.size()),
        rendezvous_(rank, std::move(addresses), std::move(listener), connections_,
                    this->lifeline() != nullptr) {}

  int Rank() const override { return rank_; }
  int Size() const override { return static_cast<int>(streams_.size()); }

  void Transfer(Span<const Outgoing> out, Span<Incoming> in, const std::string& what) override {
    Begin(out, in, what);
    Wait();
  }

  void Begin(Span<const Outgoing> out, Span<Incoming> in, const std::string& what) override {
    for (const Outgoing& message : out) RequireRank(message.peer, what);
    for (const Incoming& message : in) RequireRank(message.peer, what);
    Check();
    if (!broken_.empty()) {
      Throw(ErrorKind::kExchangeFailed, "nothing more can be sent since ", broken_);
    }
    KeepOwn(out, in, what);
    Guarded([&] {
      for (const Outgoing& message : out) {
        if (message.peer == rank_) continue;
        for (TcpStream& stream : StreamsTo(message.peer)) stream.Send(message);
      }
      for (Incoming& message : in) {
        if (message.peer == rank_) continue;
        for (TcpStream& stream : StreamsTo(message.peer)) stream.Receive(&message);
      }
      flights_.push_back({what, {}});
      for (TcpStream* stream : active_) flights_.back().ends.emplace_back(stream, stream->queued());
      Connect();
      if (flights_.size() == 1) held_ = MustHold();
      // There is most likely room to send, so try without poll() first.
      for (TcpStream* stream : active_) stream->Move(what, held_);
    });
  }

  void Wait() override {
    Guarded([this] {
      WaitFor(flights_.front());
      flights_.pop_front();
      if (flights_.empty()) Finish();
    });
  }

 private:
  /// A transfer in flight: it ends when each of its streams has reached a place.
  struct Flight {
    std::string what;
    std::vector<std::pair<TcpStream*, TcpStream::Place>> ends;

    bool done() const {
      return std::all_of(ends.begin(), ends.end(),
                         [](const auto& end) { return end.first->done(end.second); });
    }
  };

  /// Runs `work`; after an error nothing more can be sent.
  template <typename Work>
  void Guarded(const Work& work) {
    try {
      work();
    } catch (const std::exception& error) {
      broken_ = error.what();  // a stream may have stopped in the middle of a message
      flights_.clear();
      Finish();
      throw;
    }
  }

  void RequireRank(int peer, const std::string& what) const {
    Require(peer >= 0 && peer < Size(), "no rank ", peer, " in a world of ", Size(), ": ", what);
  }

  /// Copies the messages that this rank sends to itself.
  void KeepOwn(Span<const Outgoing> out, Span<Incoming> in, const std::string& what) const {
    auto* sent = out.begin();
    const auto is_own = [this](const auto& message) { return message.peer == rank_; };
    for (Incoming& message : in) {
      if (!is_own(message)) continue;
      sent = std::find_if(sent, out.end(), is_own);
      Require(sent != out.end(), "rank ", rank_, " waits for itself in ", what);
      if (sent->bytes > message.capacity) {
        RefuseLength(rank_, rank_, sent->bytes, message.capacity, what);
      }
      std::copy_n(static_cast<const std::uint8_t*>(sent->data), sent->bytes,
                  static_cast<std::uint8_t*>(message.data));
      message.bytes = sent->bytes;
      ++sent;
    }
    Require(std::none_of(sent, out.end(), is_own), "rank ", rank_,
            " sends itself a message that it does not receive in ", what);
  }

  /// Returns the streams with a peer, one for each connection.
  std::vector<TcpStream>& StreamsWith(int peer) {
    auto& streams = streams_[static_cast<std::size_t>(peer)];
    const auto count = static_cast<std::size_t>(connections_);
    streams.reserve(count);  // so that pointers to them stay valid
    while (streams.size() < count) {
      streams.emplace_back(rank_, peer, static_cast<int>(streams.size()), connections_);
    }
    return streams;
  }

  /// Returns the streams with a peer, which become part of the transfer.
  std::vector<TcpStream>& StreamsTo(int peer) {
    if (requested_.insert(peer).second) rendezvous_.Request(peer);
    std::vector<TcpStream>& streams = StreamsWith(peer);
    for (TcpStream& stream : streams) {
      if (stream.idle()) active_.push_back(&stream);
    }
    return streams;
  }

  void Finish() {
    for (TcpStream* stream : active_) {
      if (stream->sends()) in_flight_.Add(stream);
      stream->Forget();
    }
    active_.clear();
  }

  void WaitFor(const Flight& flight) {
    const std::string& what = flight.what;
    Patience patience(Limits(), rank_, what, [this] { return Peers(); });
    bool moving = true;
    while (!flight.done()) {
      if (moving) {
        patience.Progress();
      } else {
        patience.PauseUntilWoken([this](std::chrono::microseconds time) { Poll(time); },
                                 held_ ? TcpStream::kSoon : kLongestSleep);
        WatchPeers(what);
      }
      held_ = held_ && MustHold();
      moving = Look(what);
    }
  }

  /// True if this transfer's messages must wait for messages of earlier transfers to other peers.
  bool MustHold() {
    int receiver = -1;
    bool several = false;
    for (const TcpStream* stream : active_) {
      if (!stream->sends()) continue;
      several = several || (receiver >= 0 && stream->peer() != receiver);
      receiver = stream->peer();
    }
    return receiver >= 0 && in_flight_.Moving(several ? -1 : receiver);
  }

  /// Returns the peers that the first transfer waits for, and why unreachable ones cannot be
  /// reached.
  std::string Peers() const {
    std::set<int> awaited;
    for (const auto& [stream, end] : flights_.front().ends) {
      if (!stream->done(end)) awaited.insert(stream->peer());
    }
    std::string peers;
    for (const int peer : awaited) {
      peers += Concat(peers.empty() ? "" : ", ", peer);
      const std::string obstacle = rendezvous_.Obstacle(peer);
      if (!obstacle.empty()) peers += Concat(" (", obstacle, ")");
    }
    return peers;
  }

  /// Advances the setup of connections that are missing.
  void Connect() {
    if (!rendezvous_.busy()) return;
    for (TcpRendezvous::Arrival& arrival : rendezvous_.Advance()) {
      TcpStream& stream = StreamsWith(arrival.peer)[static_cast<std::size_t>(arrival.connection)];
      if (arrival.problem.empty()) {
        stream.Open(std::move(arrival.socket));
      } else {
        stream.Lose(arrival.problem);
      }
    }
  }

  /// Sends and receives without waiting; returns true if any byte has moved.
  bool Look(const std::string& what) {
    Connect();
    Poll(std::chrono::microseconds(0));
    bool moved = false;
    for (std::size_t i = 0; i < polled_streams_.size(); ++i) {
      if (polled_[i].revents != 0) moved |= polled_streams_[i]->Move(what, held_);
    }
    return moved;
  }

  /// Sleeps until a byte can move, but not longer than `time`.
  void Poll(std::chrono::microseconds time) {
    polled_.clear();
    polled_streams_.clear();
    for (TcpStream* stream : active_) {
      const short events = stream->events(held_);
      if (!stream->open() || events == 0) continue;
      polled_.push_back({stream->fd(), events, 0});
      polled_streams_.push_back(stream);
    }
    rendezvous_.AddTo(&polled_);
    const timespec patience{0, static_cast<long>(time.count()) * 1000};  // NOLINT: a long for ppoll
    ::ppoll(polled_.data(), polled_.size(), &patience, nullptr);
  }

  /// Throws if the exchange has ended, or if a peer that this rank waits for can no longer be
  /// reached.
  void WatchPeers(const std::string& what) {
    const auto lost = std::find_if(active_.begin(), active_.end(), [](const TcpStream* stream) {
      return !stream->done() && !stream->lost().empty();
    });
    const bool any_lost = lost != active_.end();
    if (lifeline() != nullptr) {
      // A broken connection delivers nothing more, so ranks that left get no grace.
      const auto failure = any_lost ? lifeline()->CurrentFailure(0) : lifeline()->CurrentFailure();
      if (failure) {
        throw Error(failure->kind, Concat(failure->message, "; rank ", rank_,
                                          " was waiting for rank ", Peers(), " in ", what));
      }
    }
    if (!any_lost) return;
    if (!verdict_due_) verdict_due_ = After(lifeline() == nullptr ? 0 : kVerdictSeconds);
    if (Clock::now() < *verdict_due_) return;
    Throw(ErrorKind::kPeerLost, "rank ", rank_, " has lost rank ", (*lost)->peer(), " (",
          (*lost)->lost(), ") in ", what);
  }

  const int rank_, connections_;
  std::vector<std::vector<TcpStream>> streams_;  // by peer; none until one is needed
  std::set<int> requested_;                      // peers with whom connections were requested
  TcpRendezvous rendezvous_;
  std::string broken_;  // the error after which nothing more can be sent
  std::optional<Clock::time_point> verdict_due_;

  InFlightMessages in_flight_;
  bool held_ = false;               // true while the messages below wait for in_flight_
  std::deque<Flight> flights_;      // transfers that have begun, in this order
  std::vector<TcpStream*> active_;  // their streams
  std::vector<pollfd> polled_;
  std::vector<TcpStream*> polled_streams_;  // streams of the first entries of polled_
};

}  // namespace

TcpPort::TcpPort() { address_ = Listen(&listener_); }

Listener TcpPort::Take() {
  Require(static_cast<bool>(listener_.socket), "this port has been taken already");
  return std::move(listener_);
}

std::unique_ptr<Communicator> MakeTcpCommunicator(const TcpOptions& options, TcpPort* port,
                                                  std::shared_ptr<Lifeline> lifeline) {
  const int size = static_cast<int>(options.addresses.size());
  Require(options.rank >= 0 && options.rank < size, "rank must lie in [0, ", size, "), got ",
          options.rank);
  std::vector<ListenAddress> addresses;
  addresses.reserve(options.addresses.size());
  for (const std::string& text : options.addresses) addresses.push_back(ListenAddress::Parse(text));
  return std::make_unique<TcpCommunicator>(options.rank, std::move(addresses), port->Take(),
                                           options.limits, std::move(lifeline));
}

}  // namespace hvd_sparse

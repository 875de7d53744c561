/// The lifeline of an exchange; see the header.
///
/// Rank 0 relays: it tells all others what it learns of one rank. All connections belong to the
/// watching thread, which sleeps in poll(); other threads leave orders for it and wake it.

#include "csrc/comm/lifeline.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/base/process.h"
#include "csrc/comm/lifeline_rendezvous.h"
#include "csrc/comm/lifeline_verdict.h"

namespace hvd_sparse {
namespace {

// How long a rank whose messages nobody needs waits for its goodbye to arrive.
constexpr double kGoodbyeSeconds = 0.5;

double AbortSeconds() {
  const char* text = std::getenv("HVD_SPARSE_ABORT_SECONDS");
  if (text == nullptr || *text == '\0') return 45.0;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  Require(*end == '\0' && std::isfinite(seconds) && seconds >= 0,
          "HVD_SPARSE_ABORT_SECONDS must be a number of seconds, at least 0, got '", text, "'");
  return seconds;
}

/// Returns the number of connections that HVD_SPARSE_CONNECTIONS asks for; 0 if it is not set.
int AskedConnections() {
  const char* text = std::getenv("HVD_SPARSE_CONNECTIONS");
  if (text == nullptr || *text == '\0') return 0;
  char* end = nullptr;
  const long number = std::strtol(text, &end, 10);  // NOLINT(google-runtime-int)
  Require(*end == '\0' && number >= 1 && number <= kMostConnections,
          "HVD_SPARSE_CONNECTIONS must be a number in [1, ", kMostConnections, "], got '", text,
          "'");
  return static_cast<int>(number);
}

/// Returns the record that rank `rank` has committed `steps` steps, or leaves after them.
Record StepsRecord(RecordKind kind, int rank, std::int64_t steps) {
  Record record{kind, rank};
  record.steps = steps;
  return record;
}

/// Prints the failure and ends the process without running anything that could hang.
[[noreturn]] void EndProcess(const std::string& failure) {
  const std::string text =
      Concat("hvd_sparse: ", failure,
             "; this process is still inside a collective that can no longer finish, ending it\n");
  const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
  static_cast<void>(written);
  ::_exit(1);
}

}  // namespace

class Lifeline::Impl {
 public:
  Impl(int rank, int size, const std::string& name);
  ~Impl();

  std::string Listen();
  void Connect(const std::string& address, double seconds);
  void Fail(ErrorKind kind, const std::string& reason);
  void Committed(std::int64_t steps);

  LifelineVerdict& verdict() { return verdict_; }
  int connections() const { return start_.connections; }

  /// True in a forked child: the thread and the connections are the parent's, and mutexes may be
  /// locked.
  bool InForkedChild() const { return fork_count_ != ForkCount(); }

 private:
  void Wake();
  void WarnOfDeath() noexcept;

  // On the watching thread:
  void Watch();
  void Sleep(const std::optional<Clock::time_point>& deadline);
  void CarryOutOrders();
  void SendSteps();
  std::int64_t StepsOfAll() const;
  void CloseUnneeded();
  void Serve(int rank);
  void Handle(int from, const Record& record);
  void SendToOthers(const Record& record, int except = -1);

  const int rank_, size_, fork_count_ = ForkCount();
  const std::string name_;
  const double abort_seconds_ = AbortSeconds();
  const int asked_connections_ = AskedConnections();
  LifelineVerdict verdict_;
  ListenAddress address_;
  Listener listener_;
  Descriptor wake_;

  LifelineStart start_;
  LifelinePeers& peers_ = start_.peers;       // still connected: on rank 0 all others, else rank 0
  std::optional<Clock::time_point> leaving_;  // set once this rank leaves: the deadline for peers_
  std::int64_t steps_sent_ = 0;
  std::thread thread_;

  std::mutex mutex_;  // guards the orders
  std::optional<Record> fail_order_;
  bool leave_order_ = false;
};

Lifeline::Impl::Impl(int rank, int size, const std::string& name)
    : rank_(rank), size_(size), name_(name), verdict_(size, name) {
  Require(rank >= 0 && rank < size, "rank must lie in [0, ", size, "), got ", rank);
  if (size == 1) return;
  wake_ = Descriptor::Open([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  if (!wake_) Throw(ErrorKind::kUnavailable, "cannot create an eventfd: ", std::strerror(errno));
}

Lifeline::Impl::~Impl() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    leave_order_ = true;
  }
  Wake();
  thread_.join();
  WarnOfDeath();
}

std::string Lifeline::Impl::Listen() {
  Require(rank_ == 0, "only rank 0 listens, not rank ", rank_);
  if (!listener_.socket) address_ = hvd_sparse::Listen(&listener_);
  return address_.Text();
}

void Lifeline::Impl::Connect(const std::string& address, double seconds) {
  Require(!thread_.joinable(), "the lifeline of exchange '", name_, "' is connected already");
  if (size_ == 1) return;
  if (rank_ == 0) {
    Require(static_cast<bool>(listener_.socket), "Connect on rank 0 comes after Listen");
    start_ = AwaitPeers(std::move(listener_), address_, size_, name_, seconds, asked_connections_);
  } else {
    start_ = JoinPeers(ListenAddress::Parse(address), rank_, size_, name_, seconds);
  }
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { Watch(); });
  pthread_setname_np(thread_.native_handle(), "hvd_lifeline");
}

void Lifeline::Impl::Fail(ErrorKind kind, const std::string& reason) {
  const std::int64_t steps = verdict_.steps();
  Record order{RecordKind::kFail, rank_, reason, kind, steps};
  if (!verdict_.Failed(rank_, kind, reason, steps)) return;  // all ranks know it or are being told
  {
    std::lock_guard<std::mutex> lock(mutex_);
    fail_order_ = std::move(order);
  }
  Wake();
}

void Lifeline::Impl::Committed(std::int64_t steps) {
  if (verdict_.Committed(steps)) Wake();
}

void Lifeline::Impl::Wake() {
  const std::uint64_t one = 1;
  if (wake_ && ::write(wake_.get(), &one, sizeof(one)) < 0) return;  // full: it wakes anyway
}

/// Warns of a death that the user may not know of: Horovod fails on all ranks then, with an error
/// that does not mention it.
void Lifeline::Impl::WarnOfDeath() noexcept {
  try {
    const auto death = verdict_.UnacknowledgedDeath();
    if (!death) return;
    Warn(death->failure.message);
    verdict_.Acknowledge();
  } catch (const std::bad_alloc&) {
    // There is no memory for the warning; the user has at least seen Horovod's error.
  }
}

void Lifeline::Impl::Watch() {
  // The rendezvous may have read more than its own records.
  for (int rank = 0; rank < size_; ++rank) Serve(rank);

  while (true) {
    CarryOutOrders();
    rank_ == 0 ? CloseUnneeded() : SendSteps();
    if (leaving_ && (peers_.empty() || Clock::now() >= *leaving_)) return;

    auto deadline = leaving_;
    const auto death = verdict_.UnacknowledgedDeath();
    if (death && abort_seconds_ > 0 && !leaving_) {
      deadline = death->time + Seconds(abort_seconds_);
      if (Clock::now() >= *deadline) EndProcess(death->failure.message);
    }
    Sleep(deadline);
  }
}

void Lifeline::Impl::Sleep(const std::optional<Clock::time_point>& deadline) {
  std::vector<pollfd> polled{{wake_.get(), POLLIN, 0}};
  std::vector<int> ranks{rank_};
  for (const auto& [rank, peer] : peers_) {
    polled.push_back({peer.connection.fd(), peer.connection.events(), 0});
    ranks.push_back(rank);
  }
  if (::poll(polled.data(), polled.size(), deadline ? PollTimeout(*deadline) : -1) <= 0) return;

  std::uint64_t wakes = 0;
  if (polled[0].revents != 0 && ::read(wake_.get(), &wakes, sizeof(wakes)) < 0) return;
  for (std::size_t i = 1; i < polled.size(); ++i) {
    if (polled[i].revents != 0) Serve(ranks[i]);
  }
}

void Lifeline::Impl::CarryOutOrders() {
  std::optional<Record> fail;
  bool leave = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    fail.swap(fail_order_);
    leave = leave_order_;
  }
  if (fail) SendToOthers(*fail);
  if (!leave || leaving_) return;
  const std::int64_t steps = verdict_.steps();
  SendToOthers(StepsRecord(RecordKind::kGoodbye, rank_, steps));
  const bool may_be_needed = steps > 0 && verdict_.CanCommit(steps);
  leaving_ = After(may_be_needed ? kLastMessagesSeconds : kGoodbyeSeconds);
}

/// Tells rank 0 of this rank's committed steps, for which ranks that leave wait.
void Lifeline::Impl::SendSteps() {
  const std::int64_t steps = verdict_.steps();
  if (steps == steps_sent_ || leaving_ || !verdict_.Any()) return;
  steps_sent_ = steps;
  SendToOthers(StepsRecord(RecordKind::kCommitted, rank_, steps));
}

/// On rank 0: returns the number of steps that all ranks have committed, leaving ranks excepted.
std::int64_t Lifeline::Impl::StepsOfAll() const {
  constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
  std::int64_t steps = leaving_ ? kAny : verdict_.steps();
  for (const auto& [rank, peer] : peers_) {
    if (!peer.is_leaving) steps = std::min(steps, peer.steps);
  }
  return steps;
}

/// On rank 0: closes the connections of leaving ranks whose messages nobody needs any more, or all
/// connections if rank 0 is such a rank itself.
void Lifeline::Impl::CloseUnneeded() {
  const std::int64_t of_all = StepsOfAll();
  const auto may_go = [&](std::int64_t steps) {
    return steps <= of_all || !verdict_.CanCommit(steps);
  };
  if (leaving_ && may_go(verdict_.steps())) return peers_.clear();
  for (auto peer = peers_.begin(); peer != peers_.end();) {
    const bool goes = peer->second.is_leaving && may_go(peer->second.steps);
    peer = goes ? peers_.erase(peer) : std::next(peer);
  }
}

/// Sends and receives without blocking, and handles the records received from `rank`.
void Lifeline::Impl::Serve(int rank) {
  const auto peer = peers_.find(rank);
  if (peer == peers_.end()) return;
  LifelineConnection& connection = peer->second.connection;
  connection.Flush();
  connection.Receive();
  while (const auto record = connection.Next()) Handle(rank, *record);
  if (connection.broken() == 0) return;

  const int error = connection.broken();
  const std::string host_and_pid = peer->second.host_and_pid;
  const bool was_to_close = peer->second.is_leaving || (rank == 0 && leaving_);
  peers_.erase(peer);
  if (was_to_close) return;
  const bool unreachable = error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH;
  const std::string how =
      Concat(unreachable ? "can no longer be reached (" : "has died (", host_and_pid, ")");
  verdict_.Lost(rank, how);
  SendToOthers({RecordKind::kLost, rank, how});
}

void Lifeline::Impl::Handle(int from, const Record& record) {
  // Rank 0 relays records about any rank; the others send records about themselves.
  const int about = rank_ == 0 || record.kind == RecordKind::kGoodbye ? from : record.rank;
  if (about < 0 || about >= size_) return;
  switch (record.kind) {
    case RecordKind::kCommitted:
      peers_.at(from).steps = record.steps;
      return;
    case RecordKind::kGoodbye:
      peers_.at(from).steps = record.steps;
      peers_.at(from).is_leaving = true;
      [[fallthrough]];
    case RecordKind::kLeft:
      verdict_.Left(about, record.steps);
      SendToOthers(StepsRecord(RecordKind::kLeft, about, record.steps), from);
      return;
    case RecordKind::kFail:
      if (verdict_.Failed(about, record.error, record.text, record.steps)) {
        SendToOthers({RecordKind::kFail, about, record.text, record.error, record.steps}, from);
      }
      return;
    case RecordKind::kLost:
      verdict_.Lost(about, record.text);
      return;
    case RecordKind::kHello:
    case RecordKind::kWelcome:
    case RecordKind::kStart:
      return;
  }
}

/// Posts the record to all connected peers but `except`: on rank 0 all others, elsewhere rank 0.
void Lifeline::Impl::SendToOthers(const Record& record, int except) {
  for (auto& [rank, peer] : peers_) {
    if (rank != except) peer.connection.Post(record);
  }
}

Lifeline::Lifeline(int rank, int size, const std::string& name)
    : impl_(std::make_unique<Impl>(rank, size, name)) {}

Lifeline::~Lifeline() {
  if (!impl_->InForkedChild()) return;
  [[maybe_unused]] Impl* leaked = impl_.release();  // its thread and mutexes are the parent's
}

std::string Lifeline::Listen() { return impl_->Listen(); }

void Lifeline::Connect(const std::string& address, double seconds) {
  impl_->Connect(address, seconds);
}

int Lifeline::connections() const { return impl_->connections(); }

void Lifeline::Fail(ErrorKind kind, const std::string& reason) {
  if (!impl_->InForkedChild()) impl_->Fail(kind, reason);
}

void Lifeline::Committed(std::int64_t steps) {
  if (!impl_->InForkedChild()) impl_->Committed(steps);
}

std::optional<Lifeline::Failure> Lifeline::CurrentFailure(double grace_seconds) const {
  if (impl_->InForkedChild()) return std::nullopt;
  return impl_->verdict().Current(grace_seconds);
}

std::optional<Lifeline::Failure> Lifeline::FailureAtEnd() const {
  if (impl_->InForkedChild()) return std::nullopt;
  return impl_->verdict().AtEnd();
}

void Lifeline::Acknowledge() {
  if (!impl_->InForkedChild()) impl_->verdict().Acknowledge();
}

}  // namespace hvd_sparse

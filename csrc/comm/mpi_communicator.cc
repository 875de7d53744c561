#include "csrc/comm/mpi_communicator.h"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/comm/lifeline_communicator.h"
#include "csrc/comm/message_chunks.h"
#include "csrc/comm/socket.h"

// Open MPI and MPICH define this function, but declare it in headers that not every build installs.
// It is null if the loaded library lacks it.
extern "C" __attribute__((weak)) int MPIX_Query_cuda_support(void);

namespace hvd_sparse {
namespace {

constexpr int kTag = 1;
constexpr double kGoodbyeSeconds = 2.0;  // wait for the goodbye of the rank that ended MPI

void CheckMpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  Throw(ErrorKind::kExchangeFailed, call, " failed: ", text);
}

// Between machines, longer messages are sent in chunks that Open MPI sends over TCP eagerly,
// without asking the receiver (its btl_tcp_eager_limit is 64 KiB, headers included). Of a longer
// chunk it sends the head and waits for an answer, which queues behind the peer's own data: two
// ranks that swap would take turns on a full-duplex link.
constexpr std::int64_t kRemoteChunk = 64 * 1024 - 512;
// The most chunks of a message in flight: enough for 25 Gb/s between two looks.
constexpr int kWindow = 8;

/// Returns why the loaded and initialised MPI library cannot take GPU memory, as far as it says so
/// itself; empty if it can. No other place asks it.
std::string MemoryProblem() {
  const bool says = &MPIX_Query_cuda_support != nullptr;
  if (says && MPIX_Query_cuda_support() != 0) return "";
  const std::string version = MpiLibraryVersion();
  return Concat(version.substr(0, version.find(',')),
                says ? " says that it is not CUDA-aware" : " does not say whether it is CUDA-aware",
                " (MPIX_Query_cuda_support)");
}

bool Finalized() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  return finalized != 0;
}

/// One message of a transfer, in one direction.
struct Stream {
  int peer;
  bool sends;
  std::int64_t bytes;  // bytes to send, or capacity to receive
  MessageChunks chunks;
};

/// The messages of one transfer, and the MPI requests of their chunks.
class Streams {
 public:
  /// `limits` are the maximal lengths of chunks, by peer; `rank` is this rank; the memory of `in`
  /// must outlive all calls of Finish().
  Streams(MPI_Comm comm, int rank, Span<const Outgoing> out, Span<Incoming> in,
          const std::vector<std::int64_t>& limits, std::string what)
      : comm_(comm), rank_(rank), in_(in), what_(std::move(what)) {
    const auto limit = [&](int peer) { return limits[static_cast<std::size_t>(peer)]; };
    streams_.reserve(static_cast<std::size_t>(out.size + in.size));
    for (const Incoming& message : in) {
      streams_.push_back(
          {message.peer,
           false,
           message.capacity,
           {MessageChunks::Direction::kIn, message.data, message.capacity, limit(message.peer)}});
    }
    for (const Outgoing& message : out) {
      streams_.push_back({message.peer,
                          true,
                          message.bytes,
                          {MessageChunks::Direction::kOut, const_cast<void*>(message.data),
                           message.bytes, limit(message.peer)}});
    }
    requests_.assign(kWindow * streams_.size(), MPI_REQUEST_NULL);
    complete_.resize(requests_.size());
    statuses_.resize(requests_.size());
  }

  const std::string& what() const { return what_; }

  /// Notes in `in` how long the messages are that were received.
  void Finish() {
    for (std::int64_t i = 0; i < in_.size; ++i) {
      in_[i].bytes = streams_[static_cast<std::size_t>(i)].chunks.moved();
    }
  }

  /// Posts all chunks that may be posted now. MPI matches messages in the order in which they were
  /// posted, so one to or from a peer waits until all chunks of those before it have been posted:
  /// `waiting` says of each peer and direction whether some have not, and is updated.
  void Post(std::vector<bool>* waiting) {
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      Stream& stream = streams_[i];
      const auto way = 2 * static_cast<std::size_t>(stream.peer) + (stream.sends ? 1 : 0);
      if ((*waiting)[way]) continue;
      for (std::size_t slot = kWindow * i; slot < kWindow * (i + 1); ++slot) {
        if (requests_[slot] == MPI_REQUEST_NULL && stream.chunks.CanPost()) {
          PostChunk(&stream, &requests_[slot]);
        }
      }
      (*waiting)[way] = !stream.chunks.all_posted();
    }
  }

  /// Tests all requests once; returns true if any has completed.
  bool Look() {
    int arrived = 0;
    const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &arrived,
                                  complete_.data(), statuses_.data());
    if (code != MPI_ERR_IN_STATUS) CheckMpi(code, "MPI_Testsome");
    if (arrived == MPI_UNDEFINED) return false;
    for (int i = 0; i < arrived; ++i) {
      Stream& stream = streams_[static_cast<std::size_t>(complete_[i]) / kWindow];
      if (code == MPI_ERR_IN_STATUS) CheckChunk(stream, statuses_[i].MPI_ERROR);
      int bytes = 0;
      if (!stream.sends) {
        CheckMpi(MPI_Get_count(&statuses_[i], MPI_BYTE, &bytes), "MPI_Get_count");
      }
      try {
        stream.chunks.Arrived(bytes);
      } catch (const Error& error) {
        Throw(error.kind(), error.what(), ", from rank ", stream.peer, " to rank ", rank_, ", in ",
              what_);
      }
    }
    return arrived > 0;
  }

  bool done() const {
    return std::all_of(streams_.begin(), streams_.end(),
                       [](const Stream& stream) { return stream.chunks.done(); });
  }

  /// Returns the peers that this rank still waits for.
  std::string Peers() const {
    std::set<int> waiting;
    for (const Stream& stream : streams_) {
      if (!stream.chunks.done()) waiting.insert(stream.peer);
    }
    std::string peers;
    for (const int peer : waiting) peers += Concat(peers.empty() ? "" : ", ", peer);
    return peers;
  }

  /// Cancels the receives, whose memory is about to be freed; sends cannot be cancelled.
  void Cancel() {
    if (Finalized()) return;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL || streams_[i / kWindow].sends) continue;
      MPI_Cancel(&requests_[i]);
      MPI_Request_free(&requests_[i]);
    }
  }

 private:
  void PostChunk(Stream* stream, MPI_Request* request) {
    const MessageChunks::Chunk chunk = stream->chunks.Post();
    const int count = static_cast<int>(chunk.bytes);  // at most the limit, which is an int
    if (stream->sends) {
      CheckMpi(MPI_Isend(chunk.data, count, MPI_BYTE, stream->peer, kTag, comm_, request),
               "MPI_Isend");
    } else {
      CheckMpi(MPI_Irecv(chunk.data, count, MPI_BYTE, stream->peer, kTag, comm_, request),
               "MPI_Irecv");
    }
  }

  /// Throws the error of a chunk's request, if it has one.
  void CheckChunk(const Stream& stream, int code) const {
    int kind = MPI_SUCCESS;
    MPI_Error_class(code, &kind);
    if (kind == MPI_ERR_TRUNCATE) {
      RefuseLength(stream.peer, rank_, std::nullopt, stream.bytes, what_);
    }
    CheckMpi(code, stream.sends ? "MPI_Isend" : "MPI_Irecv");
  }

  MPI_Comm comm_;
  const int rank_;
  const Span<Incoming> in_;
  const std::string what_;
  std::vector<Stream> streams_;        // those of `in`, then those of `out`
  std::vector<MPI_Request> requests_;  // kWindow for each stream
  std::vector<int> complete_;
  std::vector<MPI_Status> statuses_;
};

class MpiCommunicator final : public LifelineCommunicator {
 public:
  MpiCommunicator(MPI_Comm comm, const MpiOptions& options, std::shared_ptr<Lifeline> lifeline)
      : LifelineCommunicator(std::move(lifeline), options.limits), comm_(comm) {
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
    for (const int machine : options.machines) {
      const std::int64_t most = options.max_message_bytes;
      const bool here = machine == options.machines[static_cast<std::size_t>(rank_)];
      chunk_limits_.push_back(here ? most : std::min(most, kRemoteChunk));
    }
  }

  ~MpiCommunicator() override { GiveUp(); }
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  // The MPI communicator is not freed. A peer that is ahead, or has not learned of a failure yet,
  // may still send to it; such a message would be delivered to the next communicator that gets its
  // number, ours or Horovod's. MPI_Finalize frees the little memory that it holds.

  int Rank() const override { return rank_; }
  int Size() const override { return size_; }

  void Transfer(Span<const Outgoing> out, Span<Incoming> in, const std::string& what) override {
    Begin(out, in, what);
    Wait();
  }

  void Begin(Span<const Outgoing> out, Span<Incoming> in, const std::string& what) override {
    flights_.push_back(std::make_unique<Streams>(comm_, rank_, out, in, chunk_limits_, what));
    Guarded([this] {
      RequireAlive(*flights_.back());
      Post();
    });
  }

  void Wait() override {
    Guarded([this] { WaitForFirst(); });
    flights_.front()->Finish();
    flights_.pop_front();
  }

  // Messages are cut into chunks by address only, so only MPI accesses their bytes.
  std::string DeviceMemoryProblem() const override { return MemoryProblem(); }

 private:
  /// Runs `work`; after an error no transfer goes on.
  template <typename Work>
  void Guarded(const Work& work) {
    try {
      work();
    } catch (...) {
      GiveUp();
      throw;
    }
  }

  void GiveUp() {
    for (auto& streams : flights_) {
      streams->Cancel();
      static_cast<void>(streams.release());  // MPI may still read a length from there
    }
    flights_.clear();
  }

  void Post() {
    waiting_.assign(2 * static_cast<std::size_t>(size_), false);
    for (const auto& streams : flights_) streams->Post(&waiting_);
  }

  void WaitForFirst() {
    const Streams& first = *flights_.front();
    Patience patience(Limits(), rank_, first.what(), [&] { return first.Peers(); });
    for (;;) {
      RequireAlive(first);
      Post();
      bool moving = false;
      for (const auto& streams : flights_) moving |= streams->Look();
      if (first.done()) return;
      if (moving) {
        patience.Progress();
      } else {
        patience.Pause();
      }
    }
  }

  /// Throws if the exchange or MPI has ended. Called right before each MPI call, the first
  /// included: once a rank has left, Horovod finalizes MPI on all others.
  void RequireAlive(const Streams& streams) const {
    const auto waiting = [&] {
      return Concat("; rank ", rank_, " was waiting for rank ", streams.Peers(), " in ",
                    streams.what());
    };
    if (lifeline() != nullptr) {
      if (auto failure = lifeline()->CurrentFailure()) {
        throw Error(failure->kind, failure->message + waiting());
      }
    }
    if (!Finalized()) return;
    const auto failure = ReasonMpiEnded();
    Throw(failure ? failure->kind : ErrorKind::kPeerLeft,
          failure ? failure->message : "MPI was finalized because a rank has shut Horovod down",
          waiting());
  }

  /// Returns why MPI has ended: a rank sends its goodbye on its lifeline before it shuts Horovod
  /// down.
  std::optional<Lifeline::Failure> ReasonMpiEnded() const {
    std::optional<Lifeline::Failure> failure;
    for (const auto deadline = After(kGoodbyeSeconds);
         lifeline() != nullptr && !failure && Clock::now() < deadline;) {
      failure = lifeline()->CurrentFailure(0);
      if (!failure) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return failure;
  }

  MPI_Comm comm_;
  std::vector<std::int64_t> chunk_limits_;        // by peer
  std::deque<std::unique_ptr<Streams>> flights_;  // transfers that have begun, in this order
  std::vector<bool> waiting_;                     // see Streams::Post
  int rank_ = 0;
  int size_ = 1;
};

const char* ThreadLevelName(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE:
      return "MPI_THREAD_SINGLE";
    case MPI_THREAD_FUNNELED:
      return "MPI_THREAD_FUNNELED";
    case MPI_THREAD_SERIALIZED:
      return "MPI_THREAD_SERIALIZED";
    default:
      return "MPI_THREAD_MULTIPLE";
  }
}

void RequireInitialized() {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (!initialized) {
    Throw(ErrorKind::kUnavailable,
          "MPI is not initialised: call hvd.init() first, in a job that uses MPI "
          "(horovodrun --mpi)");
  }
}

}  // namespace

std::unique_ptr<Communicator> MakeMpiCommunicator(const MpiOptions& options,
                                                  std::shared_ptr<Lifeline> lifeline) {
  RequireInitialized();
  Require(options.max_message_bytes >= 1 && options.max_message_bytes <= INT32_MAX,
          "max_message_bytes must lie in [1, 2^31), got ", options.max_message_bytes);
  Require(options.machines.size() == options.world_ranks.size(), "there are ",
          options.machines.size(), " machines for ", options.world_ranks.size(), " ranks");
  int level = 0;
  MPI_Query_thread(&level);
  if (level != MPI_THREAD_MULTIPLE) {
    Throw(ErrorKind::kUnavailable, "MPI runs with ", ThreadLevelName(level),
          ", needed is MPI_THREAD_MULTIPLE: unset HOROVOD_MPI_THREADS_DISABLE, or use an MPI "
          "library built with thread support");
  }
  MPI_Group world, group;
  CheckMpi(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
  CheckMpi(MPI_Group_incl(world, static_cast<int>(options.world_ranks.size()),
                          options.world_ranks.data(), &group),
           "MPI_Group_incl");
  MPI_Comm comm = MPI_COMM_NULL;
  const int code = MPI_Comm_create_group(MPI_COMM_WORLD, group, options.tag, &comm);
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  CheckMpi(code, "MPI_Comm_create_group");
  return std::make_unique<MpiCommunicator>(comm, options, std::move(lifeline));
}

int MpiWorldRank() {
  RequireInitialized();
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

std::string MpiLibraryVersion() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string version(text, static_cast<std::size_t>(length));
  return version.substr(0, version.find('\n'));
}

MpiGrants AskMpi() {
  int level = 0;
  CheckMpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
  MpiGrants grants{ThreadLevelName(level), MemoryProblem()};
  MPI_Finalize();
  return grants;
}

}  // namespace hvd_sparse

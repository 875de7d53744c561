#include "csrc/comm/mpi_communicator.h"

#include <mpi.h>

#include <algorithm>
#include <utility>

#include "csrc/base/error.h"

namespace hvd_sparse {
namespace {

constexpr int kTag = 1;

void CheckMpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  Throw(ErrorKind::kExchangeFailed, call, " failed: ", text);
}

/// One direction of a transfer with one peer: pieces of `limit` bytes, then a shorter one (maybe
/// empty), which ends it. So the receiver needs to know the length of no message in advance.
class OneWay {
 public:
  OneWay(MPI_Comm comm, int peer, std::uint8_t* data, std::int64_t bytes, std::int64_t limit,
         bool sends)
      : comm_(comm), peer_(peer), data_(data), bytes_(bytes), limit_(limit), sends_(sends) {
    Post();
  }

  /// Takes back a receive whose memory is about to go; a send cannot be taken back.
  void Cancel() {
    if (request_ == MPI_REQUEST_NULL || sends_) return;
    MPI_Cancel(&request_);
    MPI_Request_free(&request_);
  }

  int peer() const { return peer_; }
  bool done() const { return done_; }
  std::int64_t moved() const { return moved_; }

  /// Looks whether the current piece has arrived, and posts the next one.
  void Test() {
    int complete = 0;
    MPI_Status status;
    CheckMpi(MPI_Test(&request_, &complete, &status), sends_ ? "MPI_Isend" : "MPI_Irecv");
    if (!complete) return;
    std::int64_t piece = piece_;
    if (!sends_) {
      int received = 0;
      CheckMpi(MPI_Get_count(&status, MPI_BYTE, &received), "MPI_Get_count");
      piece = received;
    }
    moved_ += piece;
    if (piece < limit_) {
      done_ = true;
    } else {
      Post();
    }
  }

 private:
  void Post() {
    piece_ = std::min(limit_, bytes_ - moved_);
    const int count = static_cast<int>(piece_);  // piece_ <= limit_ <= INT_MAX
    std::uint8_t* const at = data_ + moved_;
    if (sends_) {
      CheckMpi(MPI_Isend(at, count, MPI_BYTE, peer_, kTag, comm_, &request_), "MPI_Isend");
    } else {
      CheckMpi(MPI_Irecv(at, count, MPI_BYTE, peer_, kTag, comm_, &request_), "MPI_Irecv");
    }
  }

  MPI_Comm comm_;
  int peer_;
  std::uint8_t* data_;
  std::int64_t bytes_;  // to send, or room to receive
  std::int64_t limit_;
  bool sends_;
  std::int64_t moved_ = 0;
  std::int64_t piece_ = 0;
  bool done_ = false;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(MPI_Comm comm, const MpiOptions& options, std::shared_ptr<Lifeline> lifeline)
      : comm_(comm),
        limits_(options.limits),
        max_message_bytes_(options.max_message_bytes),
        lifeline_(std::move(lifeline)) {
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
  }

  // The MPI communicator is not freed. A peer that is ahead, or that has not heard of a failure
  // yet, may still send to it; such a message would be delivered to the next communicator that gets
  // its number, ours or Horovod's. MPI_Finalize frees what little it holds.

  int Rank() const override { return rank_; }
  int Size() const override { return size_; }

  void Transfer(Span<const Outgoing> out, Span<Incoming> in, const std::string& what) override {
    Check();
    std::vector<OneWay> streams;
    streams.reserve(static_cast<std::size_t>(out.size + in.size));
    try {
      for (Incoming& message : in) {
        streams.emplace_back(comm_, message.peer, static_cast<std::uint8_t*>(message.data),
                             message.capacity, max_message_bytes_, false);
      }
      for (const Outgoing& message : out) {
        auto* data = static_cast<std::uint8_t*>(const_cast<void*>(message.data));
        streams.emplace_back(comm_, message.peer, data, message.bytes, max_message_bytes_, true);
      }
      WaitForAll(&streams, what);
    } catch (...) {
      for (OneWay& stream : streams) stream.Cancel();
      throw;
    }
    for (std::int64_t i = 0; i < in.size; ++i) {
      in[i].bytes = streams[static_cast<std::size_t>(i)].moved();
    }
  }

  void Fail(const std::string& reason) override {
    if (lifeline_ != nullptr) lifeline_->Fail(reason);
  }

  void Check() override {
    if (lifeline_ == nullptr) return;
    if (auto failure = lifeline_->CurrentFailure()) throw Error(failure->kind, failure->message);
  }

  void Acknowledge() override {
    if (lifeline_ != nullptr) lifeline_->Acknowledge();
  }

 private:
  void WaitForAll(std::vector<OneWay>* streams, const std::string& what) {
    const auto whom = [&] {
      std::string peers;
      for (const OneWay& stream : *streams) {
        if (stream.done()) continue;
        const std::string peer = std::to_string(stream.peer());
        if (peers.find(peer) == std::string::npos) peers += (peers.empty() ? "" : ", ") + peer;
      }
      return peers;
    };
    Patience patience(limits_, rank_, what, whom);
    for (;;) {
      bool all_done = true;
      for (OneWay& stream : *streams) {
        if (!stream.done()) stream.Test();
        all_done &= stream.done();
      }
      if (all_done) return;
      if (lifeline_ != nullptr) {
        if (auto failure = lifeline_->CurrentFailure()) {
          throw Error(failure->kind, Concat(failure->message, "; rank ", rank_,
                                            " was waiting for rank ", whom(), " in ", what));
        }
      }
      patience.Pause();
    }
  }

  MPI_Comm comm_;
  WaitLimits limits_;
  std::int64_t max_message_bytes_;
  std::shared_ptr<Lifeline> lifeline_;
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

std::string MpiThreadLevel() {
  int level = 0;
  CheckMpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
  MPI_Finalize();
  return ThreadLevelName(level);
}

}  // namespace hvd_sparse

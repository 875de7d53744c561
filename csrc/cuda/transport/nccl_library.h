/// NCCL, loaded at run time: one build serves machines with it and without.
///
/// NCCL's interface is C and stable since 2.14, so nothing of it is needed to build: the few
/// functions that transports call are looked up by name. If a framework has loaded NCCL already, as
/// torch does, that copy is used: two in one process would work side by side, but not know of each
/// other.

#pragma once

#include <climits>
#include <cstddef>
#include <string>
#include <vector>

struct CUstream_st;  // CUDA's cudaStream_t points to this

namespace hvd_sparse::nccl {

/// Returns the number of a version, as NCCL has counted since 2.9.
constexpr int VersionCode(int major, int minor, int patch) {
  return major * 10000 + minor * 100 + patch;
}

/// Send and receive came with 2.7; calls that do not block, so that a rank can abort when a peer
/// has died, with 2.14.
constexpr int kLeastVersion = VersionCode(2, 14, 0);
/// The first version in which several ranks of a communicator may share a GPU, if kSharing is set
/// to 1.
constexpr int kSharingVersion = VersionCode(2, 30, 0);
constexpr const char* kSharing = "NCCL_MULTI_RANK_GPU_ENABLE";

/// Returns the name of a version that ncclGetVersion reports, such as "2.14.3".
std::string VersionName(int code);

// The types of NCCL's functions, under names of our own.

enum Result : int { kSuccess = 0, kInvalidUsage = 5, kRemoteError = 6, kInProgress = 7 };
enum DataType : int { kUint8 = 1 };

/// Identifies a communicator: made on one rank, and sent to all; passed by value.
struct UniqueId {
  char bytes[128];
};

/// Options of a new communicator as of version 2.17. An older NCCL reads the first ones, and a
/// later one, which has more, gives those that `version` lacks its defaults. INT_MIN is a default.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = VersionCode(2, 17, 0);
  int blocking = INT_MIN;
  int cga_cluster_size = INT_MIN;
  int least_ctas = INT_MIN;
  int most_ctas = INT_MIN;
  const char* net_name = nullptr;
};

using Comm = struct OpaqueComm*;

/// NCCL's functions, named without "nccl".
struct Calls {
  Result (*GetVersion)(int* version);
  Result (*GetUniqueId)(UniqueId* id);
  Result (*CommInitRankConfig)(Comm* comm, int size, UniqueId id, int rank, Config* config);
  Result (*CommGetAsyncError)(Comm comm, Result* result);
  Result (*CommFinalize)(Comm comm);
  Result (*CommDestroy)(Comm comm);
  Result (*CommAbort)(Comm comm);
  Result (*GroupStart)();
  Result (*GroupEnd)();
  Result (*Send)(const void* from, std::size_t count, DataType type, int peer, Comm comm,
                 CUstream_st* stream);
  Result (*Recv)(void* to, std::size_t count, DataType type, int peer, Comm comm,
                 CUstream_st* stream);
  const char* (*GetErrorString)(Result result);
  const char* (*GetLastError)(Comm comm);
};

class Library {
 public:
  /// Loads the first of `paths` that can be loaded. It is never unloaded, since NCCL's threads run
  /// in it.
  ///
  /// Throws Unavailable if none can be loaded, or if the first that can is not NCCL or too old.
  explicit Library(const std::vector<std::string>& paths);

  /// Returns the library of this process, loaded at the first call: the file that
  /// HVD_SPARSE_NCCL_LIBRARY names, else libnccl.so.2 as the loader finds it, else a path that
  /// LookAlsoAt named.
  ///
  /// Throws Unavailable like the constructor.
  static const Library& Get();

  /// Sets where else NCCL may be, such as in Python packages; replaces the paths of an earlier
  /// call.
  static void LookAlsoAt(std::vector<std::string> paths);

  /// The file that was loaded.
  const std::string& path() const { return path_; }
  int version() const { return version_; }
  const Calls& calls() const { return calls_; }

  /// Returns NCCL's description of a call that failed.
  std::string Problem(Result result, const char* call, Comm comm) const;

 private:
  std::string path_;
  int version_ = 0;
  Calls calls_ = {};
};

}  // namespace hvd_sparse::nccl

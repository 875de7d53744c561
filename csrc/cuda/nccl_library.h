/// NCCL, found while the program runs: one build serves machines with it and without.
///
/// NCCL's interface is C and stable since 2.14, so nothing of it is needed to build: the few
/// functions that transports call are looked up by name. Where a framework has loaded NCCL already,
/// as torch does, it is that copy: two in one process would work side by side, but not know of each
/// other.

#ifndef HVD_SPARSE_CUDA_NCCL_LIBRARY_H_
#define HVD_SPARSE_CUDA_NCCL_LIBRARY_H_

#include <climits>
#include <cstddef>
#include <string>
#include <vector>

struct CUstream_st;  // to which CUDA's cudaStream_t points

namespace hvd_sparse::nccl {

/// Versions as NCCL numbers them from 2.9 on.
constexpr int VersionCode(int major, int minor, int patch) {
  return major * 10000 + minor * 100 + patch;
}

/// Send and receive came with 2.7; calls that do not block, so that a rank whose peer has died can
/// be freed, with 2.14.
constexpr int kLeastVersion = VersionCode(2, 14, 0);
/// From here on several ranks of a communicator may share a GPU, where kSharing says so.
constexpr int kSharingVersion = VersionCode(2, 30, 0);
constexpr const char* kSharing = "NCCL_MULTI_RANK_GPU_ENABLE";

/// "2.14.3", of what ncclGetVersion says.
std::string VersionName(int code);

// What NCCL's functions take and return, under names of our own.

enum Result : int { kSuccess = 0, kInvalidUsage = 5, kRemoteError = 6, kInProgress = 7 };
enum DataType : int { kUint8 = 1 };

/// Tells communicators apart: made on one rank, handed to all; passed by value.
struct UniqueId {
  char bytes[128];
};

/// Of a new communicator: what version 2.14 knows, to which later ones append. Its version says
/// that the rest is not there, and gets NCCL's defaults.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = kLeastVersion;
  int blocking = INT_MIN;
};

using Comm = struct OpaqueComm*;

/// NCCL's functions, by their names without "nccl".
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
  Result (*AllGather)(const void* from, void* to, std::size_t count, DataType type, Comm comm,
                      CUstream_st* stream);
  const char* (*GetErrorString)(Result result);
  const char* (*GetLastError)(Comm comm);
};

class Library {
 public:
  /// Loads the first of `paths` that can be; for good, since NCCL's threads live in it.
  ///
  /// Throws Unavailable: none can be loaded, or the first that can is no NCCL or too old.
  explicit Library(const std::vector<std::string>& paths);

  /// The library of this process, loaded at the first call: what HVD_SPARSE_NCCL_LIBRARY names,
  /// else libnccl.so.2 as the loader finds it, else what LookAlsoAt named.
  ///
  /// Throws Unavailable, as the constructor does.
  static const Library& Get();

  /// Where else NCCL may be: in Python packages, say. What an earlier call named is forgotten.
  static void LookAlsoAt(std::vector<std::string> paths);

  /// The file that was loaded.
  const std::string& path() const { return path_; }
  int version() const { return version_; }
  const Calls& calls() const { return calls_; }

  /// What NCCL says of a call that failed.
  std::string Problem(Result result, const char* call, Comm comm) const;

 private:
  std::string path_;
  int version_ = 0;
  Calls calls_ = {};
};

}  // namespace hvd_sparse::nccl

#endif  // HVD_SPARSE_CUDA_NCCL_LIBRARY_H_

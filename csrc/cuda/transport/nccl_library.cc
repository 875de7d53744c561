#include "csrc/cuda/transport/nccl_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <utility>

#include "csrc/base/error.h"

namespace hvd_sparse::nccl {
namespace {

constexpr const char* kVariable = "HVD_SPARSE_NCCL_LIBRARY";
constexpr const char* kAdvice =
    "install NCCL (pip install nvidia-nccl-cu12, or -cu13), or name its file by "
    "HVD_SPARSE_NCCL_LIBRARY=/path/to/libnccl.so.2";

/// Looks up functions of a library by name.
class Symbols {
 public:
  Symbols(void* library, const std::string& path) : library_(library), path_(path) {}

  template <typename Function>
  void Find(const char* name, Function** function) const {
    *function = reinterpret_cast<Function*>(::dlsym(library_, name));
    if (*function != nullptr) return;
    Throw(ErrorKind::kUnavailable, path_, " has no ", name, ": it is no NCCL of version ",
          VersionName(kLeastVersion), " or newer; ", kAdvice);
  }

 private:
  void* library_;
  const std::string& path_;
};

/// Returns the file in which a function lies; `otherwise` if that is unknown.
std::string FileOf(const void* function, const std::string& otherwise) {
  Dl_info info;
  const bool known = ::dladdr(function, &info) != 0 && info.dli_fname != nullptr;
  return known ? info.dli_fname : otherwise;
}

std::mutex mutex;  // guards AlsoAt()
std::vector<std::string>& AlsoAt() {
  static std::vector<std::string> paths;
  return paths;
}

std::vector<std::string> Paths() {
  const char* named = std::getenv(kVariable);
  if (named != nullptr && *named != '\0') return {named};
  std::vector<std::string> paths{"libnccl.so.2"};
  const std::lock_guard lock(mutex);
  paths.insert(paths.end(), AlsoAt().begin(), AlsoAt().end());
  return paths;
}

}  // namespace

std::string VersionName(int code) {
  const int unit = code < 10000 ? 1000 : 10000;  // up to 2.8.x
  return Concat(code / unit, ".", code % unit / 100, ".", code % 100);
}

Library::Library(const std::vector<std::string>& paths) {
  void* library = nullptr;
  std::string problems;
  for (const std::string& path : paths) {
    path_ = path;
    library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    const char* problem = ::dlerror();
    problems += Concat(problems.empty() ? "" : "; ", problem == nullptr ? path : problem);
  }
  if (library == nullptr) {
    Throw(ErrorKind::kUnavailable, "NCCL cannot be loaded (", problems, "): ", kAdvice);
  }
  const Symbols symbols(library, path_);
  symbols.Find("ncclGetVersion", &calls_.GetVersion);
  path_ = FileOf(reinterpret_cast<const void*>(calls_.GetVersion), path_);
  if (calls_.GetVersion(&version_) != kSuccess || version_ < kLeastVersion) {
    Throw(ErrorKind::kUnavailable, path_, " is NCCL ", VersionName(version_), ", needed is ",
          VersionName(kLeastVersion), " or newer: ", kAdvice);
  }
  symbols.Find("ncclGetUniqueId", &calls_.GetUniqueId);
  symbols.Find("ncclCommInitRankConfig", &calls_.CommInitRankConfig);
  symbols.Find("ncclCommGetAsyncError", &calls_.CommGetAsyncError);
  symbols.Find("ncclCommFinalize", &calls_.CommFinalize);
  symbols.Find("ncclCommDestroy", &calls_.CommDestroy);
  symbols.Find("ncclCommAbort", &calls_.CommAbort);
  symbols.Find("ncclGroupStart", &calls_.GroupStart);
  symbols.Find("ncclGroupEnd", &calls_.GroupEnd);
  symbols.Find("ncclSend", &calls_.Send);
  symbols.Find("ncclRecv", &calls_.Recv);
  symbols.Find("ncclGetErrorString", &calls_.GetErrorString);
  symbols.Find("ncclGetLastError", &calls_.GetLastError);
}

const Library& Library::Get() {
  static std::mutex loading;
  static const Library* loaded = nullptr;  // never freed, like the library itself
  const std::lock_guard lock(loading);
  if (loaded == nullptr) loaded = std::make_unique<const Library>(Paths()).release();
  return *loaded;
}

void Library::LookAlsoAt(std::vector<std::string> paths) {
  const std::lock_guard lock(mutex);
  AlsoAt() = std::move(paths);
}

std::string Library::Problem(Result result, const char* call, Comm comm) const {
  const char* kind = calls_.GetErrorString(result);
  const char* last = calls_.GetLastError(comm);
  const bool more = last != nullptr && *last != '\0';
  return Concat(call, " failed: ", kind == nullptr ? "unknown" : kind, more ? ": " : "",
                more ? last : "", " (NCCL ", VersionName(version_), ", ", path_, ")");
}

}  // namespace hvd_sparse::nccl

/// The emulated device's memory: how ThreadSanitizer sees it, and which copies and frees wait.

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <vector>

#include "tests/csrc/emulation/strand.h"

namespace {

namespace emulation = hvd_sparse::emulation;

enum class Kind { kPlain, kPinned, kDevice };  // kPlain: CUDA does not know of it

struct Piece {
  std::size_t bytes;
  Kind kind;
  bool is_lent = false;  // from emulation::pinned_from
};

/// Allocations by address; accesses to the map order nothing.
class Pieces {
 public:
  void Add(const void* begin, Piece piece) {
    const emulation::UnseenLocks unseen_locks;
    const emulation::Unseen unseen;
    const std::lock_guard lock(mutex_);
    pieces_[static_cast<const char*>(begin)] = piece;
  }
  Piece Remove(const void* begin) {
    const emulation::UnseenLocks unseen_locks;
    const emulation::Unseen unseen;
    const std::lock_guard lock(mutex_);
    const auto node = pieces_.extract(static_cast<const char*>(begin));
    return node.empty() ? Piece{0, Kind::kPlain} : node.mapped();
  }
  Kind KindOf(const void* address) {
    const emulation::UnseenLocks unseen_locks;
    const std::lock_guard lock(mutex_);
    return Rest(address).kind;
  }
  bool Holds(const void* begin, std::size_t bytes) {
    const emulation::UnseenLocks unseen_locks;
    const std::lock_guard lock(mutex_);
    const Piece rest = Rest(begin);
    return rest.kind == Kind::kPlain || bytes <= rest.bytes;
  }

 private:
  /// Returns the part of an allocation that begins at an address.
  Piece Rest(const void* address) const {
    const auto* const byte = static_cast<const char*>(address);
    const auto behind = pieces_.upper_bound(byte);
    if (behind == pieces_.begin()) return {0, Kind::kPlain};
    const auto& [begin, piece] = *std::prev(behind);
    if (byte >= begin + piece.bytes) return {0, Kind::kPlain};
    return {static_cast<std::size_t>(begin + piece.bytes - byte), piece.kind};
  }

  std::mutex mutex_;
  std::map<const char*, Piece> pieces_;
};
Pieces& pieces = *new Pieces;

/// Allocates with CUDA's alignment and fills with garbage, so that unwritten memory is not zero.
cudaError_t Allocate(void** memory, std::size_t bytes, Kind kind) {
  if (emulation::BreaksACapture()) return cudaErrorStreamCaptureUnsupported;
  bool (*const has_memory)() = emulation::has_memory;
  if (has_memory != nullptr && !has_memory()) return cudaErrorMemoryAllocation;
  ++emulated_calls.allocations;
  if (kind == Kind::kPinned && emulation::pinned_from != nullptr) {
    *memory = emulation::pinned_from;
    emulation::pinned_from += bytes;
    pieces.Add(*memory, {bytes, kind, true});
    return cudaSuccess;
  }
  constexpr std::size_t kAlignment = 256;
  const std::size_t rounded = (bytes / kAlignment + 1) * kAlignment;
  *memory = std::aligned_alloc(kAlignment, rounded);
  if (*memory == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*memory, 0xa5, rounded);
  pieces.Add(*memory, {rounded, kind});
  return cudaSuccess;
}

/// Copies from plain memory, which is read during the call; the default stream writes it at any
/// time.
void CopyWhatIsRead(void* to, const void* from, std::size_t bytes) {
  std::vector<char>* read = nullptr;
  {
    const emulation::Unseen unseen;
    read = new std::vector<char>(bytes);
  }
  std::memcpy(read->data(), from, bytes);
  emulation::Copy(nullptr, to, read->data(), bytes);
  const emulation::Unseen unseen;
  delete read;
}

}  // namespace

bool hvd_sparse::emulation::LiesInOnePiece(const void* begin, std::size_t bytes) {
  return pieces.Holds(begin, bytes);
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  return Allocate(memory, bytes, Kind::kDevice);
}
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  return Allocate(memory, bytes, Kind::kPinned);
}

cudaError_t cudaFree(void* memory) {
  emulation::FollowDevice();
  return cudaFreeHost(memory);
}
cudaError_t cudaFreeHost(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  ++emulated_calls.frees;
  if (!pieces.Remove(memory).is_lent) std::free(memory);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  ++emulated_calls.copies;
  const Kind target = pieces.KindOf(to), source = pieces.KindOf(from);
  if (target == Kind::kDevice && source == Kind::kPlain) {
    CopyWhatIsRead(to, from, bytes);
    return cudaSuccess;
  }
  emulation::Copy(nullptr, to, from, bytes);
  const bool within = target == Kind::kDevice && source == Kind::kDevice;
  if (!within) emulation::Follow(cudaStream_t{nullptr});
  return cudaSuccess;
}

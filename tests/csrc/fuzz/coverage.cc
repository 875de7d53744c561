#include "tests/csrc/fuzz/coverage.h"

#include <array>
#include <atomic>
#include <cstdint>

namespace hvd_sparse::fuzz {
namespace {

constexpr std::size_t kPlaces = std::size_t{1} << 16;
std::array<std::atomic<bool>, kPlaces> seen;
std::atomic<std::size_t> count{0};

}  // namespace

std::size_t EdgesSeen() { return count; }

}  // namespace hvd_sparse::fuzz

/// Called by the compiler's instrumentation in every basic block, on any thread.
extern "C" void __sanitizer_cov_trace_pc() {
  using namespace hvd_sparse::fuzz;
  const auto pc = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0));
  std::atomic<bool>& place = seen[(pc ^ pc >> 16) % kPlaces];
  if (place.load(std::memory_order_relaxed)) return;
  if (!place.exchange(true, std::memory_order_relaxed)) {
    count.fetch_add(1, std::memory_order_relaxed);
  }
}

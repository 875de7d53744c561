/// The order in which a device does its streams' work, as far as streams and events determine it.

#ifndef HVD_SPARSE_TESTS_CSRC_EMULATION_STREAM_ORDER_H_
#define HVD_SPARSE_TESTS_CSRC_EMULATION_STREAM_ORDER_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace hvd_sparse {

/// Records all work given to streams while it lives; one thread and one instance at a time.
///
/// A stream counts its pieces of work; an event holds each stream's count known where it was
/// recorded, and a stream that waits for the event learns them. A piece of work follows another one
/// if its stream knew of that one when it was given.
class StreamOrder {
 public:
  StreamOrder() {
    Own() = this;
    emulation::at_work = [](cudaStream_t stream) { Own()->Note(stream); };
    emulation::at_event = [](cudaStream_t stream, cudaEvent_t event, bool waits) {
      waits ? Own()->Wait(stream, event) : Own()->Record(stream, event);
    };
  }
  ~StreamOrder() {
    emulation::at_work = nullptr;
    emulation::at_event = nullptr;
  }
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

  /// Assigns the work given from now on to `part`.
  void Begin(std::string part) { part_ = std::move(part); }

  /// Returns true if both parts have work, and each piece of `later` begins when all of `earlier`
  /// is done.
  bool Follows(const std::string& later, const std::string& earlier) const {
    const auto [follows, all] = Pairs(later, earlier);
    return all > 0 && follows == all;
  }

  /// Returns true if both parts have work, and no piece of `one` waits for one of `other`.
  bool IsBeside(const std::string& one, const std::string& other) const {
    const auto [follows, all] = Pairs(one, other);
    return all > 0 && follows == 0;
  }

 private:
  using Known = std::map<cudaStream_t, int>;  // pieces of work by stream
  struct Piece {
    cudaStream_t stream;
    Known known;  // including this piece
  };

  static StreamOrder*& Own() {
    static StreamOrder* own = nullptr;
    return own;
  }

  void Note(cudaStream_t stream) {
    ++streams_[stream][stream];
    parts_[part_].push_back({stream, streams_[stream]});
  }
  void Record(cudaStream_t stream, cudaEvent_t event) { events_[event] = streams_[stream]; }
  void Wait(cudaStream_t stream, cudaEvent_t event) {
    Known& known = streams_[stream];
    for (const auto& [other, count] : events_[event]) known[other] = std::max(known[other], count);
  }

  /// Returns the number of pairs, and in how many the later piece follows the earlier one.
  std::pair<std::size_t, std::size_t> Pairs(const std::string& later,
                                            const std::string& earlier) const {
    std::size_t follows = 0, all = 0;
    for (const Piece& piece : PartOf(later)) {
      for (const Piece& before : PartOf(earlier)) {
        const auto known = piece.known.find(before.stream);
        const int count = known == piece.known.end() ? 0 : known->second;
        follows += count >= before.known.at(before.stream) ? 1 : 0;
        ++all;
      }
    }
    return {follows, all};
  }
  std::vector<Piece> PartOf(const std::string& name) const {
    const auto part = parts_.find(name);
    return part == parts_.end() ? std::vector<Piece>() : part->second;
  }

  std::string part_;
  std::map<cudaStream_t, Known> streams_;
  std::map<cudaEvent_t, Known> events_;
  std::map<std::string, std::vector<Piece>> parts_;
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_EMULATION_STREAM_ORDER_H_

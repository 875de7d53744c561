/// Ordering by the fences of a kernel, as in C++ and in PTX.
///
/// Work of a thread before its fence happens before work of another thread after its own fence, if
/// both change the same word atomically: the first thread after its fence, and the other later, and
/// before its own.

#ifndef HVD_SPARSE_TESTS_CSRC_EMULATION_FENCES_H_
#define HVD_SPARSE_TESTS_CSRC_EMULATION_FENCES_H_

#include <map>
#include <memory>
#include <vector>

#include "tests/csrc/emulation/strand.h"

namespace hvd_sparse::emulation {

/// The fences of one launch.
class Fences {
 public:
  /// A thread's state.
  struct Own {
    std::shared_ptr<Order> passed;            // at its last fence
    std::vector<std::shared_ptr<Order>> met;  // since then, in words changed by others
  };

  void Fence(Own* own) {
    const Unseen unseen;
    for (const auto& order : own->met) order->Take();
    own->met.clear();
    own->passed = std::make_shared<Order>();
    own->passed->PassOn();
  }

  /// Notes that a thread is about to change a word atomically.
  void Change(const void* word, Own* own) {
    if (own->passed == nullptr && words_.empty()) return;
    const Unseen unseen;
    const auto before = words_.find(word);
    if (before != words_.end()) {
      own->met.insert(own->met.end(), before->second.begin(), before->second.end());
    }
    if (own->passed != nullptr) words_[word].push_back(own->passed);
  }

 private:
  std::map<const void*, std::vector<std::shared_ptr<Order>>> words_;  // fences of their changers
};

}  // namespace hvd_sparse::emulation

#endif  // HVD_SPARSE_TESTS_CSRC_EMULATION_FENCES_H_

/// What the fences of a kernel order, as in C++ and in PTX.
///
/// What a thread did before its fence comes before what another one does behind its own, if both
/// have changed the same word atomically: the first one behind its fence, the other one later, and
/// before its own.

#ifndef HVD_SPARSE_TESTS_CSRC_EMULATION_FENCES_H_
#define HVD_SPARSE_TESTS_CSRC_EMULATION_FENCES_H_

#include <map>
#include <memory>
#include <vector>

#include "tests/csrc/emulation/strand.h"

namespace hvd_sparse::emulation {

/// Those of one launch.
class Fences {
 public:
  /// What a thread has of them.
  struct Own {
    std::shared_ptr<Order> passed;            // at its last fence
    std::vector<std::shared_ptr<Order>> met;  // since, in words that others had changed
  };

  void Fence(Own* own) {
    const Unseen unseen;
    for (const auto& order : own->met) order->Take();
    own->met.clear();
    own->passed = std::make_shared<Order>();
    own->passed->PassOn();
  }

  /// A thread is about to change a word atomically.
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
  std::map<const void*, std::vector<std::shared_ptr<Order>>> words_;  // of those who changed them
};

}  // namespace hvd_sparse::emulation

#endif  // HVD_SPARSE_TESTS_CSRC_EMULATION_FENCES_H_

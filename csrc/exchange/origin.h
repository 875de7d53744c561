/// Where the memory of a step lies, and which stream a framework works on it with.

#ifndef HVD_SPARSE_EXCHANGE_ORIGIN_H_
#define HVD_SPARSE_EXCHANGE_ORIGIN_H_

#include <vector>

#include "csrc/base/device.h"
#include "csrc/base/types.h"

namespace hvd_sparse {

struct Origin {
  Device device;
  StreamHandle stream = 0;  ///< of a device: has been given what writes the memory

  bool IsOn(Device other) const { return device.type == other.type && device.index == other.index; }
  bool operator==(const Origin& other) const {
    return IsOn(other.device) && stream == other.stream;
  }
};

/// Makes the first entry of each gradient NaN, where it has one, and all others zero: after what
/// the stream was given, and before what it is given from now on.
void PutNaN(const std::vector<GradView>& gradients, const Origin& origin);

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_EXCHANGE_ORIGIN_H_

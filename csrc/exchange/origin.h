/// The device that holds the memory of a step, and the framework's stream that works on it.

#pragma once

#include <vector>

#include "csrc/base/types.h"

namespace hvd_sparse {

struct Origin {
  Device device;
  StreamHandle stream = 0;  ///< of a device: the work that writes the memory is on it

  bool IsOn(Device other) const { return device.type == other.type && device.index == other.index; }
  bool operator==(const Origin& other) const {
    return IsOn(other.device) && stream == other.stream;
  }
};

/// Sets the first entry of each non-empty gradient to NaN and all others to zero: after the work
/// that the stream was given so far, and before any that it is given from now on.
void PutNaN(const std::vector<GradView>& gradients, const Origin& origin);

}  // namespace hvd_sparse

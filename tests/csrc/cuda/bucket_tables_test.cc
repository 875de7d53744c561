/// The tables of one step may be in flight to the device while later steps are issued.

#include "csrc/cuda/step/bucket_tables.h"

#include <gtest/gtest.h>

#include <vector>

#include "csrc/cuda/base/check.h"
#include "csrc/cuda/base/stream.h"
#include "tests/csrc/cuda/bucket_specs.h"
#include "tests/csrc/cuda/device_array.h"

namespace hvd_sparse::cuda {
namespace {

constexpr std::int64_t kNumel = 100;

class CudaBucketTables : public CudaTest {
 protected:
  static BucketLayout Layout() { return BucketLayout(SpecOf({{kNumel, 10}}, {kNumel})); }

  /// Returns a step that differs from all others in its decay.
  static DeviceLaunch Step(int number) {
    DeviceLaunch launch;
    launch.gradients = launch.outputs = {{nullptr, kNumel, DType::kFloat32}};
    launch.decays = {static_cast<float>(number)};
    launch.ks = {10};
    return launch;
  }
};

TEST_F(CudaBucketTables, ChangesThatAreUnderWayAreNotWrittenOver) {
  constexpr int kSteps = 10;
  BucketTables tables(Layout());
  DeviceArray<GradientMemory> seen{std::vector<GradientMemory>(kSteps)};
  const Stream stream;
  for (int step = 0; step < kSteps; ++step) {
    tables.Update(Step(step), stream.get());
    Check(cudaMemcpyAsync(seen.data() + step, tables.view().gradient_memory, sizeof(GradientMemory),
                          cudaMemcpyDefault, stream.get()),
          "copy");
  }
  const std::vector<GradientMemory> gradient_memory = seen.Values();
  for (int step = 0; step < kSteps; ++step) EXPECT_EQ(gradient_memory[step].decay, step);
}

TEST_F(CudaBucketTables, TheLayoutIsThereForAnyStream) {
  const BucketLayout layout = Layout();
  const BucketTables tables(layout);
  DeviceArray<Tile> seen(std::vector<Tile>(1));
  const Stream stream;
  Check(cudaMemcpyAsync(seen.data(), tables.view().tiles, sizeof(Tile), cudaMemcpyDefault,
                        stream.get()),
        "copy");
  EXPECT_EQ(seen.Values()[0].size, kNumel);
}

}  // namespace
}  // namespace hvd_sparse::cuda

/// An exchange whose stream is being captured into a graph is refused before it changes anything.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "csrc/comm/loopback_communicator.h"
#include "csrc/exchange/exchange.h"
#include "tests/csrc/cuda/device_array.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

/// The bucket of a single rank.
struct OneBucket {
  Exchange exchange;
  DeviceArray<float> gradient{{1, 2, 3, 4}}, residual{{0, 0, 0, 0}};
  std::vector<SelectionState> states{1};
  int bucket = 0;
  Launch launch;

  explicit OneBucket(SelectOn select_on)
      : exchange(std::make_unique<LoopbackCommunicator>(std::make_shared<LoopbackWorld>(1), 0),
                 select_on) {
    BucketSpec spec;
    spec.name = "a bucket";
    spec.gradient_numels = spec.segment_numels = {4};
    spec.max_ks = {1};
    spec.sparsifier = "top_k";
    spec.collective = "gtopk";
    spec.device = {DeviceType::kCuda, 0};
    bucket = exchange.AddBucket(spec);
    launch.gradients = {{gradient.data(), 4, DType::kFloat32}};
    launch.residual = residual.span();
    launch.states = {states.data(), 1};
    launch.ks = {1};
    launch.decays = {1};
  }

  void Step() {
    exchange.Start(bucket, launch);
    EXPECT_TRUE(exchange.Wait(bucket, 60, 0));
    exchange.Commit("");
  }

  void ExpectStepped() {
    EXPECT_EQ(gradient.Values(), std::vector<float>({0, 0, 0, 4}));
    EXPECT_EQ(residual.Values(), std::vector<float>({1, 2, 3, 0}));
  }
};

TEST(Capture, AStartIsRefusedByNameAndTheStepCanBeStartedLater) {
  OneBucket one(SelectOn::kCaller);
  emulation::streams_capture = true;
  const Error refused = Thrown([&] { one.exchange.Start(one.bucket, one.launch); });
  emulation::streams_capture = false;
  EXPECT_EQ(refused.kind(), ErrorKind::kInvalidArgument);
  EXPECT_TRUE(Says(refused, "is being captured into a CUDA graph")) << refused.what();
  EXPECT_EQ(one.gradient.Values(), std::vector<float>({1, 2, 3, 4}));
  EXPECT_EQ(one.residual.Values(), std::vector<float>(4));
  one.Step();
  one.ExpectStepped();
}

TEST(Capture, AnExchangeGoesOnWhileAnotherThreadCaptures) {
  OneBucket one(SelectOn::kEngine);
  emulation::another_captures = true;
  one.Step();
  emulation::another_captures = false;
  one.ExpectStepped();
}

}  // namespace
}  // namespace hvd_sparse

/// The kernels that serve a device, and the errors of a build or a machine without one.

#include "csrc/devices/kernels_for.h"

#include <gtest/gtest.h>

#include <string>

#include "csrc/base/error.h"
#include "csrc/comm/loopback_communicator.h"
#include "csrc/exchange/exchange.h"

namespace hvd_sparse {
namespace {

constexpr Device kNoSuchDevice{DeviceType::kCuda, 99};

template <typename Call>
std::string ErrorOf(ErrorKind kind, Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

BucketSpec SpecOn(Device device, const std::string& collective) {
  BucketSpec spec{"a bucket", {10}, {10}, {5}, "top_k", {}, collective};
  spec.device = device;
  return spec;
}

TEST(KernelsFor, TheCpuAreItsOwn) { EXPECT_EQ(&KernelsFor({}), &CpuKernels()); }

TEST(KernelsFor, ADeviceThatIsNotThereIsNamed) {
  const std::string what =
      ErrorOf(ErrorKind::kUnavailable, [] { KernelsFor({DeviceType::kCuda, 99}); });
  if (!BuiltWithCuda()) {
    EXPECT_NE(what.find("on cuda:99 need it"), std::string::npos) << what;
    EXPECT_NE(what.find("HVD_SPARSE_WITH_CUDA=1"), std::string::npos) << what;
  }
}

TEST(KernelsFor, ABucketOnADeviceThatIsNotThereIsRefusedBeforeAnythingIsSent) {
  Exchange exchange(std::make_unique<LoopbackCommunicator>(std::make_shared<LoopbackWorld>(1), 0),
                    SelectOn::kCaller);
  ErrorOf(ErrorKind::kUnavailable, [&] { exchange.AddBucket(SpecOn(kNoSuchDevice, "allgather")); });
  EXPECT_EQ(exchange.AddBucket(SpecOn({}, "allgather")), 0);
}

TEST(KernelsFor, WhatAddsUpResidualsOnTheCpuTakesNoneOfADevice) {
  const std::string what = ErrorOf(ErrorKind::kInvalidArgument, [] {
    BucketSpec spec = SpecOn(kNoSuchDevice, "gtopk");
    spec.nodes_first = true;
    const Bucket bucket(0, std::move(spec));
  });
  EXPECT_NE(what.find("nodes_first adds up residuals on the CPU"), std::string::npos) << what;
  EXPECT_NE(what.find("cuda:99"), std::string::npos) << what;
}

}  // namespace
}  // namespace hvd_sparse

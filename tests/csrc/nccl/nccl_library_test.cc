/// Finding NCCL: which file is loaded, and the errors for a library that is missing, old or not
/// NCCL.

#include "csrc/cuda/transport/nccl_library.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "csrc/base/error.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse::nccl {
namespace {

const std::string kFolder = FAKE_NCCL_FOLDER;
const std::string kGood = kFolder + "/libfake_nccl.so";
const std::string kMissing = kFolder + "/no_such_nccl.so.2";

Error Refused(const std::vector<std::string>& paths) {
  return Thrown([&] { const Library library(paths); });
}

TEST(NcclLibrary, TheFirstFileThatCanBeLoadedIsTaken) {
  const Library library({kMissing, kGood, kFolder + "/libfake_nccl_old.so"});
  EXPECT_EQ(library.path(), kGood);
  EXPECT_EQ(VersionName(library.version()), "2.32.3");
}

TEST(NcclLibrary, OneThatIsMissingIsNamedWithAWayOut) {
  const Error error = Refused({kMissing});
  EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
  EXPECT_TRUE(Says(error, "no_such_nccl.so.2: cannot open")) << error.what();
  EXPECT_TRUE(Says(error, "HVD_SPARSE_NCCL_LIBRARY")) << error.what();
}

TEST(NcclLibrary, OneThatIsTooOldIsNamedWithBothVersions) {
  const Error error = Refused({kFolder + "/libfake_nccl_old.so", kGood});
  EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
  EXPECT_TRUE(Says(error, "libfake_nccl_old.so is NCCL 2.7.8, needed is 2.14.0")) << error.what();
}

TEST(NcclLibrary, OneThatLacksAFunctionIsNamedWithIt) {
  const Error error = Refused({kFolder + "/libfake_nccl_partial.so"});
  EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
  EXPECT_TRUE(Says(error, "libfake_nccl_partial.so has no ncclCommInitRankConfig")) << error.what();
}

TEST(NcclLibrary, ALibraryOfSomethingElseIsRefused) {
  const Error error = Refused({"libm.so.6"});
  EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
  EXPECT_TRUE(Says(error, "libm.so.6 has no ncclGetVersion")) << error.what();
}

TEST(NcclLibrary, VersionsAreNamedAsNcclNumbersThem) {
  EXPECT_EQ(VersionName(2708), "2.7.8");
  EXPECT_EQ(VersionName(2804), "2.8.4");
  EXPECT_EQ(VersionName(20906), "2.9.6");
  EXPECT_EQ(VersionName(VersionCode(2, 14, 0)), "2.14.0");
  EXPECT_EQ(VersionName(23203), "2.32.3");
}

TEST(NcclLibrary, ErrorsHaveTheCallAndNcclsOwnWords) {
  const Library library({kGood});
  Config config;  // a default one, which blocks
  Comm comm = nullptr;
  const Result result = library.calls().CommInitRankConfig(&comm, 2, {}, 0, &config);
  ASSERT_NE(result, kSuccess);
  const std::string problem = library.Problem(result, "ncclCommInitRankConfig", nullptr);
  EXPECT_EQ(problem.find("ncclCommInitRankConfig failed: invalid argument: the stand-in never"), 0u)
      << problem;
  EXPECT_NE(problem.find("(NCCL 2.32.3, " + kGood + ")"), std::string::npos) << problem;
}

}  // namespace
}  // namespace hvd_sparse::nccl

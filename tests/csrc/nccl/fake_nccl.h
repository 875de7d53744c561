/// What the library that stands in for NCCL lets tests do to it: found by name, as NCCL's own.

#ifndef HVD_SPARSE_TESTS_CSRC_NCCL_FAKE_NCCL_H_
#define HVD_SPARSE_TESTS_CSRC_NCCL_FAKE_NCCL_H_

extern "C" {

/// After so many more groups of calls, on whichever rank, one meets an error (a ncclResult_t) when
/// it has begun.
void fake_nccl_break_group(int result, int groups_before);

/// Groups have been given to the device as soon as they end, and their messages arrive later. Else
/// a group is being given until they have.
void fake_nccl_run_behind(int behind);

/// Whether all messages of all groups have arrived.
int fake_nccl_is_idle();

/// Communicators that were neither destroyed nor aborted.
int fake_nccl_communicators();
}

#endif  // HVD_SPARSE_TESTS_CSRC_NCCL_FAKE_NCCL_H_

/// Controls of the library that stands in for NCCL, found by name like NCCL's own functions.

#ifndef HVD_SPARSE_TESTS_CSRC_NCCL_FAKE_NCCL_H_
#define HVD_SPARSE_TESTS_CSRC_NCCL_FAKE_NCCL_H_

extern "C" {

/// Makes a group of calls fail with `result`, a ncclResult_t, once it has begun, after
/// `groups_before` more groups, counted over all ranks.
void fake_nccl_break_group(int result, int groups_before);

/// If `behind`, groups are given to the device as soon as they end, and their messages arrive
/// later. Otherwise a group ends when they have arrived.
void fake_nccl_run_behind(int behind);

/// Makes communicators of this rank fail as they are made, with `result`; -1: of no rank.
void fake_nccl_refuse_rank(int rank, int result);

/// Makes ncclSend wait until it is called with false.
void fake_nccl_hold_sends(bool hold);

/// Makes the first byte of all messages from this rank arrive changed; -1: of no rank.
void fake_nccl_change_messages_of(int rank);

/// Returns the number of groups begun so far, by all ranks.
int fake_nccl_groups();
int fake_nccl_groups_of_thread();  // begun by this thread

/// Returns 1 if all messages of all groups have arrived.
int fake_nccl_is_idle();

/// Returns the number of communicators neither destroyed nor aborted.
int fake_nccl_communicators();
}

#endif  // HVD_SPARSE_TESTS_CSRC_NCCL_FAKE_NCCL_H_

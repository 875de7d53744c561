/// Makes an allocation of this thread fail, for tests of running out of memory.

#ifndef HVD_SPARSE_TESTS_CSRC_FAILING_ALLOCATIONS_H_
#define HVD_SPARSE_TESTS_CSRC_FAILING_ALLOCATIONS_H_

namespace hvd_sparse {

/// Makes the `number`-th allocation of this thread from now on (0: the next one) fail, once.
void FailAllocation(int number);

/// Does the same for each thread started from now on; below 0: for none.
void FailAllocationOfNewThreads(int number);

/// Stops failing allocations of this thread; returns true if one has failed.
bool StopFailingAllocations();

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_FAILING_ALLOCATIONS_H_

/// Lets an allocation of this thread fail, for tests of what happens then.

#ifndef HVD_SPARSE_TESTS_CSRC_FAILING_ALLOCATIONS_H_
#define HVD_SPARSE_TESTS_CSRC_FAILING_ALLOCATIONS_H_

namespace hvd_sparse {

/// The `number`-th allocation of this thread from now on (0: the next one) fails, once.
void FailAllocation(int number);

/// The same of each thread that is started from now on; below 0: of none.
void FailAllocationOfNewThreads(int number);

/// No allocation of this thread fails any more; returns whether one has.
bool StopFailingAllocations();

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_FAILING_ALLOCATIONS_H_

// Lets ranks that share few cores wait without using them; preloaded into every rank (LD_PRELOAD).
//
// A thread in a blocking call of Open MPI looks for events at full speed, and yields between two
// looks: sixteen of them keep two cores busy while the network works. Here a yield sleeps. And
// sleeps may last longer than asked for, by the timer's slack, so that loops that look every 100 us
// look less often. A message may so be noticed later, by 0.3 ms at most; dilation divides that.

#include <stddef.h>
#include <sys/prctl.h>
#include <time.h>

enum { kPause = 50 * 1000, kSlack = 250 * 1000 };  // nanoseconds

// Threads inherit the slack of the one that started them.
__attribute__((constructor)) static void BeLate(void) { prctl(PR_SET_TIMERSLACK, kSlack, 0, 0, 0); }

int sched_yield(void) {
  const struct timespec pause = {0, kPause};
  nanosleep(&pause, NULL);
  return 0;
}

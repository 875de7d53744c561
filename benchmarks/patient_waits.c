// Lets ranks that share few cores wait without using them; preloaded into every rank (LD_PRELOAD).
//
// A thread in a blocking call of Open MPI polls at full speed, and yields between two polls:
// sixteen of them keep two cores busy while the network works. Here a yield sleeps. Sleeps may also
// last longer than asked for, by at most PATIENT_NANOSECONDS, so that loops that poll every 100 us
// poll less often. A message may therefore be noticed later, by about as much.

#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

static struct timespec pause_ = {0, 0};

__attribute__((constructor)) static void BeLate(void) {
  const char* text = getenv("PATIENT_NANOSECONDS");
  const long slack = text == NULL ? 0 : atol(text);
  if (slack <= 0) return;
  pause_.tv_nsec = slack < 50000 ? slack : 50000;
  prctl(PR_SET_TIMERSLACK, slack, 0, 0, 0);  // threads inherit it from their creator
}

int sched_yield(void) {
  nanosleep(&pause_, NULL);
  return 0;
}

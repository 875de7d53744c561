// A network switch that delivers every frame after a delay: the kernel's netem may not be there.
//
//     delaying_switch NANOSECONDS PORT...
//
// makes a tap device for each port in this network namespace, prints a line when all are there, and
// then copies frames between them until it is killed. It learns which port an address is at, as
// switches do, and sends frames to unknown addresses to all other ports. All frames wait equally
// long, so they wait in one queue, and none overtakes another.

#define _GNU_SOURCE  // ppoll

#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { kMostPorts = 256, kFrameBytes = 9216, kAddressBytes = 6, kStations = 4096 };

// The most frames that wait. Their memory is taken when they are first used.
static const size_t kFrames = (size_t)1 << 15;

struct Frame {
  int64_t due;  // nanoseconds
  int from, bytes;
  unsigned char data[kFrameBytes];  // to, from, and what switches do not read
};

struct Station {
  unsigned char address[kAddressBytes];
  int port;
};

static struct Station stations_[kStations];
static size_t station_count_;

static struct Station* Find(const unsigned char* address) {
  for (size_t i = 0; i < station_count_; ++i) {
    if (memcmp(stations_[i].address, address, kAddressBytes) == 0) return &stations_[i];
  }
  return NULL;
}

static void Learn(const unsigned char* address, int port) {
  struct Station* station = Find(address);
  if (station == NULL && station_count_ < kStations) {
    station = &stations_[station_count_++];
    memcpy(station->address, address, kAddressBytes);
  }
  if (station != NULL) station->port = port;
}

static int64_t Now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void Fail(const char* what) {
  perror(what);
  exit(1);
}

static int OpenTap(const char* name) {
  struct ifreq request;
  memset(&request, 0, sizeof(request));
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  strncpy(request.ifr_name, name, IFNAMSIZ - 1);
  const int tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (tap < 0) Fail("/dev/net/tun");
  if (ioctl(tap, TUNSETIFF, &request) != 0) Fail(name);
  return tap;
}

static void Deliver(const struct Frame* frame, const struct pollfd* ports, int count) {
  const struct Station* station = Find(frame->data);
  for (int port = 0; port < count; ++port) {
    if (station != NULL ? port != station->port : port == frame->from) continue;
    // A device that is not up yet takes nothing, and a full one drops the frame, as switches do.
    if (write(ports[port].fd, frame->data, (size_t)frame->bytes) < 0 && errno != EIO &&
        errno != EAGAIN && errno != ENOBUFS) {
      Fail("write");
    }
  }
}

int main(int argc, char** argv) {
  if (argc < 2 || argc - 2 > kMostPorts) {
    fprintf(stderr, "usage: %s NANOSECONDS PORT..., at most %d ports\n", argv[0], kMostPorts);
    return 2;
  }
  const int64_t delay = atoll(argv[1]);
  const int count = argc - 2;
  struct pollfd ports[kMostPorts];
  for (int port = 0; port < count; ++port) {
    ports[port] = (struct pollfd){OpenTap(argv[2 + port]), POLLIN, 0};
  }
  struct Frame* frames = mmap(NULL, kFrames * sizeof(struct Frame), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (frames == MAP_FAILED) Fail("mmap");
  prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);  // a frame leaves when it is due
  puts("ready");
  fflush(stdout);

  size_t first = 0, end = 0;  // of the frames that wait; places are modulo kFrames
  for (;;) {
    for (; first != end && frames[first % kFrames].due <= Now(); ++first) {
      Deliver(&frames[first % kFrames], ports, count);
    }
    if (first == end) first = end = 0;  // the same few frames again, while they are in the cache
    struct timespec wait = {0, 0};
    const int64_t left = first == end ? 0 : frames[first % kFrames].due - Now();
    if (left > 0) wait = (struct timespec){left / 1000000000, left % 1000000000};
    if (ppoll(ports, (nfds_t)count, first == end ? NULL : &wait, NULL) < 0 && errno != EINTR) {
      Fail("ppoll");
    }
    for (int port = 0; port < count; ++port) {
      if ((ports[port].revents & POLLIN) == 0) continue;
      for (int turn = 0; turn < 32 && end - first < kFrames; ++turn) {
        struct Frame* frame = &frames[end % kFrames];
        const ssize_t bytes = read(ports[port].fd, frame->data, kFrameBytes);
        if (bytes < 2 * kAddressBytes) break;
        frame->bytes = (int)bytes;
        frame->from = port;
        frame->due = Now() + delay;
        Learn(frame->data + kAddressBytes, port);
        ++end;
      }
    }
  }
}

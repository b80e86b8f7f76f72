// SPDX-License-Identifier: Apache-2.0
// Connects this network namespace to another one with a limited rate and a delay: two TUN devices and a relay. For
// kernels without netem. Started by tools/emulate-host.
//
//   tunlink HERE THERE NETNS_FILE RATE_MBIT ONE_WAY_MS     prints "ready", runs until it is killed
//
// Packets leave at the rate and arrive ONE_WAY_MS later. Packets beyond 50 ms of queue are dropped, as by a router. The
// MTU is 16,000, so that the relay itself costs only a few percent of a core at 500 Mbit/s.
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

namespace {

constexpr int kMtu = 16000;
constexpr int64_t kQueueNanos = 50'000'000;

int64_t Now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::exit(1);
}

int OpenTun(const char* name) {
  int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
  if (fd < 0) Die("/dev/net/tun");
  ifreq r{};
  r.ifr_flags = IFF_TUN | IFF_NO_PI;
  std::strncpy(r.ifr_name, name, IFNAMSIZ - 1);
  if (ioctl(fd, TUNSETIFF, &r) != 0) Die("TUNSETIFF");
  int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq m{};
  std::strncpy(m.ifr_name, name, IFNAMSIZ - 1);
  m.ifr_mtu = kMtu;
  if (ioctl(s, SIOCSIFMTU, &m) != 0) Die("SIOCSIFMTU");
  m.ifr_qlen = 1000;
  ioctl(s, SIOCSIFTXQLEN, &m);
  close(s);
  return fd;
}

// One direction.
class Pipe {
 public:
  Pipe(int from, int to, double rate_mbit, double delay_ms)
      : from_(from),
        to_(to),
        nanos_per_byte_(8000.0 / rate_mbit),
        delay_(static_cast<int64_t>(delay_ms * 1e6)),
        reader_([this] { Read(); }),
        writer_([this] { Write(); }) {}
  void Join() {
    reader_.join();
    writer_.join();
  }

 private:
  struct Packet {
    int64_t due;
    std::string data;
  };

  void Read() {
    char buffer[65536];
    int64_t free_at = 0;
    for (;;) {
      ssize_t n = read(from_, buffer, sizeof buffer);
      if (n < 0) {
        // EIO until both ends are up.
        usleep(1000);
        continue;
      }
      int64_t now = Now();
      free_at = std::max(free_at, now);
      if (free_at - now > kQueueNanos) continue;
      free_at += static_cast<int64_t>(static_cast<double>(n) * nanos_per_byte_);
      std::lock_guard lock(mutex_);
      queue_.push_back({free_at + delay_, std::string(buffer, static_cast<size_t>(n))});
      if (queue_.size() == 1) ready_.notify_one();
    }
  }

  void Write() {
    for (;;) {
      Packet p;
      {
        std::unique_lock lock(mutex_);
        ready_.wait(lock, [this] { return !queue_.empty(); });
        p = std::move(queue_.front());
        queue_.pop_front();
      }
      timespec t{p.due / 1'000'000'000, p.due % 1'000'000'000};
      clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, nullptr);
      [[maybe_unused]] ssize_t n = write(to_, p.data.data(), p.data.size());
    }
  }

  int from_, to_;
  double nanos_per_byte_;
  int64_t delay_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Packet> queue_;  // guarded by mutex_
  std::thread reader_, writer_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: tunlink HERE THERE NETNS_FILE RATE_MBIT ONE_WAY_MS\n");
    return 2;
  }
  int here = OpenTun(argv[1]);
  int original = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  int other = open(argv[3], O_RDONLY | O_CLOEXEC);
  if (other < 0 || setns(other, CLONE_NEWNET) != 0) Die(argv[3]);
  int there = OpenTun(argv[2]);
  if (setns(original, CLONE_NEWNET) != 0) Die("setns");
  double rate = std::atof(argv[4]), delay = std::atof(argv[5]);
  if (rate <= 0 || delay < 0) {
    std::fprintf(stderr, "tunlink: the rate must be positive and the delay not negative\n");
    return 2;
  }
  std::printf("ready\n");
  std::fflush(stdout);

  Pipe out(here, there, rate, delay), in(there, here, rate, delay);
  out.Join();
  in.Join();
}

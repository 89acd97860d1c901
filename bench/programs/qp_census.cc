// qp_census: measures the cost of many idle queue pairs. Creates them, connects them in pairs,
// measures their memory and their CPU time while idle, and destroys them. Prints one line of JSON.
//
//   verbena run -- qp_census [-n 10000] [-i 1]
//     -n  queue pairs, an even number     -i  idle time in seconds
//
// The queues have the minimum length, so that the memory measured is mostly that of the queue pair
// itself.
#include <getopt.h>
#include <unistd.h>

#include <ctime>
#include <vector>

#include "bench/programs/verbs_support.h"

namespace {

using namespace verbena::bench;

// The resident set of this process.
double resident_bytes() {
  long pages = 0;
  FILE* file = std::fopen("/proc/self/statm", "r");
  if (!file || std::fscanf(file, "%*s %ld", &pages) != 1) fail("/proc/self/statm");
  std::fclose(file);
  return static_cast<double>(pages) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

// CPU time of all threads so far, in microseconds.
double cpu_microseconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
}

std::vector<ibv_qp*> create_connected(const Device& device, ibv_cq* cq, size_t count) {
  std::vector<ibv_qp*> all(count);
  for (ibv_qp*& qp : all) qp = create_rc_queue_pair(device, cq, 1);
  for (size_t i = 0; i < count; ++i) connect_queue_pair(device, all[i], all[i ^ 1]->qp_num);
  return all;
}

void destroy(const std::vector<ibv_qp*>& all) {
  for (ibv_qp* qp : all) must(ibv_destroy_qp(qp), "ibv_destroy_qp");
}

double idle_cpu(double seconds) {
  usleep(200'000);  // let outstanding work end
  const double before = cpu_microseconds();
  usleep(static_cast<useconds_t>(seconds * 1e6));
  return (cpu_microseconds() - before) / seconds;
}

}  // namespace

int main(int argc, char** argv) {
  size_t count = 10000;
  double idle_seconds = 1;
  for (int option; (option = getopt(argc, argv, "n:i:")) != -1;) {
    if (option == 'n') {
      count = std::strtoul(optarg, nullptr, 10);
    } else if (option == 'i') {
      idle_seconds = std::strtod(optarg, nullptr);
    } else {
      return 2;
    }
  }
  if (count == 0 || count % 2 != 0) {
    std::fprintf(stderr, "qp_census: -n must be a positive even number\n");
    return 2;
  }
  const Device device = open_loopback_device();
  ibv_cq* cq = ibv_create_cq(device.context, 16, nullptr, nullptr, 0);
  if (!cq) fail("ibv_create_cq");
  destroy(create_connected(device, cq, 2));  // warm up one-time allocations

  const double memory_before = resident_bytes();
  const auto start = Clock::now();
  const std::vector<ibv_qp*> all = create_connected(device, cq, count);
  double seconds = seconds_since(start);
  const double memory = resident_bytes() - memory_before;
  const double cpu = idle_cpu(idle_seconds);
  const auto end = Clock::now();
  destroy(all);
  seconds += seconds_since(end);

  must(ibv_destroy_cq(cq), "ibv_destroy_cq");
  close_device(device);
  std::printf("{\"seconds\": %.3f, \"kib_per_queue_pair\": %.2f, \"idle_cpu_us_per_s\": %.1f}\n",
              seconds, memory / 1024 / static_cast<double>(count), cpu);
  return 0;
}

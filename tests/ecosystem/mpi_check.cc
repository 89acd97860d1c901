// An MPI program with known results: messages of all sizes, collectives, one-sided access. Rank 0
// prints "ok" once; a wrong number makes it return 1.
#include <mpi.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

namespace {

int rank, ranks;

void check(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "rank %d of %d: wrong: %s\n", rank, ranks, what);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

// The message of rank `from` in round `round`, word by word.
uint32_t word(int from, size_t round, size_t i) {
  return static_cast<uint32_t>(from) * 2654435761u +
         static_cast<uint32_t>(round * 40503u + i * 97u);
}
std::vector<uint32_t> message(int from, size_t round, size_t words) {
  std::vector<uint32_t> m(words);
  for (size_t i = 0; i < words; ++i) m[i] = word(from, round, i);
  return m;
}

// Each rank sends to the next, around the ring: eager messages, rendezvous, 16 MiB.
void around_the_ring() {
  const int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
  for (const size_t words : {size_t{0}, size_t{1}, size_t{1000}, size_t{20000}, size_t{4} << 20}) {
    const auto out = message(rank, words, words);
    std::vector<uint32_t> in(words, 7);
    MPI_Sendrecv(out.data(), static_cast<int>(words), MPI_UINT32_T, next, 1, in.data(),
                 static_cast<int>(words), MPI_UINT32_T, previous, 1, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    check(in == message(previous, words, words), "a message around the ring");
  }
}

// Many small messages in flight at once; they arrive in order.
void many_at_once() {
  constexpr size_t kMessages = 500;
  std::vector<uint32_t> in(kMessages * static_cast<size_t>(ranks)), out(kMessages);
  for (size_t i = 0; i < kMessages; ++i) out[i] = word(rank, 1, i);
  std::vector<MPI_Request> requests;
  for (int peer = 0; peer < ranks; ++peer) {
    for (size_t i = 0; i < kMessages; ++i) {
      requests.emplace_back();
      MPI_Irecv(&in[static_cast<size_t>(peer) * kMessages + i], 1, MPI_UINT32_T, peer, 2,
                MPI_COMM_WORLD, &requests.back());
      requests.emplace_back();
      MPI_Isend(&out[i], 1, MPI_UINT32_T, peer, 2, MPI_COMM_WORLD, &requests.back());
    }
  }
  MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
  for (int peer = 0; peer < ranks; ++peer) {
    for (size_t i = 0; i < kMessages; ++i) {
      check(in[static_cast<size_t>(peer) * kMessages + i] == word(peer, 1, i),
            "many small messages");
    }
  }
}

void collectives() {
  std::vector<double> mine(100000, rank + 1.0), sum(mine.size());
  MPI_Allreduce(mine.data(), sum.data(), static_cast<int>(mine.size()), MPI_DOUBLE, MPI_SUM,
                MPI_COMM_WORLD);
  const double expected = ranks * (ranks + 1) / 2.0;
  for (const double value : sum) check(value == expected, "Allreduce");

  auto told = message(ranks - 1, 3, 300000);
  if (rank != ranks - 1) told.assign(told.size(), 0);
  MPI_Bcast(told.data(), static_cast<int>(told.size()), MPI_UINT32_T, ranks - 1, MPI_COMM_WORLD);
  check(told == message(ranks - 1, 3, 300000), "Bcast");

  constexpr int kEach = 5000;
  const auto n = static_cast<size_t>(ranks);
  std::vector<uint32_t> out(kEach * n), in(kEach * n);
  for (size_t i = 0; i < out.size(); ++i) out[i] = word(rank, 4, i);
  MPI_Alltoall(out.data(), kEach, MPI_UINT32_T, in.data(), kEach, MPI_UINT32_T, MPI_COMM_WORLD);
  for (size_t i = 0; i < in.size(); ++i) {
    check(in[i] ==
              word(static_cast<int>(i / kEach), 4, static_cast<size_t>(rank) * kEach + i % kEach),
          "Alltoall");
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

// Windows: put, get, accumulate, fetch-and-add.
void one_sided() {
  constexpr int kWords = 65536;
  const auto n = static_cast<size_t>(ranks);
  uint32_t* memory = nullptr;
  MPI_Win window;
  MPI_Win_allocate(static_cast<MPI_Aint>(sizeof(uint32_t) * kWords * (n + 1)), sizeof(uint32_t),
                   MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
  std::fill_n(memory, kWords * (n + 1), 0u);
  MPI_Win_fence(0, window);
  const auto mine = message(rank, 5, kWords);
  for (int peer = 0; peer < ranks; ++peer) {
    MPI_Put(mine.data(), kWords, MPI_UINT32_T, peer, static_cast<MPI_Aint>(rank) * kWords, kWords,
            MPI_UINT32_T, window);
  }
  MPI_Win_fence(0, window);
  for (int peer = 0; peer < ranks; ++peer) {
    for (size_t i = 0; i < kWords; ++i) {
      check(memory[static_cast<size_t>(peer) * kWords + i] == word(peer, 5, i), "Put");
    }
  }
  MPI_Win_fence(0, window);
  const int next = (rank + 1) % ranks;
  std::vector<uint32_t> got(kWords);
  MPI_Get(got.data(), kWords, MPI_UINT32_T, next, static_cast<MPI_Aint>(rank) * kWords, kWords,
          MPI_UINT32_T, window);
  MPI_Win_fence(0, window);
  check(got == mine, "Get");

  const MPI_Aint counter = static_cast<MPI_Aint>(n) * kWords;
  const uint32_t one = 1;
  uint32_t before = 0;
  MPI_Win_lock_all(0, window);
  for (int i = 0; i < 100; ++i) {
    MPI_Fetch_and_op(&one, &before, MPI_UINT32_T, 0, counter, MPI_SUM, window);
    MPI_Win_flush(0, window);
    MPI_Accumulate(&one, 1, MPI_UINT32_T, 0, counter + 1, 1, MPI_UINT32_T, MPI_SUM, window);
  }
  MPI_Win_unlock_all(window);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) {
    MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
    check(memory[counter] == 100u * n && memory[counter + 1] == 100u * n, "atomics");
    MPI_Win_unlock(0, window);
  }
  MPI_Win_free(&window);
}

// A known integral, computed by all ranks.
void pi() {
  constexpr int kSteps = 1000000;
  double part = 0, whole = 0;
  for (int i = rank; i < kSteps; i += ranks) {
    const double x = (i + 0.5) / kSteps;
    part += 4 / (1 + x * x);
  }
  MPI_Reduce(&part, &whole, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) check(std::abs(whole / kSteps - 3.14159265358979) < 1e-9, "pi");
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  around_the_ring();
  many_at_once();
  collectives();
  one_sided();
  pi();
  MPI_Barrier(MPI_COMM_WORLD);
  // Reads the devices' counters while all processes still run.
  if (rank == 0 && argc > 1) std::system(argv[1]);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) std::printf("ok: %d ranks\n", ranks);
  MPI_Finalize();
}

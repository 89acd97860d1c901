// The real NCCL between two or more processes that share one GPU: collectives and point to point,
// each result checked in full. nccl_check DIRECTORY RANK RANKS; the ranks find one another through
// a file in DIRECTORY.
#include <cuda_runtime.h>
#include <nccl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace {

void require(bool true_it_is, const std::string& what) {
  if (true_it_is) return;
  std::fprintf(stderr, "nccl_check: %s\n", what.c_str());
  std::exit(1);
}
void cuda(cudaError_t error) { require(error == cudaSuccess, cudaGetErrorString(error)); }
void nccl(ncclResult_t result) { require(result == ncclSuccess, ncclGetErrorString(result)); }

ncclUniqueId meet(const std::string& directory, int rank) {
  const std::string path = directory + "/id";
  ncclUniqueId id;
  if (rank == 0) {
    nccl(ncclGetUniqueId(&id));
    std::ofstream(path + ".new", std::ios::binary).write(id.internal, sizeof id.internal);
    require(std::rename((path + ".new").c_str(), path.c_str()) == 0, "cannot write " + path);
    return id;
  }
  for (int tries = 0; access(path.c_str(), R_OK) != 0; ++tries) {
    require(tries < 3000, "rank 0 does not appear");
    usleep(10'000);
  }
  std::ifstream(path, std::ios::binary).read(id.internal, sizeof id.internal);
  return id;
}

class Ranks {
 public:
  Ranks(const std::string& directory, int rank, int ranks) : rank_(rank), ranks_(ranks) {
    const ncclUniqueId id = meet(directory, rank);
    cuda(cudaSetDevice(0));
    cuda(cudaStreamCreate(&stream_));
    nccl(ncclCommInitRank(&communicator_, ranks, id, rank));
  }
  ~Ranks() {
    nccl(ncclCommDestroy(communicator_));
    cuda(cudaStreamDestroy(stream_));
  }

  // Small whole numbers, so that a sum of floats is exact in any order.
  static float value(int rank, size_t i, int round) {
    return static_cast<float>((i * 7 + rank * 13 + round) % 1024);
  }

  void all_reduce(size_t count, int round) {
    exchange(count, count, round, [&](float* in, float* out) {
      nccl(ncclAllReduce(in, out, count, ncclFloat, ncclSum, communicator_, stream_));
    });
    check("all-reduce", [&](size_t i) {
      float sum = 0;
      for (int rank = 0; rank < ranks_; ++rank) sum += value(rank, i, round);
      return sum;
    });
  }
  void all_gather(size_t count, int round) {
    exchange(count, count * ranks_, round, [&](float* in, float* out) {
      nccl(ncclAllGather(in, out, count, ncclFloat, communicator_, stream_));
    });
    check("all-gather",
          [&](size_t i) { return value(static_cast<int>(i / count), i % count, round); });
  }
  void broadcast(size_t count, int round) {
    const int root = round % ranks_;
    exchange(count, count, round, [&](float* in, float* out) {
      nccl(ncclBroadcast(in, out, count, ncclFloat, root, communicator_, stream_));
    });
    check("broadcast", [&](size_t i) { return value(root, i, round); });
  }
  void ring(size_t count, int round) {
    const int next = (rank_ + 1) % ranks_;
    const int previous = (rank_ + ranks_ - 1) % ranks_;
    exchange(count, count, round, [&](float* in, float* out) {
      nccl(ncclGroupStart());
      nccl(ncclSend(in, count, ncclFloat, next, communicator_, stream_));
      nccl(ncclRecv(out, count, ncclFloat, previous, communicator_, stream_));
      nccl(ncclGroupEnd());
    });
    check("send and receive", [&](size_t i) { return value(previous, i, round); });
  }

 private:
  template <typename Do>
  void exchange(size_t sent, size_t received, int round, Do operate) {
    std::vector<float> host(sent);
    for (size_t i = 0; i < sent; ++i) host[i] = value(rank_, i, round);
    result_.assign(received, -1);
    float* in = nullptr;
    float* out = nullptr;
    cuda(cudaMalloc(&in, sent * sizeof(float)));
    cuda(cudaMalloc(&out, received * sizeof(float)));
    cuda(cudaMemcpy(in, host.data(), sent * sizeof(float), cudaMemcpyHostToDevice));
    operate(in, out);
    cuda(cudaStreamSynchronize(stream_));
    cuda(cudaMemcpy(result_.data(), out, received * sizeof(float), cudaMemcpyDeviceToHost));
    cuda(cudaFree(in));
    cuda(cudaFree(out));
  }
  template <typename Expected>
  void check(const std::string& what, Expected expected) {
    for (size_t i = 0; i < result_.size(); ++i)
      require(result_[i] == expected(i),
              what + " of " + std::to_string(result_.size()) + ": wrong at " + std::to_string(i));
  }

  int rank_;
  int ranks_;
  cudaStream_t stream_ = nullptr;
  ncclComm_t communicator_ = nullptr;
  std::vector<float> result_;
};

}  // namespace

int main(int argc, char** argv) {
  require(argc == 4, "usage: nccl_check DIRECTORY RANK RANKS");
  {
    Ranks ranks(argv[1], std::atoi(argv[2]), std::atoi(argv[3]));
    int round = 0;
    for (size_t count : {1, 1000, 65'536, 1'000'003, 16 << 20}) {
      ranks.all_reduce(count, round++);
      ranks.all_gather(count, round++);
      ranks.broadcast(count, round++);
      ranks.ring(count, round++);
    }
  }
  std::puts("ok");
}

// gloo over its ibverbs transport: an allreduce, an allgather and a broadcast with known
// results. gloo_check DEVICE GID-INDEX FOLDER RANK RANKS; the ranks find each other through files
// in the folder.
#include <gloo/allgather_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

void right(bool is, const char* what) {
  if (is) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  const int rank = std::atoi(argv[4]), ranks = std::atoi(argv[5]);
  gloo::transport::ibverbs::attr attributes;
  attributes.name = argv[1];
  attributes.port = 1;
  attributes.index = std::atoi(argv[2]);
  auto device = gloo::transport::ibverbs::CreateDevice(attributes);
  gloo::rendezvous::FileStore store(argv[3]);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
  context->connectFullMesh(store, device);

  // An algorithm must not be destroyed while one of its sends is in flight, and there is no way
  // to wait for that: all of them live until the end.
  std::vector<std::unique_ptr<gloo::Algorithm>> kept;
  const auto run = [&](auto* algorithm) {
    kept.emplace_back(algorithm);
    algorithm->run();
  };
  for (const int count : {1, 1000, 1 << 20}) {
    auto& values =
        *new std::vector<float>(static_cast<size_t>(count), static_cast<float>(rank + 1));
    run(new gloo::AllreduceRingChunked<float>(context, {values.data()}, count));
    for (const float v : values)
      right(v == static_cast<float>(ranks * (ranks + 1)) / 2, "allreduce");
  }

  constexpr int kEach = 10000;
  std::vector<int> mine(kEach, rank * 11 + 1),
      all(static_cast<size_t>(kEach) * static_cast<size_t>(ranks));
  run(new gloo::AllgatherRing<int>(context, {mine.data()}, all.data(), kEach));
  for (size_t i = 0; i < all.size(); ++i)
    right(all[i] == static_cast<int>(i / kEach) * 11 + 1, "allgather");

  std::vector<int> told(kEach, rank == 0 ? 42 : 0);
  run(new gloo::BroadcastOneToAll<int>(context, {told.data()}, kEach, 0));
  for (const int v : told) right(v == 42, "broadcast");
  run(new gloo::BarrierAllToAll(context));
  std::puts("ok");
  std::fflush(stdout);
  std::_Exit(0);
}

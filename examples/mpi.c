// Each rank prints its host, and 8 MiB pass from rank to rank. Every rank changes the data and checks the result.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char** argv) {
  enum { kWords = 2 << 20 };
  MPI_Init(&argc, &argv);
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  char host[64];
  gethostname(host, sizeof host);
  printf("rank %d of %d is on %s\n", rank, ranks, host);

  int* const words = calloc(kWords, sizeof *words);
  if (rank > 0) MPI_Recv(words, kWords, MPI_INT, rank - 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  for (int i = 0; i < kWords; ++i) words[i] += i % 7 + rank;
  if (rank + 1 < ranks) MPI_Send(words, kWords, MPI_INT, rank + 1, 0, MPI_COMM_WORLD);

  int wrong = 0;
  for (int i = 0; i < kWords; ++i) wrong += words[i] != (rank + 1) * (i % 7) + rank * (rank + 1) / 2;
  int all = 0;
  MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) printf("%d ranks, %d wrong words\n", ranks, all);
  free(words);
  MPI_Finalize();
  return all != 0;
}

#!/bin/bash
# A program starts a thread with the smallest stack that the C library permits. The thread-local variables of the
# libraries are part of each thread's stack, so large ones would make pthread_create fail.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need gcc
enter_namespace "$@"

cat >"$work/small_stack.c" <<'C'
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void* do_nothing(void* unused) { return unused; }

int main(void) {
  int devices = 0;
  ibv_free_device_list(ibv_get_device_list(&devices));
  rdma_free_devices(rdma_get_devices(NULL));
  pthread_attr_t attributes;
  pthread_t thread;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, (size_t)sysconf(_SC_THREAD_STACK_MIN));
  const int error = pthread_create(&thread, &attributes, do_nothing, NULL);
  if (error != 0) return printf("pthread_create: %s\n", strerror(error)), 1;
  pthread_join(thread, NULL);
  printf("%d devices\n", devices);
  return 0;
}
C
gcc -pthread "$work/small_stack.c" -libverbs -lrdmacm -o "$work/small_stack" 2>"$logs/gcc" ||
  skip "the program does not compile: are the headers of verbs and rdma_cm installed?"
start program "$tool" run -- "$work/small_stack"
finish program 20
[ "$status" = 0 ] || fail "the thread does not start"
grep -q '^[1-9][0-9]* devices$' "$logs/program" || fail "the program does not run on Verbena"
pass

#!/bin/bash
# qperf over rdma_cm (-cm1): its RC tests. Without rdma_cm qperf uses only LIDs, which no RoCE device has. Its UC and
# UD tests have no other mode, so they cannot run on RoCE.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need qperf
enter_namespace "$@"

take_port
start server "$tool" run -- qperf -lp "$port"
await_listener "$port" server || fail "qperf does not listen"
tests=(rc_bw rc_bi_bw rc_lat rc_rdma_read_bw rc_rdma_read_lat rc_rdma_write_bw rc_rdma_write_lat
  rc_rdma_write_poll_lat rc_compare_swap_mr rc_fetch_add_mr ver_rc_compare_swap ver_rc_fetch_add)
for test in "${tests[@]}"; do
  start "$test" "$tool" run -- qperf -lp "$port" -cm1 -t 1 127.0.0.1 "$test"
  finish "$test" 30
  [ "$status" = 0 ] || fail "$test: exit status $status"
  grep -Eq '^ +(bw|latency|msg_rate) += +[0-9.]+ ' "$logs/$test" || fail "$test: no result"
  note "ok $test: $(grep -E '=' "$logs/$test" | head -n 1 | tr -s ' ')"
done
# Sizes and waiting for events instead of polling.
for options in "-m 1 rc_lat" "-m 1M rc_bw" "-cp 0 rc_lat" "-cp 1 rc_bw" "-m 64K rc_rdma_write_bw"; do
  # shellcheck disable=SC2086
  start more "$tool" run -- qperf -lp "$port" -cm1 -t 1 127.0.0.1 $options
  finish more 30
  [ "$status" = 0 ] || fail "$options: exit status $status"
  note "ok $options: $(grep -E '=' "$logs/more" | head -n 1 | tr -s ' ')"
done
kill -0 "${pids[server]}" 2>/dev/null || fail "the server ended"
start quit "$tool" run -- qperf -lp "$port" 127.0.0.1 quit
finish quit 10
finish server 10
[ "$status" != late ] || fail "the server does not quit"
nothing_left
pass

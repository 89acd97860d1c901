#!/bin/bash
# Eight boards with two queue pairs each send to one receiver. One board loses one packet in a hundred, another is
# killed and restarted. No byte is wrong, and every message is counted. VERBENA_DAQ_MESSAGES is the number per
# stream; a large number makes a soak test.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=daq_lib.sh
. "$(dirname "$0")/daq_lib.sh"
need python3
enter_namespace "$@"
[ "$own_namespace" = yes ] || skip "needs its own network namespace"
messages=${VERBENA_DAQ_MESSAGES:-3000}

boards=()
for i in 2 3 4 5 6 7 8 9; do
  loss=0
  [ $i != 3 ] || loss=0.01
  board "board$i" 127.0.0.$i --gbps 0.1 --loss $loss --seed $i --inflight-bytes 40960
  boards+=(--board "127.0.0.$i")
done
start receiver "$tool" recv "${boards[@]}" --streams 2 --op write --msg-size 5120 --messages "$messages" \
  --num-wrs 64 --reconnect --silence 1 --json
await_line "$logs/receiver" 'stream 15: RTR, RTS' 30 || fail "not all streams are connected"
sleep 0.5
kill -KILL "$(family "${pids[board4]}" | tail -n 1)"
finish board4 5
await_line "$logs/receiver" 'stream 4: 127.0.0.4 is silent' 30 || fail "the end of a board is not detected"
board board4 127.0.0.4 --gbps 0.1 --inflight-bytes 40960
finish receiver $((60 + messages / 500))
[ "$status" = 0 ] || fail "recv: exit status $status"
sed -n '/^{/,$p' "$logs/receiver" >"$work/receiver.json"
for i in 2 3 4 5 6 7 8 9; do
  end_board "board$i"
  tail -n 1 "$logs/board$i" >"$work/board$i.json"
done
python3 - "$work" "$messages" <<'CHECK' || fail "something is wrong or missing"
import json, sys
work, messages = sys.argv[1], int(sys.argv[2])
r = json.load(open(f"{work}/receiver.json"))
b = {i: json.load(open(f"{work}/board{i}.json")) for i in range(2, 10)}
assert r["good"] and len(r["streams"]) == 16
for n, s in enumerate(r["streams"]):
    assert s["messages"] == messages and s["bytes"] == messages * 5120, s
    assert s["wrong"] == s["lost"] == s["missing"] == 0, s
    assert s["connections"] == (2 if s["board"] == "127.0.0.4" else 1), s
for i, counters in b.items():
    if i != 4:  # the counters of the killed board 4 are lost
        assert counters["messages_acked"] == counters["messages_made"] == 2 * messages, (i, counters)
    assert counters["overruns"] == 0 and counters["icrc_errors"] == 0, (i, counters)
assert b[3]["packets_lost_on_purpose"] > 0 and b[3]["packets_repeated"] > 0, b[3]
print("board 3: %d packets lost, %d retransmitted" % (b[3]["packets_lost_on_purpose"], b[3]["packets_repeated"]))
CHECK
nothing_left
pass

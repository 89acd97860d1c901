#!/bin/bash
# Prints VERBENA_STEERING=off for the tests' environment if the kernel accepts no BPF programs, which Verbena
# needs for steering; otherwise prints nothing. Some sandboxes reject such programs. On a kernel whose BPF
# memory is deadlocked, the call that attaches a program never returns, so the probe is a separate process.
set -euo pipefail

attach='
import ctypes, socket, struct
SO_ATTACH_REUSEPORT_CBPF, RETURN = 51, 0x06
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
code = ctypes.create_string_buffer(struct.pack("HBBI", RETURN, 0, 0, 0))
s.setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, struct.pack("HL", 1, ctypes.addressof(code)))
'
why='the kernel rejects BPF programs'
python3 -c "$attach" >/dev/null 2>&1 </dev/null &
probe=$!
disown  # it may never end
for ((tenths = 0; tenths < 100; ++tenths)); do
  state=$(awk '{print $3}' "/proc/$probe/stat" 2>/dev/null || echo gone)
  case $state in gone | Z) break ;; esac
  sleep 0.1
done
case $state in
  gone | Z) python3 -c "$attach" >/dev/null 2>&1 && exit 0 ;;
  *) why="the kernel's BPF is stuck (only a restart of the machine helps)" ;;
esac
echo "steering.sh: $why: the tests continue with VERBENA_STEERING=off; the tests of steering are skipped" >&2
echo 'VERBENA_STEERING=off'

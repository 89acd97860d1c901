#!/bin/bash
# Prints what the tests' environment needs where the kernel takes no BPF programs, which Verbena gives it to
# have packets steered to the right process: VERBENA_STEERING=off. Nothing elsewhere. Some sandboxes refuse
# such programs; a kernel whose BPF memory is deadlocked keeps whoever attaches one for ever, which the probe
# finds out in a process of its own.
set -euo pipefail

attach='
import ctypes, socket, struct
SO_ATTACH_REUSEPORT_CBPF, RETURN = 51, 0x06
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
code = ctypes.create_string_buffer(struct.pack("HBBI", RETURN, 0, 0, 0))
s.setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, struct.pack("HL", 1, ctypes.addressof(code)))
'
why='the kernel refuses BPF programs'
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
echo "steering.sh: $why: the tests go on with VERBENA_STEERING=off; those of steering are skipped" >&2
echo 'VERBENA_STEERING=off'

#!/bin/bash
# All slots of the network namespace are in use: the error names the users and processes and states the remedy.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
enter_namespace "$@"
need python3
[ "$own_namespace" = yes ] || skip "needs its own network namespace: the test uses all slots"

python3 - "$build/lib/libibverbs.so.1" >"$logs/open" 2>&1 <<'PYTHON' || true
import ctypes, os, socket, sys

sockets = []
for slot in range(1, 255):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    s.bind(b"\0verbena/2/slot/%d" % slot)
    sockets.append(s)
library = ctypes.CDLL(sys.argv[1], use_errno=True)
library.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
library.ibv_open_device.restype = ctypes.c_void_p
library.ibv_open_device.argtypes = [ctypes.c_void_p]
devices = library.ibv_get_device_list(None)
opened = library.ibv_open_device(devices[0])
print("opened" if opened else "errno", ctypes.get_errno(), "pid", os.getpid(), "uid", os.getuid())
PYTHON
pid=$(sed -nE 's/^errno .* pid ([0-9]+) uid .*/\1/p' "$logs/open")
uid=$(sed -nE 's/^errno .* uid ([0-9]+)$/\1/p' "$logs/open")
[ -n "$pid" ] || { cat "$logs/open"; echo "no_free_slot: the device was opened"; exit 1; }
grep -qF "held by user $uid: 254 (process $pid: 254). End some of these programs" "$logs/open" ||
  { cat "$logs/open"; echo "no_free_slot: the error does not name process $pid of user $uid"; exit 1; }
echo "no_free_slot: the error names user and process"

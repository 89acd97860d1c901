#!/bin/bash
# A program can unload the library while a device is open and load it again. The background thread of the
# device still runs code of the library at that time.
set -euo pipefail
library=${VERBENA_BUILD:?the build folder}/lib/libibverbs.so.1

python3 - "$library" <<'PYTHON'
import _ctypes, ctypes, sys, time

def load_and_open():
    library = ctypes.CDLL(sys.argv[1])
    library.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    library.ibv_open_device.restype = ctypes.c_void_p
    library.ibv_open_device.argtypes = [ctypes.c_void_p]
    devices = library.ibv_get_device_list(None)
    if not devices or not library.ibv_open_device(devices[0]):
        sys.exit("unload: no device can be opened")
    return library

for _ in range(2):
    library = load_and_open()
    _ctypes.dlclose(library._handle)
    time.sleep(0.05)  # long enough for the thread to wake up at least once
PYTHON
echo "unload: the library was unloaded and loaded again with a device open"

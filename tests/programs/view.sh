#!/bin/bash
# The view: `verbena run` shows its devices in /sys/class/infiniband and /dev/infiniband to ordinary programs and
# their children, and to no other process.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
PATH=$PATH:/usr/sbin  # ibstatus
need ip ibv_rc_pingpong ib_write_bw python3 ibstatus
enter_namespace "$@"
device=/sys/class/infiniband/verbena_lo
run() { "$tool" run --device lo -- "$@"; }
same() { [ "$1" = "$2" ] || fail "'$1' instead of '$2'"; }

same "$(run ls /sys/class/infiniband)" verbena_lo
same "$(run cat $device/ports/1/gids/0)" 0000:0000:0000:0000:0000:ffff:7f00:0001
same "$(run cat $device/node_guid)" "$(run ibv_devinfo | awk '$1 == "node_guid:" {print $2}')"
same "$(run sh -c "sh -c 'cat $device/ports/1/state'")" '4: ACTIVE'
same "$(run bash -c "cd /sys/class && echo infiniband/*/ports/*/gid_attrs/types/0")" \
  infiniband/verbena_lo/ports/1/gid_attrs/types/0
same "$(run readlink -f $device)" /sys/devices/virtual/infiniband/verbena_lo
same "$(run stat -c '%F %a' /dev/infiniband/uverbs1)" 'character special file 666'
same "$(run find $device/ports/1/pkeys $device/device -type f | sort | tr '\n' ' ')" \
  "$device/device/local_cpulist $device/device/local_cpus $device/device/numa_node $device/ports/1/pkeys/0 "
run ls -laR /sys/class/infiniband/ /dev/infiniband/ $device/ >"$logs/ls" 2>&1 || fail "ls -laR: $?"
note "ok ls, cat, readlink, stat, find, a shell and its child"

# A directory of the view as the working directory of a shell, of its subshells, and of programs that it executes.
run ibstatus >"$logs/ibstatus" || fail "ibstatus: $?"
same "$(awk '/^Infiniband device/' "$logs/ibstatus")" "Infiniband device 'verbena_lo' port 1 status:"
same "$(awk '$1 == "state:" {print $2, $3}' "$logs/ibstatus")" '4: ACTIVE'
same "$(awk '/default gid:/ {print $3}' "$logs/ibstatus")" "$(run cat $device/ports/1/gids/0)"
for shell in bash sh; do
  same "$(run $shell -c 'cd /sys/class/infiniband && (cd */ports && echo * ../node_*) && cat verbena_lo/ports/1/lid')" \
    "1 ../node_desc ../node_guid ../node_type
0x0"
  same "$(run $shell -c "cd $device && pwd && env pwd -P && cd ports/../.. && pwd && ls && cd .. && pwd && env pwd")" \
    "$device
/sys/devices/virtual/infiniband/verbena_lo
/sys/class/infiniband
verbena_lo
/sys/class
/sys/class"
  same "$(run $shell -c "cd $device && cd /dev/infiniband && ls && cd /tmp && ls -d \$PWD && env pwd")" \
    "$(run ls /dev/infiniband; echo /tmp; echo /tmp)"
  # A relative path in another directory, and a wrong PWD, do not refer to the view.
  same "$(run $shell -c 'cd /sys/class/infiniband && cd ../../../tmp && pwd && cd / && PWD=/sys/class/infiniband env pwd')" \
    "/tmp
/"
done
note "ok ibstatus, working directories"

run python3 - $device <<'PYTHON' || fail "Python gets other results"
import ctypes, os, subprocess, sys
device = sys.argv[1]
files = [os.path.join(where, name) for where, _, names in os.walk(device + "/") for name in names]
assert len(files) > 400, len(files)
assert open(device + "/ports/1/gid_attrs/types/0").read() == "RoCE v2\n"
assert os.path.realpath(device).startswith("/sys/devices/")
# Through a descriptor of a directory, as hwloc does.
root = os.open("/", os.O_RDONLY)
folder = os.open("sys/class/infiniband", os.O_RDONLY | os.O_DIRECTORY, dir_fd=root)
assert os.listdir(folder) == ["verbena_lo"]
assert os.stat(folder).st_mode & 0o40000
assert os.stat("verbena_lo/ports", dir_fd=os.dup(folder)).st_mode & 0o40000
with os.fdopen(os.open("verbena_lo/fw_ver", os.O_RDONLY, dir_fd=folder)) as f:
    assert f.read().startswith("verbena ")

def refused(error, call, *arguments):
    try:
        call(*arguments)
    except OSError as e:
        assert isinstance(e, error), e
    else:
        assert False, (call, arguments)
refused(PermissionError, open, device + "/node_desc", "w")
refused(PermissionError, os.write, os.open(device + "/node_desc", os.O_RDONLY), b"x")
refused(FileNotFoundError, open, device + "/no_such")
refused(NotADirectoryError, os.listdir, device + "/node_desc")
refused(OSError, open, device + "/ports/1/gid_attrs/types/127")
refused(OSError, open, "/dev/infiniband/uverbs1")
assert os.access("/dev/infiniband/uverbs1", os.R_OK | os.W_OK)
assert not os.access(device + "/node_desc", os.W_OK)
# A relative path without a working directory does not start at the root.
refused(OSError, lambda: os.open("sys/class/infiniband", os.O_RDONLY, dir_fd=999))
# Directories of the kernel behind the view, read whole by scandir() of the C library.
libc, entries = ctypes.CDLL(None), ctypes.POINTER(ctypes.c_void_p)()
assert libc.scandir(b"/dev/infiniband/../../usr/bin", ctypes.byref(entries), None, None) > 100
# Working directories.
os.chdir(device)
assert os.getcwd() == os.path.realpath(device) and os.listdir() == os.listdir(device)
assert open("ports/1/lid").read() == "0x0\n" and os.stat(".").st_ino == os.stat(device).st_ino
refused(FileNotFoundError, os.chdir, "no_such")
refused(NotADirectoryError, os.chdir, "node_desc")
refused(FileNotFoundError, open, "self/comm")
here = os.open(".", os.O_RDONLY)
os.chdir("/usr")
assert os.getcwd() == "/usr" and "bin" in os.listdir(".")
os.fchdir(here)
assert os.getcwd() == os.path.realpath(device)
# A child that shares the memory (vfork) changes only its own working directory.
for elsewhere in ("/", device + "/ports"):
    assert subprocess.run(["pwd"], cwd=elsewhere, capture_output=True).returncode == 0
    assert os.getcwd() == os.path.realpath(device), os.getcwd()
room = ctypes.create_string_buffer(4)
libc.getcwd.restype = ctypes.c_void_p
assert libc.getcwd(room, 4) is None and libc.getcwd(room, 0) is None
by_system_call = 80 if os.uname().machine == "x86_64" else 49  # chdir without the C library
assert libc.syscall(by_system_call, b"/usr") == 0 and os.getcwd() == "/usr"
os.chdir(device)
os.fchdir(root)
assert os.getcwd() == "/" and "usr" in os.listdir()
# All other paths are unchanged.
assert open("/proc/self/comm").read() == "python3\n"
assert "null" in os.listdir("/dev") and os.path.realpath("/dev/infiniband/../null") == "/dev/null"
PYTHON
note "ok python: walks, folders by descriptor, nothing can be written"

# Other processes do not get the view, nor do programs with --no-view.
[ "$(ls -d $device 2>/dev/null)" = "" ] || fail "the view is visible outside the process"
[ "$("$tool" run --no-view -- ls -d $device 2>/dev/null)" = "" ] || fail "--no-view shows it"
# shellcheck disable=SC2016
same "$(eval "$("$tool" env --device lo)"; cat $device/ports/1/link_layer)" Ethernet
# The view shows the current devices of the reader's namespace.
if [ "$own_namespace" = yes ]; then
  same "$(run sh -c "ip link set lo down; ls /sys/class/infiniband; ip link set lo up; ls /sys/class/infiniband")" \
    verbena_lo
  same "$(run unshare -n ls /sys/class/infiniband)" ""
fi
note "ok visible to programs of verbena run only, always current"

# In a shell whose directory was removed, relative paths do not start at the root.
mkdir "$work/gone"
[ "$(cd "$work/gone" && rmdir "$work/gone" && run cat sys/class/infiniband/verbena_lo/fw_ver 2>/dev/null)" = "" ] ||
  fail "a relative path is found without a working directory"

# With a file size limit of 0 the files of the view give an error and do not end the program by SIGXFSZ.
status=0
(ulimit -f 0; run cat $device/fw_ver 2>&1) | cat >"$logs/limited" || status=$?
same "$status $(grep -c 'File too large' "$logs/limited")" "1 1"

# Counters change while programs run.
take_port
start server "$tool" run -- ibv_rc_pingpong -d verbena_lo -g 0 -p "$port" -n 2000000
await_listener "$port" server || fail "ibv_rc_pingpong does not listen"
start client "$tool" run -- ibv_rc_pingpong -d verbena_lo -g 0 -p "$port" -n 2000000 127.0.0.1
tries=100
until [ "$(run cat $device/ports/1/counters/port_xmit_packets)" -gt 1000 ]; do
  [ $((tries--)) -gt 0 ] || fail "port_xmit_packets does not grow"
  sleep 0.05
done
[ "$(run cat $device/ports/1/counters/port_rcv_data)" -gt 1000 ] || fail "port_rcv_data does not count"
same "$(run cat $device/ports/1/counters/port_rcv_errors)" 0
# Also in a file that was opened before and is read again from its start.
run python3 - $device/ports/1/counters/port_xmit_packets <<'PYTHON' || fail "an open counter does not change"
import os, sys, time
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_CLOEXEC)
values = []
for attempt in range(200):
    os.lseek(fd, 0, os.SEEK_SET)
    first = os.read(fd, 8)
    values.append(int(first + os.read(fd, 4096)))
    if len(values) > 5 and values[-1] > values[0] > 1000:
        break
    time.sleep(0.05)
assert values[-1] > values[0] > 1000 and values == sorted(values), values
assert int(os.pread(fd, 4096, 0)) >= values[-1] and not os.get_inheritable(fd)
os.close(fd)
other = os.open("/proc/self/comm", os.O_RDONLY)  # has the same number now
assert other == fd and os.read(other, 100) == b"python3\n"
PYTHON
kill -KILL "${pids[client]}" "${pids[server]}"
finish client 5
finish server 5
run_options=(--device lo)
pair "perftest's --report-counters" ib_write_bw -d verbena_lo -x 0 -F -n 2000 -W counters/port_xmit_data
[ "$(sed -n 's|.*counters/port_xmit_data=||p' "$logs/pair.client")" -gt 1000000 ] || fail "ib_write_bw sees no counter change"
note "ok counters"
nothing_left
pass

#!/bin/bash
# Bad environments: the error message names the cause, nothing crashes, and other processes are not affected. A pair of
# processes that exchange messages all the time checks the last point.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need ibv_devinfo ibv_rc_pingpong ibv_devices ip python3 gcc
enter_namespace "$@"
[ "$own_namespace" = yes ] || skip "cannot create network namespaces"

# try STATUS COMMAND...: both outputs in $logs/output.
try() {
  local expected=$1 status=0
  shift
  timeout 30 "$@" >"$logs/output" 2>&1 </dev/null || status=$?
  [ "$status" = "$expected" ] || fail "'$*': exit status $status instead of $expected"
}
prints() { grep -Eq -- "$1" "$logs/output" || fail "no message: $1"; }

start_pair bystanders ibv_rc_pingpong -d verbena_lo -g 0 -c -e -n 10000000
await_line "$logs/bystanders.client" 'remote address' 20 || fail "the bystanders do not connect"
bystanders_run() {
  local side
  for side in client server; do
    kill -0 "${pids[bystanders.$side]}" 2>/dev/null || fail "$1: the bystanders' $side has ended"
  done
  note "ok $1"
}
packets() { "$tool" counters "${pids[bystanders.client]}" | awk '$1 == "packets_sent" {print $2}'; }

# --- a program with its own libibverbs in an RPATH, which precedes LD_LIBRARY_PATH
mkdir "$work/own"
cp "$(ldconfig -p | awk '$1 == "libibverbs.so.1" {print $NF; exit}')" "$work/own/libibverbs.so.1"
printf '#include <infiniband/verbs.h>\nint main() { int n = 0; ibv_get_device_list(&n); return n > 0 ? 0 : 9; }\n' >"$work/lists.c"
gcc "$work/lists.c" -o "$work/lists" -libverbs -Wl,--disable-new-dtags,-rpath,"$work/own" || fail "lists.c does not compile"
try 9 "$tool" run -- "$work/lists"
prints "warning: $work/lists loads $work/own/libibverbs\.so\.1 by an RPATH.*LD_PRELOAD=$build/lib/libibverbs\.so\.1"
try 0 env LD_PRELOAD="$build/lib/libibverbs.so.1" "$tool" run -- "$work/lists"
[ ! -s "$logs/output" ] || fail "a message is printed although the advice is followed"
bystanders_run "an RPATH"

# --- a 32-bit program, started directly and by a 64-bit one
if printf '.globl _start\n_start: mov $1, %%eax\nmov $7, %%ebx\nint $0x80\n' >"$work/small.s" &&
  as --32 "$work/small.s" -o "$work/small.o" 2>"$logs/as" && ld -m elf_i386 "$work/small.o" -o "$work/small" 2>"$logs/as"; then
  runs=0
  "$work/small" 2>"$logs/as" || runs=$?
  if [ "$runs" = 7 ]; then
    try 7 "$tool" run -- "$work/small"
    prints 'small is a 32-bit program: Verbena is a 64-bit library'
    try 7 "$tool" run -- sh -c "'$work/small'"
    bystanders_run "a 32-bit program"
  else
    note "32-bit programs are not tried: this kernel runs none"
  fi
else
  note "32-bit programs are not tried: they cannot be built here"
fi

# --- no /dev/shm: a full one, and a /dev without it
mkdir "$work/dev"
is_full=(unshare -m bash -c 'mount -t tmpfs tmpfs /dev/shm -o size=4k,ro && exec "$@"' bash)
is_missing=(unshare -m bash -c '
  mount -t tmpfs tmpfs "$0" && for name in null zero full random urandom tty; do
    touch "$0/$name" && mount --bind "/dev/$name" "$0/$name" || exit 99
  done && mount --rbind "$0" /dev && [ ! -e /dev/shm ] && exec "$@"' "$work/dev")
without_shm() { # WHAT PREFIX...
  local what=$1 datapath
  shift
  if ! "$@" true 2>"$logs/mount"; then
    note "not tried, cannot mount here: $what"
    return
  fi
  for datapath in udp shm; do
    take_port
    start shmless env VERBENA_DATAPATH="$datapath" "$tool" run -- ibv_rc_pingpong -d verbena_lo -g 0 -c -n 500 -p "$port"
    await_listener "$port" shmless || fail "no listener"
    try 0 "$@" env VERBENA_DATAPATH="$datapath" "$tool" run -- ibv_rc_pingpong -d verbena_lo -g 0 -c -n 500 -p "$port" 127.0.0.1
    finish shmless 30
    [ "$status" = 0 ] || fail "$what, $datapath: exit status $status"
  done
  try 0 "$@" "$tool" doctor
  prints 'hint +/dev/shm +does not exist or is not writable: Verbena does not need it'
  bystanders_run "$what"
}
without_shm "a full /dev/shm" "${is_full[@]}"
without_shm "no /dev/shm" "${is_missing[@]}"

# --- no free slot
start slots python3 -c '
import re, socket, time
names = re.findall(r"@(verbena/\d+/slot/)\d+", open("/proc/net/unix").read())
taken = []
for slot in range(1, 255):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        s.bind("\0" + names[0] + str(slot))
        taken.append(s)
    except OSError:
        pass
print("took", len(taken), flush=True)
time.sleep(600)'
await_line "$logs/slots" '^took 252' 10 || fail "cannot claim the slots besides the two processes"
try 1 "$tool" run -- ibv_devinfo -d verbena_lo
prints 'all 254 process slots of this network namespace are taken'
try 0 "$tool" run -- ibv_devices
try 1 "$tool" doctor
prints 'problem +process slots +254 of .* 254 are taken: no further process can open a device\. End some'
kill -KILL "${pids[slots]}"
finish slots 5
try 0 "$tool" run -- ibv_devinfo -d verbena_lo
bystanders_run "no free slot"

# --- a full disk for the capture and for the log
mkdir "$work/small_disk"
if unshare -m true 2>/dev/null; then
  full=(unshare -m bash -c 'mount -t tmpfs -o size=64k tmpfs "$0" && exec "$@"' "$work/small_disk")
  take_port
  start fills "$tool" run -- ibv_rc_pingpong -d verbena_lo -g 0 -c -n 500 -p "$port"
  await_listener "$port" fills || fail "no listener"
  try 0 "${full[@]}" "$tool" run --pcap "$work/small_disk/x.pcap" -- ibv_rc_pingpong -d verbena_lo -g 0 -c -n 500 -p "$port" 127.0.0.1
  prints "VERBENA_PCAP: writing the capture $work/small_disk/x\.pcap failed, it ends here: No space left on device"
  [ "$(grep -c 'ends here' "$logs/output")" = 1 ] || fail "it is reported more than once"
  finish fills 30
  [ "$status" = 0 ] || fail "the other side of a full disk: exit status $status"
fi
try 1 env VERBENA_LOG_FILE=/dev/full VERBENA_FAULTS=lose=1 "$tool" run -- ibv_devinfo -d verbena_lo
prints 'VERBENA_LOG_FILE=/dev/full cannot be written: No space left on device'
prints 'VERBENA_FAULTS=lose=1: '
bystanders_run "a full disk"

# --- an interface that is removed during a connection
connect_second_host
client_in=("${there[@]}")
host=192.0.2.1
run_options=(--log info)
start_pair wired ibv_rc_pingpong -d verbena_veth0 -g 0 -e -n 10000000
await_line "$logs/wired.client" 'remote address' 20 || fail "no connection over the wire"
ip link delete veth0
for side in server client; do
  finish "wired.$side" 60
  case $status in 0 | late | 13[0-9]) fail "a removed interface: exit status of the $side: $status" ;; esac
done
cat "$logs/wired.server" "$logs/wired.client" >"$logs/output"
prints 'veth0.* gone'
before=$(packets)
await_more() { local tries=100; until [ "$(packets)" -gt "$before" ]; do [ $((tries--)) -gt 0 ] || return 1; sleep 0.1; done; }
await_more || fail "the bystanders no longer exchange messages"
bystanders_run "a removed interface"
pass

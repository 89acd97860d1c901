#!/bin/bash
# What the view leaves alone: a set-uid program does not get it, and nothing is written anywhere. There is no runtime
# directory whose files could belong to somebody else: what programs are shown and what they share is memory.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need ibv_rc_pingpong strace setpriv gcc
# A second user is needed for a set-uid program, and a user namespace has one.
if [ "$(id -u)" = 0 ] && [ -z "${VERBENA_TEST_NETNS:-}" ] && unshare -n true 2>/dev/null; then
  VERBENA_TEST_NETNS=own exec unshare -n bash "$0" "$@"
fi
enter_namespace "$@"
device=/sys/class/infiniband/verbena_lo

# --- nothing is written: every call of a pair that could make, change or remove a file
watched=open,openat,openat2,creat,mkdir,mkdirat,mknod,mknodat,rename,renameat,renameat2,unlink,unlinkat,link,linkat
watched+=,symlink,symlinkat,truncate,chmod,fchmodat,chown,bind
take_port
# A file for each thread: calls of several in one file interrupt one another.
trace=(strace -ff -qq -e "trace=$watched" -o)
start server "${trace[@]}" "$work/server" "$tool" run -- ibv_rc_pingpong -d verbena_lo -g 0 -c -n 200 -p "$port"
await_listener "$port" server || fail "ibv_rc_pingpong does not listen"
start client "${trace[@]}" "$work/client" "$tool" run -- ibv_rc_pingpong -d verbena_lo -g 0 -c -n 200 -p "$port" 127.0.0.1
for side in client server; do
  finish $side 60
  [ "$status" = 0 ] || fail "ibv_rc_pingpong under strace: exit status of the $side: $status"
done
"${trace[@]}" "$work/looks" "$tool" run -- sh -c "ls -lR $device/ /dev/infiniband; cat $device/ports/1/counters/*" >"$logs/looks" 2>&1 ||
  fail "ls and cat under strace: exit status $?"
grep -q port_xmit_data "$logs/looks" || fail "the view shows nothing under strace"
grep -qs openat "$work"/client.* || fail "strace saw nothing"
# Sockets have no names in the file system (autobind, or @); /dev/null is what sh does, and one's peer's memory is what it is about. A call that failed changed nothing.
if cat "$work"/{server,client,looks}.* | grep -v ' = -1 ' |
  grep -Ev '"/dev/null"|"/proc/[0-9]+/mem"|^(---|\+\+\+)|sa_family=AF_UNIX}, 2|open(at)?\(.*(O_RDONLY|O_PATH)|sun_path=@|AF_(INET6?|NETLINK)' >"$logs/written"; then
  fail "something is written"
fi
note "ok nothing is written"

# --- a set-uid program, started by somebody else
as_nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups)
if [ "$(id -u)" != 0 ] || ! "${as_nobody[@]}" test -x "$tool" 2>/dev/null; then
  note "a set-uid program is not tried: this needs root, and a build that everybody may read"
else
  chmod 755 "$work"
  cat >"$work/looks.c" <<'C'
#include <stdio.h>
#include <sys/stat.h>
#include <infiniband/verbs.h>
int main(int count, char** path) {
  struct stat s;
  int devices = 0;
  ibv_get_device_list(&devices);
  printf("view %d devices %d\n", stat(path[count - 1], &s) == 0, devices);
}
C
  gcc -o "$work/looks_plain" "$work/looks.c" -libverbs || fail "looks.c does not compile"
  cp "$work/looks_plain" "$work/looks_setuid"
  chmod 4755 "$work/looks_setuid"
  sees() { (cd / && timeout 20 "${as_nobody[@]}" "$tool" run --device lo -- "$work/looks_$1" $device) >"$logs/$1" 2>&1; }
  sees plain || fail "a plain program: exit status $?"
  grep -qx 'view 1 devices 1' "$logs/plain" || fail "a plain program does not see the device"
  sees setuid || fail "a set-uid program: exit status $?"
  grep -qx 'view 0 devices 0' "$logs/setuid" || fail "a set-uid program sees something"
  grep -q 'looks_setuid is set-uid.*will not use Verbena' "$logs/setuid" || fail "nobody says why"
  note "ok a set-uid program ignores it"
fi
pass

#!/bin/bash
# Security of the view: a set-uid program does not get it, and no file is written. There is no runtime directory whose
# files could belong to another user, because the view and the links use memory only.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need ibv_rc_pingpong strace setpriv gcc
# A set-uid program needs a second user, and a user namespace has only one.
if [ "$(id -u)" = 0 ] && [ -z "${VERBENA_TEST_NETNS:-}" ] && unshare -n true 2>/dev/null; then
  VERBENA_TEST_NETNS=own exec unshare -n bash "$0" "$@"
fi
enter_namespace "$@"
device=/sys/class/infiniband/verbena_lo

# --- no file is written: every call of a pair that could create, change or remove a file
watched=open,openat,openat2,creat,mkdir,mkdirat,mknod,mknodat,rename,renameat,renameat2,unlink,unlinkat,link,linkat
watched+=,symlink,symlinkat,truncate,chmod,fchmodat,chown,bind
take_port
# One trace file per thread, because calls of several threads in one file are interleaved.
trace=(strace -ff -qq -e "trace=$watched" -o)
start server "${trace[@]}" "$work/server" "$tool" run -- ibv_rc_pingpong -d verbena_lo -g 0 -c -n 200 -p "$port"
await_listener "$port" server || fail "ibv_rc_pingpong does not listen"
start client "${trace[@]}" "$work/client" "$tool" run -- ibv_rc_pingpong -d verbena_lo -g 0 -c -n 200 -p "$port" 127.0.0.1
for side in client server; do
  finish $side 60
  [ "$status" = 0 ] || fail "ibv_rc_pingpong under strace: exit status of the $side: $status"
done
"${trace[@]}" "$work/ls" "$tool" run -- sh -c "ls -lR $device/ /dev/infiniband; cat $device/ports/1/counters/*" >"$logs/ls" 2>&1 ||
  fail "ls and cat under strace: exit status $?"
grep -q port_xmit_data "$logs/ls" || fail "the view shows nothing under strace"
grep -qs openat "$work"/client.* || fail "strace recorded nothing"
# Allowed: sockets without a name in the file system (autobind, or @), /dev/null of sh, the peer's memory, and failed calls.
if cat "$work"/{server,client,ls}.* | grep -v ' = -1 ' |
  grep -Ev '"/dev/null"|"/proc/[0-9]+/mem"|^(---|\+\+\+)|sa_family=AF_UNIX}, 2|open(at)?\(.*(O_RDONLY|O_PATH)|sun_path=@|AF_(INET6?|NETLINK)' >"$logs/written"; then
  fail "a file is written"
fi
note "ok nothing is written"

# --- a set-uid program, started by another user
as_other_user=(setpriv --reuid=65534 --regid=65534 --clear-groups)
if [ "$(id -u)" != 0 ] || ! "${as_other_user[@]}" test -x "$tool" 2>/dev/null; then
  note "a set-uid program is not tried: this needs root, and a build that all users may read"
else
  chmod 755 "$work"
  cat >"$work/stat.c" <<'C'
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
  gcc -o "$work/stat_plain" "$work/stat.c" -libverbs || fail "stat.c does not compile"
  cp "$work/stat_plain" "$work/stat_setuid"
  chmod 4755 "$work/stat_setuid"
  run_copy() { (cd / && timeout 20 "${as_other_user[@]}" "$tool" run --device lo -- "$work/stat_$1" $device) >"$logs/$1" 2>&1; }
  run_copy plain || fail "a plain program: exit status $?"
  grep -qx 'view 1 devices 1' "$logs/plain" || fail "a plain program does not see the device"
  run_copy setuid || fail "a set-uid program: exit status $?"
  grep -qx 'view 0 devices 0' "$logs/setuid" || fail "a set-uid program gets the view or a device"
  grep -q 'stat_setuid is set-uid.*will not use Verbena' "$logs/setuid" || fail "the reason is not reported"
  note "ok a set-uid program does not get the view"
fi
pass

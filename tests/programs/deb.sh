#!/bin/bash
# The Debian package: its contents, no findings of lintian, and installation, use and removal without leftovers. The
# test installs it in an overlay of this system in memory, where dpkg checks dependencies and all changes can be
# listed.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need dpkg-deb dpkg-shlibdeps ibv_devinfo rping
# Only root can create the overlay, and not in a user namespace.
if [ "$(id -u)" = 0 ] && [ -z "${VERBENA_TEST_NETNS:-}" ] && unshare -n true 2>/dev/null; then
  VERBENA_TEST_NETNS=own exec unshare -n bash "$0" "$@"
fi
enter_namespace "$@"

package=$("$root/scripts/deb.sh" "$build" "$work") || fail "scripts/deb.sh: exit status $?"
dpkg-deb -I "$package" >"$logs/info" || fail "dpkg-deb does not read it"
dpkg-deb --fsys-tarfile "$package" | tar -t | sed 's|^\./||; /\/$/d; /^$/d' | sort >"$logs/files"
if grep -Ev '^usr/(bin/verbena$|lib/verbena/|share/(man/man[17]|doc/verbena|verbena|bash-completion|fish|zsh)/)' "$logs/files"; then
  fail "unexpected files"
fi
for file in bin/verbena lib/verbena/libibverbs.so.1 lib/verbena/librdmacm.so.1 lib/verbena/libverbena-view.so lib/verbena/verbena-perf lib/verbena/verbena-daq \
  share/man/man1/verbena.1.gz share/man/man7/verbena.7.gz share/doc/verbena/copyright share/doc/verbena/README.md \
  share/doc/verbena/daq.md share/verbena/daq_cm.lua \
  share/doc/verbena/examples/rdma_cm.cc share/bash-completion/completions/verbena; do
  grep -qx "usr/$file" "$logs/files" || fail "it has no /usr/$file"
done
grep -Eq '^ Depends: .*libc6 \(>= [0-9.]+\)' "$logs/info" || fail "it does not depend on libc6"
grep -Eq '^ Depends: .*libstdc\+\+6' "$logs/info" || fail "it does not depend on libstdc++6"
if grep -E '^ (Depends|Conflicts|Replaces|Provides): .*(ibverbs|rdmacm)' "$logs/info"; then fail "it interferes with rdma-core"; fi
again=$(mktemp -d -p "$work")
cmp "$package" "$("$root/scripts/deb.sh" "$build" "$again")" || fail "the same build gives a different package"
if command -v lintian >/dev/null; then
  TMPDIR=$work lintian --allow-root "$package" >"$logs/lintian" 2>&1 || fail "lintian: exit status $?"
  if grep -E '^[EW]:' "$logs/lintian"; then fail "lintian has findings"; fi
fi
note "ok the package"

# --- an overlay of this system
fs=$work/fs
mkdir "$fs"
in_copy=(unshare -m bash -euo pipefail -c '
  mount --make-rprivate /
  mount -t tmpfs tmpfs "$1"
  mkdir "$1/upper" "$1/work" "$1/root"
  mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
  for folder in proc dev sys; do mount --rbind /$folder "$1/root/$folder"; done
  shift
  "$@"' bash "$fs")
"${in_copy[@]}" chroot "$fs/root" dpkg -s libc6 >"$logs/copy" 2>&1 ||
  skip "the package is good, but cannot be installed here: creating an overlay needs root"

image_env=$(sed -n "s/^ENV //p" "$root/examples/ci/Dockerfile" | sort)
export package fs image_env
"${in_copy[@]}" bash -euo pipefail -c '
  # The differences from the system, except the records of dpkg and caches.
  changed() {
    find "$fs/upper" ! -type d -printf "%P\n" |
      sed -E "/^(var\/lib\/dpkg|var\/cache|var\/log|tmp|dev|etc\/ld.so.cache)/d" | sort
  }
  cp "$package" "$fs/root/tmp/verbena.deb"
  system=$(readlink -f /usr/lib/*/libibverbs.so.1)
  before=$(md5sum "$system")
  run() { chroot "$fs/root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/ LC_ALL=C "$@"; }
  check() { echo "-- $*"; }

  check install
  run dpkg --force-unsafe-io -i /tmp/verbena.deb
  run dpkg -V verbena
  [ "$(changed)" = "$(run dpkg -L verbena | sed "s|^/||" | while read -r f; do [ -d "$fs/root/$f" ] || echo "$f"; done | sort)" ]

  check use
  run verbena --version
  run verbena devices | grep "^verbena_lo"
  run verbena run -- ibv_devinfo -d verbena_lo | tee /dev/stderr | grep -q "transport:.*InfiniBand"
  run verbena run -- ls /sys/class/infiniband | grep -x verbena_lo
  run verbena doctor
  run verbena run -- rping -s -a 127.0.0.1 -p 7174 -C 3 & server=$!
  for try in $(seq 100); do grep -q "@verbena/.*service" /proc/net/unix && break; sleep 0.05; done
  run verbena run -- rping -c -V -C 3 -a 127.0.0.1 -p 7174
  wait $server
  run verbena perf --help >/dev/null
  [ "$(run verbena env | sed "s/^export //" | tr -d "\047" | sort)" = "$image_env" ] # the same as in the container image
  run sh -c "gunzip -c /usr/share/man/man1/verbena.1.gz" | grep -q "^.TH VERBENA 1"
  run bash -c ". /usr/share/bash-completion/completions/verbena; complete -p verbena"

  check the system is as it was
  [ "$(md5sum "$fs/root$system")" = "${before/"$system"/"$fs/root$system"}" ]
  run ldconfig
  has_no_verbena() { if run "$@" | grep verbena; then exit 1; fi; }
  has_no_verbena ldconfig -p
  has_no_verbena ldd /usr/bin/ibv_devinfo
  has_no_verbena ibv_devices

  check install again over it, and remove
  run dpkg --force-unsafe-io -i /tmp/verbena.deb
  run dpkg -r verbena
  if run dpkg -s verbena; then exit 1; fi
  [ -z "$(changed)" ] || { echo "left: $(changed)"; exit 1; }
  [ ! -e "$fs/root/usr/lib/verbena" ] && [ ! -e "$fs/root/usr/share/doc/verbena" ]
' >"$logs/install" 2>&1 || fail "exit status $?"
note "ok installed, used and removed"
nothing_left
pass

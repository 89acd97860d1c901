#!/bin/bash
# ibv_devices and ibv_devinfo show Verbena's devices with all properties that programs use.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need ibv_devices ibv_devinfo
enter_namespace "$@"

"$tool" run -- ibv_devices >"$logs/ibv_devices" 2>&1 || fail "ibv_devices: exit status $?"
grep -Eq '^ *verbena_lo[[:space:]]+[0-9a-f]{16}$' "$logs/ibv_devices" || fail "no verbena_lo"
if grep -Eq '[[:space:]]0{16}$' "$logs/ibv_devices"; then fail "a GUID is zero"; fi

"$tool" run -- ibv_devinfo -v -d verbena_lo >"$logs/ibv_devinfo" 2>&1 ||
  fail "ibv_devinfo -v: exit status $?"
for pattern in 'hca_id:[[:space:]]*verbena_lo' \
  'transport:[[:space:]]*InfiniBand \(0\)' \
  'node_guid:[[:space:]]*[0-9a-f]{4}(:[0-9a-f]{4}){3}' \
  'sys_image_guid:[[:space:]]*[0-9a-f]{4}(:[0-9a-f]{4}){3}' \
  'phys_port_cnt:[[:space:]]*1$' \
  'state:[[:space:]]*PORT_ACTIVE \(4\)' \
  'max_mtu:[[:space:]]*4096 \(5\)' \
  'active_mtu:[[:space:]]*4096 \(5\)' \
  'link_layer:[[:space:]]*Ethernet' \
  'GID\[ *0\]:[[:space:]]*::ffff:127\.0\.0\.1, RoCE v2'; do
  grep -Eq "$pattern" "$logs/ibv_devinfo" || fail "ibv_devinfo does not print: $pattern"
done
if grep -E 'guid:' "$logs/ibv_devinfo" | grep -q '0000:0000:0000:0000'; then fail "a GUID is zero"; fi
for limit in max_mr_size max_qp max_qp_wr max_sge max_cq max_cqe max_mr max_pd max_qp_rd_atom; do
  grep -Eq "$limit:[[:space:]]*(0x)?0*[1-9a-f]" "$logs/ibv_devinfo" || fail "$limit is zero or absent"
done
note "ok ibv_devices, ibv_devinfo -v"

# VERBENA_DEVICES selects the devices.
"$tool" run --device lo -- ibv_devices >"$logs/selected" 2>&1 || fail "ibv_devices: exit status $?"
[ "$(grep -c 'verbena_' "$logs/selected")" = 1 ] || fail "--device lo gives other devices too"
VERBENA_DEVICES=none "$tool" run -- ibv_devices >"$logs/none" 2>&1 || true
if grep -q 'verbena_' "$logs/none"; then fail "VERBENA_DEVICES=none gives devices"; fi
note "ok VERBENA_DEVICES"

if [ "$own_namespace" = yes ]; then
  # A second interface is listed first; every address has a GID.
  ip link add veth0 address 02:11:22:33:44:55 mtu 1500 type veth peer name veth1
  ip link set veth1 up
  ip link set veth0 up
  await_carrier veth0
  ip address add 192.0.2.1/24 dev veth0
  ip address add 2001:db8::1/64 dev veth0 nodad
  "$tool" run -- ibv_devices >"$logs/two" 2>&1 || fail "ibv_devices: exit status $?"
  grep 'verbena_' "$logs/two" | head -n 1 | grep -Eq 'verbena_veth0[[:space:]]+001122fffe334455$' ||
    fail "verbena_veth0 with the GUID of its MAC address is not the first device"
  "$tool" run -- ibv_devinfo -v -d verbena_veth0 >"$logs/veth0" 2>&1 || fail "ibv_devinfo: status $?"
  for pattern in 'active_mtu:[[:space:]]*1024 \(3\)' 'GID\[ *0\]:[[:space:]]*::ffff:192\.0\.2\.1' \
    'GID\[ *1\]:[[:space:]]*2001:db8::1'; do
    grep -Eq "$pattern" "$logs/veth0" || fail "ibv_devinfo -d verbena_veth0 does not print: $pattern"
  done
  ip link set veth1 down
  "$tool" run --device veth0 -- ibv_devinfo >"$logs/down" 2>&1 || fail "ibv_devinfo: exit status $?"
  grep -q 'PORT_DOWN' "$logs/down" || fail "an interface without carrier has no PORT_DOWN"
  note "ok a second interface"
fi
nothing_left
pass

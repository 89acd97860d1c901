#!/bin/bash
# iSER: Debian's tgtd as the target, qemu-img (libiscsi) as the initiator, on one host and from another. An image is
# written, compared on the target and over the network, and read back.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need tgtd tgtadm qemu-img ip nsenter
dpkg -L qemu-block-extra 2>/dev/null | grep -q 'block-iscsi\.so' || skip "qemu-block-extra is not installed"
enter_namespace "$@"
[ "$own_namespace" = yes ] || skip "tgtd's port may be in use outside a network namespace of our own"
time_limit=60
connect_second_host
target=iqn.2026-01.example:disk
initiator=iqn.2008-11.org.linux-kvm  # qemu's default
export TGT_IPC_SOCKET=$work/tgtd
admin() { bounded tgtadm --lld iser "$@"; }

start tgtd "$tool" run -- tgtd -f --iser pool_sz_mb=64
tries=200
until [ -S "$TGT_IPC_SOCKET.0" ]; do
  kill -0 "${pids[tgtd]}" 2>/dev/null && [ $((tries--)) -gt 0 ] || fail "tgtd does not start"
  sleep 0.05
done
admin --mode target --op new --tid 1 --targetname $target
# This version of tgtd needs both to match, otherwise it reports "target not found".
admin --mode target --op bind --tid 1 --initiator-address ALL
admin --mode target --op bind --tid 1 --initiator-name $initiator
truncate -s 64M "$work/disk1"
truncate -s 256K "$work/disk2"
for lun in 1 2; do admin --mode logicalunit --op new --tid 1 --lun $lun --backing-store "$work/disk$lun" --bstype rdwr; done
await_rdma_listener 3260 tgtd || fail "tgtd does not listen through rdma_cm"

# The data to store: random, with a hole in it.
head -c 24M /dev/urandom >"$work/image1"
truncate -s 40M "$work/image1"
head -c 24M /dev/urandom >>"$work/image1"
head -c 256K /dev/urandom >"$work/image2"

# libiscsi's iSER supports requests of less than 512 KiB and fails by itself with larger ones; qemu-img's are 2 MiB
# unless a layer between them sets a limit.
options() { # HOST LUN
  echo "driver=raw,file.driver=blkdebug,file.max-transfer=262144,file.image.driver=iser,file.image.transport=iser,\
file.image.portal=$1:3260,file.image.target=$target,file.image.lun=$2"
}
stored() { cmp -s "$work/image$1" "$work/disk$1" || fail "$2: the stored data differs"; }
store_and_compare() { # WHAT HOST IN...
  local what=$1 host=$2
  shift 2
  head -c 64M /dev/zero | dd of="$work/disk1" conv=notrunc bs=1M status=none  # clears the data of the previous run
  head -c 256K /dev/zero | dd of="$work/disk2" conv=notrunc bs=64K status=none
  # The large image, in requests within the limit.
  bounded "$@" "$tool" run -- qemu-img convert -n -f raw --target-image-opts "$work/image1" "$(options "$host" 1)"
  stored 1 "$what"
  bounded "$@" "$tool" run -- qemu-img compare --image-opts "driver=raw,file.driver=file,file.filename=$work/image1" \
    "$(options "$host" 1)"
  expect_output '^Images are identical'
  bounded "$@" "$tool" run -- qemu-img convert -O raw --image-opts "$(options "$host" 1)" "$work/disk1.copy"
  cmp "$work/image1" "$work/disk1.copy" || fail "$what: the data read back differs"
  # The small image, by its plain URL.
  bounded "$@" "$tool" run -- qemu-img convert -n -f raw -O raw "$work/image2" "iser://$host:3260/$target/2"
  stored 2 "$what"
  bounded "$@" "$tool" run -- qemu-img compare -f raw -F raw "$work/image2" "iser://$host:3260/$target/2"
  expect_output '^Images are identical'
  # A difference is detected.
  printf x | dd of="$work/disk2" bs=1 seek=100000 conv=notrunc status=none
  if timeout -k 5 "$time_limit" "$@" "$tool" run -- qemu-img compare -f raw -F raw "$work/image2" \
    "iser://$host:3260/$target/2" >"$logs/out" 2>&1; then fail "$what: a changed byte is not detected"; fi
  expect_output 'Content mismatch at offset 9[0-9]+'
  note "ok $what"
}
before=$(counter_sum packets_sent)
store_and_compare "one host, through memory" 127.0.0.1
VERBENA_DATAPATH=udp store_and_compare "one host, over UDP" 127.0.0.1
store_and_compare "from another host" 192.0.2.1 "${there[@]}"
[ $(($(counter_sum packets_sent) - before)) -gt 10000 ] || fail "tgtd did not send through Verbena"

kill -KILL "${pids[tgtd]}"
finish tgtd 5
row tgtd tgt "\`--iser\` (iSER target), through shared memory, over UDP, and from another host"
row "qemu-img, libiscsi" qemu-utils "iser://: convert there and back and compare of 64 MiB, requests of at most 256 KiB (3)"
remove_second_host
nothing_left
pass

#!/bin/bash
# Installs the missing Debian packages for the given purposes:
#   scripts/install-packages.sh build [demo] [test] [bench] [scale] [interop] [deb] [fuzz] [tidy]
# Changes nothing (and needs no network) if all are installed. VERBENA_SKIP_PACKAGES=1 disables it.
set -euo pipefail

declare -A packages=(
  [build]="g++ cmake ninja-build libibverbs-dev librdmacm-dev libdeflate-dev libcli11-dev libfmt-dev
           libgtest-dev libbenchmark-dev libpcap-dev pkg-config"
  [demo]="perftest ibverbs-utils rdmacm-utils iproute2 util-linux"
  [test]="ibverbs-utils perftest ibverbs-providers rdmacm-utils librdmacm1 qperf tshark iproute2 iperf3 clang
          libclang-rt-14-dev util-linux ethtool strace valgrind python3 nftables
          dpkg-dev lintian infiniband-diags"
  [bench]="perftest iperf3 ucx-utils libfabric-bin qperf rdmacm-utils gnuplot-nox python3 iproute2 util-linux"
  [scale]="libns3-dev gnuplot-nox python3"
  [interop]="ibverbs-utils perftest ibverbs-providers rdmacm-utils tshark iproute2 ethtool nftables util-linux"
  [deb]="dpkg-dev binutils gzip"
  [ecosystem]="ucx-utils libucx-dev libfabric-bin openmpi-bin libopenmpi-dev mpich libmpich-dev fio hwloc-nox
               librpma-dev libgloo-dev dapl2-utils ceph-common ceph-mon ceph-osd tgt qemu-utils
               qemu-block-extra qemu-system-x86
               busybox-static cpio python3 iproute2 util-linux gcc g++"
  [fuzz]="clang libclang-rt-14-dev"
  [tidy]="clang-format clang-tidy python3 git"
)

if [ "${VERBENA_SKIP_PACKAGES:-}" = 1 ]; then exit 0; fi

wanted=()
for purpose in "$@"; do
  if [ -z "${packages[$purpose]:-}" ]; then
    echo "install-packages.sh: unknown purpose '$purpose' (known: ${!packages[*]})" >&2
    exit 2
  fi
  read -r -d '' -a list <<<"${packages[$purpose]}" || true
  wanted+=("${list[@]}")
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "install-packages.sh: not a Debian system; continuing with the installed packages. The Debian names" \
       "of the required packages: ${wanted[*]}" >&2
  exit 0
fi

declare -A seen=()
missing=()
for package in "${wanted[@]}"; do
  if [ -n "${seen[$package]:-}" ]; then continue; fi
  seen[$package]=1
  status=$(dpkg-query -W -f '${db:Status-Status} ' "$package" 2>/dev/null || true)
  case " $status" in
    *" installed "*) ;;
    *) missing+=("$package") ;;
  esac
done
if [ ${#missing[@]} -eq 0 ]; then exit 0; fi

as_root=()
if [ "$(id -u)" != 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "These Debian packages are missing: ${missing[*]}" >&2
    echo "This script cannot install them: it does not run as root, and there is no sudo. As root, run:" >&2
    echo "  apt-get update && apt-get install --no-install-recommends ${missing[*]}" >&2
    echo "Then run the same make command again." >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "Installing missing packages: ${missing[*]}"
# noninteractive: tshark's package asks which users may capture. env is needed because sudo drops the variable.
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q)
"${apt[@]}" update
"${apt[@]}" install -y --no-install-recommends "${missing[@]}"

#!/bin/bash
# Makes a Debian package from a build folder and prints the file's name: scripts/deb.sh BUILD TO
# The package has the files of `make install`. The libraries go to a private folder (/usr/lib/verbena), which the
# loader does not search by default, so the package replaces no file of the system's rdma-core.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(realpath "$1")
to=$(realpath "$2")

version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")
architecture=$(dpkg --print-architecture)
# To distribute a package, set DEBFULLNAME and DEBEMAIL, as for any Debian package.
maintainer="${DEBFULLNAME:-The Verbena authors} <${DEBEMAIL:-verbena@packages.invalid}>"
# Reproducible build: the same source gives the same package.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CMakeLists.txt)}
export SOURCE_DATE_EPOCH

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
package=$stage/package
docs=$package/usr/share/doc/verbena

DESTDIR=$package cmake --install "$build" --prefix /usr >/dev/null
libraries=$(dirname "$(find "$package/usr/lib" -name libibverbs.so.1)")
find "$libraries" -name "*.so" -type l -delete # needed only for linking, which uses no private folder
if [ -d "$package/usr/share/zsh/site-functions" ]; then
  mv "$package/usr/share/zsh/site-functions" "$package/usr/share/zsh/vendor-completions"
fi

is_elf() { [ "$(head -c 4 "$1" | tail -c 3)" = ELF ]; }
binaries=()
for file in "$package"/usr/bin/* "$libraries"/*; do
  if is_elf "$file"; then binaries+=("${file#"$stage/"}"); fi
done
(cd "$stage" && strip --strip-unneeded --remove-section=.comment --remove-section=.note "${binaries[@]}")
gzip -9n "$package"/usr/share/man/man*/*
cat >"$docs/copyright" <<END
Verbena is Copyright $(date -u -d "@$SOURCE_DATE_EPOCH" +%Y) the Verbena authors.

It is licensed under the Apache License, version 2.0. On Debian systems its full text is in
/usr/share/common-licenses/Apache-2.0.
END
gzip -9n >"$docs/changelog.gz" <<END
verbena ($version) unstable; urgency=medium

  * Built from the project's own sources.

 -- $maintainer  $(date -Ru -d "@$SOURCE_DATE_EPOCH")
END

# Debian's tool computes the dependencies of the programs. verbena-perf uses the libraries of this package.
mkdir "$stage/debian"
printf 'Source: verbena\n\nPackage: verbena\nArchitecture: any\n' >"$stage/debian/control"
depends=$(cd "$stage" && dpkg-shlibdeps -O --ignore-missing-info "-l${libraries#"$stage/"}" -xlibibverbs1 \
  -xlibrdmacm1 "${binaries[@]}" 2>"$stage/why" | sed -n 's/^shlibs:Depends=//p') ||
  { cat "$stage/why" >&2; exit 1; }

mkdir "$package/DEBIAN"
cat >"$package/DEBIAN/control" <<END
Package: verbena
Version: $version
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $(du -sk --apparent-size "$package" | cut -f 1)
Depends: $depends
Suggests: ibverbs-utils, perftest, rdmacm-utils
Section: net
Priority: optional
Description: RDMA NIC in user space, for unmodified RDMA programs
 Verbena's libibverbs.so.1 and librdmacm.so.1 make RDMA programs run on any
 Linux machine: no RDMA hardware, no kernel module, no privileges. The network
 protocol is RoCEv2, so the other end may be another Verbena, the kernel's
 Soft-RoCE or a hardware NIC.
 .
 The libraries are in a private folder. "verbena run" makes the programs that
 it starts load them instead of the system's; nothing else changes.
END
(cd "$package" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
find "$package" -type d -exec chmod 755 {} +
find "$package" -type f -exec chmod u=rwX,go=rX {} +
find "$package" -newermt "@$SOURCE_DATE_EPOCH" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

file=$to/verbena_${version}_$architecture.deb
dpkg-deb --root-owner-group --build "$package" "$file" >/dev/null
echo "$file"

#!/bin/bash
# Makes a Debian package of what a build folder has: scripts/deb.sh BUILD TO, which prints the file's name.
# It has what `make install` puts in place: the libraries go to a folder of their own (/usr/lib/verbena) where the
# loader does not look by itself, so that nothing of the system's rdma-core is replaced.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(realpath "$1")
to=$(realpath "$2")

version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")
architecture=$(dpkg --print-architecture)
# Whoever builds a package to pass on says who they are, as for any Debian package.
maintainer="${DEBFULLNAME:-The Verbena authors} <${DEBEMAIL:-verbena@packages.invalid}>"
# The same source gives the same package.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CMakeLists.txt)}
export SOURCE_DATE_EPOCH

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
package=$stage/package
docs=$package/usr/share/doc/verbena

DESTDIR=$package cmake --install "$build" --prefix /usr >/dev/null
libraries=$(dirname "$(find "$package/usr/lib" -name libibverbs.so.1)")
find "$libraries" -name "*.so" -type l -delete # for compiling: nobody compiles against a private folder
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

# What the programs need of the system, found out by Debian's own tool. verbena-perf runs on our libraries.
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
 Linux machine: no RDMA hardware, no kernel module, no privileges. What goes
 over the network is RoCEv2, so that the other end may be another Verbena, the
 kernel's Soft-RoCE or a hardware NIC.
 .
 The libraries lie in a folder of their own. "verbena run" puts them in front
 of the system's for the programs it starts; nothing else changes.
END
(cd "$package" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
find "$package" -type d -exec chmod 755 {} +
find "$package" -type f -exec chmod u=rwX,go=rX {} +
find "$package" -newermt "@$SOURCE_DATE_EPOCH" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

file=$to/verbena_${version}_$architecture.deb
dpkg-deb --root-owner-group --build "$package" "$file" >/dev/null
echo "$file"

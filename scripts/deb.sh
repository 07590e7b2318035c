#!/usr/bin/env bash
# Makes Debian packages of the tool (penstock), the library (libpenstock0) and what programs are compiled with
# (libpenstock-dev), for the release of Debian or Ubuntu that this machine has.
#
#   scripts/deb.sh [--in-root] [--out DIR]
#
#   --in-root   also installs and uses them in a bare system of that release (scripts/in-root.sh), compiles programs with the
#               library there, and asks lintian. Needs Debian and root
#   --out DIR   where the packages are put (default: dist)
set -euo pipefail
source "$(dirname "$0")/common.sh"

out=dist
in_root=false
while (($#)); do
  case $1 in
    --help | -h) show_help && exit ;;
    --in-root) in_root=true && shift && continue ;;
    --out) (($# > 1)) || die "$1 needs a value" ;;&
    --out) out=$2 ;;
    *) die "unknown argument $1; see --help" ;;
  esac
  shift 2
done
! $in_root || [[ $EUID == 0 ]] || die "--in-root needs root"

scripts/install-deps.sh --build
command -v dpkg-shlibdeps > /dev/null || die "dpkg-shlibdeps is missing: install dpkg-dev"

# With this prefix the library goes where Debian has those of its architecture.
build_packages() {
  local bundle
  bundle=$(bundle_folder) &&
    cmake -S . -B build-deb -G Ninja --log-level=WARNING -D CMAKE_BUILD_TYPE=Release -D CMAKE_INSTALL_PREFIX=/usr \
      -D PENSTOCK_DEPS="$bundle" -D PENSTOCK_TESTS=OFF -D PENSTOCK_BENCH=OFF > /dev/null &&
    cmake --build build-deb --parallel "$jobs" -- --quiet && rm -rf build-deb/packages && pack
}
pack() {
  (cd build-deb && cpack -G DEB -B packages > cpack.log 2>&1) && return
  cat build-deb/cpack.log >&2
  return 1
}

# The library is found by its package, not by the way it was built, and brings liburing and SQLite along.
check_packages() {
  local package depends
  for package in build-deb/packages/*.deb; do
    depends=$(dpkg-deb -f "$package" Depends)
    echo "${package##*/}: $(stat -c %s "$package") bytes, depends on $depends"
    case ${package##*/} in
      penstock_* | libpenstock-dev_*) [[ $depends == *libpenstock0* ]] || return ;;
      *) [[ $depends == *libstdc++6* && $depends != *uring* && $depends != *sqlite* ]] || return ;;
    esac
  done
}

# shellcheck source=/dev/null
try_in_root() {
  local package with=() names=()
  for package in build-deb/packages/*.deb; do
    with+=(--with "$package")
    names+=("/packages/${package##*/}")
  done
  scripts/in-root.sh --fresh --release "$(. /etc/os-release && echo "$VERSION_CODENAME")" "${with[@]}" \
    scripts/try-packages.sh "${names[@]}"
}

stage 'build the packages' build_packages
stage 'check them' check_packages
! $in_root || stage 'use them in a bare root' try_in_root
mkdir -p "$out"
cp build-deb/packages/*.deb "$out"

#!/usr/bin/env bash
# Builds the Python package as a wheel for a Python, with the library, the tool, liburing and SQLite inside, installs it in a
# bare venv, and runs the tests of the package there.
#
#   scripts/wheel.sh [--glibc VERSION [--machine MACHINE]...] [--sdist] [--python PYTHON]... [--in-root] [--out DIR]
#
#   --glibc VERSION     compiles with Zig, which pip brings, for systems with this glibc or a newer one: 2.28 is RHEL 8's
#   --machine MACHINE   x86_64 or aarch64 (default: this machine's), or both. The tests run for this machine's alone
#   --sdist             makes an sdist too, and builds the wheels from it, as pip does for whoever installs it
#   --python PYTHON     the interpreter (default: that of .venv, else python3); once for each wheel. It needs pip, and for
#                       the tests pytest, NumPy and what else they are about: without, they are skipped, and that is said.
#                       Python 3.12 or newer makes one wheel for 3.12 and all newer ones (cp312-abi3)
#   --in-root           also installs and uses each wheel, and the sdist, in a bare Debian system (scripts/in-root.sh); that
#                       of the other machine by QEMU. Needs root
#   --out DIR           where the wheels are put (default: dist)
#
# auditwheel finds out which glibc a wheel needs, and the wheel's name says it: manylinux_2_28 with --glibc 2.28, without it
# that of this machine's compiler (manylinux_2_35 on Debian 12).
set -euo pipefail
source "$(dirname "$0")/common.sh"

pythons=()
out=dist
sdist=false
in_root=false
glibc=
here=$(uname -m)
machines=()
while (($#)); do
  case $1 in
    --help | -h) show_help && exit ;;
    --sdist) sdist=true && shift && continue ;;
    --in-root) in_root=true && shift && continue ;;
    --glibc | --machine | --python | --out) (($# > 1)) || die "$1 needs a value" ;;&
    --glibc) glibc=$2 ;;
    --machine) machines+=("$2") ;;
    --python) pythons+=("$2") ;;
    --out) out=$2 ;;
    *) die "unknown argument $1; see --help" ;;
  esac
  shift 2
done
[[ $glibc =~ ^(2\.[0-9]+)?$ ]] || die "--glibc is $glibc: give a version such as 2.28"
((${#machines[@]})) || machines=("$here")
for machine in "${machines[@]}"; do
  [[ $machine =~ ^(x86_64|aarch64|$here)$ ]] || die "--machine is $machine: give x86_64 or aarch64"
  [[ -n $glibc || $machine == "$here" ]] || die "--machine $machine needs --glibc too: only Zig compiles for another machine"
done
! $in_root || [[ $EUID == 0 ]] || die "--in-root needs root"

scripts/install-deps.sh
if ((${#pythons[@]} == 0)); then
  if [[ -x .venv/bin/python ]]; then pythons=("$PWD/.venv/bin/python"); else pythons=("$(command -v python3)"); fi
fi
for python in "${pythons[@]}"; do
  command -v "$python" > /dev/null || die "there is no $python here. If this release has none, take a newer one, such as
  scripts/in-root.sh --release trixie scripts/wheel.sh --glibc 2.28    (Debian 13, Python 3.13)"
  "$python" -c 'import pip' 2> /dev/null || die "$python has no pip"
done

all_work=$(mktemp -d)
trap 'rm -rf "$all_work"' EXIT
trap 'exit 130' INT TERM

# Zig brings a C++ library, which it links in, and the headers and symbols of every glibc. Third-party packages come from a
# bundle, since their headers lie beside those of this system's glibc. Both are kept for the next time.
zig=$PWD/build-zig
get_zig() {
  [[ ! -d $zig/${zig_package/==/-}.dist-info ]] || return 0
  echo "installing $zig_package, of about 100 MB, in $zig"
  rm -rf "$zig"
  pip_install "${pythons[0]}" --target "$zig" "$zig_package" ||
    die "--glibc needs $zig_package from PyPI, which pip could not install (it has ten minutes)"
}

bundle_packages() {
  local arch=arm64
  [[ $machine != x86_64 ]] || arch=amd64
  bundle=$zig/deps-$arch
  [[ -d $bundle ]] || scripts/bundle-deps.sh --arch "$arch" --out "$bundle"
}

# What CMake calls, and Debian's pyconfig.h, which is also beside glibc's headers. That of this machine serves the other: the
# headers of Python look at nothing in it that differs.
write_tools() {
  # Alike for all, so that Zig compiles its C++ library once. Without -g0 it would make debugging information.
  local tools=$zig/$machine tool options all="-target $machine-linux-gnu.$glibc -fPIC -O3 -g0"
  mkdir -p "$tools/include/$machine-linux-gnu"
  for tool in cc c++ ar ranlib; do
    options=
    [[ $tool != c* ]] || options=$all
    printf '#!/bin/sh\nexec "%s" %s %s "$@"\n' "$zig/ziglang/zig" "$tool" "$options" > "$tools/$tool"
    chmod +x "$tools/$tool"
  done
  ln -sfn /usr/include/"$here"-linux-gnu/python3* "$tools/include/$machine-linux-gnu"
  export CC=$tools/cc CXX=$tools/c++ CXXFLAGS="-isystem $tools/include"
  # To ccache these are compilers by what they call, not by when they were written.
  export CCACHE_COMPILERCHECK="string:$zig_package $all"
  # Many files at a time, since no other build leaves them in ccache. Linked without symbols, for which strip is needed
  # otherwise, and that of this machine knows no other's programs.
  export CMAKE_ARGS="-DCMAKE_AR=$tools/ar -DCMAKE_RANLIB=$tools/ranlib -DCMAKE_LIBRARY_ARCHITECTURE=$machine-linux-gnu
    -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=40 -DCMAKE_EXE_LINKER_FLAGS=-s"
  [[ $machine == "$here" ]] || CMAKE_ARGS+=" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=$machine"
}

# What the wheel and the extension in it are named after, if they are for another machine. For building alone: any other pip
# would install programs of that machine.
name_machine() {
  [[ $machine != "$here" ]] || return 0
  local suffix
  suffix=$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
  printf '%s\n' "_PYTHON_HOST_PLATFORM=linux-$machine" "SETUPTOOLS_EXT_SUFFIX=${suffix/$here/$machine}"
}

# What it is built with lies beside the interpreter's own packages, which may be of other versions.
install_tools() {
  [[ -d $work/tools ]] || pip_install "$python" --target "$work/tools" "${build_packages[@]}"
}

build_sdist() {
  install_tools && mkdir -p "$all_work/sdist" && PYTHONPATH=$work/tools "$python" -c '
import sys
from scikit_build_core.build import build_sdist
build_sdist(sys.argv[1])' "$all_work/sdist" && ls -l "$all_work"/sdist/*
}

build_wheel() {
  # A folder within the sources, where they are unpacked: only so ccache knows what was compiled elsewhere.
  local source=. folder=$PWD/build-wheel${glibc:+-$machine-$glibc} names
  ! $sdist || source=$(echo "$all_work"/sdist/*.tar.gz) folder=build
  mapfile -t names < <(name_machine)
  install_tools &&
    env "${names[@]}" PYTHONPATH="$work/tools" CMAKE_BUILD_PARALLEL_LEVEL="$jobs" "$python" -m pip \
      --disable-pip-version-check wheel --quiet --no-build-isolation --no-deps --no-index --wheel-dir "$work/wheel" \
      --config-settings=build-dir="$folder" --config-settings=cmake.define.PENSTOCK_DEPS="$bundle" "$source"
}

# The tool is the largest file, and twice as large with symbols.
check_stripped() {
  "$python" -m zipfile -e "$1" "$work/unpacked" && ! readelf -SW "$work/unpacked/penstock/bin/penstock" | grep -F .symtab
}

# The wheel is renamed to what auditwheel finds. Nothing is put into it: it needs what every machine of that name has.
audit_wheel() {
  local needs
  if ! pip_install "$python" --target "$work/audit" "${audit_packages[@]}" 2> /dev/null; then
    echo "auditwheel is not to be had: the wheel keeps the name that is for this machine only"
    [[ -z $glibc ]]
    return
  fi
  PATH=$work/audit/bin:$PATH PYTHONPATH=$work/audit "$python" -m auditwheel repair --plat auto --wheel-dir "$work/named" \
    "$work"/wheel/*.whl > "$work/audit.log" 2>&1 || { cat "$work/audit.log" && return 1; }
  ! "$python" -m zipfile -l "$work"/named/*.whl | grep -q '\.libs/' || { echo "auditwheel added a library" && return 1; }
  rm "$work"/wheel/*.whl && mv "$work"/named/*.whl "$work/wheel" && ls -l "$work"/wheel/*.whl || return
  needs=$(basename "$work"/wheel/*.whl | sed 's/.*manylinux_2_\([0-9]*\)_.*/\1/')
  [[ -z $glibc ]] || ((needs <= ${glibc#2.})) || { echo "it needs glibc 2.$needs, not $glibc" && return 1; }
}

# What a wheel must bring along, it may not ask the machine for; and CUDA it may ask for at run time only.
check_needs() {
  local needed
  needed=$(readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | tr '\n' ' ')
  echo "${1##*/} needs $needed"
  [[ ! $needed =~ uring|sqlite|cuda|cufile|python ]]
}

# Nothing but the interpreter and the wheel: the package reads a file, and the tool runs.
try_bare() {
  local bin=$work/venv/bin package
  "$python" -m venv --without-pip "$work/venv" &&
    "$python" -m pip --disable-pip-version-check --quiet --python "$bin/python" install --no-deps --no-index \
      "$work"/wheel/*.whl &&
    package=$(cd "$work" && "$bin/python" -c 'import os, penstock; print(os.path.dirname(penstock.__file__))') &&
    check_needs "$package"/_core.*.so && check_needs "$package/bin/penstock" &&
    (cd "$work" && "$bin/python" -c 'import penstock; print(penstock.read_into(bytearray(10), penstock.__file__))') &&
    "$bin/penstock" --version && "$bin/penstock" load "$package"/_core.*.so --verify --quiet
}

# The tests need pytest, NumPy, torch and safetensors: those of the interpreter that built the wheel.
run_tests() {
  local libraries tested status=0 tests=("$PWD"/tests/python/*_test.py)
  libraries=$("$python" -c 'import sys; print(":".join(path for path in sys.path if path.endswith("-packages")))') || return
  tested=$(cd "$work" && PYTHONPATH=$libraries venv/bin/python -B -c 'import penstock; print(penstock.__file__)') || return
  [[ $tested == "$work"/venv/* ]] || die "the tests would be of $tested, which comes before the wheel"
  (cd "$work" && PYTHONPATH=$libraries "$work/venv/bin/python" -B "${tests[0]%/*}/run.py" "${tests[@]}") || status=$?
  # The latter: skipped, with the reason printed.
  case $status in
    0) verdict="tested with Python $version" ;;
    77) verdict="not tested: the tests were skipped" ;;
    *) return 1 ;;
  esac
}

# try_in_root FILE MACHINE: in the release of Debian whose Python takes it.
try_in_root() {
  local release=bookworm arch=arm64
  [[ $1 != *-abi3-* ]] || release=trixie
  [[ $2 != x86_64 ]] || arch=amd64
  scripts/in-root.sh --fresh --release "$release" --arch "$arch" --with "$1" scripts/try-packages.sh "/packages/${1##*/}"
}

make_wheel() {
  local wheel verdict tried=()
  version=$("$python" -c 'import platform; print(platform.python_version())')
  work=$all_work/$machine-$version
  mkdir -p "$work" "$out"
  if $sdist && [[ ! -d $all_work/sdist ]]; then
    stage 'make the sdist' build_sdist
    cp "$all_work"/sdist/*.tar.gz "$out"
    ! $in_root || stage 'install the sdist in a bare root' try_in_root "$all_work"/sdist/*.tar.gz "$here"
  fi
  stage "build the wheel for Python $version on $machine" build_wheel
  stage 'name it after what it needs' audit_wheel
  wheel=$(echo "$work"/wheel/*.whl)
  stage 'look for symbols in the tool' check_stripped "$wheel"
  if [[ $machine == "$here" ]]; then
    stage 'install it in a bare venv' try_bare
    stage 'run the tests there' run_tests
    tried+=("$verdict")
  fi
  if $in_root; then
    stage 'use it in a bare root' try_in_root "$wheel" "$machine"
    tried+=("used in a bare root")
  fi
  cp "$wheel" "$out"
  echo "$out/${wheel##*/}: ${tried[*]:-not tried: this is no $machine}"
}

[[ -z $glibc ]] || stage 'get Zig' get_zig
for machine in "${machines[@]}"; do
  if [[ -n $glibc ]]; then
    stage "bundle third-party packages for $machine" bundle_packages
    write_tools
  else
    bundle=$(bundle_folder)
    # The compiler of every other build, not the one that Python was compiled with: so ccache knows what it compiled.
    export CC=${CC:-cc} CXX=${CXX:-c++}
  fi
  for python in "${pythons[@]}"; do
    make_wheel
  done
done

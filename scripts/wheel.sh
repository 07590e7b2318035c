#!/usr/bin/env bash
# Builds the Python package as a wheel for this machine and a Python, with the library, the tool, liburing and SQLite inside,
# installs it in a bare venv, and runs the tests of the package there.
#
#   scripts/wheel.sh [--sdist] [--python PYTHON]... [--out DIR]
#
#   --sdist           makes an sdist too, and builds the wheels from it, as pip does for whoever installs it
#   --python PYTHON   the interpreter (default: that of .venv, else python3); once for each wheel. It needs pip, and for
#                     the tests pytest, NumPy and what else they are about: without, they are skipped, and that is said.
#                     Python 3.12 makes the wheel for all newer ones too
#   --out DIR         where the wheels are put (default: dist)
#
# auditwheel says which machines a wheel is for, and its name says so then (manylinux_2_35, as built on Debian 12).
set -euo pipefail
source "$(dirname "$0")/common.sh"

pythons=()
out=dist
sdist=false
while (($#)); do
  case $1 in
    --help | -h) show_help && exit ;;
    --sdist) sdist=true && shift && continue ;;
    --python | --out) (($# > 1)) || die "$1 needs a value" ;;&
    --python) pythons+=("$2") ;;
    --out) out=$2 ;;
    *) die "unknown argument $1; see --help" ;;
  esac
  shift 2
done

scripts/install-deps.sh
if ((${#pythons[@]} == 0)); then
  if [[ -x .venv/bin/python ]]; then pythons=("$PWD/.venv/bin/python"); else pythons=("$(command -v python3)"); fi
fi
for python in "${pythons[@]}"; do
  "$python" -c 'import pip' 2> /dev/null || die "$python has no pip"
done

# The compiler of every other build, not the one that Python was compiled with: so ccache knows what it compiled.
export CC=${CC:-cc} CXX=${CXX:-c++}
all_work=$(mktemp -d)
trap 'rm -rf "$all_work"' EXIT
trap 'exit 130' INT TERM

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
  local bundle source=. folder=$PWD/build-wheel
  ! $sdist || source=$(echo "$all_work"/sdist/*.tar.gz) folder=build
  install_tools && bundle=$(bundle_folder) &&
    PYTHONPATH=$work/tools CMAKE_BUILD_PARALLEL_LEVEL=$jobs "$python" -m pip --disable-pip-version-check wheel --quiet \
      --no-build-isolation --no-deps --no-index --wheel-dir "$work/wheel" --config-settings=build-dir="$folder" \
      --config-settings=cmake.define.PENSTOCK_DEPS="$bundle" "$source"
}

# The wheel is renamed to what auditwheel finds. Nothing is put into it: it needs what every machine of that name has.
audit_wheel() {
  if ! pip_install "$python" --target "$work/audit" "${audit_packages[@]}" 2> /dev/null; then
    echo "auditwheel is not to be had: the wheel keeps the name that is for this machine only"
    return
  fi
  PATH=$work/audit/bin:$PATH PYTHONPATH=$work/audit "$python" -m auditwheel repair --plat auto --wheel-dir "$work/named" \
    "$work"/wheel/*.whl > "$work/audit.log" 2>&1 || { cat "$work/audit.log" && return 1; }
  ! unzip -l "$work"/named/*.whl 2> /dev/null | grep -q '\.libs/' || { echo "auditwheel added a library" && return 1; }
  rm "$work"/wheel/*.whl && mv "$work"/named/*.whl "$work/wheel" && ls -l "$work"/wheel/*.whl
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
    check_needs "$package"/libpenstock.so.0 && check_needs "$package"/_core.*.so && check_needs "$package/bin/penstock" &&
    (cd "$work" && "$bin/python" -c 'import penstock; print(penstock.read_into(bytearray(10), penstock.__file__))') &&
    "$bin/penstock" --version && "$bin/penstock" load "$package/libpenstock.so.0" --verify --quiet
}

# The tests need pytest, NumPy, torch and safetensors: those of the interpreter that built the wheel.
run_tests() {
  local libraries tested status=0 tests=("$PWD"/tests/python/*_test.py)
  libraries=$("$python" -c 'import sys; print(":".join(path for path in sys.path if path.endswith("-packages")))') || return
  tested=$(cd "$work" && PYTHONPATH=$libraries venv/bin/python -B -c 'import penstock; print(penstock.__file__)') || return
  [[ $tested == "$work"/venv/* ]] || die "the tests would be of $tested, which comes before the wheel"
  (cd "$work" && PYTHONPATH=$libraries "$work/venv/bin/python" -B "${tests[0]%/*}/run.py" "${tests[@]}") || status=$?
  ((status == 0 || status == 77)) # the latter: skipped, with the reason printed
}

for python in "${pythons[@]}"; do
  version=$("$python" -c 'import platform; print(platform.python_version())')
  work=$all_work/$version
  mkdir -p "$work" "$out"
  if $sdist && [[ ! -d $all_work/sdist ]]; then
    stage 'make the sdist' build_sdist
    cp "$all_work"/sdist/*.tar.gz "$out"
  fi
  stage "build the wheel for Python $version" build_wheel
  stage 'name it after what it needs' audit_wheel
  stage 'install it in a bare venv' try_bare
  stage 'run the tests there' run_tests
  cp "$work"/wheel/*.whl "$out"
  echo "$out/$(basename "$work"/wheel/*.whl): tried with Python $version on $(uname -m), and with no other"
done

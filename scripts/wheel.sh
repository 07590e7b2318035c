#!/usr/bin/env bash
# Builds the Python package as a wheel for this machine and a Python, with the library, the tool and liburing inside,
# installs it in a bare venv, and runs the tests of the package there.
#
#   scripts/wheel.sh [--python PYTHON] [--out DIR]
#
#   --python PYTHON   the interpreter (default: that of .venv, else python3); it needs pip, and for the tests pytest,
#                     NumPy and what else they are about: without, they are skipped, and that is said
#   --out DIR         where the wheel is put (default: dist)
set -euo pipefail
source "$(dirname "$0")/common.sh"

python=
out=dist
while (($#)); do
  case $1 in
    --help | -h) show_help && exit ;;
    --python | --out) (($# > 1)) || die "$1 needs a value" ;;&
    --python) python=$2 ;;
    --out) out=$2 ;;
    *) die "unknown argument $1; see --help" ;;
  esac
  shift 2
done

scripts/install-deps.sh
if [[ -z $python ]]; then
  if [[ -x .venv/bin/python ]]; then python=$PWD/.venv/bin/python; else python=$(command -v python3); fi
fi
"$python" -c 'import pip' 2> /dev/null || die "$python has no pip"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# What it is built with lies beside the interpreter's own packages, which may be of other versions.
build_wheel() {
  local bundle
  pip_install "$python" --target "$work/tools" "${build_packages[@]}" && bundle=$(bundle_folder) &&
    PYTHONPATH=$work/tools CMAKE_BUILD_PARALLEL_LEVEL=$jobs "$python" -m pip --disable-pip-version-check wheel --quiet \
    --no-build-isolation --no-deps --no-index --wheel-dir "$work/wheel" --config-settings=build-dir="$PWD/build-wheel" \
    --config-settings=cmake.define.PENSTOCK_DEPS="$bundle" bindings/python
}

# What a wheel must bring along, it may not ask the machine for; and CUDA it may ask for at run time only.
check_needs() {
  local needed
  needed=$(readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | tr '\n' ' ')
  echo "${1##*/} needs $needed"
  [[ ! $needed =~ uring|cuda|cufile|python ]]
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

stage 'build the wheel' build_wheel
stage 'install it in a bare venv' try_bare
stage 'run the tests there' run_tests
mkdir -p "$out"
cp "$work"/wheel/*.whl "$out"
echo "$out/$(basename "$work"/wheel/*.whl): tried with $("$python" --version) on $(uname -m), and with no other"

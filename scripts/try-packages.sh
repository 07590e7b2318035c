#!/usr/bin/env bash
# Installs packages on this system as a user would, and uses them. It is meant for a bare system, such as
# scripts/in-root.sh makes: apt installs what a package is tried with.
#
#   scripts/try-packages.sh FILE...
#
#   FILE   a wheel, an sdist, or Debian packages that belong together
set -euo pipefail
source "$(dirname "$0")/common.sh"

(($#)) || die "no package given; see --help"
[[ $1 != --help && $1 != -h ]] || { show_help && exit; }
[[ $EUID == 0 ]] || die "packages are installed for the whole system: run this as root, best by scripts/in-root.sh"
mapfile -t packages < <(realpath -e "$@")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

export DEBIAN_FRONTEND=noninteractive
apt_install() {
  apt-get -qq install --yes --no-install-recommends "$@" > "$work/apt.log" 2>&1 || { cat "$work/apt.log" && return 1; }
}

# use_tool TOOL
use_tool() {
  local sample=$work/sample.safetensors
  "$1" --version && "$1" sample "$sample" --size 16MiB && "$1" verify "$sample" && "$1" doctor "$sample" --to host &&
    "$1" load "$sample" --to host --verify
}

install_in_venv() {
  apt_install python3-venv && python3 -m venv --system-site-packages "$work/venv" &&
    "$work/venv/bin/pip" --quiet --disable-pip-version-check install "$@" "${packages[0]}"
}

# As in a venv of somebody who has nothing else: no NumPy, no compiler.
import_bare() {
  (cd "$work" && venv/bin/python -c '
import platform, penstock
print("Python", platform.python_version(), "on", platform.machine(), *platform.libc_ver())
print(penstock.read_into(bytearray(10), penstock.__file__))')
}

# What is saved and loaded is also read without Penstock, and compared.
load_with_numpy() {
  apt_install python3-numpy && (cd "$work" && venv/bin/python -c '
import json, numpy, penstock
saved = {name: numpy.random.rand(256, 1024) for name in ("first", "second")}
penstock.save_file(saved, "saved.safetensors")
loaded = penstock.load_file("saved.safetensors", framework="np")
data = open("saved.safetensors", "rb").read()
begin = 8 + int.from_bytes(data[:8], "little")
header = json.loads(data[8:begin])
assert list(loaded) == list(saved)
for name, array in saved.items():
    first, last = header[name]["data_offsets"]
    assert loaded[name].shape == array.shape and loaded[name].dtype == array.dtype
    assert loaded[name].tobytes() == array.tobytes() == data[begin + first:begin + last], name
print("NumPy", numpy.__version__, loaded.report)')
}

use_python_package() {
  stage 'import it' import_bare
  stage 'use the tool' use_tool "$work/venv/bin/penstock"
  stage 'load a model with NumPy' load_with_numpy
}

# A program of the examples is compiled far from the sources, as docs/installing.md says.
use_library() {
  local flags
  cp examples/read_file.cc "$work/program.cc" && cat > "$work/CMakeLists.txt" << 'PROJECT' || return
cmake_minimum_required(VERSION 3.25)
project(program CXX)
find_package(penstock REQUIRED)
add_executable(program program.cc)
target_link_libraries(program PRIVATE penstock::penstock)
PROJECT
  cmake -S "$work" -B "$work/build" > /dev/null && cmake --build "$work/build" > /dev/null &&
    "$work/build/program" "$work/sample.safetensors" && read -ra flags < <(pkg-config --cflags --libs penstock) &&
    c++ -std=c++20 "$work/program.cc" "${flags[@]}" -o "$work/program" && "$work/program" "$work/sample.safetensors"
}

use_completion() {
  fish -c 'complete --do-complete "penstock lo"' | grep '^load' &&
    zsh -f -c 'autoload -U compinit && compinit -D && print $_comps[penstock]' | grep '^_penstock$' && man -w penstock
}

# A package that somebody builds for himself has no maintainer with an address; and CPack calls ldconfig beside the trigger.
run_lintian() {
  lintian --version && lintian --allow-root --fail-on error,warning --tag-display-limit 0 --suppress-tags \
    bogus-mail-host,bogus-mail-host-in-debian-changelog,maintscript-calls-ldconfig "${packages[@]}"
}

apt-get -qq update
case ${packages[0]} in
  *.whl)
    stage 'install the wheel' install_in_venv --no-index
    use_python_package
    ;;
  *.tar.gz)
    stage 'install what it is built with' apt_install build-essential python3-dev libcli11-dev nlohmann-json3-dev \
      libxxhash-dev libsqlite3-dev liburing-dev
    stage 'build and install the sdist' install_in_venv
    use_python_package
    ;;
  *.deb)
    stage 'install the packages' apt_install "${packages[@]}"
    stage 'use the tool' use_tool penstock
    stage 'install a compiler, shells, man and lintian' apt_install g++ cmake make pkg-config fish zsh man-db \
      lintian
    stage 'compile programs with the library' use_library
    stage 'complete a command, and find its manual' use_completion
    stage 'ask lintian' run_lintian
    ;;
  *) die "$1 is neither a wheel nor an sdist nor a Debian package" ;;
esac

#!/usr/bin/env bash
# Installs what building and testing Penstock needs and this machine lacks. Quick when nothing is missing.
#
#   scripts/install-deps.sh            compiler, lld, ccache, CMake, libraries, GoogleTest, NumPy and PyTorch, fish and zsh,
#                                      QEMU on Debian, and in .venv the pinned clang-format and what the Python package is
#                                      built and tested with
#   scripts/install-deps.sh --build    of these only what the library and the tool are built with
#   scripts/install-deps.sh --bench    also fio, the yardstick of bench/run.sh, and valgrind, which counts instructions there
#   scripts/install-deps.sh --soak     also clang, clang-tidy, the fuzzer's run-time library, valgrind, chromium, and on
#                                      Debian a compiler and QEMU for the other architecture
#
# Packages come from apt (Debian 12, Ubuntu 24.04 and newer), which needs root; without it the missing packages are
# named and the build goes on with what is there, or with an offline bundle (scripts/bundle-deps.sh).
set -euo pipefail
source "$(dirname "$0")/common.sh"

packages=(build-essential ccache cmake ninja-build pkg-config python3 liburing-dev libcli11-dev nlohmann-json3-dev
  libxxhash-dev libsqlite3-dev libgtest-dev libbenchmark-dev)
testing=(lld python3-venv fuse3 libfuse3-dev python3-dev fish zsh)
# The tests that a device in use is left alone make file systems on loop devices.
testing+=(e2fsprogs mount util-linux)
# What the Python package is tested with; not every release has them for every architecture.
frameworks=(python3-numpy python3-torch)
# What the guest of tests/guest needs; its kernel is Debian's.
is_debian() {
  grep -qx 'ID=debian' /etc/os-release 2> /dev/null
}
case $(uname -m) in
  x86_64) guest=(qemu-system-x86 seabios cpio kmod) other_guest=(qemu-system-arm g++-aarch64-linux-gnu) ;;
  *) guest=(qemu-system-arm cpio kmod) other_guest=(qemu-system-x86 seabios g++-x86-64-linux-gnu) ;;
esac
build_only=false
bench=false
soak=false
for argument in "$@"; do
  case $argument in
    --build) build_only=true ;;
    --bench) bench=true ;;
    --soak) soak=true ;;
    --help | -h) show_help && exit ;;
    *) die "unknown argument $argument; see --help" ;;
  esac
done

missing_packages() {
  local package
  for package in "$@"; do
    [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2> /dev/null) == installed ]] || echo "$package"
  done
}

# A bundle stands in for the libraries; the tools must be there in any case.
missing_tools() {
  local tool
  for tool in c++ cmake ninja python3; do
    command -v "$tool" > /dev/null || echo "$tool"
  done
}

install_packages() {
  local missing
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]})) || return 0
  if [[ -n $(bundle_folder) && -z $(missing_tools) ]]; then
    echo "Using the offline packages in $(bundle_folder)."
    return
  fi
  if [[ $EUID != 0 ]] || ! command -v apt-get > /dev/null; then
    echo "Not installed, and not installable without root and apt: ${missing[*]}" >&2
    echo "To install them: sudo apt-get install ${missing[*]}" >&2
    return
  fi
  echo "Installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get -qq update
  apt-get -qq install --yes --no-install-recommends "${missing[@]}" > /dev/null
}

# The newest that there is: older ones don't compile the ranges of the standard library.
clang_packages() {
  local version
  for version in 21 20 19 18 17 16; do
    if apt-cache show "clang-tidy-$version" > /dev/null 2>&1; then
      printf '%s\n' "clang-$version" "clang-tidy-$version" "libclang-rt-$version-dev"
      return
    fi
  done
  printf '%s\n' clang clang-tidy
}

# fill_venv PACKAGE...
fill_venv() {
  pip_install .venv/bin/python "$@" > /dev/null 2>&1
}

# Whatever needs what is missing skips itself.
install_python_packages() {
  if [[ $(cat .venv/wanted 2> /dev/null) == "${python_packages[*]}" ]]; then
    return
  fi
  # apt's NumPy and PyTorch are those of apt's Python.
  local python=/usr/bin/python3
  [[ -x $python ]] || python=python3
  if "$python" -m venv --clear --system-site-packages .venv > /dev/null 2>&1 && fill_venv "${python_packages[@]}"; then
    echo "${python_packages[*]}" > .venv/wanted
    return
  fi
  echo "Not installable, all together: ${python_packages[*]}. What needs them will be skipped." >&2
  fill_venv "${python_packages[0]}" || rm -rf .venv
}

# A bundle carries fio as sources: Debian's binary wants the libraries of every storage system there is.
build_bundled_fio() {
  local sources
  sources=$(find "$(bundle_folder)/usr/src" -maxdepth 1 -name 'fio-*' 2> /dev/null | head -n 1)
  if [[ -z $sources ]] || command -v fio > /dev/null || [[ -x $(bundle_folder)/usr/bin/fio ]]; then
    return 0
  fi
  echo "Building the bundled fio"
  (cd "$sources" && ./configure --disable-native > configure.log && make -j "$jobs" fio > make.log 2>&1) ||
    die "fio did not build; see $sources/make.log"
  install -D "$sources/fio" "$(bundle_folder)/usr/bin/fio"
}

if $build_only; then
  install_packages "${packages[@]}"
  exit
fi
packages+=("${testing[@]}")
if $bench; then
  packages+=(fio valgrind)
fi
install_packages "${packages[@]}"
install_packages "${frameworks[@]}" || echo "${frameworks[*]}: tests that need them will be skipped." >&2
if is_debian; then
  install_packages "${guest[@]}" || echo "${guest[*]}: the NVMe driver will not be tried in a guest." >&2
fi
install_python_packages
if $bench; then
  build_bundled_fio
fi
if $soak; then
  mapfile -t clang < <(clang_packages)
  install_packages "${clang[@]}" valgrind
  install_packages chromium fonts-dejavu-core || echo "chromium: the pages will not be looked at in a browser." >&2
  if is_debian; then
    install_packages "${other_guest[@]}" || echo "${other_guest[*]}: there will be no guest of the other kind." >&2
  fi
fi

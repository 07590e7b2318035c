#!/usr/bin/env bash
# Runs a command on a copy of this repository in a bare Debian system: a root that debootstrap makes, with the least that
# Debian installs. What works there needs nothing that only this machine has.
#
#   scripts/in-root.sh [--release RELEASE] [--arch ARCH] [--fresh] [--with FILE]... [--cuda] COMMAND...
#
#   --release RELEASE   of Debian (default: bookworm, which has Python 3.11; trixie has 3.13)
#   --arch ARCH         Debian's name of the architecture (default: this machine's); QEMU runs another one
#   --fresh             begins with a new root; otherwise the last one is used again, with all that was installed and
#                       built in it
#   --with FILE         copies it to /packages in the root
#   --cuda              gives the root the CUDA toolkit of this machine, for wheels with GPU kernels inside
#
# The command runs as root in /penstock, which has the files of this repository and the root's own build folders. What it
# leaves in dist is copied back. Roots are kept in build-roots. This needs root, and a mirror of Debian. With CCACHE_DIR set,
# the root uses that cache.
set -euo pipefail
# Mounts and processes end with the command, whatever becomes of it.
[[ $EUID != 0 || -n ${PENSTOCK_IN_ROOT:-} ]] ||
  PENSTOCK_IN_ROOT=1 exec unshare --mount --pid --fork --kill-child "$0" "$@"
source "$(dirname "$0")/common.sh"

here=$(dpkg --print-architecture 2> /dev/null) || die "dpkg is missing: run this on Debian or Ubuntu"
release=bookworm
arch=$here
fresh=false
with=()
cuda=
while (($#)); do
  case $1 in
    --help | -h) show_help && exit ;;
    --fresh) fresh=true && shift && continue ;;
    --cuda) cuda=$(realpath "${CUDA_HOME:-/usr/local/cuda}") && shift && continue ;;
    --release | --arch | --with) (($# > 1)) || die "$1 needs a value" ;;&
    --release) release=$2 ;;
    --arch) arch=$2 ;;
    --with) with+=("$2") ;;
    -*) die "unknown argument $1; see --help" ;;
    *) break ;;
  esac
  shift 2
done
(($#)) || die "no command given; see --help"
[[ -z $cuda || -x $cuda/bin/nvcc ]] || die "--cuda: there is no $cuda/bin/nvcc; set CUDA_HOME"
[[ $EUID == 0 ]] || die "only root can make and enter another root: use sudo"

install_tools() {
  local missing=()
  command -v debootstrap > /dev/null || missing+=(debootstrap)
  [[ $arch == "$here" || -e /usr/bin/qemu-x86_64-static ]] || missing+=(qemu-user-static)
  ((${#missing[@]})) || return 0
  echo "Installing ${missing[*]}"
  apt-get -qq update
  DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends "${missing[@]}" > /dev/null
}

# Programs of another architecture run by QEMU, which the kernel keeps open: so a root need not have it. Where the system
# has started in the usual way, all this is done.
enable_arch() {
  local formats=/proc/sys/fs/binfmt_misc machine
  case $arch in
    "$here") return ;;
    amd64) machine=x86_64 ;;
    arm64) machine=aarch64 ;;
    *) die "--arch is $arch: give amd64 or arm64" ;;
  esac
  [[ -e $formats/register ]] || mount -t binfmt_misc binfmt_misc $formats
  [[ -e $formats/qemu-$machine ]] || cat "/usr/lib/binfmt.d/qemu-$machine.conf" > $formats/register
}

roots=$PWD/build-roots
root=$roots/$release-$arch
base=$root.tar # what debootstrap made, for the next fresh root: it takes minutes

# shellcheck disable=SC2317  # called by stage
make_base() {
  rm -rf "$root" &&
    debootstrap --variant=minbase --arch="$arch" --include=ca-certificates "$release" "$root" > "$root.log" 2>&1 &&
    echo "deb http://deb.debian.org/debian-security $release-security main" > "$root/etc/apt/sources.list.d/security.list" &&
    tar -C "$root" --numeric-owner -cf "$base" . && return
  tail -n 5 "$root.log" >&2
  return 1
}

make_root() {
  mkdir -p "$roots"
  if [[ ! -f $base ]]; then
    stage "make a root of Debian $release for $arch" make_base
  elif $fresh || [[ ! -d $root/penstock ]]; then
    rm -rf "$root"
    mkdir "$root"
    tar -C "$root" --numeric-owner -xf "$base"
  fi
}

# Files keep their times: what did not change is not built again.
copy_files() {
  rm -rf "$root/packages"
  mkdir -p "$root/penstock" "$root/packages"
  ((${#with[@]} == 0)) || cp -- "${with[@]}" "$root/packages"
  find "$root/penstock" -mindepth 1 -maxdepth 1 ! -name 'build*' ! -name .venv -exec rm -rf {} +
  tar -c --exclude=./.git --exclude='./build*' --exclude=./.venv --exclude=./dist --exclude=./deps --exclude=__pycache__ . |
    tar -x -C "$root/penstock"
}

# The network as this machine has it: names, and the certificates that it trusts. The root is a mount of its own, as that of
# every system: else the kernel does not tell programs in it how their files are mounted.
mount_root() {
  mount --bind "$root" "$root"
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
  mount -t proc proc "$root/proc"
  mount -t sysfs sysfs "$root/sys"
  mkdir -p "$root/dev/shm" "$root/dev/pts" "$root/ccache"
  mount -t tmpfs tmpfs "$root/dev/shm"
  mount -t devpts -o newinstance,ptmxmode=666 devpts "$root/dev/pts"
  [[ -z ${CCACHE_DIR:-} ]] || mount --bind "$CCACHE_DIR" "$root/ccache"
  mkdir -p "$root/usr/local/cuda"
  [[ -z $cuda ]] || mount --bind -o ro "$cuda" "$root/usr/local/cuda"
}

enter() {
  local set=(HOME=/root LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin PENSTOCK_JOBS="$jobs")
  [[ -z ${CI:-} ]] || set+=(CI="$CI")
  [[ -z ${CCACHE_DIR:-} ]] || set+=(CCACHE_DIR=/ccache)
  env -i "${set[@]}" chroot "$root" env -C /penstock "$@"
}

install_tools
enable_arch
make_root
copy_files
mount_root
status=0
enter "$@" || status=$?
if [[ -d $root/penstock/dist ]]; then
  mkdir -p dist
  cp -a "$root/penstock/dist/." dist
fi
exit $status

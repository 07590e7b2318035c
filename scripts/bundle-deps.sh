#!/usr/bin/env bash
# Collects the third-party packages that Penstock is built and tested with, for a machine without a registry, maybe of
# another architecture. Copy the folder there, into the repository as ./deps or anywhere with PENSTOCK_DEPS pointing at
# it. The machine itself must have a C++20 compiler, CMake 3.25, Ninja and Python 3 with pip.
#
#   scripts/bundle-deps.sh [--arch ARCH] [--out DIR] [--bench] [--peers [--python VERSION]]
#
#   --arch ARCH   Debian's name of the architecture (default: amd64)
#   --out DIR     the folder to make anew (default: deps)
#   --bench       also the sources of fio, which scripts/install-deps.sh --bench builds on the other machine
#   --peers       also the loaders that bench/peers compares, as wheels: install them there with
#                 pip install --no-index --no-deps deps/peers/*.whl deps/wheels/safetensors-*.whl
#   --python V    the version of Python that the wheels are for (default: 3.12)
#
# Packages are downloaded from the sources in /etc/apt with a state of their own: nothing of this system changes, and
# root is not needed.
set -euo pipefail
source "$(dirname "$0")/common.sh"

packages=(liburing-dev liburing2 libcli11-dev nlohmann-json3-dev libxxhash-dev libsqlite3-dev libgtest-dev
  libbenchmark-dev libfuse3-dev fuse3)
limit_mib=48
arch=amd64
out=deps
bench=false
peers=()
version=3.12
while (($#)); do
  case $1 in
    --help | -h) show_help && exit ;;
    --bench) bench=true && shift && continue ;;
    --peers)
      peers=(fastsafetensors instanttensor runai-model-streamer humanize kvikio-cu13 libkvikio-cu13 rapids-logger)
      shift && continue
      ;;
    --arch | --out | --python) (($# > 1)) || die "$1 needs a value" ;;&
    --python) version=$2 ;;
    --arch) arch=$2 ;;
    --out) out=$2 ;;
    *) die "unknown argument $1; see --help" ;;
  esac
  shift 2
done
python=python3
[[ ! -x .venv/bin/python ]] || python=.venv/bin/python
"$python" -c 'import pip' 2> /dev/null || die "$python has no pip: run scripts/install-deps.sh, or install python3-pip"
command -v apt-get dpkg-deb > /dev/null || die "apt-get and dpkg-deb are needed: run this on Debian or Ubuntu"
if [[ -e $out && ! -d $out/usr && -n $(ls -A "$out") ]]; then
  die "$out is not a bundle: refusing to replace it"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

apt=(-qq -o "APT::Architecture=$arch" -o "APT::Architectures=$arch" -o "Dir::State=$work/state"
  -o "Dir::State::status=$work/status" -o "Dir::Cache=$work/cache" -o "APT::Sandbox::User=$(id -un)")
mkdir -p "$work"/{state/lists/partial,cache/archives/partial,download,bundle}
touch "$work/status"

# run_time_half LIBRARY
run_time_half() {
  apt-cache "${apt[@]}" depends "$1-dev" | sed -n "s/.*Depends: \($1-\?[0-9].*\)/\1/p"
}

download_packages() {
  # The run-time halves of these have another name in each release.
  packages+=("$(run_time_half libbenchmark)" "$(run_time_half libfuse3)")
  (cd "$work/download" && apt-get "${apt[@]}" download "${packages[@]}")
}

unpack_packages() {
  local package folder link
  for package in "$work"/download/*.deb; do
    dpkg-deb -x "$package" "$work/bundle"
  done
  # One layout whether a package is from before or after /usr was merged, and links that hold wherever it lies.
  for folder in bin lib; do
    [[ -d $work/bundle/$folder ]] || continue
    mkdir -p "$work/bundle/usr/$folder"
    cp -a "$work/bundle/$folder/." "$work/bundle/usr/$folder"
    rm -r "${work:?}/bundle/$folder"
  done
  find "$work/bundle" -type l -lname '/*' | while read -r link; do
    ln -sf "$(basename "$(readlink "$link")")" "$link"
  done
  find "$work/bundle" -xtype l -delete
  rm -rf "$work"/bundle/{etc,sbin,usr/sbin} "$work"/bundle/usr/share/{man,doc,initramfs-tools,lintian,bug}
}

add_fio_sources() {
  # shellcheck disable=SC2016  # $(...) is apt's own notation here
  apt-get "${apt[@]}" indextargets --format 'deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' \
    > "$work/sources.list"
  local source_apt=("${apt[@]}" -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=-)
  apt-get "${source_apt[@]}" update
  (cd "$work/download" && apt-get "${source_apt[@]}" source --download-only fio)
  mkdir -p "$work/bundle/usr/src"
  # Half of them are examples, from which nothing is built.
  tar -xf "$work"/download/fio_*.orig.tar.?z -C "$work/bundle/usr/src" --exclude='*/examples'
}

# download_wheels FOLDER ARGUMENT...: as the other machine would.
download_wheels() {
  local folder=$1 machine tag platforms=()
  shift
  case $arch in amd64) machine=x86_64 ;; arm64) machine=aarch64 ;; *) machine=$arch ;; esac
  for tag in any {manylinux2014,manylinux_2_24,manylinux_2_27,manylinux_2_28,manylinux_2_34}_"$machine"; do
    platforms+=(--platform "$tag")
  done
  "$python" -m pip --disable-pip-version-check download --quiet --only-binary=:all: "${platforms[@]}" \
    --python-version "$version" --dest "$work/bundle/$folder" "$@"
}

# What a wheel needs beside itself (torch, CuPy, NumPy) is far too large to travel. A loader without a wheel for that
# machine is left out, and bench/peers names it.
add_peers() {
  local peer
  for peer in "${peers[@]}"; do
    download_wheels peers --no-deps "$peer" || echo "$peer: no wheel for Python $version on $arch" >&2
  done
}

apt-get "${apt[@]}" update
download_packages
unpack_packages
download_wheels wheels "${python_packages[@]}"
if $bench; then
  add_fio_sources
fi
if ((${#peers[@]})); then
  add_peers
fi

size_mib=$(du -sm "$work/bundle" | cut -f1)
((size_mib < limit_mib)) || die "the bundle has $size_mib MiB, more than the $limit_mib that are meant to travel"
compgen -G "$work/bundle/usr/lib/*/liburing.a" > /dev/null || die "liburing.a is not in liburing-dev for $arch"
rm -rf "$out"
mkdir -p "$(dirname "$out")"
mv "$work/bundle" "$out"
chmod 755 "$out"
echo "$out: $size_mib MiB for $arch"

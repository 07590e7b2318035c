#!/usr/bin/env bash
# Shows Penstock at work: builds it, makes a sample model, says what is in it and whether its bytes are right, asks
# `penstock doctor` about it, and loads it cold and from the page cache, verified: into GPU memory if there is a GPU,
# else into host memory.
#
#   scripts/run.sh [--to DOMAIN] [--size-mib N] [--folder DIR]
#
#   --to DOMAIN      where the bytes go (default: cuda:0 if there is a GPU, else host)
#   --size-mib N     size of the sample model (default: 256)
#   --folder DIR     where the sample model is made, and removed again (default: $TMPDIR or /var/tmp)
set -euo pipefail
source "$(dirname "$0")/common.sh"

domain=
size_mib=256
folder=${TMPDIR:-/var/tmp}
while (($#)); do
  case $1 in
    --help | -h) show_help && exit ;;
    --to | --size-mib | --folder) (($# > 1)) || die "$1 needs a value" ;;&
    --to) domain=$2 ;;
    --size-mib) size_mib=$2 ;;
    --folder) folder=$2 ;;
    *) die "unknown argument $1; see --help" ;;
  esac
  shift 2
done
[[ $size_mib =~ ^[1-9][0-9]*$ ]] || die "--size-mib takes a positive number, not $size_mib"

has_gpu() {
  [[ -e /dev/nvidia0 ]] || nvidia-smi -L > /dev/null 2>&1
}
if [[ -z $domain ]]; then
  if has_gpu; then domain=cuda:0; else domain=host; fi
fi

scripts/install-deps.sh --build
stage build build release penstock_tool

work=$(mktemp -d "$folder/penstock-run.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
sample=$work/sample.safetensors

make_cold() {
  sync "$sample"
  dd if="$sample" iflag=nocache count=0 status=none
}
make_cached() {
  cat "$sample" > /dev/null
}
load() {
  build/penstock load "$sample" --to "$domain" --verify "$@"
}
# One line for a result: where the bytes went, how fast, by which routes, verified or not.
summarize() {
  python3 -c '
import json, sys
result = json.load(sys.stdin)
routes = ", ".join(f"{route} {bytes}" for route, bytes in result["routes"].items() if bytes)
verdict = {True: "verified", False: "DIFFERENT", None: "not verified"}[result["verified"]]
speed = f"{result['\''gb_per_s'\'']:.2f} GB/s, steady {result['\''steady_gb_per_s'\'']:.2f} GB/s"
tensors = result["model"]["tensors"]
print(f"{sys.argv[1]:7} to {sys.argv[2]}: {speed}  {tensors} tensors {verdict}  bytes by route: {routes}")
print(f"        {result['\''reason'\'']}")
sys.exit(result["verified"] is not True)
' "$1" "$domain"
}

printf '\n== a sample model\n'
build/penstock sample "$sample" --size "${size_mib}MiB"
build/penstock inspect "$sample"
printf '\n== penstock verify\n'
build/penstock verify "$sample"
printf '\n== penstock doctor\n'
build/penstock doctor "$sample" --to "$domain"
for state in cold cached; do
  printf '\n== penstock load, %s\n' "$state"
  "make_$state"
  load
done
printf '\n== penstock load --json\n'
for state in cold cached; do
  "make_$state"
  load --repeat 5 --json | tee "$work/$state.json"
done
printf '\n== summary\n'
for state in cold cached; do
  summarize "$state" < "$work/$state.json"
done

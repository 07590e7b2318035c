#!/usr/bin/env bash
# Builds everything that is shipped, as it is shipped; runs the tests, and those that are worth it under the address
# sanitizer. What takes minutes more, as the thread sanitizer does, is left to scripts/soak.sh. Exits non-zero if a test
# fails; ends with a line that counts passed, failed and skipped tests over all stages.
#
#   scripts/test.sh
#
#   PENSTOCK_SANITIZERS=asan   the sanitizer presets to run ("" for none, "tsan asan" for both)
#   PENSTOCK_JOBS=2            parallel compilations; twice as many tests (default: the number of CPUs)
#   PENSTOCK_DEPS=deps         an offline bundle, used by itself where ./deps exists
set -euo pipefail
source "$(dirname "$0")/common.sh"

case ${1:-} in
  '') ;;
  --help | -h) show_help && exit ;;
  *) die "unknown argument $1; see --help" ;;
esac

results=build/test-results
broken=()

# run_tests PRESET [CTEST ARGUMENT...]. Tests spend half of their time waiting for deadlines, disks and each other.
run_tests() {
  local preset=$1
  shift
  ctest --preset "$preset" --parallel $((2 * jobs)) --no-tests=error --output-junit "$PWD/$results/$preset.xml" "$@" |
    grep --line-buffered -vE '^ *Start +[0-9]+:| Passed '
}
attempt() {
  stage "$@" || broken+=("$1")
}

# begin_tests NAME PRESET [CTEST ARGUMENT...]: tests wait more than they compute, so they run beside what follows: a build,
# which lets them go first, and its tests. end_tests shows what they printed. They are a process group of their own, which
# ends with the script.
declare -A running=()
begin_tests() {
  local name=$1
  shift
  set -m
  stage "test $name" run_tests "$@" > "$results/$name.log" 2>&1 &
  running[$name]=$!
  set +m
  printf '== test %s, beside what follows, prints to %s\n' "$name" "$results/$name.log"
}
end_tests() {
  wait "${running[$1]}" || broken+=("test $1")
  unset "running[$1]"
  cat "$results/$1.log"
}
build_beside() (
  renice -n 10 -p "$BASHPID" > /dev/null && build "$@"
)
end_all_tests() {
  local group
  for group in "${running[@]}"; do kill -- "-$group"; done
}
trap 'end_all_tests; exit 130' INT TERM

scripts/install-deps.sh
mkdir -p "$results"
rm -f "$results"/*
# The sanitizers run the tests of single folders, and some of several; release does where there are no sanitizers.
sanitizers=${PENSTOCK_SANITIZERS-asan}
if [[ -n $sanitizers ]]; then preset=shipped; else preset=release; fi
stage 'build release' build "$preset"
begin_tests release "$preset"
for sanitizer in $sanitizers; do
  attempt "build $sanitizer" build_beside "$sanitizer" penstock_sanitize_tests
  begin_tests "$sanitizer" "$sanitizer" --label-regex '^sanitize$'
done
for tests in release $sanitizers; do end_tests "$tests"; done

printf '== %d s in all\n' "$SECONDS"
python3 scripts/summarize_tests.py "$results"/*.xml || broken+=(tests)
if ((${#broken[@]})); then
  die "failed: ${broken[*]}"
fi

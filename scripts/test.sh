#!/usr/bin/env bash
# Builds everything that is shipped, as it is shipped; runs the tests, then those that are worth it under the sanitizers.
# What takes minutes more is left to scripts/soak.sh. Exits non-zero if a test fails; ends with a line that counts
# passed, failed and skipped tests over all stages.
#
#   scripts/test.sh
#
#   PENSTOCK_SANITIZERS="asan tsan"   the sanitizer presets to run ("" for none)
#   PENSTOCK_JOBS=2                   parallel compilations; twice as many tests (default: the number of CPUs)
#   PENSTOCK_DEPS=deps                an offline bundle, used by itself where ./deps exists
set -euo pipefail
source "$(dirname "$0")/common.sh"

case ${1:-} in
  '') ;;
  --help | -h) show_help && exit ;;
  *) die "unknown argument $1; see --help" ;;
esac
trap 'exit 130' INT TERM

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

scripts/install-deps.sh
mkdir -p "$results"
rm -f "$results"/*.xml
# The sanitizers run the tests of single folders; release runs them only where there are no sanitizers.
sanitizers=${PENSTOCK_SANITIZERS-asan tsan}
if [[ -n $sanitizers ]]; then preset=shipped; else preset=release; fi
stage 'build release' build "$preset"
attempt 'test release' run_tests "$preset"
for sanitizer in $sanitizers; do
  attempt "build $sanitizer" build "$sanitizer" sanitize_tests
  attempt "test $sanitizer" run_tests "$sanitizer" --label-regex '^sanitize$'
done

printf '== %d s in all\n' "$SECONDS"
python3 scripts/summarize_tests.py "$results"/*.xml || broken+=(tests)
if ((${#broken[@]})); then
  die "failed: ${broken[*]}"
fi

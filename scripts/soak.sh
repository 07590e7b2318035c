#!/usr/bin/env bash
# The checks that take too long for every change. Without arguments all stages run, in this order; with arguments those
# that are named. Ends with a line for each: how long it took, and what it found. Their output is kept in build/soak.
#
#   scripts/soak.sh [STAGE...]
#
#   tidy     clang-tidy over src/ without its tests, warnings are errors
#   clang    the whole suite, built with clang
#   dev      the whole suite, with the assertions of the standard library, and every header by itself
#   asan     the whole suite under the address sanitizer and all checks of undefined behaviour
#   tsan     the whole suite under the thread sanitizer
#   slow     those tests of the release build that scripts/test.sh leaves out: the whole conformance suite in the guest,
#            the comparison with loaders that need torch, and more ways to embed the library in another project
#   fuzz     each fuzz target for PENSTOCK_FUZZ_SECONDS (default: 60)
#   seeds    the seeded fault test with PENSTOCK_SEEDS seeds (default: 250, about ten minutes), and PENSTOCK_GATHERS
#            gathers of rows and PENSTOCK_OPERATIONS reads through queues of kernels (default: 100,000 each), and
#            PENSTOCK_ACQUIRES acquires of layers (default: 300,000); then PENSTOCK_REPLAYS replays of a graph with rows,
#            with and without a cache (default: 100,000)
#   tiers    processes that move units between tiers, killed at PENSTOCK_TIER_KILLS random times (default: 2,000), every
#            byte compared; then PENSTOCK_TIER_OPERATIONS operations of several at once, compared with a model (default:
#            2,000); then PENSTOCK_TIER_RACES rounds as root against a user who exchanges his folders for links (default:
#            300), and PENSTOCK_STORM_ROUNDS rounds of writes, moves, saves, loads and gathers while each thread gets a
#            signal every 100 us (default: 100)
#   python   the Python package in PENSTOCK_PYTHON_ROUNDS rounds (default: 200) of two programs: one whose threads make their
#            first reads while it forks, and one that changes tensors that are read into, beside a busy executor
#   nvme     the NVMe driver against a controller that misbehaves, with PENSTOCK_NVME_SEEDS seeds of 3,000 operations and
#            PENSTOCK_NVME_LONG_SEEDS of 100,000 (default: 2,000 and 50)
#   guest    the NVMe driver in a guest of the other architecture, cross-compiled; Debian only
#   packages the sdist, a wheel built from it and tried in a bare venv, and the Debian packages; left in build/packages
#   browser  the page of `penstock bench` in chromium; screenshots are left in build/browser
set -euo pipefail
source "$(dirname "$0")/common.sh"

all_stages=(tidy clang dev asan tsan slow fuzz seeds tiers python nvme guest packages browser)
for argument in "$@"; do
  case " ${all_stages[*]} --help -h " in
    *" $argument "*) ;;
    *) die "unknown stage $argument; see --help" ;;
  esac
  case $argument in --help | -h) show_help && exit ;; esac
done
trap 'exit 130' INT TERM

# Uses of stacks that are gone: several times slower, so not in every run.
export PENSTOCK_ASAN_MORE=:detect_stack_use_after_return=1:max_uar_stack_size_log=16
# run_suite PRESET [CTEST ARGUMENT...]
run_suite() {
  local preset=$1 results=$PWD/build/soak/$1.xml code=0
  shift
  rm -f "$results"
  build "$preset" || return
  ctest --preset "$preset" --parallel "$jobs" --no-tests=error --timeout 600 --output-junit "$results" "$@" || code=$?
  python3 scripts/summarize_tests.py "$results" && ((code == 0))
}
run_clang() { run_suite clang; }
run_dev() { run_suite dev; }
# The sanitizers get several times what scripts/test.sh lets them try.
run_asan() { PENSTOCK_SEEDS=6 PENSTOCK_ACQUIRES=100000 PENSTOCK_REPLAYS=2000 PENSTOCK_CHUNKS=10000 run_suite asan-all; }
run_tsan() {
  PENSTOCK_SEEDS=6 PENSTOCK_ACQUIRES=30000 PENSTOCK_REPLAYS=600 PENSTOCK_CHUNKS=5000 PENSTOCK_ALLOCATION_STEP=1 run_suite tsan
}
run_slow() { run_suite shipped --build-config soak --label-regex '^soak$'; }

# clang-tidy reads the commands of the clang build: those of gcc have options that it doesn't know.
run_tidy() {
  local sources
  configure clang && mapfile -t sources < <(find src -name '*.cc' ! -name '*_test.cc') &&
    printf '%s\0' "${sources[@]}" |
    xargs -0 -n 1 -P "$jobs" clang-tidy --quiet -p build-clang 2> >(grep -v 'warnings\? generated' >&2) &&
    echo "${#sources[@]} files without a finding"
}

# New inputs are kept in the build folder, and what breaks a target as build-fuzz/crash-*.
run_fuzz() {
  local corpus name units failed=0 inputs=0
  build fuzz penstock_fuzz_targets || return
  for corpus in tests/fuzz/corpus/*; do
    name=${corpus##*/}
    echo "-- $name"
    mkdir -p "build-fuzz/corpus/$name"
    PENSTOCK_FUZZ_TARGET=$name build-fuzz/bin/fuzz_targets \
      -max_total_time="${PENSTOCK_FUZZ_SECONDS:-60}" -timeout=10 -print_final_stats=1 \
      -artifact_prefix="build-fuzz/crash-$name-" "build-fuzz/corpus/$name" "$corpus" 2>&1 |
      tail -n 20 | tee "build/soak/fuzz-$name.log" || failed=1
    units=$(sed -n 's/^stat::number_of_executed_units: *//p' "build/soak/fuzz-$name.log")
    inputs=$((inputs + ${units:-0}))
  done
  echo "$inputs inputs; what broke a target is in build-fuzz: $(find build-fuzz -name 'crash-*' | wc -l) files"
  return "$failed"
}

run_seeds() {
  build release penstock_test_fault penstock_test_gpu &&
    PENSTOCK_SEEDS=${PENSTOCK_SEEDS:-250} PENSTOCK_GATHERS=${PENSTOCK_GATHERS:-100000} \
      PENSTOCK_ACQUIRES=${PENSTOCK_ACQUIRES:-300000} PENSTOCK_OPERATIONS=${PENSTOCK_OPERATIONS:-100000} build/bin/fault &&
    PENSTOCK_REPLAYS=${PENSTOCK_REPLAYS:-100000} build/bin/gpu --gtest_filter='RowsPlans.*:RowsCaches.*'
}

run_tiers() {
  build release penstock_test_unit_services penstock_test_integration &&
    PENSTOCK_TIER_KILLS=${PENSTOCK_TIER_KILLS:-2000} PENSTOCK_TIER_OPERATIONS=${PENSTOCK_TIER_OPERATIONS:-2000} \
      PENSTOCK_TIER_RACES=${PENSTOCK_TIER_RACES:-300} \
      build/bin/unit_services --gtest_filter='TiersModel.*:TiersCrash.*:*TiersHostile.*' --gtest_brief=1 &&
    PENSTOCK_STORM_ROUNDS=${PENSTOCK_STORM_ROUNDS:-100} build/bin/integration --gtest_filter='InASignalStorm.*' \
      --gtest_brief=1
}

# With the interpreter that the package was built for.
run_python() {
  build release penstock_python || return
  local python=python3
  [[ ! -x .venv/bin/python ]] || python=.venv/bin/python
  PYTHONPATH=$PWD/build/python "$python" -B tests/python/python_soak.py "${PENSTOCK_PYTHON_ROUNDS:-200}"
}

run_nvme() {
  build release penstock_tool && PENSTOCK_JOBS=$jobs python3 -B scripts/nvme_seeds.py build/penstock
}

# 77: this is not Debian, or there is no QEMU, and that was said.
run_guest() {
  local other=x86_64 debian=amd64 code=0
  if [[ $(uname -m) == x86_64 ]]; then
    other=aarch64 debian=arm64
  fi
  if ! command -v "$other-linux-gnu-g++" > /dev/null; then
    echo "skipped: there is no compiler for $other here"
    return
  fi
  [[ -d build-guest/deps ]] || scripts/bundle-deps.sh --arch "$debian" --out build-guest/deps || return
  cmake -S . -B build-guest -G Ninja --log-level=WARNING -D CMAKE_BUILD_TYPE=Release -D CMAKE_SYSTEM_NAME=Linux \
    -D CMAKE_SYSTEM_PROCESSOR="$other" -D CMAKE_C_COMPILER="$other-linux-gnu-gcc" \
    -D CMAKE_CXX_COMPILER="$other-linux-gnu-g++" -D PENSTOCK_DEPS="$PWD/build-guest/deps" -D PENSTOCK_BENCH=OFF \
    > /dev/null &&
    cmake --build build-guest --parallel "$jobs" --target penstock_tool penstock_nvme_exercise penstock_test_conformance -- --quiet || return
  python3 -B tests/guest/nvme_guest.py --all build-guest/penstock build-guest/bin/nvme_exercise build-guest/bin/conformance \
    build-guest/guest "$other" || code=$?
  ((code == 0 || code == 77))
}

run_packages() {
  rm -rf build/packages && scripts/wheel.sh --sdist --out build/packages || return
  if ! command -v dpkg-shlibdeps > /dev/null; then
    echo "no Debian packages: there is no dpkg-shlibdeps here"
    return
  fi
  scripts/deb.sh --out build/packages && echo "$(find build/packages -type f | wc -l) packages"
}

# 77: there is no chromium, and that was said.
run_browser() {
  build release penstock_tool || return
  local code=0
  python3 -B tests/browser/bench_page_test.py build/penstock build/browser || code=$?
  ((code == 0 || code == 77))
}

# Its last line is what it found.
logged() {
  "run_$1" 2>&1 | tee "build/soak/$1.log"
}

scripts/install-deps.sh --soak
PATH=$(printf '%s\n' /usr/lib/llvm-*/bin | sort --version-sort | tail -n 1):$PATH
mkdir -p build/soak
stages=("$@")
((${#stages[@]})) || stages=("${all_stages[@]}")
broken=()
summary=()
for name in "${stages[@]}"; do
  begin=$SECONDS verdict=passed
  stage "$name" logged "$name" || { broken+=("$name") && verdict=FAILED; }
  summary+=("$(printf '%-8s %s after %5d s: %s' "$name" "$verdict" $((SECONDS - begin)) "$(tail -n 1 "build/soak/$name.log")")")
done
printf '%s\n' "${summary[@]}"
if ((${#broken[@]})); then
  die "failed: ${broken[*]}"
fi

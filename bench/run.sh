#!/usr/bin/env bash
# Builds the release and measures it beside its yardsticks; docs/performance.md explains the method.
#
#   bench/run.sh [--json FILE] [--dir DIR] [--rounds N] [--quick] [--only ROW,...]
#   bench/run.sh --gpu [--seconds N] ...      the rows of the first GPU
#   bench/run.sh --models [--python P] ...    models to torch on the first GPU
#   bench/run.sh --nvme ...                   the NVMe driver over controllers in software
#
# A full run takes about eight minutes, --quick two; with --gpu or --models at most seven, and three. --help names the
# rows. Files of 5 GiB (--gpu: 10 GiB, and 8 GiB in /dev/shm for a while) are made in DIR (build/bench-files), which
# should be on the storage to be measured.
set -euo pipefail
caller=$PWD
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/common.sh"
root=$PWD
bundle=$(bundle_folder)
[[ -z $bundle ]] || PATH=$bundle/usr/bin:$PATH

targets=(penstock_bench_programs)
if [[ " $* " == *" --models "* ]]; then
  targets+=(penstock_python)
  export PYTHONPATH=$root/build/python
elif [[ " $* " != *" --gpu "* ]] && ! { command -v fio && command -v valgrind; } > /dev/null; then
  scripts/install-deps.sh --bench >&2 || echo "fio and valgrind could not be installed: the rows that need them are skipped" >&2
fi
build release "${targets[@]}" >&2
cd "$caller"
exec python3 -B "$root/bench/run.py" --programs "$root/build/bin" "$@"

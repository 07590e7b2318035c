"""Turns the results of bench/run.py into Markdown."""


def size(count):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:g} {name}"
    return f"{count} bytes"


_UNITS = {"bytes_per_second": lambda value: f"{value / 1e9:.2f} GB/s",
          "operations_per_second": lambda value: f"{value / 1e3:.1f} k/s",
          "cpu_seconds_per_operation": lambda value: f"{value * 1e6:.2f} µs",
          "p50_seconds": lambda value: f"{value * 1e6:.1f} µs",
          "microseconds": lambda value: f"{value * 1e6:.1f} µs",
          "seconds_per_gigabyte": lambda value: f"{value:.3f} s/GB",
          "seconds": lambda value: f"{value:.3f} s",
          "seconds_per_load": lambda value: f"{value:.3f} s",
          "seconds_per_gather": lambda value: f"{value:.3f} s",
          "plain": lambda value: f"{value:.3f}",
          "count": lambda value: f"{value:.0f}"}


def markdown(report):
    rows = [row for result in report["results"].values() for row in result["rows"]]
    parts = [_machine(report), _ratios([row for row in rows if row["kind"] == "ratio"]),
             _memory([row for row in rows if row["kind"] == "memory"]),
             _ranges([row for row in rows if row["kind"] == "ranges"]),
             _starts([row for row in rows if row["kind"] == "start"]),
             _figures([row for row in rows if row["kind"] == "figure"]),
             _gpu_memory([row for row in rows if row["kind"] == "gpu-memory"]),
             _gpu_starts([row for row in rows if row["kind"] == "gpu-start"]),
             _absent([row for row in rows if row["kind"] == "absent"]), _checks(report["checks"])]
    return "\n\n".join(part for part in parts if part)


def _machine(report):
    machine, versions, settings = report["machine"], report["versions"], report["settings"]
    disk = f"{machine['disk']} ({machine['file_system']})"
    if machine["disk_is_virtual"]:
        disk += ", a virtual disk with a cache of its own below, which no guest can empty"
    lines = [f"- Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB, "
             f"{machine['architecture']}, Linux {machine['kernel']}; virtual machine: {machine['virtual_machine']}; "
             f"load average before the run {machine['load_average']:.2f}",
             f"- Disk: {disk}",
             f"- Versions: penstock {versions['penstock']}, {versions['fio']}, liburing {versions['liburing']}, "
             f"libfuse {versions['libfuse']}",
             f"- {report['date']}; {settings['rounds']} rounds of {settings['round_seconds']:g} s or more, "
             f"{report['seconds'] / 60:.1f} minutes in all{'; a quick run' if settings['quick'] else ''}"]
    if report.get("gpu"):
        lines[2:3] = _gpu(report["gpu"], versions)
    if settings.get("scale", 1) > 1:
        lines.append(f"- Every size divided by {settings['scale']}: the programs were tried out, not measured")
    return "\n".join(lines)


def _gpu(gpu, versions):
    kernels = "with" if gpu["kernels"] else "without"
    cuda = f"{gpu['cuda_version'] // 1000}.{gpu['cuda_version'] % 1000 // 10}"
    return [f"- GPU: {gpu['name']}, {gpu['memory_bytes'] / 2**30:.0f} GiB, PCIe {gpu['link']}, "
            f"{gpu['copy_engines']} copy engines",
            f"- Versions: penstock {versions['penstock']} {kernels} kernels, NVIDIA driver {gpu['driver']}, CUDA {cuda}, "
            f"liburing {versions['liburing']}"]


def _grid(heads, rows):
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def _verdict(row):
    if row["verdict"] != "open":
        return row["verdict"]
    tries = "inconclusive twice" if row["tries"] > 1 else "inconclusive, no time for a second try"
    return f"open: {tries}, the peer's rounds differ by {row['peer']['spread']:.1%}"


def _cpu(row):
    figures = [row.get("ours_cpu_per_gigabyte"), row.get("peer_cpu_per_gigabyte")]
    return " / ".join("–" if figure is None else f"{figure:.3f}" for figure in figures)


def _ratios(rows):
    def line(row):
        show = _UNITS[row["unit"]]
        ratio = row["ratio"]
        return [row["title"], show(row["ours"]["median"]), f"{show(row['peer']['median'])} ({row['peer_name']})",
                f"{ratio['median']:.3f} ({ratio['p25']:.3f}–{ratio['p75']:.3f})",
                _target(row), _verdict(row), str(row.get("rounds", "")), f"{row['peer']['spread']:.1%}", _cpu(row)]

    heads = ["what", "Penstock", "yardstick", "ratio: median (quartiles)", "target", "verdict", "rounds",
             "spread of the yardstick", "CPU s/GB: ours / yardstick"]
    return _grid(heads, map(line, rows)) if rows else ""


def _memory(rows):
    def lines(row):
        for sample in row["samples"]:
            yield [size(sample["size_bytes"]), size_mib(sample["pinned_bytes"]),
                   f"{size_mib(sample['outside']['VmLck'])} / {size_mib(sample['outside']['VmPin'])}",
                   size_mib(sample["extra_bytes"]), size_mib(sample["budget_bytes"])]

    heads = ["unaligned load of", "pinned, by Penstock's count", "locked / pinned, by the kernel's",
             "peak memory beside the destination", "budget"]
    return "\n\n".join(_grid(heads, lines(row)) + f"\n\nMemory within the budget and constant in the size of the file "
                       f"(growth {size_mib(row['growth_bytes'])}): {row['verdict']}." for row in rows)


def size_mib(count):
    return f"{count / (1 << 20):.1f} MiB"


def _ranges(rows):
    if not rows:
        return ""
    counts = list(rows[0]["nanoseconds"])

    def line(row):
        return [row["title"], *(f"{row['nanoseconds'][count]:.0f} ns" for count in counts), f"{row['growth']:.2f}",
                f"≤ {row['target']}", row["verdict"]]

    return _grid(["what", *(f"{int(count):,} ranges" for count in counts), "largest growth", "target", "verdict"],
                 map(line, rows))


def _starts(rows):
    def lines():
        for row in rows:
            for name in sorted(row["rounds"][0]):
                samples = sorted((sample[name] for sample in row["rounds"]), key=lambda s: s["total_seconds"])
                middle = samples[len(samples) // 2]
                yield [row["title"], name] + [f"{middle[key]:.3f} s" for key in
                                              ("total_seconds", "setup_seconds", "load_seconds")]

    heads = ["what (for orientation, no target)", "program", "in all", "set-up and memory", "load"]
    return _grid(heads, lines()) if rows else ""


def _target(row, show=str):
    return "" if row["target"] is None else f"{'≤' if row['lower_is_better'] else '≥'} {show(row['target'])}"


def _figures(rows):
    def line(row):
        show = _UNITS[row["unit"]]
        return [row["title"], f"{show(row['median'])} ({show(row['p25'])}–{show(row['p75'])})",
                str(len(row["samples"])), _target(row, show), row["verdict"]]

    return _grid(["what", "median (quartiles)", "samples", "target", "verdict"], map(line, rows)) if rows else ""


def _gpu_memory(rows):
    def lines(row):
        for sample in row["samples"]:
            yield [size(sample["size_bytes"]), size_mib(sample["pinned_bytes"]), size_mib(sample["extra_device_bytes"]),
                   size_mib(sample["host_bytes"])]

    heads = ["load to the GPU of", "pinned, by Penstock's count", "GPU memory beside the destination",
             "host memory beyond that of the CUDA context, by the kernel's count"]
    return "\n\n".join(_grid(heads, lines(row)) + "\n\nPinned memory at most 256 MiB, GPU memory beside the destination at "
                       f"most 16 MiB: {row['verdict']}." for row in rows)


def _gpu_starts(rows):
    keys = ("total_seconds", "ready_seconds", "open_seconds", "allocate_seconds", "request_seconds")

    def line(row):
        samples = sorted(row["samples"], key=lambda sample: sample["total_seconds"])
        middle = samples[len(samples) // 2]
        speed = _UNITS["bytes_per_second"](middle["size_bytes"] / middle["total_seconds"])
        return [row["title"], speed, *(f"{middle[key]:.3f} s" if key in middle else "" for key in keys)]

    heads = ["from process start (for orientation)", "speed over all", "in all", "process, CUDA driver and context",
             "Penstock's Context and file", "GPU memory", "first request"]
    return _grid(heads, map(line, rows)) if rows else ""


def _absent(rows):
    return "\n".join(f"- {row['verdict'].capitalize()}: {row['title']}: {row['reason']}" for row in rows)


def _checks(checks):
    failed = [check for check in checks if not check["passed"]]
    lines = [f"Checks beside the measurements (bytes compared by XXH3, page cache left clean): "
             f"{len(checks) - len(failed)} of {len(checks)} passed."]
    return "\n".join(lines + [f"- FAILED: {check['what']}: {check['detail']}" for check in failed])

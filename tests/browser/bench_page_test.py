"""The page of `penstock bench --html` in a real browser: its numbers are those of the JSON, and nothing overflows.

    bench_page_test.py TOOL FOLDER

Measures briefly, shows the page at several widths, light and dark, and leaves screenshots in FOLDER. Exits 77, with the
reason, where there is no chromium.
"""

import copy
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import chromium

VIEWS = [(1400, False), (1400, True), (800, False), (360, False), (360, True)]

# Every figure on the page with the place it names, and every element that is wider than the page or than its box.
FIGURES = "[...document.querySelectorAll('[data-path]')].map(e => [e.dataset.path, e.textContent])"
OVERFLOWS = """(() => {
  const wide = document.documentElement.clientWidth, found = [];
  for (const e of document.querySelectorAll('body *')) {
    const box = e.getBoundingClientRect();
    if (box.width === 0 || e.closest('defs, pre')) continue;
    const within = e.closest('.scroll');
    if (within && within !== e ? within.scrollWidth > within.clientWidth + 1 : box.right > wide + 1 || box.left < -1) {
      found.push(`${e.tagName} ${e.textContent.slice(0, 40)} ${box.left}-${box.right} of ${wide}`);
    }
  }
  return found;
})()"""
COLLISIONS = """(() => {
  const found = [];
  for (const svg of document.querySelectorAll('figure > svg')) {
    const boxes = [...svg.querySelectorAll('text')].map(e => [e.textContent, e.getBoundingClientRect()]);
    boxes.forEach(([a, p], i) => boxes.slice(i + 1).forEach(([b, q]) => {
      const across = Math.min(p.right, q.right) - Math.max(p.left, q.left);
      const down = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
      if (across > 1 && down > 4) found.push(`${a} over ${b}`);
    }));
  }
  return found;
})()"""
SCALES = {"p50_us": 1, "p99_us": 1, "p999_us": 1, "iops": 1e-3, "bytes": 1 / (1 << 20)}


def look_up(data, path):
    for key in path.split("."):
        if data is None:
            return None
        data = data[int(key)] if isinstance(data, list) else data.get(key)
    return data


def scale_of(path):
    keys = path.split(".")
    if keys[-1].endswith("_bytes"):
        return SCALES["bytes"]
    return next((SCALES[key] for key in keys if key in SCALES), 1)


def check_figures(browser, data):
    """The text of each figure is the value it names, rounded to as many places as it shows."""
    figures = browser.evaluate(FIGURES)
    assert len(figures) > 50, f"only {len(figures)} figures"
    for path, text in figures:
        value = look_up(data, path)
        if value is None:
            assert text == "–", (path, text)
            continue
        places = len(text.partition(".")[2])
        assert abs(float(text) - value * scale_of(path)) <= 0.51 * 10 ** -places, (path, text, value)
    medians = {path for path, _ in figures if path.endswith("gb_per_s.median")}
    wanted = {f"races.{i}.rows.{j}.gb_per_s.median" for i, race in enumerate(data["races"])
              for j in range(len(race["rows"]))}
    assert wanted <= medians, wanted - medians
    return len(figures)


def with_peers(bench):
    """The same result with a comparison of loaders, of which one has a long name and one was not measured cold."""
    row = next(row for race in bench["races"] for row in race["rows"])
    figures = {key: row[key] for key in ("gb_per_s", "ratio", "cpu_seconds_per_gb")}
    loader = {"name": "penstock", "version": "0.1.0", "setting": {}, "cached": figures, "cold": figures,
              "start_seconds": 0.25, "extra_device_bytes": 8 << 20, "extra_host_bytes": 128 << 20, "wrong": []}
    others = [{**loader, "name": "a loader with a rather long name, tuned", "version": "2026.11.1.post3"},
              {**loader, "name": "safetensors", "cold": None, "wrong": ["layers.0"]}]
    made = copy.deepcopy(bench)
    made["path"] = "/mnt/" + "a-path-without-any-place-to-break-it" * 3 + "/<script>alert(1)</script>"
    made["peers"] = {"device": "cuda:0", "python": "/venv/bin/python", "loaders": [loader, *others],
                     "ceiling": {"cached": figures, "cold": figures},
                     "missing": [{"name": "KvikIO", "reason": "No module named 'kvikio'"}]}
    return made


def show(browser, page, data, folder, name):
    for width, dark in VIEWS:
        browser.show(page, width, dark)
        view = f"{name}-{width}-{'dark' if dark else 'light'}"
        browser.screenshot(folder / f"{view}.png")  # before the checks: a picture says best what is wrong
        count = check_figures(browser, data)
        browser.evaluate("document.querySelectorAll('details').forEach(e => e.open = true)")
        for what, found in [("overflows", browser.evaluate(OVERFLOWS)), ("collides", browser.evaluate(COLLISIONS))]:
            assert not found, f"{view}: {what}: {found[:5]}"
        print(f"{view}: {count} figures are those of the data, nothing overflows")
    assert browser.evaluate("document.querySelectorAll('script').length") == 2
    browser.show(page, 680)
    browser.call("Emulation.setEmulatedMedia", media="print", features=[])
    browser.evaluate("drawAll()")
    browser.screenshot(folder / f"{name}-print.png")
    assert not browser.evaluate(OVERFLOWS), f"{name}, printed: {browser.evaluate(OVERFLOWS)[:5]}"
    browser.pdf(folder / f"{name}.pdf")


def main():
    tool, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    name = chromium.find()
    if name is None:
        print("skipped: there is no chromium here (apt-get install chromium)")
        return 77
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="penstock-browser-", dir=os.environ.get("TMPDIR", "/var/tmp")) as scratch:
        scratch = pathlib.Path(scratch)
        page, result = scratch / "page.html", scratch / "result.json"
        measure = [tool, "bench", scratch, "--size", "64MiB", "--seconds", "6", "--write", "--json", "--html", page]
        done = subprocess.run(measure, stdout=subprocess.PIPE, check=True)
        bench = json.loads(done.stdout)
        with chromium.Chromium(name) as browser:
            show(browser, page, bench, folder, "bench")
            bench = with_peers(bench)
            result.write_text(json.dumps(bench))
            subprocess.run([tool, "bench", "--from", result, "--html", page], stdout=subprocess.DEVNULL, check=True)
            show(browser, page, bench, folder, "peers")
    print(f"screenshots are in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

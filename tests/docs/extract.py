"""Writes the C++ of the docs as source files, and prints their names: what a reader copies has to compile.

    extract.py ROOT OUT

A block of code below a heading that names files (## `src/a.h` and `a.cc`) is the next of these files. The other blocks of
a page are one function, one after the other, as a reader would type them. The README's program is not looked at: it is
that of examples/.
"""

import pathlib
import re
import sys

HEADING_OR_CODE = re.compile(r"^(#+ [^\n]*)$|^```cpp\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`([\w/]+\.(?:h|cc))`")
FUNCTION = """\
#include <vector>

#include "penstock/models.h"
#include "penstock/penstock.h"

#pragma GCC diagnostic error "-Wmissing-field-initializers"  // readers compile with -Wextra

void {name}();

void {name}() {{
{body}}}
"""


def files_of(heading):
    """The names in a heading; the first has a folder, which is that of the others."""
    names = [pathlib.PurePath(name) for name in FILE.findall(heading)]
    return [str(names[0].parent / name.name) for name in names]


def sources(page, text):
    """The content of each file, by its name."""
    files, body, names = {}, "", []
    for match in HEADING_OR_CODE.finditer(text):
        heading, code = match.groups()
        if heading:
            names = files_of(heading)
            continue
        line = text.count("\n", 0, match.start(2)) + 1
        code = f'#line {line} "{page}"\n{code}'
        if names:
            files[names.pop(0)] = code
        else:
            body += code
    if body:
        name = re.sub(r"[^a-z0-9]", "_", page)
        files[name + ".cc"] = FUNCTION.format(name=name, body=body)
    return files


def main(root, out):
    for path in sorted((root / "docs").glob("*.md")):
        page = path.relative_to(root).as_posix()
        for name, content in sources(page, path.read_text(encoding="utf-8")).items():
            file = out / name
            file.parent.mkdir(parents=True, exist_ok=True)
            if not file.exists() or file.read_text(encoding="utf-8") != content:
                file.write_text(content, encoding="utf-8")
            print(file)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))

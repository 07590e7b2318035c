"""The public device headers compile with NVRTC, as a program compiles them: a C++17 source, the path to the headers, and
no other flag. NVRTC needs no GPU.

    nvrtc_test.py INCLUDE SOURCE...
"""

import ctypes
import glob
import os
import re
import sys

INCLUDE, SOURCES = sys.argv[1], sys.argv[2:]


def load():
    reasons = []
    folders = [os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/lib64", "/usr/local/cuda/lib64"]
    files = [file for folder in folders for file in sorted(glob.glob(folder + "/libnvrtc.so.*"), reverse=True)]
    for name in [*files, "libnvrtc.so.13", "libnvrtc.so.12"]:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            reasons.append(str(error))
    print("skipped: libnvrtc can't be loaded:", reasons[0])
    sys.exit(77)


def text_of(nvrtc, program, size_of, get):
    size = ctypes.c_size_t()
    getattr(nvrtc, size_of)(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, get)(program, text)
    return text.value.decode()


def compile_source(nvrtc, path, source, entry):
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, path.encode(), 0, None, None)
    options = [b"-std=c++17", b"-arch=compute_75", b"-I" + INCLUDE.encode()]
    code = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    log = text_of(nvrtc, program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")
    if code != 0:
        return log
    ptx = text_of(nvrtc, program, "nvrtcGetPTXSize", "nvrtcGetPTX")
    return "" if f".entry {entry}" in ptx else f"no kernel {entry} in the result"


def main():
    nvrtc = load()
    nvrtc.nvrtcCompileProgram.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    for name in ["nvrtcGetProgramLogSize", "nvrtcGetProgramLog", "nvrtcGetPTXSize", "nvrtcGetPTX"]:
        getattr(nvrtc, name).argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    failed = 0
    for path in SOURCES:
        with open(path, "rb") as file:
            source = file.read()
        entry = re.search(r"\b(penstock_\w+)\(", source.decode())[1]
        error = compile_source(nvrtc, path, source, entry)
        print(path, error or "compiled")
        failed += bool(error)
    # A source with an error in it must not compile: the test would see nothing otherwise.
    wrong = b'#include <penstock/device.cuh>\nextern "C" __global__ void penstock_wrong() { missing; }'
    if not compile_source(nvrtc, "wrong.cu", wrong, "penstock_wrong"):
        print("a wrong source compiled")
        failed += 1
    return 1 if failed else 0


sys.exit(main())

"""Registers, spills and shared memory of all kernels that engines of real shapes launch, as reported by the assembler.

Needs no GPU: kernels are compiled for compute capabilities 8.0, 8.9 and 9.0. Each row is a kernel as compiled for one
launch; `programs` is the number of its programs that fit on a multiprocessor.

    python -m benchmarks.kernel_resources                       # results/kernel_resources.json
    python -m benchmarks.kernel_resources --shapes Llama-3.2-1B --capabilities 90 --page-sizes 64
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from itertools import product
from typing import Any

from triton import knobs

from benchmarks.gpu_precompile import compile_shape
from benchmarks.results import save
from benchmarks.shapes import SHAPES
from kernels.triton.device_limits import SHARED_BYTES

REGISTERS = 65_536  # per multiprocessor
MAX_PROGRAMS, MAX_WARPS = {80: 32, 89: 24, 90: 32}, {80: 64, 89: 48, 90: 64}  # per multiprocessor, by capability
RESERVED_SHARED_BYTES = 1024  # per program
USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")
SPILLS = re.compile(r"(\d+) bytes spill stores")


def registers_and_stack(cubin: bytes) -> tuple[int, int]:
    """Return the registers and the stack bytes of a thread."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        printed = subprocess.run(command, capture_output=True, text=True, check=True)
    registers, stack = map(int, USAGE.findall(printed.stdout + printed.stderr)[-1])
    return registers, stack


def spilled(ptx: str, capability: int) -> int:
    """Return the bytes of register spills of a thread."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        architecture = f"sm_{capability}a" if capability >= 90 else f"sm_{capability}"
        command = [knobs.nvidia.ptxas.path, "-v", f"--gpu-name={architecture}", file.name, "-o", "/dev/null"]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return sum(map(int, SPILLS.findall(printed)))


def programs(registers: int, shared: int, warps: int, capability: int) -> int:
    """Return the number of programs that fit on a multiprocessor."""
    by_registers = REGISTERS // (-(-registers // 8) * 8 * 32) // warps
    by_shared = (SHARED_BYTES[capability] + RESERVED_SHARED_BYTES) // (shared + RESERVED_SHARED_BYTES)
    return min(by_registers, by_shared, MAX_WARPS[capability] // warps, MAX_PROGRAMS[capability])


def row(compiled: Any, capability: int) -> dict[str, Any]:
    """Return the figures of one kernel."""
    registers, stack = registers_and_stack(compiled.asm["cubin"])
    shared, warps = compiled.metadata.shared, compiled.metadata.num_warps
    return {
        "kernel": compiled.metadata.name,
        "warps": warps,
        "stages": compiled.metadata.num_stages,
        "registers": registers,
        "stack_bytes": stack,
        "spilled_bytes": spilled(compiled.asm["ptx"], capability),
        "shared_bytes": shared,
        "programs": programs(registers, shared, warps, capability),
    }


def main() -> int:
    """Compile, print and save; return 1 if a kernel needs more shared memory than the device has."""
    names = [name for name in SHAPES if name != "tiny"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=names)
    parser.add_argument("--page-sizes", nargs="+", type=int, default=[32, 64])
    parser.add_argument("--capabilities", nargs="+", type=int, choices=SHARED_BYTES, default=list(SHARED_BYTES))
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for capability, name, page_size in product(options.capabilities, options.shapes, options.page_sizes):
        for compiled in compile_shape(SHAPES[name], page_size, capability=capability):
            key = {"capability": capability, "shape": name, "page_size": page_size}
            rows.append(key | row(compiled, capability))
            print(" ".join(f"{column} {value}" for column, value in rows[-1].items()), flush=True)
    over = [one for one in rows if one["shared_bytes"] > SHARED_BYTES[one["capability"]]]
    most = max(rows, key=lambda one: one["spilled_bytes"])
    settings = {"shapes": options.shapes, "page_sizes": options.page_sizes, "capabilities": options.capabilities}
    save("kernel_resources", settings, rows, {"kernels": len(rows), "without_room": over, "most_spilled": most})
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())

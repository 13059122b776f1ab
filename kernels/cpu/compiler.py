"""The C++ compiler of this machine: its command, its flags and the processor that it compiles for."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
from pathlib import Path

# -ffp-contract=fast: every product followed by a sum becomes one fused multiply-add, with one rounding, everywhere.
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi", "-fPIC", "-pthread")
# Environment variable with further flags, which may override the others; for sanitizers and debuggers.
EXTRA_FLAGS = "KERNELS_CXXFLAGS"
COMPILERS = ("g++", "clang++", "c++")


class CompileError(Exception):
    """The library could not be compiled or loaded. The message is one line."""


def command() -> list[str]:
    """Return the compiler with all flags but those of a file. Raises `CompileError`."""
    native = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
    return [*find_compiler(), *FLAGS, native, *shlex.split(os.environ.get(EXTRA_FLAGS, ""))]


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
        raise CompileError(f"{command[0]} failed: {first}")


def find_compiler() -> list[str]:
    """Return the command in $CXX, or the first installed compiler of COMPILERS."""
    if chosen := shlex.split(os.environ.get("CXX", "")):
        return chosen
    for name in COMPILERS:
        if shutil.which(name):
            return [name]
    raise CompileError(f"No C++ compiler is installed (looked for {', '.join(COMPILERS)}); install one or set CXX")


def version(compiler: str) -> str:
    try:
        run = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise CompileError(f"The compiler {compiler} cannot be run: {error}") from error
    return run.stdout


def processor() -> str:
    """Return a description of the `native` target: the processor and, on Linux, its instruction sets."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    kept = {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    return platform.machine() + platform.processor() + "".join(sorted(kept))

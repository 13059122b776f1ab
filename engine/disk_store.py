"""The page store of an engine, from its options."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from engine.config import EngineConfig
from engine.errors import ConfigError, DiskError
from engine.execution.cache import KVCache
from engine.fingerprint import cache_fingerprint
from engine.kv_disk.folder import DiskFolder
from engine.kv_disk.run_file import Geometry
from engine.kv_disk.store import DiskStore

log = logging.getLogger("carousel.engine")


def open_store(config: EngineConfig, cache: KVCache, model: str) -> DiskStore | None:
    """Return the store in the folder `kv_disk`; None without one. Raises `ConfigError`.

    model: its fingerprint. Engines of one machine share the size.
    """
    if config.kv_disk is None:
        return None
    if not len(cache.host):
        raise ConfigError("kv_disk requires swap_space for at least one page: pages are written from host memory")
    pages = cache.host.flatten(1).view(torch.uint8).numpy()
    limit = int(config.kv_disk_size * config.host_memory_share * 2**30)
    geometry = Geometry(pages.shape[1], config.tokens_per_page)
    try:
        folder = DiskFolder(Path(config.kv_disk).expanduser(), cache_fingerprint(model, cache.device), geometry, limit)
    except DiskError as error:
        raise ConfigError(f"kv_disk: {error}") from error
    store = DiskStore(folder, lambda page: memoryview(pages[page]))
    log.info(
        "pages of conversations are written to %s: %.2f of %g GiB are used, and %.1f GB/s can be read",
        folder.path,
        store.counts.stored_bytes / 2**30,
        limit / 2**30,
        geometry.page_bytes / store.read_seconds(1) / 1e9,
    )
    return store

"""Decisions of an engine from its options, the model and the kernels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from engine.build import (
    MIN_FREE_BYTES,
    _check_free_memory,
    _check_heads,
    _device,
    _page_size,
    _record,
    _size_cache,
    build_engine,
)
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.execution.cache import CacheSpec
from engine.execution.slots import SlotState
from engine.scheduling.batch import Batch
from engine.warm_up import warm_up
from tests.kernels.conftest import cpu_kernels


def bytes_per_page(model: Path, **options) -> int:
    engine = build_engine(EngineConfig(model=str(model), device="cpu", num_pages=4, swap_space=0.0, **options))
    data: torch.Tensor = engine._runner._cache.data
    return data.nbytes // 4


def test_the_kv_cache_has_the_dtype_of_the_weights(demo: Path):
    """A bfloat16 checkpoint's cache takes half of float32's; other kernels store the dtype that they compute in."""
    cpu_kernels()
    narrow, wide = bytes_per_page(demo), bytes_per_page(demo, kv_cache_dtype="float32")
    assert 2 * narrow == wide
    assert bytes_per_page(demo, kernels="torch") == wide
    assert bytes_per_page(demo, kv_cache_dtype="bfloat16") == narrow


@pytest.mark.parametrize(
    "options",
    [
        {"kv_cache_dtype": "fp8"},
        {"kv_cache_dtype": "float16"},
        {"kv_cache_dtype": "bfloat16", "kernels": "torch"},
        {"kv_cache_dtype": "float32", "dtype": "bfloat16", "kernels": "torch"},
    ],
)
def test_an_unsupported_cache_dtype_is_refused_by_name(demo: Path, options: dict[str, str]):
    """No other dtype is silently used instead."""
    with pytest.raises(ConfigError, match=f"kv_cache_dtype.*{options['kv_cache_dtype']}"):
        bytes_per_page(demo, **options)


def test_the_compute_dtype_is_the_checkpoint_s_by_default(demo: Path):
    """The reported dtype of a bfloat16 checkpoint is bfloat16, except with torch kernels on a CPU."""
    cpu_kernels()

    def dtype_of(**options) -> str:
        return build_engine(EngineConfig(model=str(demo), device="cpu", num_pages=64, **options)).info.dtype

    assert dtype_of() == dtype_of(dtype="bfloat16") == "bfloat16"
    assert dtype_of(dtype="float32") == dtype_of(kernels="torch") == "float32"


def test_batch_invariance_is_provided_or_refused_by_name(demo: Path):
    """Batch invariance is always available in float32 on a CPU, in bfloat16 with compiled kernels, and refused
    otherwise."""
    cpu_kernels()
    bytes_per_page(demo, batch_invariant=True)
    bytes_per_page(demo, batch_invariant=True, dtype="bfloat16")
    with pytest.raises(ConfigError, match=r"batch_invariant.*float32"):
        bytes_per_page(demo, batch_invariant=True, dtype="bfloat16", kernels="torch")


@pytest.mark.parametrize(("name", "index"), [("auto", 3), ("cuda", 3), ("cuda:1", 1)])
def test_a_cuda_device_has_its_index(name: str, index: int, monkeypatch: pytest.MonkeyPatch):
    """A device without an index is the current device, because the engine cannot make another one current."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert _device(name) == torch.device("cuda", index)


@pytest.mark.parametrize("name", ["gpu", "mps", "meta", "cuda:4"])
def test_an_unsupported_device_is_refused_by_name(name: str, monkeypatch: pytest.MonkeyPatch):
    """Devices that torch does not have, or has too few of, are refused."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    with pytest.raises(ConfigError, match=f"device '{name}'"):
        _device(name)


@pytest.mark.parametrize(("speculation", "expected"), [("off", 40), ("auto", 39)])
def test_memory_freed_after_loading_on_a_gpu_becomes_pages(
    monkeypatch: pytest.MonkeyPatch, speculation: str, expected: int
):
    """Memory that torch's allocator caches counts as free after it is released."""
    free, total = 20 << 20, 100 << 20

    def give_back() -> None:
        nonlocal free
        free = 60 << 20

    monkeypatch.setattr(torch.cuda, "empty_cache", give_back)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, total))
    spec = CacheSpec.uniform(layers=1, heads=1, head_dim=256)
    model = SimpleNamespace(device=torch.device("cuda", 0), cache_spec=lambda: spec, vocab_size=1 << 20)
    sizes = {"page_size": 1024, "memory_fraction": 0.9, "swap_space": 0.0, "max_num_seqs": 1}
    config = EngineConfig(model="", speculation=speculation, **sizes)
    pages, _ = _size_cache(config, model, torch.bfloat16, max_len=100_000)
    # Of 1 MiB each: 60 free, less a tenth of 100, 10 for the tables of logit edits and 0.8 for the tokens of drafts.
    assert pages == expected


class Recording:
    """Runner and kernels in one; the recording with a given number fails while early launch is enabled."""

    def __init__(self, fails_at: int) -> None:
        self.fails_at = fails_at
        self.recorded = 0
        self.early_launch: list[bool] = []

    @property
    def has_recordings(self) -> bool:
        return self.recorded > 0

    def use_early_launch(self, allowed: bool) -> bool:
        self.early_launch.append(allowed)
        return allowed

    def record(self, progress: Callable[[int, int], None]) -> None:
        for done in range(3):
            if self.early_launch[-1] and done == self.fails_at:
                raise RuntimeError("no such instruction")
            self.recorded += 1


def test_a_first_recording_that_fails_is_tried_again_without_early_launch(caplog: pytest.LogCaptureFixture):
    """The log names the option and the reason."""
    runner_and_kernels = Recording(fails_at=0)
    _record(runner_and_kernels, runner_and_kernels, True, lambda done, total: None)
    assert runner_and_kernels.early_launch == [True, False] and runner_and_kernels.recorded == 3
    assert "--no-early-launch" in caplog.text and "no such instruction" in caplog.text


@pytest.mark.parametrize(("early_launch", "fails_at"), [(True, 1), (False, 0)])
def test_other_recordings_that_fail_are_not_tried_again(early_launch: bool, fails_at: int):
    """A later failure has another cause, and without early launch there is nothing to disable."""
    runner_and_kernels = Recording(fails_at)
    if early_launch:
        with pytest.raises(RuntimeError, match="no such instruction"):
            _record(runner_and_kernels, runner_and_kernels, early_launch, lambda done, total: None)
    else:
        _record(runner_and_kernels, runner_and_kernels, early_launch, lambda done, total: None)
    assert runner_and_kernels.early_launch == [early_launch]


@pytest.mark.parametrize("missing", [0, 1])
def test_too_little_free_memory_after_recording_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, missing: int
):
    """The error names the sizes and the options to lower; the log reports free memory in either case."""
    caplog.set_level("INFO")
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (MIN_FREE_BYTES - (missing << 20), 80 << 30))
    check = lambda: _check_free_memory(EngineConfig(model="", max_num_seqs=7), torch.device("cuda", 0))  # noqa: E731
    if missing:
        with pytest.raises(ConfigError, match=r"255 MiB .* 256 MiB .*memory_fraction \(now 0.9\), max_num_seqs \(7\)"):
            check()
    else:
        check()
    assert "0.25 of 80.00 GiB" in caplog.text


def test_pages_of_a_gpu_are_larger_unless_their_size_is_given():
    """A page has 64 tokens on a GPU and 32 on a CPU."""
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 0)
    assert [_page_size(EngineConfig(model=""), device) for device in (cpu, gpu)] == [32, 64]
    assert _page_size(EngineConfig(model="", page_size=16), gpu) == 16


def test_heads_that_do_not_fit_into_a_gpu_are_refused():
    """The error suggests bfloat16."""
    model = SimpleNamespace(cache_spec=lambda: CacheSpec.uniform(1, 1, 256), dtype=torch.float32)
    kernels = SimpleNamespace(max_head_dim=lambda dtype, device: 128)
    with pytest.raises(ConfigError, match=r"heads of 256 in float32 .* at most 128; .*bfloat16"):
        _check_heads(model, kernels, torch.device("cuda", 0))


class SlowFullSampler:
    """Runner with steps of a second per token, and 10,000 s more if a request needs the full sampler or top_p."""

    runs_ahead = False
    recorded_tokens = 0

    def __init__(self, slots: int, max_len: int, page_size: int) -> None:
        self.slots = SlotState(slots, max_len, page_size)
        self.now = 0.0
        self.edited: set[bool] = set()  # whether logits were edited, for requests that need the full sampler

    def launch(self, batch: Batch) -> Callable[[], None]:
        self.slots.apply(batch)
        slots = batch.sampled_slots
        if len(self.slots.needs_full_sampler(slots)):
            self.edited.add(bool(self.slots.records["min_tokens"][slots].any()))
        is_plain = not len(self.slots.needs_full_sampler(slots)) and not (self.slots.records["top_p"][slots] < 1).any()
        self.now += batch.num_tokens + (0 if is_plain else 10_000)
        return lambda: None


@pytest.mark.parametrize(("gib", "pages"), [(0.0, 0), (1.5, 96), (1e300, 200)])
def test_swap_space_becomes_no_more_pages_than_useful(gib: float, pages: int):
    """Twice the capacity of all slots is as good as unlimited."""
    config = EngineConfig(model="", page_size=1024, max_num_seqs=1, num_pages=1, swap_space=gib)
    spec = CacheSpec.uniform(layers=1, heads=64, head_dim=64)
    model = SimpleNamespace(device=torch.device("cpu"), cache_spec=lambda: spec)
    assert _size_cache(config, model, torch.bfloat16, 100 * 1024) == (1, pages)


def test_costs_are_measured_with_plain_requests(monkeypatch: pytest.MonkeyPatch):
    """Warm-up may use every sampling feature before timing starts; timed prompts and decodes do not."""
    runner = SlowFullSampler(8, 200, 16)
    monkeypatch.setattr("engine.warm_up.time", SimpleNamespace(perf_counter=lambda: runner.now))
    costs = warm_up(EngineConfig(model="", page_size=16, max_num_seqs=8), runner, 64, 0, 200)
    assert (costs.prefill_tokens_per_second, costs.decode_seconds, costs.row_seconds) == (1.0, 1.0, 1.0)
    assert runner.edited == {False, True}, "the warm-up uses the full sampler"

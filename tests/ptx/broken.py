"""Forbidden operations of a kernel are reported: run by `pytest -p tests.ptx.plugin`, which tests/kernels starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from kernels.paging import PagedKV
from kernels.triton.backend import TritonKernels
from kernels.triton.skinny_gemm import DenseLinear
from tests.kernels.paged import make_paged
from tests.ptx import launch
from tests.ptx.program import Program, PtxError


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Remove all statements that begin with the parameter from programs; labels keep their position."""
    program_of, begin = launch.program_of, request.param
    left_out = 0

    def broken(compiled: launch.CompiledKernel) -> Program:
        nonlocal left_out
        program = program_of(compiled)
        kept = [index for index, statement in enumerate(program.statements) if not statement.text.startswith(begin)]
        left_out += len(program.statements) - len(kept)
        labels = {name: sum(index < at for index in kept) for name, at in program.labels.items()}
        return replace(program, statements=tuple(program.statements[index] for index in kept), labels=labels)

    monkeypatch.setattr(launch, "program_of", broken)
    launch.decoded.cache_clear()
    yield
    launch.decoded.cache_clear()
    assert left_out > 0


def attend() -> None:
    """Run decode attention in bfloat16 with two splits."""
    paged, kernels = make_paged((70,), 1, 16, 16, dtype=torch.bfloat16), TritonKernels()
    q = torch.randn(1, 2, 16).bfloat16()
    plan = kernels.plan_decode(paged.page_table, paged.lengths, 2, paged.kv, 0)
    kernels.decode_attention(q, paged.kv, paged.page_table, paged.lengths, 0.3, 0, plan)


@pytest.mark.parametrize("without", ["bar.sync"], indirect=True)
def test_a_race_between_warps_is_reported(without: None):
    """Without barriers a warp reads bytes that another one has just written."""
    with pytest.raises(PtxError, match="race"):
        attend()


@pytest.mark.parametrize("without", ["cp.async.wait_group"], indirect=True)
def test_a_copy_arrives_only_when_it_is_waited_for(without: None):
    """Copies to shared memory that no thread waits for never arrive."""
    layer, x = DenseLinear(torch.ones(16, 2048).bfloat16(), None), torch.ones(1, 2048).bfloat16()
    assert not torch.equal(layer(x), torch.full((1, 16), 2048.0).bfloat16())


@pytest.mark.parametrize("without", ["griddepcontrol.wait"], indirect=True)
def test_a_kernel_that_does_not_wait_for_its_predecessor_is_reported(without: None):
    """A kernel without griddepcontrol.wait would read data that its predecessor is still writing."""
    with pytest.raises(PtxError, match="griddepcontrol"):
        attend()


def test_reading_past_the_end_of_a_tensor_is_reported():
    """A norm's weight that is shorter than a row is reported."""
    x, weight = torch.ones(2, 64), torch.ones(60)
    with pytest.raises(PtxError, match="out of bounds in"):
        TritonKernels().rms_norm(x, weight, 1e-5)


def test_writing_past_the_end_of_a_tensor_is_reported():
    """A slot on the page after a cache's last one is reported."""
    k, kv = torch.ones(1, 1, 16), PagedKV(torch.zeros(3, 1, 4, 16), torch.zeros(3, 1, 4, 16))
    with pytest.raises(PtxError, match="out of bounds in"):
        TritonKernels().write_cache(k, k, torch.tensor([3 * 4]), kv)

"""Rotary embedding, QK-norm and cache writes of all back ends agree with float64 formulas."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kernels.interface import Kernels
from kernels.paging import PagedKV
from kernels.plans import RopeInputs
from tests.kernels.test_norm_and_gate import naive_norm

EPS = 1e-6


def naive_rotation(x: Tensor, positions: Tensor) -> Tensor:
    """Rotate x[T, heads, D]: the pair (i, i + D/2) is a complex number, rotated by position / 10000^(2i/D)."""
    half = x.shape[-1] // 2
    angles = positions.double()[:, None] * 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    pairs = torch.complex(x[..., :half].double(), x[..., half:].double())
    rotated = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat((rotated.real, rotated.imag), dim=-1)


def table(max_position: int, head_dim: int) -> Tensor:
    half = head_dim // 2
    angles = torch.arange(max_position).double()[:, None] * 10000.0 ** (-torch.arange(half).double() / half)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).float()


@pytest.mark.parametrize("fused", [True, False], ids=["views of one projection", "separate tensors"])
@pytest.mark.parametrize("normed", [True, False], ids=["qk-norm", "no norm"])
@pytest.mark.parametrize(
    ("T", "query_heads", "kv_heads", "head_dim", "page_size"), [(1, 1, 1, 2, 1), (7, 6, 2, 80, 16)]
)
def test_rotation_norm_and_write(
    kernels: Kernels,
    device: torch.device,
    T: int,
    query_heads: int,
    kv_heads: int,
    head_dim: int,
    page_size: int,
    normed: bool,
    fused: bool,
) -> None:
    """q is returned and k is stored normalised and rotated, v is stored unchanged, and no other slot is written."""
    torch.manual_seed(0)
    bounds = (query_heads, kv_heads, kv_heads)
    qkv = torch.randn(T, sum(bounds), head_dim)
    q, k, v = (part if fused else part.clone() for part in qkv.to(device).split(bounds, dim=1))
    norms = torch.randn(2, head_dim).to(device) if normed else (None, None)
    positions = torch.randint(0, 50, (T,))
    slots = torch.randperm(4 * page_size + 3)[:T] % (4 * page_size)
    slots[T // 2] = -1
    caches = [torch.full((4, kv_heads, page_size, head_dim), 7.0, device=device) for _ in range(2)]
    given = (table(50, head_dim).to(device), positions.to(device), slots.to(device))
    out = kernels.rope_and_cache(q, k, v, PagedKV(*caches), RopeInputs(*given, norms[0], norms[1], EPS))

    def expected(x: Tensor, norm: Tensor | None) -> Tensor:
        x = x.cpu().double()
        return naive_rotation(naive_norm(x, norm.cpu(), EPS) if norm is not None else x, positions)

    torch.testing.assert_close(out.cpu().double(), expected(q, norms[0]), atol=5e-6, rtol=1e-5)
    stored = [torch.full((4, kv_heads, page_size, head_dim), 7.0, dtype=torch.float64) for _ in range(2)]
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            stored[0][slot // page_size, :, slot % page_size] = expected(k, norms[1])[token]
            stored[1][slot // page_size, :, slot % page_size] = v[token].cpu().double()
    for cache, expected_cache in zip(caches, stored, strict=True):
        torch.testing.assert_close(cache.cpu().double(), expected_cache, atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("fused", [True, False], ids=["views of one projection", "separate tensors"])
@pytest.mark.parametrize(("head_dim", "rotary"), [(80, 40), (64, 48), (96, 72), (16, 2), (32, 0)])
def test_a_part_of_each_head_is_rotated(
    kernels: Kernels, device: torch.device, head_dim: int, rotary: int, fused: bool
) -> None:
    """The first dimensions are rotated among themselves; the others of q and k keep their bits, as v does."""
    torch.manual_seed(0)
    qkv = torch.randn(7, 10, head_dim)
    qkv[1, :, rotary] = -0.0
    q, k, v = (part if fused else part.clone() for part in qkv.to(device).split((6, 2, 2), dim=1))
    positions, slots = torch.randint(0, 50, (7,)), torch.tensor([3, 9, -1, 0, 31, 12, 7])
    caches = [torch.full((4, 2, 8, head_dim), 7.0, device=device) for _ in range(2)]
    given = (table(50, rotary).to(device), positions.to(device), slots.to(device))
    out = kernels.rope_and_cache(q, k, v, PagedKV(*caches), RopeInputs(*given, None, None, EPS))
    written = slots >= 0
    stored_k, stored_v = (cache.cpu()[slots[written] // 8, :, slots[written] % 8] for cache in caches)
    for got, source in ((out.cpu(), q.cpu()), (stored_k, k.cpu()[written])):
        where = positions if got.shape[0] == 7 else positions[written]
        rotated = naive_rotation(source[..., :rotary], where)
        torch.testing.assert_close(got[..., :rotary].double(), rotated, atol=5e-6, rtol=1e-5)
        assert torch.equal(got[..., rotary:].view(torch.int32), source[..., rotary:].view(torch.int32))
    assert torch.equal(stored_v, v.cpu()[written])
    assert int((caches[0] != 7.0).sum()) == int(written.sum()) * 2 * head_dim


def test_a_plan_changes_nothing(reference_kernels: Kernels) -> None:
    """A plan computed for all layers ahead gives bitwise the same results as the operation without it."""
    torch.manual_seed(0)
    q, k, v = torch.randn(5, 6, 16).split((4, 1, 1), dim=1)
    cos_sin, positions, slots = table(50, 16), torch.arange(5), torch.tensor([3, -1, 0, 7, 5])
    results = []
    for planned in (True, False):
        caches = torch.zeros(2, 2, 1, 4, 16)
        kv = PagedKV(*caches)
        plan = reference_kernels.plan_rope(cos_sin, positions, slots, kv) if planned else None
        rope = RopeInputs(cos_sin, positions, slots, None, None, EPS, plan)
        results.append((reference_kernels.rope_and_cache(q, k, v, kv, rope), caches))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_write_cache_stores_its_input(kernels: Kernels, device: torch.device) -> None:
    """k and v reach their slots unchanged; a slot of -1 is not written."""
    torch.manual_seed(0)
    k, v = torch.randn(2, 3, 2, 80, device=device)
    caches = torch.zeros(2, 2, 2, 4, 80, device=device)
    kernels.write_cache(k, v, torch.tensor([6, -1, 1], device=device), PagedKV(*caches))
    for cache, given in zip(caches, (k, v), strict=True):
        expected_cache = torch.zeros_like(cache)
        expected_cache[1, :, 2], expected_cache[0, :, 1] = given[0], given[2]
        assert torch.equal(cache, expected_cache)


def test_rotation_keeps_lengths_and_relative_angles(kernels: Kernels, device: torch.device) -> None:
    """The product of a rotated q and k depends only on the distance of their positions."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 1, 64, device=device)
    products = []
    for shift in (0, 31):
        caches = torch.zeros(2, 1, 1, 1, 64, device=device)
        zero = torch.zeros(1, dtype=torch.int64, device=device)
        tables = table(64, 64).to(device)
        later, earlier = (RopeInputs(tables, zero + shift + add, zero, None, None, EPS) for add in (5, 0))
        rotated = kernels.rope_and_cache(q, k, k, PagedKV(*caches), later)
        kernels.rope_and_cache(q, k, k, PagedKV(*caches), earlier)
        products.append(float((rotated.flatten() * caches[0].flatten()).sum()))
    assert math.isclose(products[0], products[1], rel_tol=1e-4)

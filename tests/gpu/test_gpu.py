"""What the pretended GPU promises: it is late, it is in order, and it refuses what a GPU refuses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests import needs
from tests.gpu.cuda import pretended
from tests.gpu.machine import Machine, Pace, Refused

GPU = torch.device("cuda", 0)

pytestmark = [needs.a_compiler, pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real one")]


@pytest.fixture(autouse=True)
def machine() -> Iterator[Machine]:
    """That does nothing before somebody waits."""
    machine = Machine(Pace.AT_LAST)
    with pretended(machine), torch.inference_mode():
        yield machine


def arriving(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on its way to the host."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


def test_what_is_not_waited_for_is_not_there():
    copied = arriving(torch.full((3,), 2.0, device=GPU) * 3)
    assert copied.isnan().all()
    torch.cuda.current_stream().record_event().synchronize()
    assert copied.tolist() == [6.0, 6.0, 6.0]


def test_pinned_memory_is_read_when_the_copy_is_made():
    pinned = torch.ones(2, pin_memory=True)
    there = pinned.to(GPU, non_blocking=True)
    pinned.fill_(5.0)
    assert there.tolist() == [5.0, 5.0]


def test_a_copy_from_other_memory_waits(machine: Machine):
    host = torch.ones(2)
    there = host.to(GPU, non_blocking=True)
    host.fill_(5.0)
    assert there.tolist() == [1.0, 1.0]
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(Refused, match="waits"):
        host.to(GPU)


def test_an_event_is_reached_when_all_before_it_is_done():
    torch.zeros(1, device=GPU)
    event = torch.cuda.current_stream().record_event()
    assert not event.query()
    event.synchronize()
    assert event.query()


def test_a_stream_that_does_not_wait_finds_nothing():
    beside = torch.cuda.Stream(GPU)
    made = torch.ones(2, device=GPU)
    with torch.cuda.stream(beside):
        arriving(made)
    with pytest.raises(Refused, match="before"):
        beside.synchronize()


def test_a_stream_that_waits_finds_what_is_waited_for():
    beside = torch.cuda.Stream(GPU)
    made = torch.ones(2, device=GPU)
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        copied = arriving(made)
    beside.synchronize()
    assert copied.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("is_told", [False, True])
def test_memory_that_another_stream_still_uses_must_be_known_to_it(is_told: bool):
    beside = torch.cuda.Stream(GPU)
    made = torch.ones(2, device=GPU)
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        arriving(made)
    if is_told:
        made.record_stream(beside)
    del made
    if is_told:
        torch.cuda.synchronize()
    else:
        with pytest.raises(Refused, match="record_stream"):
            torch.cuda.synchronize()


def test_a_graph_does_again_what_was_captured_in_the_same_memory():
    x = torch.zeros(2, device=GPU)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x += 1
        doubled = x * 2
    graph.replay()
    view, seen = doubled[:1], [(x.tolist(), doubled.tolist())]
    for _ in range(2):
        graph.replay()
        seen.append((x.tolist(), view.tolist()))
    assert seen == [([1.0, 1.0], [2.0, 2.0]), ([2.0, 2.0], [4.0]), ([3.0, 3.0], [6.0])]


@pytest.mark.parametrize(
    "what",
    [
        lambda x: x.tolist(),
        lambda x: x.copy_(torch.ones(2)),
        lambda x: torch.empty(2, pin_memory=True),
        lambda x: torch.cuda.current_stream().record_event(),
        lambda x: torch.cuda.synchronize(),
    ],
)
def test_nothing_is_captured_that_waits(what):
    x = torch.zeros(2, device=GPU)
    with pytest.raises(Refused, match="captured"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        what(x)


def test_a_tensor_of_the_host_is_no_argument_of_the_device_s_operations():
    x, y = torch.zeros(2, device=GPU), torch.zeros(2)
    with pytest.raises(Refused, match="host"):
        x + y
    assert (x + torch.tensor(1.0)).tolist() == [1.0, 1.0]


def test_a_kernel_is_given_no_tensor_of_the_host():
    from kernels.rms_norm import rms_norm

    x, weight = torch.zeros(1, 8, device=GPU), torch.ones(8)
    with pytest.raises(Refused, match="kernel"):
        rms_norm(x, weight, 1e-6)
    assert rms_norm(x + 2, weight.to(GPU), 0.0).tolist() == [[1.0] * 8]


def test_what_nobody_wrote_is_not_a_number():
    assert torch.empty(2, device=GPU).isnan().tolist() == [True, True]

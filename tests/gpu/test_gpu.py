"""The emulated GPU is late and in order, and refuses operations that a GPU refuses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests import requirements
from tests.gpu.cuda import emulated_gpu
from tests.gpu.machine import Machine, Refused, Timing

GPU = torch.device("cuda", 0)

pytestmark = [
    pytest.mark.emulated,
    requirements.a_compiler,
    pytest.mark.skipif(torch.cuda.is_available(), reason="a real GPU is present"),
]


@pytest.fixture(autouse=True)
def machine() -> Iterator[Machine]:
    """Yield a device that executes nothing before the host waits."""
    machine = Machine(Timing.LAZY)
    with emulated_gpu(machine), torch.inference_mode():
        yield machine


def start_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Start a copy to pinned memory of the host."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


def test_a_copy_arrives_only_when_it_is_waited_for():
    copied = start_copy(torch.full((3,), 2.0, device=GPU) * 3)
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


def test_a_stream_that_does_not_wait_reads_nothing():
    beside = torch.cuda.Stream(GPU)
    made = torch.ones(2, device=GPU)
    with torch.cuda.stream(beside):
        start_copy(made)
    with pytest.raises(Refused, match="before"):
        beside.synchronize()


def test_a_stream_that_waits_reads_the_result():
    beside = torch.cuda.Stream(GPU)
    made = torch.ones(2, device=GPU)
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        copied = start_copy(made)
    beside.synchronize()
    assert copied.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("is_recorded", [False, True])
def test_memory_that_another_stream_still_uses_must_be_recorded(is_recorded: bool):
    beside = torch.cuda.Stream(GPU)
    made = torch.ones(2, device=GPU)
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        start_copy(made)
    if is_recorded:
        made.record_stream(beside)
    del made
    if is_recorded:
        torch.cuda.synchronize()
    else:
        with pytest.raises(Refused, match="record_stream"):
            torch.cuda.synchronize()


def test_a_graph_replays_captured_work_in_the_same_memory():
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
    "operation",
    [
        lambda x: x.tolist(),
        lambda x: x.copy_(torch.ones(2)),
        lambda x: torch.empty(2, pin_memory=True),
        lambda x: torch.cuda.current_stream().record_event(),
        lambda x: torch.cuda.synchronize(),
    ],
)
def test_an_operation_that_waits_cannot_be_captured(operation):
    x = torch.zeros(2, device=GPU)
    with pytest.raises(Refused, match="captured"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        operation(x)


def test_an_operation_on_the_device_refuses_a_tensor_of_the_host():
    x, y = torch.zeros(2, device=GPU), torch.zeros(2)
    with pytest.raises(Refused, match="host"):
        x + y
    assert (x + torch.tensor(1.0)).tolist() == [1.0, 1.0]


def test_a_kernel_refuses_a_tensor_of_the_host():
    from kernels.triton.rms_norm import rms_norm

    x, weight = torch.zeros(1, 8, device=GPU), torch.ones(8)
    with pytest.raises(Refused, match="kernel"):
        rms_norm(x, weight, 1e-6)
    assert rms_norm(x + 2, weight.to(GPU), 0.0).tolist() == [[1.0] * 8]


def test_uninitialised_memory_is_not_a_number():
    assert torch.empty(2, device=GPU).isnan().tolist() == [True, True]

"""Tensors of the emulated device, and torch's operations on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.gpu.machine import Machine, Memory, Refused, Stream

DEVICE = torch.device("cuda", 0)
CPU = torch.device("cpu")
META = torch.device("meta")
aten = torch.ops.aten

# Operations that make the host wait, because it reads the result or the result's shape.
SYNCHRONIZING_OPERATIONS = {
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.masked_select.default,
    aten.nonzero.default,
}
UNINITIALISED = {
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_strided.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
}


class Cell:
    """Values of a tensor, available once the device has computed them."""

    value: Tensor | None = None

    def read(self) -> Tensor:
        if self.value is None:
            raise Refused("a tensor is read before its inputs were computed")
        return self.value


class DeviceTensor(Tensor):
    """Tensor with known metadata and possibly pending values. `meta`: the same tensor on torch's meta device."""

    machine: Machine
    meta: Tensor
    memory: Memory
    cell: Cell

    @staticmethod
    def __new__(cls, machine: Machine, meta: Tensor, memory: Memory | None = None) -> DeviceTensor:
        """Create a tensor. `memory`: memory of the base tensor, for a view."""
        made = torch.Tensor._make_subclass(cls, meta, False, dispatch_device=True, device_for_backend_keys=DEVICE)
        made.machine, made.meta, made.memory, made.cell = machine, meta, memory or machine.new_memory(), Cell()
        return made

    def __init__(self, *given: object) -> None:
        """Do nothing; `__new__` sets all attributes."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(_device_tensors(args, kwargs)[0].machine, func, args, kwargs or {})

    def record_stream(self, stream: Any) -> None:
        known: Stream = stream.queue
        self.memory.recorded_streams.add(known)

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError("a tensor of the device cannot be converted to numpy")
        return self.cpu().numpy()

    def __repr__(self) -> str:
        return f"DeviceTensor({tuple(self.shape)}, {self.dtype})"


class DeviceMode(TorchDispatchMode):
    """Dispatch mode that creates tensors on the device where requested, and pins memory."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(self._machine, func, args, kwargs or {})


class Pinned:
    """Set of the host's pinned memory."""

    def __init__(self) -> None:
        self._kept: dict[int, Tensor] = {}  # by address; kept alive so that no other tensor reuses an address

    def add(self, tensor: Tensor) -> Tensor:
        if tensor.numel():
            self._kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor.numel() == 0 or tensor.untyped_storage().data_ptr() in self._kept


pinned = Pinned()


def dispatch(machine: Machine, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one operation. Raises Refused."""
    if func is torch.ops.prim.device.default:
        return DEVICE
    if func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
        with DeviceMode(machine):  # inference mode has not decomposed it before
            return func.decompose(*args, **kwargs)
    if not _device_tensors(args, kwargs) and not _is_device(kwargs.get("device")):
        return _on_host(machine, func, args, kwargs)
    if func is aten.copy_.default:
        return _copy(machine, *args, **kwargs)
    if func is aten._to_copy.default:
        return _to_copy(machine, func, args, kwargs)
    if func in SYNCHRONIZING_OPERATIONS:
        machine.wait_implicitly(str(func))
        return _map_leaves(
            lambda one: _to_device(machine, one), func(*_values(_cells(args)), **_values(_cells(kwargs)))
        )
    for one in _leaves((args, kwargs)):
        if isinstance(one, Tensor) and not isinstance(one, DeviceTensor) and one.dim():
            raise Refused(f"{func}: host and device tensors are mixed")
    return _enqueue_operation(machine, func, args, kwargs)


def launch(machine: Machine, kernel: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Queue a kernel, which runs with the values of its tensors. Raises Refused if a tensor is on the host."""
    for name, given in (*enumerate(args), *kwargs.items()):
        if any(isinstance(one, Tensor) and not isinstance(one, DeviceTensor) for one in _leaves(given)):
            raise Refused(f"argument {name} of a kernel is a tensor of the host")
    _enqueue(machine, kernel, args, kwargs)


def _enqueue(machine: Machine, compute: Callable[..., object], args: Any, kwargs: Any, *results: DeviceTensor) -> None:
    """Queue a computation that reads these arguments and also writes `results`."""
    given, named = _cells(args), _cells(kwargs)
    memories = [one.memory for one in (*_device_tensors(args, kwargs), *results)]
    machine.enqueue(lambda: compute(*_values(given), **_values(named)), memories)


def _enqueue_operation(machine: Machine, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Queue an operation; result shapes follow from argument shapes."""
    returns = func._schema.returns
    aliases = returns[0].alias_info if returns else None
    if aliases is not None and aliases.is_write:
        _enqueue(machine, func, args, kwargs)
        written = _written(func, args, kwargs)
        return written[0] if len(returns) == 1 else tuple(written)
    metas = func(*_map_leaves(_meta, args), **_map_leaves(_meta, kwargs))
    memory = None if aliases is None else _device_tensors(args, kwargs)[0].memory
    results = _map_leaves(lambda one: DeviceTensor(machine, one, memory) if isinstance(one, Tensor) else one, metas)
    tensors = [one for one in _leaves(results) if isinstance(one, DeviceTensor)]
    cells = [one.cell for one in tensors]

    def compute(*args: Any, **kwargs: Any) -> None:
        made = [one for one in _leaves(func(*args, **kwargs)) if isinstance(one, Tensor)]
        for cell, value in zip(cells, made, strict=True):
            if func in UNINITIALISED:
                _poison(value)
            if cell.value is None or aliases is not None:
                cell.value = value
            else:  # replayed work writes to the same memory
                cell.value.copy_(value)

    _enqueue(machine, compute, args, kwargs, *tensors)
    return results


def _on_host(machine: Machine, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not kwargs.get("pin_memory"):
        return func(*args, **kwargs)
    machine.refuse_in_capture("memory is pinned")
    made = func(*args, **{**kwargs, "pin_memory": False})
    if func in UNINITIALISED:
        _poison(made)
    return pinned.add(made)


def _copy(machine: Machine, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy a tensor. A copy between host and device waits, unless it is non-blocking and host memory is pinned."""
    crosses = isinstance(target, DeviceTensor) != isinstance(source, DeviceTensor)
    from_host = not isinstance(source, DeviceTensor)
    at_once = crosses and not (non_blocking and (source if from_host else target) in pinned)
    if at_once and from_host:
        if source.dim():  # a scalar is passed as an argument of a kernel
            machine.wait_implicitly("a copy from the host")
        source = source.clone()
    _enqueue(machine, torch.Tensor.copy_, (target, source), {})
    if at_once and not from_host:
        machine.wait_implicitly("a copy to the host")
    return target


def _to_copy(machine: Machine, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    source, device = args[0], kwargs.get("device")
    if isinstance(source, DeviceTensor) and (device is None or _is_device(device)):
        made: Tensor = _enqueue_operation(machine, func, args, kwargs)
        return made
    kwargs = dict(kwargs)
    non_blocking = kwargs.pop("non_blocking", False)
    like = func(_meta(source), **{**kwargs, "device": META})
    if not _is_device(device):
        return _copy(machine, torch.empty_like(like, device=CPU), source, non_blocking)
    empty = {"dtype": like.dtype, "device": DEVICE}
    fresh = _enqueue_operation(machine, aten.empty_strided.default, (like.shape, like.stride()), empty)
    return _copy(machine, fresh, source, non_blocking)


def _poison(fresh: Tensor) -> None:
    """Fill uninitialised memory with NaN or a byte pattern."""
    if fresh.is_floating_point():
        fresh.fill_(float("nan"))
    elif fresh.dtype is not torch.bool:
        fresh.fill_(0x55)


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the arguments that an operation writes."""
    named = dict(zip((one.name for one in func._schema.arguments), args, strict=False)) | kwargs
    return [named[one.name] for one in func._schema.arguments if one.alias_info and one.alias_info.is_write]


def _device_tensors(args: Any, kwargs: Any) -> list[DeviceTensor]:
    return [one for one in _leaves((args, kwargs)) if isinstance(one, DeviceTensor)]


def _is_device(device: Any) -> bool:
    return device is not None and torch.device(device).type == DEVICE.type


def _meta(one: Any) -> Any:
    if isinstance(one, DeviceTensor):
        return one.meta
    if isinstance(one, Tensor):
        return one.to(META)
    return META if isinstance(one, torch.device) else one


def _cells(tree: Any) -> Any:
    """Replace tensors by their cells, which are read when the work executes."""
    return _map_leaves(lambda one: one.cell if isinstance(one, DeviceTensor) else one, tree)


def _values(tree: Any) -> Any:
    return _map_leaves(_value, tree)


def _value(one: Any) -> Any:
    if isinstance(one, Cell):
        return one.read()
    return CPU if isinstance(one, torch.device) else one


def _to_device(machine: Machine, value: Any) -> Any:
    """Return a computed tensor as a tensor of the device; return other values unchanged."""
    if not isinstance(value, Tensor):
        return value
    made = DeviceTensor(machine, value.to(META))
    made.cell.value = value
    return made


def _leaves(tree: Any) -> Iterator[Any]:
    """Yield the leaves of nested arguments or results."""
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (tuple, list)):
        yield tree
        return
    for one in tree:
        yield from _leaves(one)


def _map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply a function to each leaf."""
    if isinstance(tree, dict):
        return {name: _map_leaves(function, one) for name, one in tree.items()}
    if isinstance(tree, (tuple, list)):
        made = [_map_leaves(function, one) for one in tree]
        return made if isinstance(tree, list) else tuple(made)
    return function(tree)

"""Tensors of the pretended device, and what torch's operations do with them."""

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

# Operations whose result the host looks at, or whose result's shape, for which it waits.
LOOKS = {
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.masked_select.default,
    aten.nonzero.default,
}
FRESH = {
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_strided.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
}


class Cell:
    """A tensor's numbers, when the device has come so far."""

    value: Tensor | None = None

    def read(self) -> Tensor:
        if self.value is None:
            raise Refused("a tensor is read before what it is made of is there")
        return self.value


class DeviceTensor(Tensor):
    """One of which all is known but its numbers. meta: the same on torch's device for that."""

    machine: Machine
    meta: Tensor
    memory: Memory
    cell: Cell

    @staticmethod
    def __new__(cls, machine: Machine, meta: Tensor, memory: Memory | None = None) -> DeviceTensor:
        """memory: of which tensor it is a view, if it is one."""
        made = torch.Tensor._make_subclass(cls, meta, False, dispatch_device=True, device_for_backend_keys=DEVICE)
        made.machine, made.meta, made.memory, made.cell = machine, meta, memory or machine.new_memory(), Cell()
        return made

    def __init__(self, *given: object) -> None:
        """All is done."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(_ours(args, kwargs)[0].machine, func, args, kwargs or {})

    def record_stream(self, stream: Any) -> None:
        known: Stream = stream.queue
        self.memory.known_to.add(known)

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError("a tensor of the device is asked for as numpy's")
        return self.cpu().numpy()

    def __repr__(self) -> str:
        return f"DeviceTensor({tuple(self.shape)}, {self.dtype})"


class OnDevice(TorchDispatchMode):
    """While it lasts, tensors are made on the device where they are asked for there, and memory is pinned."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(self._machine, func, args, kwargs or {})


class Pinned:
    """Which memory of the host is."""

    def __init__(self) -> None:
        self._kept: dict[int, Tensor] = {}  # by address; kept, so that nothing else is ever there

    def add(self, tensor: Tensor) -> Tensor:
        if tensor.numel():
            self._kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor.numel() == 0 or tensor.untyped_storage().data_ptr() in self._kept


pinned = Pinned()


def dispatch(machine: Machine, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One operation. Raises Refused."""
    if func is torch.ops.prim.device.default:
        return DEVICE
    if func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
        with OnDevice(machine):  # in inference mode nobody has taken it apart before
            return func.decompose(*args, **kwargs)
    if not _ours(args, kwargs) and not _is_ours(kwargs.get("device")):
        return _on_host(machine, func, args, kwargs)
    if func is aten.copy_.default:
        return _copy(machine, *args, **kwargs)
    if func is aten._to_copy.default:
        return _to_copy(machine, func, args, kwargs)
    if func in LOOKS:
        machine.wait_in_passing(str(func))
        return _mapped(lambda one: _there(machine, one), func(*_values(_cells(args)), **_values(_cells(kwargs))))
    for one in _leaves((args, kwargs)):
        if isinstance(one, Tensor) and not isinstance(one, DeviceTensor) and one.dim():
            raise Refused(f"{func}: a tensor of the host beside tensors of the device")
    return _queue(machine, func, args, kwargs)


def launch(machine: Machine, kernel: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Queue a kernel, which is run with the values of its tensors. Raises Refused where one is the host's."""
    for name, given in (*enumerate(args), *kwargs.items()):
        if any(isinstance(one, Tensor) and not isinstance(one, DeviceTensor) for one in _leaves(given)):
            raise Refused(f"argument {name} of a kernel is a tensor of the host")
    _tell(machine, kernel, args, kwargs)


def _tell(machine: Machine, compute: Callable[..., object], args: Any, kwargs: Any, *results: DeviceTensor) -> None:
    """Queue what needs these arguments and, beside them, writes `results`."""
    given, named = _cells(args), _cells(kwargs)
    memories = [one.memory for one in (*_ours(args, kwargs), *results)]
    machine.tell(lambda: compute(*_values(given), **_values(named)), memories)


def _queue(machine: Machine, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Queue an operation whose results' shapes follow from its arguments' shapes."""
    returns = func._schema.returns
    aliases = returns[0].alias_info if returns else None
    if aliases is not None and aliases.is_write:
        _tell(machine, func, args, kwargs)
        written = _written(func, args, kwargs)
        return written[0] if len(returns) == 1 else tuple(written)
    metas = func(*_mapped(_meta, args), **_mapped(_meta, kwargs))
    memory = None if aliases is None else _ours(args, kwargs)[0].memory
    results = _mapped(lambda one: DeviceTensor(machine, one, memory) if isinstance(one, Tensor) else one, metas)
    tensors = [one for one in _leaves(results) if isinstance(one, DeviceTensor)]
    cells = [one.cell for one in tensors]

    def compute(*args: Any, **kwargs: Any) -> None:
        made = [one for one in _leaves(func(*args, **kwargs)) if isinstance(one, Tensor)]
        for cell, value in zip(cells, made, strict=True):
            if func in FRESH:
                _spoil(value)
            if cell.value is None or aliases is not None:
                cell.value = value
            else:  # a graph's work, done again, is done in the same memory
                cell.value.copy_(value)

    _tell(machine, compute, args, kwargs, *tensors)
    return results


def _on_host(machine: Machine, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not kwargs.get("pin_memory"):
        return func(*args, **kwargs)
    machine.refuse_in_capture("memory is pinned")
    made = func(*args, **{**kwargs, "pin_memory": False})
    if func in FRESH:
        _spoil(made)
    return pinned.add(made)


def _copy(machine: Machine, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Between host and device at once unless both say otherwise: who asks, and the host's memory."""
    crosses = isinstance(target, DeviceTensor) != isinstance(source, DeviceTensor)
    from_host = not isinstance(source, DeviceTensor)
    at_once = crosses and not (non_blocking and (source if from_host else target) in pinned)
    if at_once and from_host:
        if source.dim():  # a number alone is an argument of a kernel
            machine.wait_in_passing("a copy from the host")
        source = source.clone()
    _tell(machine, torch.Tensor.copy_, (target, source), {})
    if at_once and not from_host:
        machine.wait_in_passing("a copy to the host")
    return target


def _to_copy(machine: Machine, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    source, device = args[0], kwargs.get("device")
    if isinstance(source, DeviceTensor) and (device is None or _is_ours(device)):
        made: Tensor = _queue(machine, func, args, kwargs)
        return made
    kwargs = dict(kwargs)
    non_blocking = kwargs.pop("non_blocking", False)
    like = func(_meta(source), **{**kwargs, "device": META})
    if not _is_ours(device):
        return _copy(machine, torch.empty_like(like, device=CPU), source, non_blocking)
    empty = {"dtype": like.dtype, "device": DEVICE}
    fresh = _queue(machine, aten.empty_strided.default, (like.shape, like.stride()), empty)
    return _copy(machine, fresh, source, non_blocking)


def _spoil(fresh: Tensor) -> None:
    """What memory holds that nobody wrote to."""
    if fresh.is_floating_point():
        fresh.fill_(float("nan"))
    elif fresh.dtype is not torch.bool:
        fresh.fill_(0x55)


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments that are."""
    named = dict(zip((one.name for one in func._schema.arguments), args, strict=False)) | kwargs
    return [named[one.name] for one in func._schema.arguments if one.alias_info and one.alias_info.is_write]


def _ours(args: Any, kwargs: Any) -> list[DeviceTensor]:
    return [one for one in _leaves((args, kwargs)) if isinstance(one, DeviceTensor)]


def _is_ours(device: Any) -> bool:
    return device is not None and torch.device(device).type == DEVICE.type


def _meta(one: Any) -> Any:
    if isinstance(one, DeviceTensor):
        return one.meta
    if isinstance(one, Tensor):
        return one.to(META)
    return META if isinstance(one, torch.device) else one


def _cells(tree: Any) -> Any:
    """What is needed of arguments when their turn comes."""
    return _mapped(lambda one: one.cell if isinstance(one, DeviceTensor) else one, tree)


def _values(tree: Any) -> Any:
    return _mapped(_value, tree)


def _value(one: Any) -> Any:
    if isinstance(one, Cell):
        return one.read()
    return CPU if isinstance(one, torch.device) else one


def _there(machine: Machine, value: Any) -> Any:
    """As a tensor of the device, if it is one."""
    if not isinstance(value, Tensor):
        return value
    made = DeviceTensor(machine, value.to(META))
    made.cell.value = value
    return made


def _leaves(tree: Any) -> Iterator[Any]:
    """Of the containers that operations are given and return."""
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (tuple, list)):
        yield tree
        return
    for one in tree:
        yield from _leaves(one)


def _mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """The same of each leaf."""
    if isinstance(tree, dict):
        return {name: _mapped(function, one) for name, one in tree.items()}
    if isinstance(tree, (tuple, list)):
        made = [_mapped(function, one) for one in tree]
        return made if isinstance(tree, list) else tuple(made)
    return function(tree)

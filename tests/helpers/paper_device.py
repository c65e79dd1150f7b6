"""A device of paper: tensors that say they lie on `paper:0`, keep their numbers on the CPU, and mix with nothing else.

What a GPU refuses is refused here too, on any machine: an operation on a tensor of the device and one of the CPU (a single
number of the CPU and an index may be among them, as on CUDA). `SEEN` counts the operations for which a GPU and Python wait for each
other, and those in float64. Registering it changes what torch says of the process's devices, so it is imported in processes of its
own alone (`training/on_paper.py`, `benchmarks/gpu.py --device paper`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("paper")
PAPER = torch.device("paper", 0)
MOVES = ("aten::_to_copy", "aten::copy_", "aten::to")
INDEXED = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
SIZED_BY_NUMBERS = ("nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount", "repeat_interleave")
WAITS = ("aten::_local_scalar_dense", "aten::equal", *(f"aten::{name}" for name in SIZED_BY_NUMBERS))
"""Operations on the device for which Python waits: a number is read, or the size of the result depends on numbers."""
SEEN: Counter[str] = Counter()
"""Operations since it was last cleared: "operations", "waits" (`WAITS`, a mask as an index, a copy to the CPU), "from the CPU"
(copies, for which CUDA waits too unless they are pinned), "float64" (results on the device in it)."""


class Paper(Tensor):
    """A tensor of the device; `numbers` holds them."""

    numbers: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, numbers: Tensor) -> Paper:
        out = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            numbers.size(),
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=PAPER,
        )
        out.numbers = numbers
        return out  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    leaves, name = tree_flatten((args, kwargs))[0], func._schema.name
    papers = [x for x in leaves if isinstance(x, Paper)]
    others = [x for x in leaves if isinstance(x, Tensor) and not isinstance(x, Paper) and x.dim()]
    if papers and others and name not in MOVES + INDEXED:
        raise RuntimeError(f"{func}: a tensor {tuple(others[0].shape)} of the CPU among tensors of the device")
    wanted = kwargs.get("device")
    there = bool(papers) if wanted is None else torch.device(wanted).type == "paper"
    if name == "aten::copy_":
        there = isinstance(args[0], Paper)
    if there or papers:
        SEEN["operations"] += 1
        SEEN["waits"] += name in WAITS or not there or (name in INDEXED and _masks(args[1]))
        SEEN["from the CPU"] += there and name in MOVES and any(not isinstance(x, Paper) for x in leaves if isinstance(x, Tensor))
    out = func(*tree_map(_unwrapped, args), **tree_map(_unwrapped, kwargs))
    SEEN["float64"] += there and any(isinstance(x, Tensor) and x.dtype == torch.float64 for x in tree_flatten(out)[0])
    before = {id(x.numbers): x for x in papers}  # what an operation in place gives back is what it was given

    def wrapped(x: Any) -> Any:
        return before[id(x)] if id(x) in before else Paper(x) if isinstance(x, Tensor) else x

    return tree_map(wrapped, out) if there else out


def _masks(indices: Any) -> bool:
    return any(isinstance(x, Tensor) and x.dtype in (torch.bool, torch.uint8) for x in indices)


def _unwrapped(x: Any) -> Any:
    if isinstance(x, torch.device) and x.type == "paper":
        return torch.device("cpu")
    return x.numbers if isinstance(x, Paper) else x


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Made(TorchFunctionMode):
    """What never reaches the dispatcher: `torch.tensor` and an index that is a list make numbers, and `tolist` reads memory.

    `cuda` is read as the device of paper.
    """

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tuple(map(_named, args)), {name: _named(value) for name, value in (kwargs or {}).items()}
        device = kwargs.get("device")
        if func is torch.tensor and device is not None and torch.device(device).type == "paper":
            return func(*args, **{**kwargs, "device": "cpu"}).to(device)
        if func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[1], list):
            args = (args[0], torch.tensor(args[1]), *args[2:])
        if func is Tensor.tolist:
            return func(args[0].cpu())
        return func(*args, **kwargs)


def _named(x: Any) -> Any:
    return PAPER if (isinstance(x, torch.device) and x.type == "cuda") or (isinstance(x, str) and x == "cuda") else x


@contextmanager
def a_paper_device() -> Iterator[None]:
    """While the block runs there is the device. A model that is moved keeps its ties, as on CUDA."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with _Made(), _Dispatch():
            yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


@contextmanager
def paper_as_cuda() -> Iterator[None]:
    """While the block runs torch says that there is a CUDA device, and it is the one of paper."""
    properties = SimpleNamespace(name="paper", total_memory=1 << 30, multi_processor_count=1)
    answers: dict[str, Any] = {"is_available": True, "synchronize": None, "get_device_properties": properties}
    answers |= {"max_memory_allocated": 0, "reset_peak_memory_stats": None, "mem_get_info": (1 << 30, 1 << 30)}
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(patch.object(torch.cuda, name, lambda *_, answer=answer, **__: answer))
        stack.enter_context(a_paper_device())
        yield

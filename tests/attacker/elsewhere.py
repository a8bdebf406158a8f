"""A device beside the CPU, for machines that have none: it refuses what a GPU refuses.

Its tensors say that they are on PyTorch's `meta` device, and keep values on the CPU where the tested code
cannot reach them. An operation on tensors of both devices fails, and so does NumPy's view of a tensor that
is elsewhere. As on a GPU, a tensor on the CPU may take part if it is a single number, or an index.
Everything else is computed as on the CPU, so the results must be the same, bit by bit. Threads other than
the caller's are not covered.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from unfit.base import device
from unfit.base.threads import threads

CPU, ELSEWHERE = torch.device("cpu"), torch.device("meta")
ATEN = torch.ops.aten
DRAWING = (ATEN.uniform_.default, ATEN.normal_.default)
MOVING = (ATEN._to_copy.default, ATEN.copy_.default)
INDEXING = (ATEN.index.Tensor, ATEN.index_put_.default, ATEN.index_put.default, ATEN._index_put_impl_.default)


class Away(Tensor):
    """A tensor on that device; `kept` has its values."""

    kept: Tensor

    @staticmethod
    def __new__(cls, kept: Tensor) -> Away:
        size, strides, initial = kept.size(), kept.stride(), kept.storage_offset()
        made: Away = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, size, strides=strides, storage_offset=initial, dtype=kept.dtype, device=ELSEWHERE
        )
        made.kept = kept
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(op, args, kwargs or {})

    def tolist(self) -> Any:  # which copies to the CPU, and PyTorch refuses it to subclasses
        return self.kept.tolist()

    @property
    def data(self) -> Tensor:  # type: ignore[override]
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        assert isinstance(value, Away), "a parameter moved to another device"
        assert (value.shape, value.dtype) == (self.shape, self.dtype)
        self.kept = value.kept


class _Everything(TorchDispatchMode):
    """Sees the operations that create or move tensors, too."""

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(op, args, kwargs or {})


def computed(op: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """The results of one operation, on the device where it belongs."""
    given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    away = [each for each in given if isinstance(each, Away)]
    if away and op not in MOVING:
        for each in given:
            if not isinstance(each, Away) and not may_stay(op, each):
                raise RuntimeError(f"{op}: a tensor of shape {tuple(each.shape)} is on the CPU, others are not")
    if op in DRAWING and away and kwargs.get("generator") is None:
        return args[0]  # the first weights of a module built on `meta`, which nobody reads: no number is drawn
    where = kwargs.get("device") or (ELSEWHERE if away else CPU)
    plain_args, plain = tree_map_only(Away, lambda each: each.kept, (args, kwargs))
    result = op(*plain_args, **(plain | {"device": CPU} if plain.get("device") else plain))
    known = {id(each.kept if isinstance(each, Away) else each): each for each in given}  # changed in place

    def placed(tensor: Tensor) -> Tensor:
        found = known.get(id(tensor))
        return found if found is not None else Away(tensor) if where == ELSEWHERE else tensor

    return tree_map_only(Tensor, placed, result)


def may_stay(op: Callable[..., Any], tensor: Tensor) -> bool:
    """Whether a GPU takes this tensor from the CPU."""
    return tensor.ndim == 0 or (op in INDEXING and not tensor.is_floating_point())


@contextmanager
def computing_elsewhere() -> Iterator[None]:
    """In here that device is the chosen one."""
    token = device._chosen.set(ELSEWHERE)
    replaced = torch.__future__.get_overwrite_module_params_on_conversion()
    # a tensor here cannot change its type in place, so a module that is converted gets new parameters
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with threads(1), warnings.catch_warnings(), _Everything():
            # said of tensors without values; these have some, and they are copied
            warnings.filterwarnings("ignore", "for .*: copying from a non-meta parameter", UserWarning)
            yield
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(replaced)
        device._chosen.reset(token)

"""Runs PyTorch code in float64 throughout, whatever precision its author wrote down, and proves it.

Hugging Face models ask for float32 by name in places (norms, softmax, rotary tables). `Float64` answers each such request
with float64, and raises on any operation, forward or backward, whose result is of another floating type.
"""

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Promote(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        def promote(value):
            return torch.float64 if value is torch.float32 else value

        if func is torch.Tensor.float:
            func = torch.Tensor.double
        return func(*map(promote, args), **{k: promote(v) for k, v in (kwargs or {}).items()})


class _Refuse(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.dtype != torch.float64:
                raise TypeError(f"{func} returned {leaf.dtype}: the oracle must be float64 throughout")
        return result


class Float64:
    """Context manager. Also fixes the thread count and the algorithms, so that a second run gives the same bytes."""

    def __enter__(self):
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        torch.set_default_dtype(torch.float64)
        self.modes = [_Refuse(), _Promote()]
        for mode in self.modes:
            mode.__enter__()

    def __exit__(self, *error):
        for mode in reversed(self.modes):
            mode.__exit__(*error)
        torch.set_default_dtype(torch.float32)

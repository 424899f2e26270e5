"""The ops of a running program, each call made on the CPU too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .call import Call
from .compare import difference_in_bits

NAMESPACE = "strata_gdn"


class BesideTheCpu(TorchDispatchMode):
    """A scope in which every call of an op of this package is also made on the CPU, on copies of its arguments.

    Results, and all memory of the arguments afterwards, must have the same bits. What the program goes on with is what
    the CPU computed: results, states and windows. So the program runs as if the ops had run on the CPU, and everything
    else on its own device.

    Attributes:
        calls: of each op.
        failures: a sentence for each result or argument that differs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.failures: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace != NAMESPACE:
            return func(*args, **(kwargs or {}))
        schema = func._schema
        names = [argument.name for argument in schema.arguments]
        here = Call(schema.name.removeprefix(f"{NAMESPACE}::"), dict(zip(names, args, strict=False)) | (kwargs or {}))
        there = here.copy("cpu")
        expected, actual = there.run(), here.run()
        self._compare(here, actual, there, expected)
        for argument in schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                _each(Tensor.copy_, here.arguments[argument.name], there.arguments[argument.name])
        results = tuple(e.to(a.device) for e, a in zip(expected, actual, strict=True))
        return results if len(schema.returns) > 1 else results[0] if results else None

    def _compare(self, here: Call, actual: tuple[Tensor, ...], there: Call, expected: tuple[Tensor, ...]) -> None:
        self.calls[here.op] += 1
        pairs = [(f"result {i}", a, e) for i, (a, e) in enumerate(zip(actual, expected, strict=True))]
        memory = zip(here.buffers(), there.buffers(), strict=True)
        pairs += [(f"memory of {name}", a, e) for (name, a), (_, e) in memory]
        for what, a, e in pairs:
            if difference := difference_in_bits(a, e):
                self.failures.append(f"{here.op}, call {self.calls[here.op]}: {what}: {difference}")


def _each(f: Callable[[Tensor, Tensor], object], left: Any, right: Any) -> None:
    """Over two tensors, or two lists of them."""
    if isinstance(left, Tensor):
        f(left, right)
    else:
        for a, b in zip(left, right, strict=True):
            f(a, b)

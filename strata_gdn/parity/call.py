"""A call of an op: what is run, copied and looked at as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Call:
    """An op and its arguments."""

    op: str
    arguments: dict[str, Any]

    def run(self, implementation: Any = torch.ops.strata_gdn) -> tuple[Tensor, ...]:
        """The results as a tuple."""
        results = getattr(implementation, self.op)(**self.arguments)
        if results is None:
            return ()
        return (results,) if isinstance(results, Tensor) else tuple(results)

    def copy(self, device: str = "cpu") -> Call:
        """With the same strides in storages of its own on `device`, which views go on sharing."""
        storages: dict[int, torch.UntypedStorage] = {}

        def copy(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return [copy(v) for v in value]
            if not isinstance(value, Tensor):
                return value
            old = value.untyped_storage()
            if old.data_ptr() not in storages:
                # A tensor's, not a storage's own clone: it comes from the device's current allocator.
                bytes_ = torch.empty(old.nbytes(), dtype=torch.uint8, device=device)
                storages[old.data_ptr()] = bytes_.untyped_storage().copy_(old)
            new = storages[old.data_ptr()]
            empty = torch.empty(0, dtype=value.dtype, device=device)
            return empty.set_(new, value.storage_offset(), value.shape, value.stride())

        return Call(self.op, {name: copy(value) for name, value in self.arguments.items()})

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """The storage of each tensor argument, whole and once: what is between its elements counts too."""
        seen = set()
        for name, value in self.arguments.items():
            for i, tensor in enumerate(value if isinstance(value, (list, tuple)) else [value]):
                if not isinstance(tensor, Tensor) or not tensor.numel():
                    continue
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in seen:
                    seen.add(storage.data_ptr())
                    whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage)
                    yield f"{name}[{i}]" if value is not tensor else name, whole

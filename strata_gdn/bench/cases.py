"""The table of what is timed on a GPU: `CASES`.

A case (case.py) names its shape and its arms, the kernels that are to serve it under which switches; its inputs are
made when its turn comes. A new line of the benchmark is a new entry of one of the modules here.
"""

from __future__ import annotations

from .chunked import chunked
from .decode import decode
from .pointwise import pointwise
from .prompts import prompts

CASES = (*prompts(), *chunked(), *pointwise(), *decode())

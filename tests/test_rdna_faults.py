"""What the RDNA runner finds: each check with a kernel that has the fault, and beside it one that has not."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from rdna_cases import KERNELS, each_arch, needs_compilers, on

pytestmark = needs_compilers

if not needs_compilers.args[0]:
    from rdna import engine, toolchain
    from rdna.engine import Fault
    from rdna.runner import Options, Runner

WAVES = 2
ITEMS = 32 * WAVES


@pytest.fixture
def runner(arch: str) -> Runner:
    return Runner([toolchain.code_object(KERNELS, arch)])


def zeros(count: int = ITEMS) -> np.ndarray:
    return np.zeros(count, dtype=np.int32)


def launch(runner: Runner, name: str, *arguments: object) -> None:
    runner.launch(name, (1, 1, 1), (ITEMS, 1, 1), *arguments)


def in_every_order(runner: Runner, name: str, *arguments: object) -> set[str]:
    """The faults of some seeds, "" where there is none."""
    found = set()
    for seed in range(16):
        runner.options = Options(seed=seed)
        try:
            launch(runner, name, *arguments)
            found.add("")
        except Fault as fault:
            found.add(str(fault))
    return found


@each_arch
@pytest.mark.parametrize("name", ["race_of_write_and_read", "race_of_writes", "race_of_read_and_write"])
def test_races_in_shared_memory(runner: Runner, name: str) -> None:
    for fault in in_every_order(runner, name, zeros()):
        assert fault.startswith("LDS race: LDS byte "), fault or "not found"
        assert f"in {name}, work-group (0, 0, 0), wave" in fault
        assert "'ds_" in fault, "the instruction"


@each_arch
def test_no_race_with_a_barrier(runner: Runner) -> None:
    assert in_every_order(runner, "reverse", zeros(), zeros()) == {""}


@each_arch
def test_a_barrier_taken_out_is_a_race(runner: Runner) -> None:
    runner.edit("reverse", lambda text: without(text, r"s_barrier\w*"))
    for fault in in_every_order(runner, "reverse", zeros(), zeros()):
        assert fault.startswith(("LDS race: ", "read of LDS that nobody wrote: ")), fault or "not found"


@each_arch
def test_reads_of_unwritten_shared_memory(runner: Runner) -> None:
    launch(runner, "read_of_nothing", zeros(), ITEMS)
    with pytest.raises(Fault, match=r"read of LDS that nobody wrote: LDS byte 252; in read_of_nothing"):
        launch(runner, "read_of_nothing", zeros(), ITEMS - 1)


@each_arch
def test_bounds_of_global_memory(runner: Runner) -> None:
    launch(runner, "read_past_the_end", zeros(ITEMS + 1), zeros())
    with pytest.raises(Fault, match=r"out of bounds: read of 4 bytes at 0x.* 0 bytes past the end of argument 0"):
        launch(runner, "read_past_the_end", zeros(), zeros())
    with pytest.raises(Fault, match=r"out of bounds: write of 4 bytes at 0x.* 4 bytes before argument 0"):
        launch(runner, "write_before_the_begin", zeros())
    launch(runner, "read_over_the_end", zeros(4 * ITEMS), zeros())
    with pytest.raises(Fault, match=r"out of bounds: read of 16 bytes at 0x[0-9a-f]+ runs over the end of argument 0"):
        launch(runner, "read_over_the_end", zeros(4 * ITEMS - 1), zeros())


@each_arch
def test_read_only_memory(runner: Runner) -> None:
    a, out = zeros(), zeros()
    given = a.ctypes.data.to_bytes(8, "little") + out.ctypes.data.to_bytes(8, "little")
    given += (1).to_bytes(8, "little") + bytes(8)
    with engine.Memory(a.ctypes.data, a.nbytes, "a"), engine.Memory(out.ctypes.data, out.nbytes, "out"):
        launch(runner, "by_value", given)
    with (
        engine.Memory(a.ctypes.data, a.nbytes, "a", writable=False),
        engine.Memory(out.ctypes.data, out.nbytes, "out", writable=False),
        pytest.raises(Fault, match=r"out of bounds: write of 4 bytes at 0x[0-9a-f]+ goes to read-only out"),
    ):
        launch(runner, "by_value", given)


@each_arch
def test_bounds_of_shared_memory(runner: Runner) -> None:
    launch(runner, "shared_past_the_end", zeros(), 0)
    with pytest.raises(Fault, match=r"out of bounds: write of 4 bytes at LDS byte 4096; the work-group has 4096"):
        launch(runner, "shared_past_the_end", zeros(), 1024 - ITEMS + 1)


@each_arch
def test_bounds_of_dynamic_shared_memory(runner: Runner) -> None:
    runner.launch("reverse_dynamic", (1, 1, 1), (ITEMS, 1, 1), zeros(), zeros(), dynamic_lds=4 * ITEMS)
    with pytest.raises(Fault, match=r"out of bounds: write of 4 bytes at LDS byte 252; the work-group has 252"):
        runner.launch("reverse_dynamic", (1, 1, 1), (ITEMS, 1, 1), zeros(), zeros(), dynamic_lds=4 * ITEMS - 4)
    with pytest.raises(ValueError, match=r"65540 bytes of LDS a work-group; there are 65536"):
        runner.launch("reverse_dynamic", (1, 1, 1), (ITEMS, 1, 1), zeros(), zeros(), dynamic_lds=65540)


@each_arch
def test_bounds_of_buffers_and_scratch(runner: Runner) -> None:
    launch(runner, "buffer", zeros(), zeros(), 4 * ITEMS)
    with pytest.raises(Fault, match=r"out of bounds: 4 bytes at 252 of a buffer of 252"):
        launch(runner, "buffer", zeros(), zeros(), 4 * ITEMS - 4)
    order = np.arange(128, dtype=np.int32)
    launch(runner, "scratch", order, zeros())
    beyond = runner.kernels["scratch"].private_bytes
    runner.edit("scratch", lambda text: re.sub(r"(\t(?:scratch|buffer)_store_\w+ [^/]*?)( offset:\d+)?( *//)",
                                               rf"\1 offset:{beyond}\3", text))  # fmt: skip
    with pytest.raises(Fault, match=r"scratch: an access of 4 bytes at \d+ of a lane's \d+"):
        launch(runner, "scratch", order, zeros())


def without(disassembly: str, instruction: str, number: int | None = None) -> str:
    """With s_nop in place of each instruction, or of the number-th one, that the pattern matches."""
    seen = -1

    def replaced(match: re.Match[str]) -> str:
        nonlocal seen
        seen += 1
        return f"\ts_nop 0 {match[1]}" if number in (None, seen) else match[0]

    changed = re.sub(rf"^\t{instruction}(?: [^/]*)?(//.*)$", replaced, disassembly, flags=re.MULTILINE)
    assert changed != disassembly, f"no {instruction}"
    return changed


def wait_pattern(runner: Runner) -> str:
    """Of the waits for loads."""
    return r"s_wait_(?:load|km|ds)cnt" if runner.generation >= 12 else r"s_waitcnt"


@each_arch
@pytest.mark.parametrize("name", ["add", "reverse"])
def test_each_wait_is_needed(runner: Runner, name: str) -> None:
    """One wait after the other taken out of a kernel that has no more of them than it needs."""
    a, out = np.arange(ITEMS, dtype=np.int32), zeros()
    arguments = (a, a, out) if name == "add" else (a, out)
    launch(runner, name, *arguments)
    pattern = wait_pattern(runner)
    waits = len(re.findall(rf"^\t{pattern} ", runner.kernels[name].disassembly(), flags=re.MULTILINE))
    assert waits >= 2, "for scalar and for vector loads"
    for number in range(waits):
        runner.edit(name, lambda text, number=number: without(text, pattern, number))
        with pytest.raises(Fault, match=r"missing wait: ([vs]\d+ is used while '|'ds_)"):
            launch(runner, name, *arguments)


@each_arch
def test_a_wait_for_too_few(runner: Runner) -> None:
    """`add` needs both of its vector loads; a wait that leaves one under way is none for the last one."""
    a, out = np.arange(ITEMS, dtype=np.float32), np.zeros(ITEMS, dtype=np.float32)
    zero, one = (("s_wait_loadcnt 0x0", "s_wait_loadcnt 0x1") if runner.generation >= 12
                 else ("s_waitcnt vmcnt(0)", "s_waitcnt vmcnt(1)"))  # fmt: skip

    def change(text: str) -> str:
        assert zero in text
        return text.replace(zero, one)

    runner.edit("add", change)
    with pytest.raises(Fault, match=r"missing wait: v\d+ is used while 'global_load"):
        launch(runner, "add", a, a, out)


@each_arch
def test_scalar_loads_come_in_any_order(runner: Runner) -> None:
    """A wait that leaves one scalar load under way says nothing about any of them."""
    a, out = np.arange(ITEMS, dtype=np.float32), np.zeros(ITEMS, dtype=np.float32)
    zero, one = (("s_wait_kmcnt 0x0", "s_wait_kmcnt 0x1") if runner.generation >= 12
                 else ("s_waitcnt lgkmcnt(0)", "s_waitcnt lgkmcnt(1)"))  # fmt: skip

    def change(text: str) -> str:
        assert zero in text
        return text.replace(zero, one)

    runner.edit("add", change)
    with pytest.raises(Fault, match=r"missing wait: s\d+ is used while 's_load"):
        launch(runner, "add", a, a, out)


@each_arch
def test_a_store_under_way_at_a_barrier(runner: Runner) -> None:
    wait = r"s_wait_dscnt 0x0" if runner.generation >= 12 else r"s_waitcnt lgkmcnt\(0\)"
    runner.edit("reverse", changed(rf"\t{wait} *(//.*\n(?:\ts_(?!barrier).*\n)*\ts_barrier)", r"\ts_nop 0 \1"))
    with pytest.raises(Fault, match=r"missing wait: 'ds_(store|write)_b32 [^']*' is under way at a barrier"):
        launch(runner, "reverse", zeros(), zeros())


@pytest.mark.parametrize("arch", [on("gfx1200"), on("gfx1201")])
def test_access_between_the_halves_of_a_barrier(runner: Runner) -> None:
    """gfx12's barrier is a signal and a wait: nothing orders what is between them."""
    runner.edit("reverse", lambda text: without(text, "s_barrier_wait"))
    with pytest.raises(Fault, match=r"an LDS access between a barrier's signal and its wait"):
        launch(runner, "reverse", zeros(), zeros())


@each_arch
def test_waves_run_in_another_order_with_another_seed(runner: Runner) -> None:
    """Which wave comes second to a word that both write is chance; by a seed it is the same."""
    first, again = (in_every_order(runner, "race_of_writes", zeros()) for _ in range(2))
    assert first == again
    assert {re.search(r"wave (\d+), 'ds_", fault)[1] for fault in first} == {"0", "1"}


@each_arch
def test_races_of_work_groups(runner: Runner) -> None:
    grid, block = (4, 1, 1), (ITEMS, 1, 1)
    for seed in range(8):
        runner.options = Options(seed=seed)
        with pytest.raises(
            Fault, match=r"global race: written here and written by work-group \d, which nothing orders"
        ):
            runner.launch("race_of_groups_writes", grid, block, zeros())
        out = zeros(4 * ITEMS)
        with pytest.raises(Fault, match=r"global race: (written|read) here and (written|read) by .*work-group"):
            runner.launch("race_of_groups", grid, block, out, out)
        runner.launch("race_of_groups", grid, block, zeros(4 * ITEMS), out)


@each_arch
def test_races_of_waves_in_global_memory(runner: Runner) -> None:
    nothing = in_every_order(runner, "exchange_behind_nothing", zeros())
    assert all(re.match(r"global race: .*, with no barrier between", fault) for fault in nothing), nothing
    lds = in_every_order(runner, "exchange_behind_lds_barrier", zeros())
    late = r"global race: read here and written by wave \d, (whose store no barrier|with the caches not dropped)"
    assert all(re.match(late, fault) for fault in lds), lds
    assert in_every_order(runner, "exchange_behind_full_barrier", zeros()) == {""}


@each_arch
@pytest.mark.parametrize(
    ("pattern", "instead", "message"),
    [
        (r"v_add_f32\w* ", "v_made_up_f32 ", "add: unknown instruction v_made_up_f32 in 'v_made_up_f32 "),
        (r"(v_add_f32\w* [^/]*?) *//", r"\1 clamp //", "add: unknown modifier 'clamp' in 'v_add_f32"),
        (r"(v_add_f32\w*) v\d+", r"\1 w1", "add: unknown operand 'w1' in 'v_add_f32"),
    ],
)
def test_what_is_not_known_is_named(runner: Runner, pattern: str, instead: str, message: str) -> None:
    with pytest.raises(Fault) as raised:
        runner.edit("add", changed(pattern, instead))
    assert str(raised.value).startswith(message)


def changed(pattern: str, instead: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        new = re.sub(pattern, instead, text)
        assert new != text
        return new

    return change


@each_arch
def test_wrong_launches(runner: Runner) -> None:
    with pytest.raises(ValueError, match=r"add: 3 arguments are expected; got 2"):
        launch(runner, "add", zeros(), zeros())
    with pytest.raises(KeyError, match=r"no kernel nothing for gfx\d+; there are add, "):
        launch(runner, "nothing")

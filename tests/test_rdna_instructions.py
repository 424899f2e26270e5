"""The RDNA runner's instructions: small kernels against numpy, and division and root on hardware that is less exact."""

from __future__ import annotations

import numpy as np
import pytest
from rdna_cases import ARCHES, KERNELS, WITH_MATRICES, each_arch, needs_compilers, on

pytestmark = needs_compilers

if not needs_compilers.args[0]:
    from rdna import engine, toolchain
    from rdna.runner import Options, Runner

ULPS = ["exact", "up", "down", "either"]

# Values whose quotients, roots and conversions need every branch of a division.
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-45, -1e-45, 1.17549435e-38, 1.1754942e-38, 3.4e38, -3.4e38,
           2.0**126, 2.0**127, 2.0**-126, 2.0**-127, 3.0, 1 / 3, 1e-30, 1e30, 65504.0, 65520.0, 6e-8, 88.0,
           8.6e37]  # fmt: skip


@pytest.fixture(scope="module")
def runners() -> dict[str, Runner]:
    return {}


@pytest.fixture
def runner(arch: str, runners: dict[str, Runner]) -> Runner:
    if arch not in runners:
        runners[arch] = Runner([toolchain.code_object(KERNELS, arch)])
    runners[arch].options = Options()
    return runners[arch]


def floats(count: int) -> np.ndarray:
    """Of every size, and all pairs of the special ones in a row with their reverse."""
    bits = np.random.default_rng(0).integers(0, 2**32, count, dtype=np.uint32)
    return bits.view(np.float32)


def pairs(count: int = 1 << 14) -> tuple[np.ndarray, np.ndarray]:
    special = np.array(SPECIAL, dtype=np.float32)
    a, b = (x.ravel() for x in np.meshgrid(special, special))
    random = floats(2 * count)
    a, b = np.concatenate([a, random[:count]]), np.concatenate([b, random[count:]])
    whole = len(a) // 256 * 256
    return a[-whole:].copy(), b[-whole:].copy()


def launch(runner: Runner, name: str, count: int, *arguments: object, **options: int) -> dict[str, int]:
    return runner.launch(name, (count // 256, 1, 1), (256, 1, 1), *arguments, **options)


def assert_same_floats(actual: np.ndarray, expected: np.ndarray, *sources: np.ndarray) -> None:
    """The same bits; a NaN equals any NaN."""
    bits = f"u{actual.itemsize}"
    wrong = (actual.view(bits) != expected.view(bits)) & ~(np.isnan(actual) & np.isnan(expected))
    if wrong.any():
        i = int(wrong.argmax())
        raise AssertionError(
            f"{wrong.sum()} of {wrong.size} differ; the first at {[float(s[i]).hex() for s in sources]}: "
            f"{float(actual[i]).hex()}, expected {float(expected[i]).hex()}"
        )


@each_arch
@pytest.mark.parametrize("ulp", ULPS)
def test_division_is_correctly_rounded(runner: Runner, ulp: str) -> None:
    a, b = pairs()
    out = np.zeros_like(a)
    runner.options = Options(ulp=ulp)
    launch(runner, "divide", a.size, a, b, out)
    with np.errstate(all="ignore"):
        assert_same_floats(out, a / b, a, b)


@each_arch
@pytest.mark.parametrize("ulp", ULPS)
def test_square_root_is_correctly_rounded(runner: Runner, ulp: str) -> None:
    a, _ = pairs()
    out = np.zeros_like(a)
    runner.options = Options(ulp=ulp)
    launch(runner, "root", a.size, a, out)
    with np.errstate(all="ignore"):
        assert_same_floats(out, np.sqrt(a), a)


@each_arch
@pytest.mark.parametrize("ulp", ULPS[1:])
def test_less_exact_hardware_is_seen(runner: Runner, ulp: str) -> None:
    """The control: where a kernel uses the processor's reciprocal as it is, its results move by a unit."""
    a = np.linspace(1.0, 2.0, 256, dtype=np.float32)
    exact, moved = np.zeros_like(a), np.zeros_like(a)
    launch(runner, "raw_reciprocal", a.size, a, exact)
    runner.options = Options(ulp=ulp)
    launch(runner, "raw_reciprocal", a.size, a, moved)
    steps = set((moved.view(np.int32) - exact.view(np.int32)).tolist())
    assert steps == {"up": {1}, "down": {-1}, "either": {1, -1}}[ulp]


@each_arch
@pytest.mark.parametrize("ulp", ULPS)
def test_integer_division(runner: Runner, ulp: str) -> None:
    """Built on the processor's reciprocal too."""
    runner.options = Options(ulp=ulp)
    random = np.random.default_rng(1)
    a = random.integers(-(2**31), 2**31, 4096, dtype=np.int32)
    b = (random.integers(1, 2**31, 4096) >> random.integers(0, 31, 4096)).astype(np.int32)
    b = np.where(b == 0, 3, b) * random.choice([-1, 1], 4096).astype(np.int32)
    quotient, remainder = np.zeros_like(a), np.zeros_like(a)
    launch(runner, "divide_integers", a.size, a, b, quotient, remainder)
    expected = np.fix(a.astype(np.longdouble) / b).astype(np.int64)
    np.testing.assert_array_equal(quotient, expected)
    np.testing.assert_array_equal(remainder, a.astype(np.int64) - expected * b)


@each_arch
@pytest.mark.parametrize("ulp", ULPS)
def test_integers_of_64_bits(runner: Runner, ulp: str) -> None:
    runner.options = Options(ulp=ulp)
    random = np.random.default_rng(2)
    a = random.integers(-(2**62), 2**62, 1024)
    b = np.maximum(random.integers(1, 2**62, 1024) >> random.integers(0, 61, 1024), 1) * random.choice([-1, 1], 1024)
    quotient, product = np.zeros_like(a), np.zeros_like(a)
    launch(runner, "divide_long", a.size, a, b, quotient, product)
    exact = [abs(int(x)) // abs(int(y)) * (1 if (x < 0) == (y < 0) else -1) for x, y in zip(a, b, strict=True)]
    np.testing.assert_array_equal(quotient, np.array(exact))
    np.testing.assert_array_equal(product, (a * b) >> 3)


@each_arch
def test_classes(runner: Runner) -> None:
    a, _ = pairs()
    out = np.zeros(a.shape, dtype=np.int32)
    launch(runner, "classes", a.size, a, out)
    bits = a.view(np.uint32)
    negative, tiny, quiet = bits >> 31 == 1, np.abs(a) < np.finfo(np.float32).tiny, bits >> 22 & 1 == 1
    kinds = [np.isnan(a) & ~quiet, np.isnan(a) & quiet]
    normal = np.isfinite(a) & ~tiny
    for sign in (negative, ~negative):
        ordered = [np.isinf(a) & sign, normal & sign, tiny & (a != 0) & sign, (a == 0) & sign]
        kinds += ordered if sign is negative else ordered[::-1]
    np.testing.assert_array_equal(out, sum(kind.astype(np.int32) << i for i, kind in enumerate(kinds)))


@each_arch
def test_half_precision(runner: Runner) -> None:
    a, _ = pairs()
    half = np.random.default_rng(3).integers(0, 2**16, a.size, dtype=np.uint16).view(np.float16)
    narrow, wide = np.zeros_like(half), np.zeros_like(a)
    launch(runner, "through_half", a.size, a, half, narrow, wide)
    with np.errstate(all="ignore"):
        product = a.astype(np.float16) * half
        assert_same_floats(narrow, product + half, a, half)
        assert_same_floats(wide, half.astype(np.float32), half)


@each_arch
def test_halves_of_registers(runner: Runner) -> None:
    a = np.random.default_rng(4).integers(0, 2**16, 1024, dtype=np.uint16)
    out = np.zeros_like(a)
    launch(runner, "swap_halves", a.size // 2, a, out)
    np.testing.assert_array_equal(out.reshape(-1, 2), a.reshape(-1, 2)[:, ::-1])


def exchanged(x: np.ndarray) -> list[np.ndarray]:
    """What kernels.hip's `exchanges` makes of a wave's 32 values."""
    lanes = np.arange(32)
    row, lane = lanes // 16, lanes % 16

    def from_lane(source: np.ndarray, valid: np.ndarray | bool = True, otherwise: int = -1) -> np.ndarray:
        return np.where(valid, x[source % 32], otherwise)

    low_first = np.array([(0x0123FEDC << 32 | 0x76543210) >> (4 * i) & 15 for i in range(16)])
    ascending = np.array([(0xFEDCBA98 << 32 | 0x76543210) >> (4 * i) & 15 for i in range(16)])
    dpp8 = np.array([0xFAC688 >> (3 * i) & 7 for i in range(8)])
    return [
        from_lane(lanes ^ 3),
        from_lane(lanes + 1, lane < 15),
        from_lane(lanes + 1, lane < 15, 0),
        from_lane(row * 16 + (lane - 4) % 16),
        from_lane(lanes ^ 5),
        from_lane(row * 16 + 3, row == 0),
        from_lane(row * 16 + 15 - lane, (lane // 4) % 2 == 0),
        from_lane(row * 16 + low_first[lane]),
        from_lane((1 - row) * 16 + ascending[lane]),
        from_lane(lanes ^ 1),
        from_lane(lanes ^ 3),
        from_lane(lanes ^ 7),
        from_lane(np.full(32, 9)),
        from_lane(lanes // 8 * 8 + dpp8[lanes % 8]),
    ]


@each_arch
def test_exchanges_between_lanes(runner: Runner) -> None:
    a = np.random.default_rng(5).integers(0, 2**31, 256, dtype=np.int32)
    expected = np.stack([np.concatenate(e) for e in zip(*(exchanged(wave) for wave in a.reshape(-1, 32)), strict=True)])
    out = np.zeros_like(expected)
    launch(runner, "exchanges", a.size, a, out)
    np.testing.assert_array_equal(out, expected)


@each_arch
def test_exchanges_with_inactive_lanes(runner: Runner) -> None:
    """Without fi an inactive lane is not read: the result stays what it was or, with bound_ctrl, is 0."""
    a = np.arange(1, 257, dtype=np.int32)
    out = np.zeros((3, 256), dtype=np.int32)
    launch(runner, "from_inactive_row", a.size, a, out)
    rows = out.reshape(3, -1, 2, 16)
    np.testing.assert_array_equal(rows[:, :, 0], 0)
    np.testing.assert_array_equal(rows[0, :, 1], -1)
    np.testing.assert_array_equal(rows[1, :, 1], 0)
    np.testing.assert_array_equal(rows[2, :, 1], a.reshape(-1, 2, 16)[:, 0])


@each_arch
def test_scratch(runner: Runner) -> None:
    order = np.concatenate([np.random.default_rng(6).permutation(64) for _ in range(2)]).astype(np.int32)
    out = np.zeros(256, dtype=np.int32)
    launch(runner, "scratch", 256, order, out)
    assert runner.kernels["scratch"].private_bytes > 0, "the array is not in scratch"
    expected = np.zeros(256, dtype=np.int32)
    item = np.arange(256, dtype=np.int32)
    place = np.argsort(order[:64]).astype(np.int32)
    with np.errstate(over="ignore"):
        for slot in order[64:]:
            expected = 31 * expected + place[slot] * item
    np.testing.assert_array_equal(out, expected)


@each_arch
def test_buffers_constants_and_values(runner: Runner) -> None:
    a = np.random.default_rng(7).integers(0, 2**31, 512, dtype=np.int32)
    out = np.zeros(256, dtype=np.int32)
    launch(runner, "buffer", 256, a, out, 4 * 256)
    np.testing.assert_array_equal(out, a[:256])
    launch(runner, "scalar_buffer", 256, a, out, a.nbytes)
    np.testing.assert_array_equal(out, np.full(256, a[3] - a[2]))
    launch(runner, "constants", 256, out)
    np.testing.assert_array_equal(out, np.resize([2, 3, 5, 7, 11, 13, 17, 19], 256))
    given = a.ctypes.data.to_bytes(8, "little") + out.ctypes.data.to_bytes(8, "little")
    given += (2).to_bytes(8, "little") + (-3).to_bytes(2, "little", signed=True) + bytes(6)
    with engine.Memory(a.ctypes.data, a.nbytes, "a"), engine.Memory(out.ctypes.data, out.nbytes, "out"):
        launch(runner, "by_value", 256, given)
    np.testing.assert_array_equal(out, a[::2] * np.int32(-3))


@each_arch
def test_flat_addresses(runner: Runner) -> None:
    a = np.random.default_rng(9).integers(0, 2**31, 512, dtype=np.int32)
    order = np.random.default_rng(10).permutation(8).astype(np.int32)
    out = np.zeros_like(a)
    launch(runner, "anywhere", a.size, a, order, out)
    assert "flat_load" in runner.kernels["anywhere"].disassembly()
    item, thread = np.arange(512), np.arange(512) % 256
    private = 1000 * (thread & 7) + item
    shared = -(item ^ 1)
    np.testing.assert_array_equal(out, np.choose(thread % 3, [private, shared, a]))


@each_arch
@pytest.mark.parametrize("threads", [1, 3])
def test_shared_memory(runner: Runner, threads: int) -> None:
    a = np.arange(1024, dtype=np.int32)
    for seed in range(4):
        runner.options = Options(seed=seed, threads=threads)
        for name, dynamic in (("reverse", 0), ("reverse_dynamic", 4 * 256)):
            out = np.zeros_like(a)
            launch(runner, name, a.size, a, out, dynamic_lds=dynamic)
            np.testing.assert_array_equal(out.reshape(-1, 256), a.reshape(-1, 256)[:, ::-1])


@pytest.mark.parametrize("arch", [on(arch) for arch in WITH_MATRICES])
def test_matrix_products(runner: Runner) -> None:
    random = np.random.default_rng(8)
    a, b = (random.standard_normal((16, 16)).astype(np.float32) for _ in "ab")
    c = random.standard_normal((16, 16)).astype(np.float32)
    halves = [x.astype(np.float16) for x in (a, b)]
    bfloats = [(x.view(np.uint32) >> 16).astype(np.int16) for x in (a, b)]
    widened = [(x.view(np.uint16).astype(np.uint32) << 16).view(np.float32) for x in bfloats]
    for name, stored, values in (("wmma_f16", halves, halves), ("wmma_bf16", bfloats, widened)):
        out = c.copy()
        runner.launch(name, (1, 1, 1), (32, 1, 1), *stored, out)
        exact = values[0].astype(np.float64) @ values[1].astype(np.float64) + c
        assert np.abs(out - exact).max() < 1e-5
        assert np.abs(out - exact.T).max() > 0.1, "a transposed product would pass"


@each_arch
def test_counts(runner: Runner) -> None:
    """A kernel without branches: each of its instructions once a wave."""
    a = np.ones(512, dtype=np.float32)
    counts = launch(runner, "add", a.size, a, a, np.zeros_like(a))
    lines = runner.kernels["add"].disassembly().splitlines()
    mnemonics = [line.split()[0] for line in lines if line.startswith("\t")]
    length = mnemonics.index("s_endpgm") + 1
    waves = 512 // 32
    assert sum(counts.values()) == waves * length
    assert counts["vmem_load"] == 2 * waves
    assert counts["vmem_store"] == waves
    assert counts["smem"] == waves * sum(m.startswith("s_load") for m in mnemonics[:length])
    assert counts["wait"] == waves * sum(
        m.startswith("s_wait") and m not in ("s_wait_alu", "s_waitcnt_depctr") for m in mnemonics[:length]
    )
    assert counts["valu"] > 0
    assert counts["barrier"] == counts["lds"] == counts["matrix"] == counts["transcendental"] == 0


def test_all_targets_are_here() -> None:
    assert ARCHES == ("gfx1030", "gfx1100", "gfx1151", "gfx1200", "gfx1201")

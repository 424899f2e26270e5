"""The Python side of the ops: wrappers, fake implementations, version counters, torch.compile and torch.export."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import strata_gdn
from strata_gdn import _fakes, ops

N, T, H, HV, K, V, W = 2, 3, 2, 4, 64, 128, 4
C = 2 * H * K + HV * V
SLOTS = 3


def _randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


def _heads(T: int = T, dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    """q, k and v as views of one packed row, the layout a model produces."""
    q, k, v = _randn(N, T, C, dtype=dtype).split([H * K, H * K, HV * V], -1)
    return {
        "q": q.unflatten(-1, (H, K)),
        "k": k.unflatten(-1, (H, K)),
        "v": v.unflatten(-1, (HV, V)),
        "g": -torch.rand(N, T, HV),
        "beta": torch.rand(N, T, HV).to(dtype),
    }


def _packed() -> dict[str, torch.Tensor]:
    return {name: tensor.flatten(0, 1)[None] for name, tensor in _heads().items()}


def _logs() -> dict[str, torch.Tensor]:
    return {"k_log": _randn(N, T, H, K), "d_log": _randn(N, T, HV, V), "g_log": -torch.rand(N, T, HV)}


def _per_layer(layers: int = 2) -> dict[str, list[torch.Tensor]]:
    logs = [_logs() for _ in range(layers)]
    return {f"{name}s": [log[name] for log in logs] for name in ("k_log", "d_log", "g_log")}


def _layer() -> dict[str, torch.Tensor | int | None]:
    return {
        "qkv": _randn(N, T, C, dtype=torch.bfloat16),
        "z": _randn(N, T, HV, V, dtype=torch.bfloat16),
        "a": _randn(N, T, HV),
        "b": _randn(N, T, HV),
        "conv_weight": _randn(C, W),
        "conv_bias": None,
        "A_log": _randn(HV),
        "dt_bias": _randn(HV),
        "norm_weight": _randn(V),
        "conv_state": _randn(SLOTS, C, W, dtype=torch.bfloat16),
        "state": _state(),
        "state_indices": torch.tensor([2, 0]),
        "num_key_heads": H,
    }


def _state() -> torch.Tensor:
    return 0.1 * _randn(SLOTS, HV, K, V)


def _samples() -> dict[str, tuple[str, dict]]:
    """Calls by name: (op, arguments). Every op, and every optional argument of each, appears."""
    torch.manual_seed(0)
    indices, cu_seqlens = torch.tensor([2, -1]), torch.tensor([0, 2, N * T], dtype=torch.int32)
    parents, path = torch.tensor([[-1, 0, 0]] * N), torch.tensor([[0, 2, -1]] * N)
    accepted, fresh = torch.tensor([2, 0], dtype=torch.int32), torch.tensor([True, False])
    vk = {"state_layout": "vk", "head_map": "tiled"}
    conv = {"x": _randn(N, T, C), "weight": _randn(C, W), "bias": _randn(C)}
    packed_conv = {**conv, "x": _randn(1, N * T, C)}
    return {
        "prompt": ("gated_delta_rule", _heads()),
        "prompt, packed, vk": (
            "gated_delta_rule",
            {**_packed(), "initial_state": _randn(N, HV, V, K), "cu_seqlens": cu_seqlens, "qk_l2norm": True, **vk},
        ),
        "prompt, float32, exact": ("gated_delta_rule", {**_heads(dtype=torch.float32), "precision": "exact"}),
        "step": ("gated_delta_rule_", {**_heads(T=1), "state": _state()}),
        "step, slots": ("gated_delta_rule_", {**_heads(), "state": _state(), "state_indices": indices, "scale": 0.5}),
        "pieces, packed": (
            "gated_delta_rule_",
            {**_packed(), "state": _state(), "cu_seqlens": cu_seqlens, "has_initial_state": fresh},
        ),
        "verify": ("gated_delta_rule_verify", {**_heads(), "state": _state(), "l2_eps": 1e-5, "qk_l2norm": True}),
        "verify, tree": (
            "gated_delta_rule_verify",
            {**_heads(), "state": _state().mT.contiguous(), "state_indices": indices, "parents": parents, **vk},
        ),
        "commit": ("gated_delta_rule_commit_", {"state": _state(), **_logs(), "accepted": accepted}),
        "commit, tree": (
            "gated_delta_rule_commit_",
            {
                "state": _state().mT.contiguous(),
                **_logs(),
                "accepted": accepted,
                "state_indices": indices,
                "path": path,
                **vk,
            },
        ),
        "commit, layers": (
            "gated_delta_rule_commit_layers_",
            {
                "states": [_state(), _state()],
                **_per_layer(),
                "accepted": accepted,
                "state_indices": indices,
                "path": path,
                "head_map": "tiled",
            },
        ),
        "commit and verify": (
            "gated_delta_rule_commit_verify_",
            {
                "state": _state(),
                **_logs(),
                "accepted": accepted,
                **_heads(T=2),
                "state_indices": indices,
                "path": path,
                "parents": torch.tensor([[-1, -1]] * N),
            },
        ),
        "convolution": ("causal_conv1d", conv),
        "convolution, packed": (
            "causal_conv1d",
            {
                **packed_conv,
                "initial_state": _randn(N, C, W),
                "cu_seqlens": cu_seqlens,
                "activation": "none",
            },
        ),
        "convolution in place": ("causal_conv1d_", {**conv, "bias": None, "state": _randn(SLOTS, C, W - 1)}),
        "convolution in place, slots": (
            "causal_conv1d_",
            {
                **packed_conv,
                "state": _randn(SLOTS, C, W),
                "state_indices": indices,
                "cu_seqlens": cu_seqlens,
                "has_initial_state": fresh,
            },
        ),
        "convolution, verify": (
            "causal_conv1d_verify",
            {**conv, "state": _randn(SLOTS, C, W), "state_indices": indices, "parents": parents},
        ),
        "convolution, commit": (
            "causal_conv1d_commit_",
            {
                "state": _randn(SLOTS, C, W),
                "x": conv["x"],
                "accepted": accepted,
                "state_indices": indices,
                "path": path,
            },
        ),
        "convolution, commit, layers": (
            "causal_conv1d_commit_layers_",
            {
                "states": [_randn(SLOTS, C, W), _randn(SLOTS, C, W)],
                "xs": [_randn(N, T, C), _randn(N, T, C)],
                "accepted": accepted,
                "state_indices": indices,
                "path": path,
            },
        ),
        "l2 norm": (
            "qk_l2norm",
            {"q": _randn(N, T, H, K, dtype=torch.bfloat16), "k": _randn(T, H, K, dtype=torch.float16), "eps": 1e-5},
        ),
        "gates": (
            "gdn_gates",
            {
                "a": _randn(N, HV, T).mT,
                "b": _randn(N, T, HV, dtype=torch.bfloat16),
                "A_log": _randn(HV),
                "dt_bias": _randn(HV, dtype=torch.bfloat16),
                "allow_neg_eigval": True,
            },
        ),
        "norm": (
            "gated_rms_norm",
            {"o": _randn(N, T, HV, V), "z": _randn(N, T, HV, V, dtype=torch.bfloat16), "weight": _randn(V)},
        ),
        "norm, dtype": (
            "gated_rms_norm",
            {
                "o": _randn(N, T, HV, V),
                "z": _randn(N, T, HV, V),
                "weight": _randn(V),
                "eps": 1e-5,
                "activation": "sigmoid",
                "dtype": torch.float16,
            },
        ),
        "decode layer": ("gdn_decode_layer_", _layer()),
        "verify layer": ("gdn_verify_layer", {**_layer(), "parents": parents}),
    }


SAMPLES = _samples()
NAMES = sorted(SAMPLES)


def _clone(value):
    if isinstance(value, torch.Tensor):
        return value.clone(memory_format=torch.preserve_format)
    return [_clone(item) for item in value] if isinstance(value, list) else value


def _sample(name: str) -> tuple[str, dict]:
    op, arguments = SAMPLES[name]
    return op, {argument: _clone(value) for argument, value in arguments.items()}


def _overload(op: str) -> torch._ops.OpOverload:
    return getattr(torch.ops.strata_gdn, op).default


def _as_positional(op: str, arguments: dict) -> tuple[list, dict]:
    """The call as the schema orders it."""
    schema = _overload(op)._schema.arguments
    args = [arguments.get(a.name, a.default_value) for a in schema if not a.kwarg_only]
    return args, {a.name: arguments[a.name] for a in schema if a.kwarg_only and a.name in arguments}


def _written(op: str) -> list[str]:
    return [a.name for a in _overload(op)._schema.arguments if a.alias_info is not None and a.alias_info.is_write]


def _tensors(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for item in value for t in _tensors(item)] if isinstance(value, (list, tuple)) else []


def _equal(left, right) -> bool:
    """Bits, structure and dtypes."""
    left, right = _tensors(left), _tensors(right)
    return len(left) == len(right) and all(
        x.dtype == y.dtype and x.shape == y.shape and torch.equal(x, y) for x, y in zip(left, right, strict=True)
    )


def _registered_ops() -> set[str]:
    names = (n.split("::") for n in torch._C._dispatch_get_all_op_names())
    return {op for namespace, op in names if namespace == "strata_gdn"}


def test_every_op_has_a_wrapper_a_fake_and_a_sample():
    assert _registered_ops() == set(ops.__all__) == set(_fakes._FAKES)
    assert {op for op, _ in SAMPLES.values()} == set(ops.__all__)
    assert all(getattr(strata_gdn, op) is getattr(ops, op) for op in ops.__all__)


def test_the_samples_use_every_optional_tensor():
    used = {(op, name) for op, arguments in SAMPLES.values() for name, value in arguments.items() if value is not None}
    for op in ops.__all__:
        for argument in _overload(op)._schema.arguments:
            if str(argument.type) == "Optional[Tensor]" and argument.name != "conv_bias":
                assert (op, argument.name) in used


@pytest.mark.parametrize("op", ops.__all__)
def test_wrapper_takes_the_ops_own_argument_list(op):
    parameters = inspect.signature(getattr(ops, op)).parameters.values()
    wrapper = [(p.name, p.kind is p.KEYWORD_ONLY, None if p.default is p.empty else p.default) for p in parameters]
    schema = _overload(op)._schema.arguments
    assert wrapper == [(a.name, a.kwarg_only, a.default_value) for a in schema]


def _other(value):
    """An option's value that is not this one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return f"not {value}"
    return 0.5


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("op", ops.__all__)
def test_every_option_reaches_the_op(op, changed, monkeypatch):
    schema = _overload(op)._schema.arguments
    given = {}
    for argument in schema:
        if "Tensor" in str(argument.type):
            given[argument.name] = [torch.empty(0)] if "List" in str(argument.type) else torch.empty(0)
        elif not argument.has_default_value():
            given[argument.name] = 7
        elif changed:
            given[argument.name] = _other(argument.default_value)
    calls = []
    monkeypatch.setattr(ops, f"_{op}", lambda *args, **options: calls.append((args, options)))
    getattr(ops, op)(**given)
    [(args, options)] = calls
    defaults = {a.name: a.default_value for a in schema if a.has_default_value()}
    positional = [a.name for a in schema if not a.kwarg_only]
    received = {**defaults, **dict(zip(positional, args, strict=True)), **options}
    assert received.keys() == {a.name for a in schema}
    for name, value in {**defaults, **given}.items():
        assert received[name] is value or received[name] == value, name


@pytest.mark.parametrize("op", ops.__all__)
def test_docstring_names_every_argument(op):
    doc = inspect.getdoc(getattr(ops, op))
    shared = ops.__doc__
    for name in inspect.signature(getattr(ops, op)).parameters:
        assert re.search(rf"\b{name}\b.*: ", doc) or f"`{name}`" in shared


@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name):
    op, arguments = _sample(name)
    args, options = _as_positional(op, arguments)
    results = torch.library.opcheck(_overload(op), args, options)
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", NAMES)
def test_wrapper_passes_its_arguments_on(name):
    op, arguments = _sample(name)
    expected_result = _overload(op)(*_as_positional(op, arguments)[0], **_as_positional(op, arguments)[1])
    _, again = _sample(name)
    assert _equal(getattr(ops, op)(**again), expected_result)
    assert all(_equal(again[written], arguments[written]) for written in _written(op))


@pytest.mark.parametrize("name", NAMES)
def test_in_place_wrappers_bump_what_they_write_and_nothing_else(name):
    op, arguments = _sample(name)
    before = {n: [t._version for t in _tensors(value)] for n, value in arguments.items()}
    getattr(ops, op)(**arguments)
    for argument, value in arguments.items():
        bump = 1 if argument in _written(op) else 0
        assert [t._version for t in _tensors(value)] == [version + bump for version in before[argument]], argument


@pytest.mark.parametrize("name", NAMES)
def test_requires_grad_is_refused_before_anything_changes(name):
    op, arguments = _sample(name)
    floating = [n for n, value in arguments.items() if any(t.is_floating_point() for t in _tensors(value))]
    assert floating
    for argument in floating:
        _, arguments = _sample(name)
        _tensors(arguments[argument])[-1].requires_grad_()
        expected = f"{op}: no backward yet: an input requires grad and grad mode is on"
        with pytest.raises(RuntimeError, match=expected):
            getattr(ops, op)(**arguments)
        assert all(_equal(arguments[w], SAMPLES[name][1][w]) for w in _written(op))
        with torch.no_grad():
            getattr(ops, op)(**arguments)


@pytest.mark.parametrize("name", NAMES)
def test_inference_mode(name):
    op, arguments = _sample(name)
    expected = getattr(ops, op)(**arguments)
    with torch.inference_mode():
        _, again = _sample(name)
        assert _equal(getattr(ops, op)(**again), expected)
        assert all(_equal(again[written], arguments[written]) for written in _written(op))


@pytest.mark.parametrize("name", NAMES)
def test_compiled_whole_gives_the_same_bits(name):
    torch.compiler.reset()
    op, arguments = _sample(name)
    wrapper = getattr(ops, op)
    expected = wrapper(**arguments)
    _, again = _sample(name)
    compiled = torch.compile(lambda **call: wrapper(**call), fullgraph=True, backend="aot_eager")
    assert _equal(compiled(**again), expected)
    assert all(_equal(again[written], arguments[written]) for written in _written(op))


def _step(qkv, z, a, b, conv_weight, A_log, dt_bias, norm_weight, conv_state, state):
    """What a model's layer runs between its projections."""
    qkv = ops.causal_conv1d_(qkv, conv_weight, None, conv_state)
    q, k, v = qkv.split([H * K, H * K, HV * V], -1)
    g, beta = ops.gdn_gates(a, b, A_log, dt_bias)
    o = ops.gated_delta_rule_(
        q.unflatten(-1, (H, K)), k.unflatten(-1, (H, K)), v.unflatten(-1, (HV, V)), g, beta, state, qk_l2norm=True
    )
    return ops.gated_rms_norm(o, z, norm_weight)


def _step_arguments(tokens: int) -> list[torch.Tensor]:
    torch.manual_seed(tokens)
    return [
        _randn(N, tokens, C),
        _randn(N, tokens, HV, V),
        _randn(N, tokens, HV),
        _randn(N, tokens, HV),
        _randn(C, W),
        _randn(HV),
        _randn(HV),
        _randn(V),
        _randn(N, C, W),
        _randn(N, HV, K, V),
    ]


def test_inductor_compiles_a_layer_once_for_all_lengths():
    torch.compiler.reset()
    compiled = torch.compile(_step, fullgraph=True, dynamic=True)
    compiled(*_step_arguments(5))
    for tokens in (5, 9, 17):
        expected, got = _step_arguments(tokens), _step_arguments(tokens)
        with torch.compiler.set_stance("fail_on_recompile"):
            result = compiled(*got)
        assert _equal(result, _step(*expected))
        assert _equal(got[-2:], expected[-2:])


def test_export_with_dynamic_length():
    class Layer(torch.nn.Module):
        def forward(self, *arguments):
            return _step(*arguments)

    length = torch.export.Dim("tokens", min=2, max=4096)
    rows = {1: length}
    program = torch.export.export(
        Layer(), tuple(_step_arguments(6)), dynamic_shapes=((rows, rows, rows, rows, *[None] * 6),)
    )
    for tokens in (6, 11):
        expected, got = _step_arguments(tokens), _step_arguments(tokens)
        assert _equal(program.module()(*got), _step(*expected))
        assert _equal(got[-2:], expected[-2:])


@pytest.mark.parametrize(
    ("beside", "why"),
    [
        ("csrc/", "is the source tree, where none was built, and it stands before the installed package on sys.path"),
        ("strata_gdn/_C.abi3.so", f"it does not load with torch {torch.__version__}: "),
        ("", "the installation is incomplete; install strata_gdn again"),
    ],
)
def test_import_without_the_extension_says_why(beside, why, tmp_path):
    package = Path(strata_gdn.__file__).parent
    shutil.copytree(package, tmp_path / "strata_gdn", ignore=shutil.ignore_patterns("_C.*", "__pycache__"))
    if beside.endswith("/"):
        (tmp_path / beside).mkdir()
    elif beside:
        (tmp_path / beside).write_text("not a library")
    # -S: the finder of an editable install would lend the copy its extension.
    path = os.pathsep.join([str(tmp_path), str(Path(torch.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import strata_gdn"],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "ImportError: strata_gdn: the compiled extension strata_gdn._C cannot be imported: " in done.stderr
    assert why in done.stderr


def test_forward_mode_is_refused() -> None:
    """A tangent would silently become zero."""
    o = torch.randn(3, 64)
    with pytest.raises(RuntimeError, match="gated_rms_norm: no forward-mode derivative"):
        torch.func.jvp(lambda x: strata_gdn.gated_rms_norm(x, o, torch.ones(64)), (o,), (torch.ones_like(o),))

"""The Python side of the ops: wrappers, fake implementations, version counters, torch.compile and torch.export."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from calls import HV, C, H, K, N, V, W, tensors_of, written_names
from cases import CALLS, Call, call

import strata_gdn
from strata_gdn import _fakes, ops


def _overload(op: str) -> torch._ops.OpOverload:
    return getattr(torch.ops.strata_gdn, op).default


def _wrapper(made: Call) -> Callable:
    return getattr(ops, made.op)


def _as_positional(made: Call) -> tuple[list, dict]:
    """The arguments as the schema orders them."""
    schema = _overload(made.op)._schema.arguments
    args = [made.arguments.get(a.name, a.default_value) for a in schema if not a.kwarg_only]
    return args, {a.name: made.arguments[a.name] for a in schema if a.kwarg_only and a.name in made.arguments}


def _equal(left, right) -> bool:
    """Bits, structure and dtypes."""
    left, right = tensors_of(left), tensors_of(right)
    return len(left) == len(right) and all(
        x.dtype == y.dtype and x.shape == y.shape and torch.equal(x, y) for x, y in zip(left, right, strict=True)
    )


def _same_states(left: Call, right: Call) -> bool:
    """What two calls of an op have written, or not."""
    return all(_equal(left.arguments[name], right.arguments[name]) for name in written_names(left.op))


def _registered_ops() -> set[str]:
    names = (n.split("::") for n in torch._C._dispatch_get_all_op_names())
    return {op for namespace, op in names if namespace == "strata_gdn"}


def test_every_op_has_a_wrapper_a_fake_and_calls():
    assert _registered_ops() == set(ops.__all__) == set(_fakes._FAKES)
    assert {name.split()[0] for name in CALLS} == set(ops.__all__)
    assert all(getattr(strata_gdn, op) is getattr(ops, op) for op in ops.__all__)


def test_the_calls_use_every_argument():
    used = {(name.split()[0], n) for name in CALLS for n, value in call(name).arguments.items() if value is not None}
    assert used == {(op, argument.name) for op in ops.__all__ for argument in _overload(op)._schema.arguments}


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


@pytest.mark.parametrize("name", CALLS)
def test_opcheck(name):
    made = call(name)
    args, options = _as_positional(made)
    results = torch.library.opcheck(_overload(made.op), args, options)
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", CALLS)
def test_wrapper_passes_its_arguments_on(name):
    made = call(name)
    again = made.copy()
    args, options = _as_positional(made)
    expected = _overload(made.op)(*args, **options)
    assert _equal(_wrapper(again)(**again.arguments), expected)
    assert _same_states(again, made)


@pytest.mark.parametrize("name", CALLS)
def test_in_place_wrappers_bump_what_they_write_and_nothing_else(name):
    made = call(name)
    before = {n: [t._version for t in tensors_of(value)] for n, value in made.arguments.items()}
    _wrapper(made)(**made.arguments)
    for argument, value in made.arguments.items():
        bump = 1 if argument in written_names(made.op) else 0
        assert [t._version for t in tensors_of(value)] == [version + bump for version in before[argument]], argument


@pytest.mark.parametrize("name", CALLS)
def test_requires_grad_is_refused_before_anything_changes(name):
    made = call(name)
    floating = [n for n, value in made.arguments.items() if any(t.is_floating_point() for t in tensors_of(value))]
    assert floating
    for argument in floating:
        again = made.copy()
        tensors_of(again.arguments[argument])[-1].requires_grad_()
        expected = f"{made.op}: no backward yet: an input requires grad and grad mode is on"
        with pytest.raises(RuntimeError, match=expected):
            _wrapper(again)(**again.arguments)
        assert _same_states(again, made)
        with torch.no_grad():
            _wrapper(again)(**again.arguments)


@pytest.mark.parametrize("name", CALLS)
def test_inference_mode(name):
    made = call(name)
    with torch.inference_mode():
        again = made.copy()
        result = _wrapper(again)(**again.arguments)
    assert _equal(result, _wrapper(made)(**made.arguments))
    assert _same_states(again, made)


@pytest.mark.parametrize("name", CALLS)
def test_compiled_whole_gives_the_same_bits(name):
    torch.compiler.reset()
    made = call(name)
    again, wrapper = made.copy(), _wrapper(made)
    compiled = torch.compile(lambda **arguments: wrapper(**arguments), fullgraph=True, backend="aot_eager")
    assert _equal(compiled(**again.arguments), wrapper(**made.arguments))
    assert _same_states(again, made)


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
        torch.randn(N, tokens, C),
        torch.randn(N, tokens, HV, V),
        torch.randn(N, tokens, HV),
        torch.randn(N, tokens, HV),
        torch.randn(C, W),
        torch.randn(HV),
        torch.randn(HV),
        torch.randn(V),
        torch.randn(N, C, W),
        torch.randn(N, HV, K, V),
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

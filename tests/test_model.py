"""E4 where it is used: a model that is drafted for is the model, and so is every path of a tree through a layer."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import cases
import pytest
import torch
from cases import Call, Heads, index
from compare import assert_same_bits
from torch import Tensor

from strata_gdn import ops

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
ON_GPU = [needs_gpu, pytest.mark.xdist_group("cuda")]

TOKENS, MOST_DRAFTED, PROMPT_BYTES = 200, 8, 60


# A whole model


class Decoding:
    """The demo's model after a prompt, decoded plainly for TOKENS tokens: what drafting must not change a bit of."""

    def __init__(self, device: str) -> None:
        from strata_gdn import demo

        self.demo = demo
        self.model = demo.build_model(torch.device(device))
        self.start = demo.DynamicCache(config=self.model.config)
        prompt = demo.load_prompt(torch.device(device))[:, -PROMPT_BYTES:]
        after_prompt = self.model(prompt, past_key_values=self.start, logits_to_keep=1).logits[0, -1]
        self.end = copy.deepcopy(self.start)
        self.logits = demo._continue(self.model, self.end, after_prompt, TOKENS)  # row t: after t tokens
        self.choices = self.logits.argmax(-1).tolist()

    def drafted(self) -> tuple[Tensor, list[Tensor], list[tuple[int, int]]]:
        """The same with drafts of 1 to MOST_DRAFTED tokens, of which a random number is right.

        Returns the logits, all that is cached at the end, and (drafted, accepted) of each round, up to one in which the
        model takes another number of the tokens than are right.
        """
        cache, rows, rounds = copy.deepcopy(self.start), [self.logits[0]], []
        while (done := len(rows) - 1) < TOKENS:
            drafted = min(int(torch.randint(1, MOST_DRAFTED + 1, ())), TOKENS - done)
            right = int(torch.randint(drafted + 1, ()))
            draft = self.choices[done : done + right]
            draft += [
                (token + 1) % self.model.config.vocab_size for token in self.choices[done + right : done + drafted]
            ]
            logits, logs = self.demo._verify(self.model, cache, draft)
            choices = [int(rows[-1].argmax()), *logits.argmax(-1).tolist()]
            accepted = self.demo.common_prefix(draft, choices[:drafted])
            self.demo._keep(cache, logs, accepted, drafted)
            rows += logits[:accepted]
            rounds.append((drafted, accepted))
            if accepted != right:
                break
        return torch.stack(rows), self.demo._cached_tensors(cache), rounds


@pytest.fixture
def decoding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, threads: None) -> Iterator[Decoding]:
    """On a device, with so many layers."""
    pytest.importorskip("transformers", reason="the demo's model is of the optional transformers package")
    pytest.importorskip("tqdm", reason="the demo's progress bar is of the optional tqdm package")
    from strata_gdn import demo
    from strata_gdn.integrations import transformers as integration

    device, layers = request.param
    monkeypatch.setitem(demo.MODEL, "num_hidden_layers", layers)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(False)  # the model's own ops are not what is tested
    with torch.inference_mode(), integration.enable(precision="exact"):
        yield Decoding(device)


@pytest.mark.parametrize(
    "decoding", [("cpu", 8), pytest.param(("cuda", 8), marks=ON_GPU)], indirect=True, ids=["cpu", "cuda"]
)
def test_drafting_changes_no_bit(decoding: Decoding) -> None:
    logits, cached, rounds = decoding.drafted()
    assert_same_bits(logits, decoding.logits, "logits")
    for i, (actual, expected) in enumerate(zip(cached, decoding.demo._cached_tensors(decoding.end), strict=True)):
        assert_same_bits(actual, expected, f"cached tensor {i}")
    assert {drafted for drafted, _ in rounds} == set(range(1, MOST_DRAFTED + 1))
    assert any(accepted == 0 for _, accepted in rounds)
    assert any(0 < accepted < drafted for drafted, accepted in rounds)
    assert any(1 < accepted == drafted for drafted, accepted in rounds)


@pytest.mark.parametrize("decoding", [("cpu", 4)], indirect=True, ids=["cpu"])
def test_a_wrong_state_is_seen(decoding: Decoding, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: in one round of many, one head of one layer ends with other last bits."""
    own, made = ops.gated_delta_rule_commit_layers_, []

    def wrong(states: list[Tensor], *logs: list[Tensor]) -> None:
        made.append(1)
        own(states, *logs)
        if len(made) == 3:
            states[-1][:, -1] *= 1 + 2**-20

    monkeypatch.setattr(ops, "gated_delta_rule_commit_layers_", wrong)
    logits, cached, _ = decoding.drafted()
    assert not torch.equal(logits, decoding.logits)
    expected = decoding.demo._cached_tensors(decoding.end)
    assert any(not torch.equal(a, e) for a, e in zip(cached, expected, strict=True))


# A layer


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_GPU)])
@pytest.mark.parametrize("layout", ["kv", "vk"])
def test_every_path_of_a_tree_through_a_layer(layout: str, device: str) -> None:
    """Two sequences with a tree each; the paths to all tokens, taken side by side by as many copies of a sequence."""
    heads, batch, tokens = Heads(2, 6, 128, 128), 2, 8
    arguments = cases.layer(heads, batch, tokens, slots=batch, layout=layout) | {"state_layout": layout}
    parents = cases.tree(batch, tokens)
    arguments = Call("", arguments | {"parents": parents.to(torch.int32)}).copy(device).arguments
    y, *logs = ops.gdn_verify_layer(**arguments)
    del arguments["parents"]
    window, state = arguments.pop("conv_state"), arguments.pop("state")
    rows = {name: arguments.pop(name) for name in ("qkv", "z", "a", "b")}
    for n in range(batch):
        for token in range(tokens):
            path = cases.path_to(parents[n], token)
            pools = {"conv_state": window[n : n + 1].clone(), "state": state[n : n + 1].clone()}
            for t in path:
                stepped = ops.gdn_decode_layer_(
                    **{name: x[n : n + 1, t : t + 1] for name, x in rows.items()}, **arguments, **pools
                )
            assert_same_bits(y[n : n + 1, token : token + 1], stepped, f"y of token {token} of tree {n}")
            choice = {
                "accepted": index(len(path)).to(device), "path": index(cases.padded_path(path, tokens)).to(device),
            }  # fmt: skip
            committed, slid = state[n : n + 1].clone(), window[n : n + 1].clone()
            own = [log[n : n + 1] for log in logs]
            ops.gated_delta_rule_commit_(committed, *own, **choice, state_layout=layout)
            ops.causal_conv1d_commit_(slid, rows["qkv"][n : n + 1], **choice)
            assert_same_bits(committed, pools["state"], f"state after {path} of tree {n}")
            assert_same_bits(slid, pools["conv_state"], f"window after {path} of tree {n}")

"""Estimates of activation patching: exact where theory says so, near otherwise, by names that people use."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.methods.activation_patching import Direction, Patching, estimate_patching

DIRECTIONS: tuple[Direction, Direction] = ("noising", "denoising")


class Block(nn.Module):
    """Attention and an MLP, each added to the stream."""

    def __init__(self, width: int, heads: int, parallel: bool = False) -> None:
        super().__init__()
        self.heads, self.parallel = heads, parallel
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.o_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, places, width = x.shape
        split = (batch, places, self.heads, width // self.heads)
        q, k, v = (t.reshape(split).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        read = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        attended = self.o_proj(read.transpose(1, 2).reshape(x.shape))
        if self.parallel:
            return x + attended + self.mlp(self.norm(x))
        x = x + attended
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class Transformer(nn.Module):
    def __init__(self, parallel: bool = False) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(10, 16), nn.Parameter(torch.randn(6, 16))
        self.blocks = nn.Sequential(*(Block(16, 4, parallel) for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.blocks(self.embed(tokens) + self.places))[:, -1])
        return out


@pytest.fixture(scope="module")
def net() -> Transformer:
    torch.manual_seed(0)
    return Transformer().double()


@pytest.fixture(scope="module")
def explainer(net: Transformer) -> dt.Explainer:
    return dt.Explainer(net)


@pytest.fixture(scope="module")
def tokens() -> tuple[Tensor, Tensor]:
    clean = torch.randint(10, (2, 6), generator=torch.Generator().manual_seed(1))
    corrupted = clean.clone()
    corrupted[:, 1] = (corrupted[:, 1] + 3) % 10
    return clean, corrupted


def patch_by_hooks(
    net: nn.Module, layer: str, clean: Tensor, corrupted: Tensor, target: int, direction: str,
    side: str = "output", part: slice = slice(None), axis: int = -1,
) -> Tensor:  # fmt: skip
    """Patch a layer by hooks of PyTorch alone, and return how much its clean value raises the score."""
    kept: list[Tensor] = []
    source, base = (corrupted, clean) if direction == "noising" else (clean, corrupted)
    module = net.get_submodule(layer)

    def swap(value: Tensor) -> Tensor:
        if not kept:
            kept.append(value.clone())
            return value
        out = value.clone()
        out.movedim(axis, 0)[part] = kept[0].movedim(axis, 0)[part]
        return out

    with torch.no_grad():
        plain = net(base)[:, target]
        if side == "output":
            handle = module.register_forward_hook(lambda _, __, value: swap(value))
        else:
            handle = module.register_forward_pre_hook(lambda _, given: (swap(given[0]),))
        net(source)
        patched = net(base)[:, target]
        handle.remove()
    return plain - patched if direction == "noising" else patched - plain


def run_with_value(net: nn.Module, layer: str, x: Tensor, target: int) -> tuple[Tensor, Tensor]:
    """Return the scores, and the output of a layer."""
    kept: list[Tensor] = []
    handle = net.get_submodule(layer).register_forward_hook(lambda _, __, out: kept.append(out))
    score = net(x)[:, target]
    handle.remove()
    return score, kept[0]


# --- a transformer ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_all_that_is_added_to_the_stream_is_a_component(
    net: Transformer, explainer: dt.Explainer, tokens: tuple[Tensor, Tensor], direction: Direction
) -> None:
    found = estimate_patching(explainer, *tokens, 3, direction=direction)
    assert found.names == tuple(f"blocks.{k}.{part}" for k in range(3) for part in ("o_proj", "mlp"))
    assert found.estimate.shape == (2, 6)
    for name, measured in found.measured.items():
        torch.testing.assert_close(measured, patch_by_hooks(net, name, *tokens, 3, direction))
    assert set(found.measured) == set(found.names)
    assert found.verified is not None
    assert found.verified.correlation is not None
    assert found.verified.correlation > 0.99
    assert found.verified.error is not None
    assert found.verified.error < 0.1
    for k, name in enumerate(found.names):
        torch.testing.assert_close(found.position_map(name).sum(1), found.estimate[:, k])
    between = explainer.between(*tokens, 3)
    torch.testing.assert_close(between.at("blocks.1.mlp").flatten(1).sum(1), found.secant[:, 3])
    torch.testing.assert_close(found.score, between.score)
    torch.testing.assert_close(found.reference_score, between.reference_score)


def test_the_tangent_is_attribution_patching(
    net: Transformer, explainer: dt.Explainer, tokens: tuple[Tensor, Tensor]
) -> None:
    for direction, k in zip(DIRECTIONS, (0, 1), strict=True):
        found = estimate_patching(explainer, *tokens, 3, direction=direction, verify=0)
        score, value = run_with_value(net, "blocks.1.mlp", tokens[k], 3)
        (g,) = torch.autograd.grad(score.sum(), value)
        change = (value - run_with_value(net, "blocks.1.mlp", tokens[1 - k], 3)[1]) * (1 if k == 0 else -1)
        torch.testing.assert_close(found.tangent[:, 3], (g * change).flatten(1).sum(1).detach())


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_heads_are_parts_of_what_the_last_layer_reads(
    net: Transformer, explainer: dt.Explainer, tokens: tuple[Tensor, Tensor], direction: Direction
) -> None:
    site = dt.heads("blocks.*.o_proj", 4)
    found = estimate_patching(explainer, *tokens, 3, site, direction=direction, verify=12)
    assert found.names[5] == "blocks.1.o_proj head 1"
    for k, name in enumerate(found.names):
        layer, head = f"blocks.{k // 4}.o_proj", k % 4
        part = slice(4 * head, 4 * head + 4)
        true = patch_by_hooks(net, layer, *tokens, 3, direction, "input", part)
        torch.testing.assert_close(found.measured[name], true)
    assert found.verified is not None
    assert found.verified.error is not None
    assert found.verified.error < 0.1
    whole = estimate_patching(explainer, *tokens, 3, "blocks.*.o_proj", direction=direction, verify=0)
    for way in ("tangent", "secant"):
        torch.testing.assert_close(getattr(found, way).unflatten(1, (3, 4)).sum(2), getattr(whole, way))


def test_parallel_layers_are_components_of_the_same_sum(tokens: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(2)
    net = Transformer(parallel=True).double()
    found = estimate_patching(dt.Explainer(net), *tokens, 3)
    assert found.names == tuple(f"blocks.{k}.{part}" for k in range(3) for part in ("o_proj", "mlp"))
    for name, measured in found.measured.items():
        torch.testing.assert_close(measured, patch_by_hooks(net, name, *tokens, 3, "noising"))


def test_samples_do_not_see_each_other(explainer: dt.Explainer, tokens: tuple[Tensor, Tensor]) -> None:
    both = estimate_patching(explainer, *tokens, 3, verify=2)
    for k in range(2):
        alone = estimate_patching(explainer, *(t[k : k + 1] for t in tokens), 3, verify=0)
        torch.testing.assert_close(alone.estimate[0], both.estimate[k])


def test_a_margin_is_the_difference_of_two_classes(net: Transformer, tokens: tuple[Tensor, Tensor]) -> None:
    margin, one, other = (
        dt.patching(net, *tokens, *asked, **more, verify=0)  # type: ignore[arg-type]
        for asked, more in (((3,), {"against": 5}), ((3,), {}), ((5,), {}))
    )
    for way in ("tangent", "secant", "score"):
        torch.testing.assert_close(getattr(margin, way), getattr(one, way) - getattr(other, way))


def test_the_top_class_of_the_clean_input_is_the_default(net: Transformer, tokens: tuple[Tensor, Tensor]) -> None:
    clean, corrupted = (t[:1] for t in tokens)
    top = int(net(clean).argmax())
    torch.testing.assert_close(
        dt.patching(net, clean, corrupted, verify=0).estimate,
        dt.patching(net, clean, corrupted, top, verify=0).estimate,
    )


# --- where theory says exact ------------------------------------------------------------------------------------------


class OneSum(nn.Module):
    """score(x + component(x))."""

    def __init__(self, component: nn.Module, score: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.component, self.score = component, score

    def forward(self, x: Tensor) -> Tensor:
        return self.score(x + self.component(x))


def scaled(factor: float) -> nn.Module:
    layer = nn.Linear(4, 4, bias=False).double()
    layer.weight.data = factor * torch.eye(4, dtype=torch.float64)
    return layer


WEIGHTS = torch.tensor([[0.3, -1.2, 0.7, 2.0]], dtype=torch.float64)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("component", "score"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.Tanh()).double(), lambda h: (WEIGHTS * h).sum(1, keepdim=True)),
        (scaled(0.5), lambda h: (WEIGHTS * h * h).sum(1, keepdim=True)),
        (scaled(3.0), lambda h: (WEIGHTS * h * h).sum(1, keepdim=True)),
        (scaled(0.2), lambda h: ((WEIGHTS * h).sum(1, keepdim=True)) ** 2),
    ],
    ids=["linear score", "quadratic", "quadratic, a large share", "square of a sum"],
)
def test_exact_on_sums(component: nn.Module, score: Any, direction: Direction) -> None:
    torch.manual_seed(0)
    x, x0 = torch.randn(2, 3, 4, dtype=torch.float64)
    found = dt.patching(OneSum(component, score), x, x0, 0, direction=direction)
    (name,) = found.names
    torch.testing.assert_close(found.estimate[:, 0], found.measured[name], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_exact_where_everything_passes_through(direction: Direction) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.SiLU(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    x, x0 = torch.randn(2, 3, 4, dtype=torch.float64)
    found = dt.patching(net, x, x0, 1, at=["0", "1", "2", "3", "4"], direction=direction)
    for k, name in enumerate(found.names):
        torch.testing.assert_close(found.measured[name], found.score - found.reference_score)
        torch.testing.assert_close(found.estimate[:, k], found.measured[name], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_channels_of_a_network_that_is_linear_behind_them(direction: Direction) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(5, 2, 3), nn.Flatten(), nn.LazyLinear(4)
    ).double()
    x, x0 = torch.rand(2, 2, 3, 8, 8, dtype=torch.float64)
    net(x)
    net.eval()
    found = dt.patching(net, x, x0, 1, at=dt.channels("2"), direction=direction, verify=5)
    assert found.names == tuple(f"2 channel {k}" for k in range(5))
    assert found.position_map("2 channel 0").shape == (2, 6, 6)
    for k, name in enumerate(found.names):
        true = patch_by_hooks(net, "2", x, x0, 1, direction, part=slice(k, k + 1), axis=1)
        torch.testing.assert_close(found.measured[name], true)
        torch.testing.assert_close(found.estimate[:, k], true, rtol=1e-10, atol=1e-10)


def test_equal_inputs_change_nothing(explainer: dt.Explainer, tokens: tuple[Tensor, Tensor]) -> None:
    found = estimate_patching(explainer, tokens[0], tokens[0], 3)
    assert float(found.estimate.abs().max()) == 0
    assert found.verified is not None
    assert found.verified.correlation is None
    assert found.verified.error is None
    assert repr(found).endswith("none moves the score")


# --- edges ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [None, dt.heads("blocks.*.o_proj", 4)], ids=["blocks", "heads"])
def test_edges_add_up_to_the_secants_on_both_ends(
    explainer: dt.Explainer, tokens: tuple[Tensor, Tensor], at: Any
) -> None:
    found = estimate_patching(explainer, *tokens, 3, at, verify=0)
    edges = found.edges()
    count = len(found.names)
    assert edges.senders == ("input", *found.names)
    assert edges.receivers == (*found.names, "score")
    torch.testing.assert_close(edges.relevance[:, :count].sum(2), found.secant)
    torch.testing.assert_close(edges.relevance[:, :, 1:].sum(1), found.secant)
    torch.testing.assert_close(edges.relevance[:, count].sum(1), found.score - found.reference_score)
    later = torch.ones(count, count).triu(0).bool()  # nothing goes back to what was computed before
    assert float(edges.relevance[:, :count, 1:][:, later].abs().max()) == 0
    a, b, value = edges.rank(1)[0]
    assert value == pytest.approx(float(edges.relevance[0, edges.receivers.index(b), edges.senders.index(a)]))
    assert repr(edges).splitlines()[1].startswith(f"{a} → {b}: ")


def test_an_edge_of_a_linear_network_is_the_path_through_its_weights() -> None:
    class TwoSteps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.a(x)
            return x + self.b(x)

    torch.manual_seed(0)
    net = TwoSteps().double()
    x, x0 = torch.randn(2, 1, 3, dtype=torch.float64)
    edges = dt.patching(net, x, x0, 1, verify=0).edges()
    A, B, change = net.a.weight, net.b.weight, (x - x0)[0]
    expected = [
        [A.new_tensor(0.0), A.new_tensor(0.0), A.new_tensor(0.0)],
        [(B @ change)[1], (B @ A @ change)[1], A.new_tensor(0.0)],
        [change[1], (A @ change)[1], (B @ (change + A @ change))[1]],
    ]
    expected[0][0] = ((torch.eye(3, dtype=torch.float64) + B) @ A @ change)[1]
    torch.testing.assert_close(edges.relevance[0], torch.stack([torch.stack(row) for row in expected]).detach())


# --- what it says -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(explainer: dt.Explainer, tokens: tuple[Tensor, Tensor]) -> Patching:
    return estimate_patching(explainer, *tokens, 3, verify=3)


def test_the_table_has_the_largest_first(found: Patching) -> None:
    lines = repr(found).splitlines()
    assert lines[0].startswith("What the score loses if one component is patched (noising; clean ")
    assert lines[1].split() == ["component", "estimate", "tangent", "secant", "measured"]
    assert [line.split()[0] for line in lines[2:8]] == [name for name, _ in found.rank()]
    assert lines[-1].startswith("patched for real, 3 components: correlation ")
    largest = [abs(value) for _, value in found.rank()]
    assert largest == sorted(largest, reverse=True)


def test_verify_measures_only_what_is_new(found: Patching, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []
    own = type(found).measure

    def measure(self: Patching, name: str) -> Tensor:
        measured.append(name)
        return own(self, name)

    monkeypatch.setattr(Patching, "measure", measure)
    again = found.verify(5)
    assert len(measured) == 2
    assert list(again.measured)[:3] == list(found.measured)


def test_it_can_be_written_to_a_file_without_its_network(found: Patching) -> None:
    again = pickle.loads(pickle.dumps(found))
    assert repr(again) == repr(found)
    with pytest.raises(dt.InputError, match="without their network"):
        again.verify(6)


def test_it_is_drawn_by_component_and_place(found: Patching) -> None:
    pytest.importorskip("matplotlib")
    figure = found.plot()
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(found.names)
    assert axes.images[0].get_array().shape[:2] == (6, 6)
    assert found._repr_html_().startswith("<pre>What the score loses")
    assert '<img src="data:image/png;base64,' in found._repr_html_()
    assert found.edges().plot().axes[0].get_xticklabels()[0].get_text() == "input"


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        ({"at": "blocks.7.mlp"}, dt.BoundaryError, "no node or module 'blocks.7.mlp'. Did you mean 'blocks.2.mlp'"),
        ({"at": "layers.*"}, dt.BoundaryError, "No module matches 'layers.*'. There are 'embed'"),
        ({"at": dt.heads("blocks.0.o_proj", 5)}, dt.InputError, "16 features, which do not divide into 5 equal parts"),
        ({"at": ["blocks.0.mlp", "blocks.*.mlp"]}, dt.InputError, "names a component twice"),
        ({"direction": "both"}, dt.InputError, "direction must be 'noising' or 'denoising'; got 'both'"),
        ({"target": [1, 2]}, dt.TargetError, "give one target, not several"),
        ({"target": dt.log_odds(1)}, dt.TargetError, "one score per sample"),
        ({"target": 12}, dt.TargetError, "12"),
    ],
)
def test_bad_questions(explainer: dt.Explainer, tokens: Any, more: dict[str, Any], error: Any, said: str) -> None:
    with pytest.raises(error, match=re.escape(said)):
        estimate_patching(explainer, *tokens, **{"target": 3, **more})


def test_inputs_of_two_lengths(explainer: dt.Explainer, tokens: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(dt.InputError, match=re.escape("must have the same shape") + r".*\(2, 6\) and \(2, 5\)"):
        estimate_patching(explainer, tokens[0], tokens[1][:, :5], 3)


def test_a_network_without_a_stream() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    with pytest.raises(dt.InputError, match=r"No residual stream was found in this network.*'0', '1', '2'"):
        dt.patching(net, torch.ones(1, 4), torch.zeros(1, 4), 0)


def test_no_head() -> None:
    with pytest.raises(dt.InputError, match="at least one head"):
        dt.heads("o_proj", 0)


def test_a_component_that_the_target_does_not_depend_on() -> None:
    class TwoEnds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 1), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.a(x), self.b(x)], 1)

    found = dt.patching(TwoEnds(), torch.ones(1, 4), torch.zeros(1, 4), 0, at=["a", "b"])
    assert float(found.estimate[0, 1]) == 0
    assert float(found.measured["b"]) == 0

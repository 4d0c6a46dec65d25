"""Operations in odd forms: each is explained, or refused in words that say what, where and what to do; never raw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt

torch.manual_seed(0)
W = torch.randn(6, 6)
V = torch.randn(6)


class Net(nn.Module):
    """Two layers, and a forward that puts something odd between or around them."""

    def __init__(self, forward: Callable[..., Tensor], inside: int = 6) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.a, self.b = nn.Linear(6, inside), nn.Linear(6, 4)
        self.conv, self.out = nn.Conv2d(6, 5, 3), nn.Linear(5, 3)
        self.odd = forward

    def forward(self, *x: Tensor) -> Tensor:
        return self.odd(self, *x)


def rows(dtype: torch.dtype = torch.float32) -> Tensor:
    torch.manual_seed(1)
    return torch.rand(3, 6, dtype=dtype)


def words() -> Tensor:
    torch.manual_seed(1)
    return torch.rand(3, 5, 6)


def images() -> Tensor:
    torch.manual_seed(1)
    return torch.rand(2, 3, 8, 8)


def same_map(one: Callable[..., Tensor], other: Callable[..., Tensor], x: Tensor, domain: Any = None) -> None:
    first, second = (dt.explain(Net(f), x, None, domain, bias="neuron") for f in (one, other))
    assert bool((first.relevance != 0).any())
    torch.testing.assert_close(first.relevance, second.relevance, rtol=1e-5, atol=1e-6)


# --- what works now -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("equation", "other"),
    [
        ("bij->bj", lambda h: h.sum(1)),
        ("bij->bi", lambda h: h.sum(2)),
        ("bij->bji", lambda h: h.transpose(1, 2)),
        ("bij", lambda h: h),
        ("...j->...", lambda h: h.sum(-1)),
        ("b...->b...", lambda h: h),
        ("ij...", lambda h: h.permute(2, 0, 1)),
        ("bij->b", lambda h: h.sum((1, 2))),
    ],
)
def test_einsum_of_one_operand_is_a_sum_and_a_permutation(equation: str, other: Callable[[Tensor], Tensor]) -> None:
    def ended(respelled: Callable[[Tensor], Tensor]) -> Callable[[Net, Tensor], Tensor]:
        def forward(net: Net, x: Tensor) -> Tensor:
            y = respelled(F.relu(net.a(x)))
            y = y.movedim(1, 0) if equation == "ij..." else y
            y = y.unsqueeze(1) if y.ndim == 1 else y.flatten(1)
            return y @ torch.linspace(-1, 2, y.shape[1] * 3).reshape(-1, 3)

        return forward

    same_map(ended(lambda h: torch.einsum(equation, h)), ended(other), words())


@pytest.mark.parametrize(
    ("equation", "order"),
    [("bi,ij,jk->bk", "hWW"), ("ij,bi,jk->bk", "WhW"), ("ij,jk,bi->bk", "WWh"), ("bi,ij,jk,kl", "hWWW")],
)
def test_einsum_of_data_and_constants_goes_pair_by_pair(equation: str, order: str) -> None:
    def many(net: Net, x: Tensor) -> Tensor:
        h = F.relu(net.a(x))
        return torch.einsum(equation, *[h if c == "h" else W for c in order])

    def pairs(net: Net, x: Tensor) -> Tensor:
        h = F.relu(net.a(x))
        for _ in range(order.count("W")):
            h = torch.einsum("bi,ij->bj", h, W)
        return h

    same_map(many, pairs, rows())


def test_an_ellipsis_that_is_only_implied_in_the_result() -> None:
    same_map(lambda net, x: torch.einsum("...i,ij", F.relu(net.a(x)), W), lambda net, x: F.relu(net.a(x)) @ W, rows())


COORDS = torch.stack(torch.meshgrid(torch.linspace(-1, 1, 8), torch.linspace(-1, 1, 8), indexing="ij"))
EXTRA: dict[str, Callable[[Tensor], list[Tensor]]] = {
    "CoordConv": lambda x: [x, COORDS.expand(x.shape[0], -1, -1, -1), x[:, :1]],
    "ones_like": lambda x: [x, torch.ones_like(x)],
    "zeros of the batch": lambda x: [x, torch.zeros(x.shape[0], 3, 8, 8)],
    "a negative constant first": lambda x: [torch.full_like(x, -2.0), x],
    "new_ones": lambda x: [x.new_ones(x.shape), x],
}
BOXES = [dt.Box(0.0, 1.0), dt.Box([0.0, -0.1, 0.0], [1.0, 1.0, 2.0]), dt.NonNegative(), dt.Real()]


@pytest.mark.parametrize("name", EXTRA)
@pytest.mark.parametrize("domain", BOXES, ids=["box", "box a channel", "positive", "real"])
def test_constant_channels_beside_the_input(name: str, domain: dt.Domain) -> None:
    def once(net: Net, x: Tensor) -> Tensor:
        return net.out(F.relu(net.conv(torch.cat(EXTRA[name](x), 1))).mean((2, 3)))

    def twice(net: Net, x: Tensor) -> Tensor:
        y = torch.cat(EXTRA[name](x), 1)
        return net.out(F.relu(net.conv(y)).mean((2, 3)) + F.relu(net.conv(y.flip(3))).amax((2, 3)))

    for forward in (once, twice):
        check = dt.explain(Net(forward), images(), 1, domain, bias="neuron").check()
        assert check.accounted
        assert check.positive


@pytest.mark.parametrize(
    "forward",
    [
        lambda net, x: net.b(F.relu(net.a(x) * V)),
        lambda net, x: F.linear(F.relu(net.a(x)), W.to(x.dtype)),
        lambda net, x: net.b(torch.einsum("bi,ij->bj", F.relu(net.a(x)).float(), W).double()),
        lambda net, x: net.b(F.linear(F.relu(net.a(x)).float(), W, V).double()),
        lambda net, x: net.b(torch.cat([net.a(x)[:, :3], V[:3].expand(x.shape[0], 3)], 1)),
        lambda net, x: net.b(F.avg_pool1d(net.a(x).float().unsqueeze(1), 3, 1, 1).squeeze(1).double()),
        lambda net, x: net.b(F.layer_norm(net.a(x).float(), (6,), V).double()),
        lambda net, x: net.b(F.pad(net.a(x).float(), (1, 0), value=-2.0)[:, :6].double()),
        lambda net, x: net.b(F.softmax(net.a(x), 1, dtype=torch.float32).double()),
    ],
)
def test_constants_of_float32_in_a_network_of_doubles(forward: Callable[..., Tensor]) -> None:
    x = rows(torch.float64)
    network = Net(forward).double()
    e = dt.explain(network, x, 1, bias="neuron")
    assert e.relevance.dtype is torch.float64
    assert e.check().accounted
    torch.testing.assert_close(e.score, network(x)[:, 1].detach(), rtol=1e-5, atol=1e-6)


def test_a_table_of_constants_keeps_the_digits_it_was_computed_with() -> None:
    """Positions in doubles, rounded at the end, as transformers write them."""

    def forward(net: Net, x: Tensor) -> Tensor:
        positions = torch.sin(torch.arange(6, dtype=torch.float64) * 12345.678).float()
        return net.b(F.relu(net.a(x)) + positions)

    network = Net(forward)
    torch.testing.assert_close(
        dt.explain(network, rows(), 1, bias="neuron").score, network(rows())[:, 1].detach(), rtol=0, atol=1e-6
    )


def test_the_signal_of_a_matrix_product_can_be_chosen() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        h = F.relu(net.a(x))
        return (h.transpose(1, 2) @ F.relu(net.b(x))).flatten(1)

    with pytest.raises(dt.UnsupportedOpError, match=r"give 'matmul' the rule Signal\(0\)"):
        dt.explain(Net(forward), words(), bias="neuron")
    maps = [
        dt.explain(Net(forward), words(), None, rules={"matmul": dt.rules.Signal(k)}, bias="neuron") for k in (0, 1)
    ]
    assert all(e.check().accounted for e in maps)
    assert not torch.allclose(maps[0].relevance, maps[1].relevance)


def test_where_of_a_tensor_and_itself() -> None:
    same_map(
        lambda net, x: net.b(F.relu(net.a(torch.where(x > 0.5, x, x)))),
        lambda net, x: net.b(F.relu(net.a(x))),
        rows(),
        dt.Box([0.0] * 6, [1.0] * 6),
    )


@pytest.mark.parametrize(
    "forward",
    [
        lambda net, x: net.b(F.relu(net.a(x)) / x.shape[0]),
        lambda net, x: net.b(F.relu(net.a(x)) * x.shape[0] + x.shape[0]),
        lambda net, x: net.b((x.shape[0] - F.relu(net.a(x))) * 2),
    ],
)
def test_numbers_that_follow_the_batch_size(forward: Callable[..., Tensor]) -> None:
    network, x = Net(forward), rows()
    explainer = dt.Explainer(network, x, bias="neuron")
    for batch in (x, x[:1]):
        e = explainer.explain(batch, 1)
        torch.testing.assert_close(e.score, network(batch)[:, 1].detach())
        assert e.check().accounted


# --- what is refused ------------------------------------------------------------------------------------------------


def two_branches(net: Net, x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda t: net.b(t) + 1, lambda t: net.b(2 * t), (x,))


def gated_by_branches(net: Net, x: Tensor) -> Tensor:
    return net.b(net.a(x) * torch.sigmoid(torch.cond(x.sum() > 0, lambda t: t + 1, lambda t: t - 1, (x,))))


REFUSED: list[tuple[Callable[..., Tensor], Callable[[], Tensor], list[str]]] = [
    (lambda net, x: torch.einsum("bii->bi", F.relu(net.a(x))[:, :5, :5]) @ torch.ones(5, 3), words, ["einsum"]),
    (lambda net, x: torch.einsum("bii->b", F.relu(net.a(x))[:, :5, :5]), words, ["einsum"]),
    (lambda net, x: torch.einsum("bi,bi,bi->b", x, net.a(x), x), rows, ["einsum of 3 data tensors"]),
    (lambda net, x: torch.einsum("bi,bi->b", x, x), rows, ["einsum: a matrix times itself"]),
    (lambda net, x: torch.bmm(x, x).flatten(1), lambda: torch.rand(2, 4, 4), ["bmm: a matrix times itself"]),
    (lambda net, x: (x @ x).flatten(1), lambda: torch.rand(2, 4, 4), ["matmul: a matrix times itself"]),
    (two_branches, rows, ["control flow by the data's values", "cond: at cond", "torch.where"]),
    (gated_by_branches, rows, ["control flow by the data's values", "cond: at cond", "torch.where"]),
    (lambda net, x: net.b(F.relu(net.a(x)).sort(-1)[0]), rows, ["sort: no rule for sort; at sort ("]),
    (lambda net, x: net.b(net.a(x).min(1)[0]), words, ["min: no rule for min"]),
    (lambda net, x: net.b(net.a(x) - torch.var_mean(net.a(x), 1, keepdim=True)[1]), rows, ["var_mean"]),
    (lambda net, x: net.b(net.a(x) - torch.std_mean(net.a(x), 1, keepdim=True)[1]), rows, ["std_mean"]),
    (lambda net, x: net.b(torch.cat(x.tensor_split(3, 1)[::-1], 1)), rows, ["1 operation(s)", "tensor_split"]),
    (lambda net, x: F.avg_pool1d(F.relu(net.a(x)), 2).mean(2).cumsum(1), words, ["cumsum"]),
    (lambda net, x: F.avg_pool2d(F.relu(x), 2, divisor_override=-3).flatten(1), images, ["avg_pool2d"]),
    (
        lambda net, x: net.b(torch.fft.rfft(F.relu(net.a(x.sort(-1)[0])).cumsum(1)).real @ torch.ones(4, 6)),
        rows,
        ["4 operation(s)", "sort: no rule", "cumsum: no rule", "fft_rfft: no rule", "real: no rule"],
    ),
    (
        lambda net, x: net.b(net.a(h := x.cumsum(1)) * net.a(h.flip(1))),
        rows,
        ["2 operation(s)", "Signal(0)", "cumsum: no rule"],
    ),
]


@pytest.mark.parametrize(("forward", "x", "parts"), REFUSED, ids=[r[2][-1] for r in REFUSED])
def test_what_has_no_rule_is_named(forward: Any, x: Callable[[], Tensor], parts: list[str]) -> None:
    with pytest.raises(dt.UnsupportedOpError) as error:
        dt.Explainer(Net(forward), x(), bias="neuron")
    said = str(error.value)
    for part in (*parts, "What to do"):
        assert part in said, said
    assert "getitem" not in said


def test_a_bag_of_embeddings_comes_with_a_way_around_it() -> None:
    bag = nn.Sequential(nn.EmbeddingBag(10, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(dt.UnsupportedOpError, match=r"write nn\.EmbeddingBag as nn\.Embedding and a mean, or sum"):
        dt.explain(bag, torch.tensor([[1, 2, 3]]))


def unbatched(net: Net, x: Tensor) -> Tensor:
    return net.b(F.relu(net.a(x)))


@pytest.mark.parametrize(
    ("forward", "x"),
    [
        (lambda net, x: net.b(F.relu(net.a(x)).mean(0)), torch.rand(5, 3, 6)),
        (unbatched, torch.rand(6)),
        (lambda net, x: F.relu(F.conv2d(x, torch.ones(5, 3, 3, 3))).mean((1, 2)), torch.rand(3, 8, 8)),
    ],
    ids=["sequence first", "one row", "one image"],
)
def test_samples_that_are_not_along_the_first_axis(forward: Any, x: Tensor) -> None:
    with pytest.raises(dt.CaptureError, match=r"(?s)other samples.*transpose\(0, 1.*batch of one, x\.unsqueeze\(0\)\."):
        dt.explain(Net(forward), x, bias="neuron")


def test_a_picture_without_a_batch_is_named() -> None:
    forward = lambda net, x: F.relu(F.conv2d(x, torch.ones(5, 3, 3, 3))).flatten() @ torch.ones(180, 3)  # noqa: E731
    with pytest.raises(dt.CaptureError, match="conv2d computes across the samples"):
        dt.explain(Net(forward), torch.rand(3, 8, 8), bias="neuron")


def test_the_ways_out_that_are_named() -> None:
    first = Net(lambda net, x: net.b(F.relu(net.a(x)).mean(0)))
    turned = Net(lambda net, x: first(x.transpose(0, 1)))
    assert dt.explain(turned, words(), 1, bias="neuron").check().accounted
    one = Net(unbatched)
    e = dt.explain(Net(lambda net, x: one(x.reshape(6)).unsqueeze(0)), rows()[:1], bias="neuron")
    torch.testing.assert_close(e.relevance, dt.explain(one, rows()[:1], bias="neuron").relevance)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda: rows().to_sparse(), r"is sparse \(sparse_coo\).*x\.to_dense\(\)"),
        (lambda: rows().to_sparse_csr(), r"is sparse \(sparse_csr\).*x\.to_dense\(\)"),
    ],
    ids=["coo", "csr"],
)
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_inputs_without_plain_memory(given: Callable[[], Tensor], said: str) -> None:
    x, explainer = given(), dt.Explainer(Net(unbatched), rows(), bias="neuron")
    for ask in (
        lambda: dt.Explainer(Net(unbatched), x, bias="neuron"),
        lambda: explainer.explain(x),
        lambda: explainer(x),
    ):
        with pytest.raises(dt.InputError, match=said):
            ask()


def test_meta_tensors_have_nothing_to_explain() -> None:
    with pytest.raises(dt.InputError, match=r"The example is a meta tensor.*no values"):
        dt.Explainer(Net(unbatched).to("meta"), rows().to("meta"), bias="neuron")
    with pytest.raises(dt.InputError, match=r"The example is a meta tensor.*no values"):
        dt.Explainer(nn.ReLU(), rows().to("meta"), bias="neuron")
    with pytest.raises(dt.InputError, match="network is on cpu"):
        dt.Explainer(Net(unbatched), rows().to("meta"), bias="neuron")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_mask_of_whole_numbers_has_no_type_to_hand_on(dtype: torch.dtype) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embed, self.head = nn.Embedding(9, 6), nn.Linear(6, 2)

        def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
            v = self.embed(tokens)
            hidden = ((1 - mask) * -1e4).to(v.dtype)
            return self.head(torch.softmax(v @ v.mT + hidden[:, None], -1) @ v).sum(1).exp()

    network = Masked().to(dtype).eval()
    tokens, mask = torch.arange(8).reshape(2, 4), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    e = dt.explain(network, (tokens, mask), target=0)
    assert e.score.dtype is dtype
    assert e.check().accounted
    b = dt.Explainer(network).between((tokens, mask), (torch.zeros_like(tokens), None), 0)
    assert b.check().accounted


# --- norms with parameters that are computed --------------------------------------------------------------------------

MEAN, VAR = (torch.linspace(a, b, 6, dtype=torch.float64) for a, b in ((-1, 1), (0.5, 2)))
WIDE = torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64)
COMPUTED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "group norm, scaled": lambda s, x: F.group_norm(x, 2, s.b.weight[0] * 3, s.b.weight[1] * 2),
    "group norm, scaled a little": lambda s, x: F.group_norm(x, 2, s.b.weight[0] * 1.001, None),
    "group norm, repeated": lambda s, x: F.group_norm(x, 3, s.b.weight[0, :3].repeat_interleave(2)),
    "one group, joined": lambda s, x: F.group_norm(x, 1, torch.cat([s.b.weight[0, :3], s.b.weight[1, :3]])),
    "batch norm": lambda s, x: F.batch_norm(x, MEAN, VAR, s.b.weight[0] * 2, s.b.weight[1] * 2),
    "batch norm, bias alone": lambda s, x: F.batch_norm(x, MEAN, VAR, None, s.b.weight[1] * 2),
    "batch norm, statistics": lambda s, x: F.batch_norm(x, MEAN * 2, VAR + 1),
    "instance norm": lambda s, x: F.instance_norm(
        x[..., None] * WIDE, None, None, s.b.weight[0] * 2, s.b.weight[1] * 2
    ).amax(2),
    "instance norm, statistics": lambda s, x: F.instance_norm(
        x[..., None] * WIDE, MEAN * 2, VAR + 1, s.b.weight[0] * 2, use_input_stats=False
    ).amax(2),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPUTED)
def test_a_norm_reads_parameters_that_are_computed(name: str) -> None:
    network = Net(lambda s, x: s.b(COMPUTED[name](s, s.a(x)))).double()
    x = rows(torch.float64)
    expected = network(x)[:, 1].detach()
    torch.testing.assert_close(dt.explain(network, x, 1, bias="neuron").score, expected, rtol=1e-12, atol=1e-12)


def test_a_norm_with_parameters_of_the_batch_size_is_refused() -> None:
    for norm in (
        lambda s, x: F.group_norm(x, 2, s.b.weight[0] * x.shape[0]),
        lambda s, x: F.batch_norm(x, MEAN, VAR, None, s.b.weight[0] * x.shape[0]),
        lambda s, x: F.instance_norm(x[..., None] * WIDE, None, None, s.b.weight[0] * x.shape[0]).amax(2),
    ):
        with pytest.raises(dt.UnsupportedOpError, match="norm"):
            dt.explain(
                Net(lambda s, x, norm=norm: s.b(norm(s, s.a(x)))).double(), rows(torch.float64), 1, bias="neuron"
            )


# --- division by zero -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zero", [0, 0.0, -0.0, torch.tensor(0.0)], ids=["int", "float", "negative", "tensor"])
def test_a_division_by_zero_is_refused_in_words(zero: Any) -> None:
    with pytest.raises(dt.DeepTaylorError, match="infinite values or NaN"):
        dt.explain(Net(lambda s, x: s.b(s.a(x)) / zero), rows(), 1, bias="neuron")
    with pytest.raises(dt.DeepTaylorError, match="not finite"):
        dt.explain(Net(lambda s, x: s.b(s.a(x))), rows(), lambda o: o[:, 0] / zero, bias="neuron")


# --- sums with a factor -----------------------------------------------------------------------------------------------

FACTORS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "number": (lambda h: torch.rsub(h, 2, alpha=3), lambda h: 2 - 3 * h),
    "tensor": (lambda h: torch.rsub(h, V, alpha=3), lambda h: V - 3 * h),
    "data": (lambda h: torch.rsub(h, h.flip(1), alpha=3), lambda h: torch.sub(h.flip(1), h, alpha=3)),
    "itself": (lambda h: torch.rsub(h, h, alpha=3), lambda h: torch.sub(h, h, alpha=3)),
}


@pytest.mark.parametrize("name", FACTORS)
def test_a_turned_difference_has_its_factor(name: str) -> None:
    one, other = FACTORS[name]
    same_map(lambda s, x: s.b(one(s.a(x))), lambda s, x: s.b(other(s.a(x))), rows())

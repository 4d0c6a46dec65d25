"""What reads operations that are written out in several steps: each module by itself, and which targets are linear."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.graph.editing import constant_of
from deeptaylor.operations import layers, max_pooling, products, properties, scaling, sums
from deeptaylor.operations.table import find_data_nodes, row_of
from graphs import Fixed, by_hand, captured_of, node_of, operations, value_of
from rows import IMAGE, LINE, drawn

aten = torch.ops.aten

# --- scaling: + − × ÷ by constants ------------------------------------------------------------------------------------

X = torch.tensor([[1.0, -2.0, 4.0], [0.5, 8.0, -16.0]], dtype=torch.float64)
C = torch.tensor([2.0, -4.0, 0.5], dtype=torch.float64)  # powers of two: nothing is rounded
NONE = None


def scaled(captured: CapturedGraph, rewrite: Callable[..., None]) -> tuple[Tensor | None, Tensor | None]:
    """The scale and the shift that an operation became."""
    rewrite(captured, captured.output, find_data_nodes(captured))
    assert operations(captured)[-1] == "scale_shift"
    node = captured.output
    scale, shift = (constant_of(captured, a) for a in node.args[1:])
    return scale, shift


SUMS = {
    "x + c": (scaling.scale_by_sum(1), aten.add.Tensor, (X, Fixed(C)), {}, NONE, C),
    "x + α c": (scaling.scale_by_sum(1), aten.add.Tensor, (X, Fixed(C)), {"alpha": 4}, NONE, 4 * C),
    "c + α x": (scaling.scale_by_sum(1), aten.add.Tensor, (Fixed(C), X), {"alpha": 4}, 4.0, C),
    "x + number": (scaling.scale_by_sum(1), aten.add.Scalar, (X, 0.5), {}, NONE, 0.5),
    "x − α c": (scaling.scale_by_sum(-1), aten.sub.Tensor, (X, Fixed(C)), {"alpha": 2}, NONE, -2 * C),
    "c − α x": (scaling.scale_by_sum(-1), aten.sub.Tensor, (Fixed(C), X), {"alpha": 2}, -2.0, C),
    "rsub(x, c) = c − α x": (
        scaling.scale_by_sum(-1, reverse=True), aten.rsub.Tensor, (X, Fixed(C)), {"alpha": 2}, -2.0, C,
    ),
    "rsub(c, x) = x − α c": (
        scaling.scale_by_sum(-1, reverse=True), aten.rsub.Tensor, (Fixed(C), X), {"alpha": 2}, NONE, -2 * C,
    ),
    "number − x": (scaling.scale_by_sum(-1, reverse=True), aten.rsub.Scalar, (X, 0.5), {}, -1.0, 0.5),
    "number − α x": (scaling.scale_by_sum(-1, reverse=True), aten.rsub.Scalar, (X, 0.5, 4), {}, -4.0, 0.5),
    "x + α number": (scaling.scale_by_sum(1), aten.add.Scalar, (X, 0.5, 4), {}, NONE, 2.0),
    "x − α number": (scaling.scale_by_sum(-1), aten.sub.Scalar, (X, 0.5, 4), {}, NONE, -2.0),
    "c x": (scaling.scale_by_product, aten.mul.Tensor, (Fixed(C), X), {}, C, NONE),
    "x number": (scaling.scale_by_product, aten.mul.Scalar, (X, -0.25), {}, -0.25, NONE),
    "x / c": (scaling.scale_by_quotient, aten.div.Tensor, (X, Fixed(C)), {}, 1 / C, NONE),
    "x / number": (scaling.scale_by_quotient, aten.div.Scalar, (X, -4.0), {}, -0.25, NONE),
    "−x": (scaling.scale_by_sign, aten.neg.default, (X,), {}, -1.0, NONE),
}  # fmt: skip


@pytest.mark.parametrize("name", SUMS)
def test_an_operation_with_a_constant_is_a_scale_and_a_shift(name: str) -> None:
    rewrite, target, args, kwargs, *wanted = SUMS[name]
    captured = by_hand(target, *args, **kwargs)
    expected = captured.output.meta["val"]
    assert row_of(captured.output).rewrites["scale"].__qualname__ == rewrite.__qualname__
    for found, want in zip(scaled(captured, rewrite), wanted, strict=True):
        if want is None or found is None:
            assert found is want
        else:  # of as many axes as x, or a number
            shape = [1, *C.shape] if isinstance(want, Tensor) else []
            assert torch.equal(found, torch.as_tensor(want, dtype=torch.float64).reshape(shape))
    assert torch.equal(value_of(captured, X), expected)


@pytest.mark.parametrize(
    ("rewrite", "example"),
    [
        (scaling.scale_by_sum(1), (aten.add.Tensor, X, X.flip(0))),
        (scaling.scale_by_product, (aten.mul.Tensor, X, X.flip(0))),
        (scaling.scale_by_quotient, (aten.div.Tensor, Fixed(C), X)),
        (scaling.scale_by_sign, (aten.neg.default, torch.tensor([[1, 2]]))),
        (scaling.scale_by_sum(1), (aten.add.Scalar, torch.tensor([[1, 2]]), 1)),
    ],
    ids=["two data tensors", "two factors", "a constant over data", "whole numbers", "whole numbers and one"],
)
def test_what_is_no_scale_and_shift_stays(rewrite: Callable[..., None], example: tuple[object, ...]) -> None:
    captured = by_hand(*example)  # type: ignore[arg-type]
    rewrite(captured, captured.output, find_data_nodes(captured))
    assert captured.output.target is example[0]


def test_a_quotient_that_is_rounded_is_no_scale() -> None:
    captured = by_hand(aten.div.Tensor_mode, X, Fixed(C), rounding_mode="floor")
    scaling.scale_by_quotient(captured, captured.output, find_data_nodes(captured))
    assert captured.output.target is aten.div.Tensor_mode


def test_a_number_that_follows_the_batch_is_a_scale_all_the_same() -> None:
    captured = captured_of(lambda x: x / x.shape[0], X)
    scaling.scale_by_quotient(captured, captured.output, find_data_nodes(captured))
    assert captured.output.target.__name__ == "scale_shift"
    for batch in (2, 5):
        x = drawn(batch, 3)
        torch.testing.assert_close(value_of(captured, x), x / batch)


# --- centrings --------------------------------------------------------------------------------------------------------


def centred(program: Callable[..., Tensor], x: Tensor) -> list[str]:
    captured = captured_of(program, x)
    expected = value_of(captured, x)
    sums.put_centring(captured, node_of(captured, "sub"), find_data_nodes(captured))
    captured.graph.eliminate_dead_code()
    torch.testing.assert_close(value_of(captured, x), expected)
    return operations(captured)


def test_a_difference_from_the_mean_is_a_centring() -> None:
    assert centred(lambda x: x - x.mean((-1, -2), keepdim=True), IMAGE) == ["centre"]


def test_the_axes_of_a_centring_are_brought_to_the_end_and_back() -> None:
    assert centred(lambda x: x - x.mean(1, keepdim=True), LINE) == ["permute", "centre", "permute"]


def test_a_norm_by_hand_divides_first_and_centres_then() -> None:
    def norm(x: Tensor) -> Tensor:
        return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt()

    assert centred(norm, LINE) == ["var", "add", "sqrt", "div", "centre"]


# --- einsums ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("equation", "words"),
    [("bij->bji", ["permute"]), ("bij->jb", ["sum", "permute"]), ("...j->...", ["sum", "permute"])],
)
def test_an_einsum_of_one_tensor_is_a_sum_and_a_permutation(equation: str, words: list[str]) -> None:
    captured = captured_of(lambda x: torch.einsum(equation, x), LINE)
    products.rewrite_einsum(captured, node_of(captured, "einsum"), find_data_nodes(captured))
    assert operations(captured) == words
    torch.testing.assert_close(value_of(captured, LINE), torch.einsum(equation, LINE))


def test_an_einsum_of_many_goes_pair_by_pair_with_constants_first() -> None:
    w, v = drawn(6, 3), drawn(3, 5)
    captured = by_hand(aten.einsum.default, "io,bti,oh", [Fixed(w), LINE, Fixed(v)])
    products.rewrite_einsum(captured, captured.output, find_data_nodes(captured))
    pairs = [n.args[0] for n in captured.graph.nodes if n.target is aten.einsum.default]
    assert pairs == ["bti,io->bto", "bto,oh->bht"]
    torch.testing.assert_close(value_of(captured, LINE), torch.einsum("io,bti,oh", w, LINE, v))


def test_a_diagonal_stays_an_einsum() -> None:
    captured = by_hand(aten.einsum.default, "bii->bi", [drawn(2, 3, 3)])
    products.rewrite_einsum(captured, captured.output, find_data_nodes(captured))
    assert operations(captured) == ["einsum"]


# --- layers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rewrite", "program"),
    [
        (layers.make_layer_of_matmul, lambda s, x: x @ s.a.weight.mT),
        (layers.make_layer_of_einsum, lambda s, x: torch.einsum("bti,oi->bot", x, s.a.weight)),
        (layers.make_layer_of_einsum, lambda s, x: torch.einsum("bti,ti->b", x, s.b.weight)),
        (layers.make_layer_of_tensordot, lambda s, x: torch.tensordot(x, s.b.weight, ([1, 2], [0, 1]))),
        (layers.make_layer_of_sum, lambda s, x: (x * s.b.weight).sum((1, 2))),
        (layers.make_layer_of_sum, lambda s, x: (x * s.b.weight).mean((1, 2))),
    ],
    ids=["matmul", "einsum", "einsum of two axes", "tensordot", "multiply and sum", "multiply and mean"],
)
def test_a_product_with_a_constant_is_a_linear_layer(
    rewrite: Callable[..., None], program: Callable[..., Tensor]
) -> None:
    captured = captured_of(program, LINE, a=nn.Linear(6, 3), b=nn.Linear(6, 4))
    for node in list(captured.graph.nodes):  # a transposed weight is a constant, as it is once that is evaluated
        if node.target is aten.mT.default:
            node.replace_all_uses_with(captured.add_constant(captured.constants[str(node.args[0].target)].mT, node))
    expected = value_of(captured, LINE)
    rewrite(captured, captured.output, find_data_nodes(captured))
    captured.graph.eliminate_dead_code()
    assert operations(captured).count("linear") == 1
    torch.testing.assert_close(value_of(captured, LINE), expected)


def test_a_product_that_would_mix_samples_is_no_layer() -> None:
    captured = by_hand(aten.einsum.default, "bti,bo->tio", [LINE, Fixed(drawn(2, 3))])
    layers.make_layer_of_einsum(captured, captured.output, find_data_nodes(captured))
    assert operations(captured) == ["einsum"]


# --- L^p pooling ------------------------------------------------------------------------------------------------------


def test_a_pooling_is_found_from_its_root_with_its_factor() -> None:
    x = IMAGE.abs()
    captured = captured_of(lambda x: (F.avg_pool2d(x.pow(3), 2) * 4).pow(1 / 3), x)
    max_pooling.rewrite_lp_pool(captured, captured.output, find_data_nodes(captured))
    captured.graph.eliminate_dead_code()
    assert operations(captured) == ["lp_pool"]
    torch.testing.assert_close(value_of(captured, x), F.lp_pool2d(x, 3, 2))
    scaled = captured_of(lambda x: F.avg_pool2d(x.square(), 2).sqrt(), x)
    max_pooling.rewrite_lp_pool(scaled, scaled.output, find_data_nodes(scaled))
    scaled.graph.eliminate_dead_code()
    assert operations(scaled) == ["lp_pool", "mul"]
    assert scaled.output.args[1] == pytest.approx(0.5)


def test_a_padded_pooling_is_left_as_it_is() -> None:
    captured = captured_of(lambda x: F.avg_pool2d(x.square(), 2, padding=1).sqrt(), IMAGE)
    max_pooling.rewrite_lp_pool(captured, captured.output, find_data_nodes(captured))
    assert operations(captured)[-1] == "sqrt"


# --- targets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("example", "wanted"),
    [
        ((aten.sum.dim_IntList, LINE, [1]), True),
        ((aten.add.Tensor, LINE, LINE), True),
        ((aten.mul.Tensor, LINE, Fixed(LINE)), True),
        ((aten.mul.Tensor, LINE, LINE), False),
        ((aten.div.Tensor, LINE, Fixed(LINE)), True),
        ((aten.div.Tensor, Fixed(LINE), LINE), False),
        ((aten.gather.default, LINE, 1, Fixed(torch.zeros(2, 1, 6, dtype=torch.long))), True),
        ((aten.exp.default, LINE), False),
    ],
)
def test_linear_is_what_is_linear_in_what_is_given(example: tuple[object, ...], wanted: bool) -> None:
    captured = by_hand(*example)  # type: ignore[arg-type]
    assert properties.is_linear(captured.output, captured.inputs) == wanted

"""Every pass by itself: the graph computes what it computed, in the words that the pass promises."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from deeptaylor.passes import (
    arithmetic,
    centring,
    einsums,
    fold,
    lp_pools,
    merge,
    moves,
    one_type,
    packed,
    products,
    rewrite,
    spellings,
)
from graphs import captured_of, node_of, operations, value_of


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_arithmetic_finds_the_rectifier_in_a_maximum() -> None:
    x = drawn(2, 3)
    captured = captured_of(lambda x: torch.maximum(x, torch.zeros_like(x)), x)
    arithmetic.short_words(captured)
    captured.graph.eliminate_dead_code()
    assert operations(captured) == ["relu"]
    assert torch.equal(value_of(captured, x), x.relu())


def test_centring_makes_a_difference_from_the_mean_one_operation() -> None:
    x = drawn(2, 3)
    captured = captured_of(lambda x: x - x.mean(-1, keepdim=True), x)
    centring.centrings(captured)
    captured.graph.eliminate_dead_code()
    assert operations(captured) == ["centre"]
    torch.testing.assert_close(value_of(captured, x), x - x.mean(-1, keepdim=True))


def test_einsums_of_one_tensor_are_a_sum_and_a_permutation() -> None:
    x = drawn(2, 3, 4, 5)
    captured = captured_of(lambda x: torch.einsum("b...i->ib", x.sum(1)), x)
    einsums.respell(captured, node_of(captured, "einsum"))
    assert operations(captured) == ["sum", "sum", "permute"]
    torch.testing.assert_close(value_of(captured, x), x.sum((1, 2)).T)


def test_fold_puts_a_normalisation_into_the_layer_before_it() -> None:
    x, norm = drawn(2, 3, 4, 4), nn.BatchNorm2d(5)
    nn.init.uniform_(norm.running_var, 0.5, 2)
    nn.init.uniform_(norm.running_mean)
    captured = captured_of(lambda s, x: s.norm(s.conv(x)), x, conv=nn.Conv2d(3, 5, 3), norm=norm)
    rewrite.rewrite(captured)
    assert operations(captured) == ["conv2d", "scale_shift"]
    expected = value_of(captured, x)
    fold.fold(captured, set())
    assert operations(captured) == ["conv2d"]
    torch.testing.assert_close(value_of(captured, x), expected)


def test_lp_pools_are_found_where_they_are_written_out() -> None:
    x = drawn(2, 3, 4, 4).abs()
    captured = captured_of(lambda x: (nn.functional.avg_pool2d(x.pow(3), 2) * 4).pow(1 / 3), x)
    rewrite._evaluate(captured)
    lp_pools.lp_pools(captured)
    captured.graph.eliminate_dead_code()
    assert operations(captured) == ["lp_pool"]
    torch.testing.assert_close(value_of(captured, x), nn.functional.lp_pool2d(x, 3, 2))


def test_merge_makes_a_layer_and_its_update_one() -> None:
    x, layers = drawn(2, 4), {"whole": nn.Linear(4, 5), "a": nn.Linear(4, 1, bias=False), "b": nn.Linear(1, 5)}
    captured = captured_of(lambda s, x: s.whole(x) + s.b(s.a(x)), x, **layers)
    expected = value_of(captured, x)
    assert merge.merge_update(captured, node_of(captured, "add"))
    assert operations(captured) == ["linear"]
    torch.testing.assert_close(value_of(captured, x), expected)


def test_moves_carry_constants_there_and_back() -> None:
    x = drawn(2, 3, 4)
    captured = captured_of(lambda x: x.transpose(1, 2).reshape(-1, 12).relu(), x)
    base, found = moves.below(node_of(captured, "relu").args[0])
    assert base is captured.inputs[0]
    assert [moves.is_move(n) for n in found] == [True, True]
    above = torch.arange(12.0).reshape(1, 12)
    there = moves.downwards(base, found, above)
    assert torch.equal(there, torch.arange(12.0).reshape(1, 4, 3).mT)
    assert torch.equal(moves.upwards(base, found, there), above)
    assert moves.downwards(base, found, torch.arange(24.0).reshape(2, 12)) is None  # another for each sample


def test_one_type_brings_constants_to_the_type_of_the_input() -> None:
    x = drawn(2, 3)
    captured = captured_of(lambda x: x * torch.full((3,), 2.0, dtype=torch.float32), x)
    rewrite.rewrite(captured)
    (name,) = [str(n.target) for n in captured.graph.nodes if n.op == "get_attr"]
    assert captured.constants[name].dtype is torch.float32
    one_type.one_type(captured)
    assert captured.constants[name].dtype is torch.float64
    assert torch.equal(value_of(captured, x), x * 2)


def test_packed_queries_keys_and_values_become_a_layer_each() -> None:
    def attend(s: nn.Module, x: Tensor) -> Tensor:
        q, k, v = s.all(x).chunk(3, -1)
        return nn.functional.scaled_dot_product_attention(q, k, v)

    x = drawn(2, 3, 4)
    captured = captured_of(attend, x, all=nn.Linear(4, 12))
    rewrite.rewrite(captured)
    assert operations(captured).count("linear") == 1
    expected = value_of(captured, x)
    packed.split(captured)
    assert operations(captured).count("linear") == 3
    torch.testing.assert_close(value_of(captured, x), expected)


def test_products_with_a_constant_become_a_linear_layer() -> None:
    x, w = drawn(2, 3), drawn(3, 4)
    captured = captured_of(lambda x: x @ w, x)
    products.constant_products(captured)
    captured.graph.eliminate_dead_code()
    assert operations(captured)[-1] == "linear"
    torch.testing.assert_close(value_of(captured, x), x @ w)


def test_rewrite_drops_identities_and_computes_constants_once() -> None:
    x = drawn(2, 3)
    captured = captured_of(lambda x: nn.functional.dropout(x, 0.5, False).clone() + torch.ones(3).sin().exp(), x)
    rewrite.rewrite(captured)
    assert operations(captured) == ["scale_shift"]
    torch.testing.assert_close(value_of(captured, x), x + torch.ones(3).sin().exp())


def test_spellings_cut_a_norm_where_relevance_needs_it_cut() -> None:
    x = drawn(2, 3, 4)
    captured = captured_of(lambda s, x: s.norm(x), x, norm=nn.LayerNorm(4))
    spellings.canonical(captured)
    captured.graph.eliminate_dead_code()
    assert operations(captured) == ["divide_by_std", "centre"]
    torch.testing.assert_close(value_of(captured, x), nn.functional.layer_norm(x, (4,)))

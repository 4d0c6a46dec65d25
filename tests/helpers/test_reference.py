"""The reference's graphs are right: blocks, rules and pooling by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import reference
from reference import Domain, Graph


def test_materialise() -> None:
    # One dimension, kernel (1, 2, 3), padding 1: y_j = x_{j−1} + 2 x_j + 3 x_{j+1} + 4.
    kernel, bias = torch.tensor([[[1.0, 2.0, 3.0]]]).double(), torch.tensor([4.0]).double()
    W, b = reference.materialise(lambda x: nn.functional.conv1d(x, kernel, bias, padding=1), (1, 3))
    np.testing.assert_array_equal(W, [[2, 1, 0], [3, 2, 1], [0, 3, 2]])
    np.testing.assert_array_equal(b, [4, 4, 4])


def linear(W: Sequence[Sequence[float]], b: Sequence[float] | float = 0.0) -> Callable[[Tensor], Tensor]:
    """x @ W + b with W (inputs, units)."""
    weight, offset = torch.tensor(W, dtype=torch.float64), torch.as_tensor(b, dtype=torch.float64)
    return lambda x: x @ weight + offset


def explain(graph: Graph, x: Sequence[float], **options: object) -> dict[str, list[float]]:
    """One sample, one output: everything as lists."""
    result = graph.explain(torch.tensor([x], dtype=torch.float64), **{"target": 0, **options})
    total = result.at["input"].sum() + result.bias[0] + result.dropped[0]
    assert total == pytest.approx(max(0.0, result.score[0]), abs=1e-13)
    flat = {name: R.reshape(-1).tolist() for name, R in result.at.items()}
    return {**flat, "bias": [result.bias[0]], "dropped": [result.dropped[0]]}


def start(kind: str = "nonnegative", low: float = 0.0, high: float = 0.0) -> Graph:
    graph = Graph()
    graph.input("input", Domain(kind, low, high))
    return graph


def relu_then_output(g: Graph, operand: str, W: Sequence[Sequence[float]]) -> None:
    g.activation("relu", torch.relu, operand, rectifier=True)
    g.affine("out", linear(W), "relu", kind="linear")


def same(found: dict[str, list[float]], expected: dict[str, Sequence[float]]) -> None:
    """Every expected boundary, and no other; bias and dropped are zero unless expected."""
    wanted = {"bias": [0], "dropped": [0], **expected}
    assert set(found) == set(wanted)
    for name, R in wanted.items():
        np.testing.assert_allclose(found[name], R, rtol=0, atol=1e-13, err_msg=name)


def two_branches() -> Graph:
    g = start()
    g.affine("left", linear([[1], [1]]), "input", kind="linear")
    g.affine("right", linear([[2], [-1]], 1), "input", kind="linear")
    g.affine("add", torch.add, "left", "right", kind="sum")
    return g


def test_branches_share_one_denominator_and_each_path_counts() -> None:
    # x = (1, 2): left gives 1, 2; right gives 2, −2; bias 1; z = 4. Denominator 1+2+2+0+1 = 6.
    # x_0 = (1+2)/6·4 = 2, x_1 = 2/6·4, bias 1/6·4. Summed weights (3, 0) would give x_0 = 3/4·4.
    g = two_branches()
    relu_then_output(g, "add", [[1]])
    same(explain(g, [1, 2]), {"relu": [4], "add": [4], "input": [2, 4 / 3], "bias": [2 / 3]})
    # Spread: fifths of 4.
    same(explain(g, [1, 2], bias="spread"), {"relu": [4], "add": [4], "input": [12 / 5, 8 / 5]})


def test_paths_that_end_in_the_score_are_one_weight() -> None:
    # The same two branches are the score: u = (3, 0), b = 1, f = 4.
    same(explain(two_branches(), [1, 2]), {"input": [3, 0], "bias": [1]})


def test_spread_goes_down_the_block_when_nothing_is_active() -> None:
    # x = 0: the unit lives on its bias 1. `+` halves, then squares 1 : 1 and 4 : 1, of R = 1.
    g = two_branches()
    relu_then_output(g, "add", [[1]])
    expected = {"relu": [1], "add": [1], "input": [1 / 4 + 2 / 5, 1 / 4 + 1 / 10]}
    same(explain(g, [0, 0], bias="spread"), expected)
    same(explain(g, [0, 0]), {"relu": [1], "add": [1], "input": [0, 0], "bias": [1]})


def test_spread_leaves_out_operands_without_weights() -> None:
    # Unit 0 of `left` is not connected, so `right` takes it all there, by 1 : 1; unit 1 is connected on both sides.
    # x = 0, biases (2, 2): R = (2, 2). Unit 0: right (1, 1). Unit 1: left gets 1 by 9 : 1, right gets 1 by 0 : 4.
    g = start()
    g.affine("left", linear([[0, 3], [0, 1]], [2, 2]), "input", kind="linear")
    g.affine("right", linear([[1, 0], [1, 2]]), "input", kind="linear")
    g.affine("add", torch.add, "left", "right", kind="sum")
    relu_then_output(g, "add", [[1], [1]])
    expected = {"relu": [2, 2], "add": [2, 2], "input": [1 + 0.9, 1 + 0.1 + 1]}
    same(explain(g, [0, 0], bias="spread"), expected)


def test_spread_halves_a_sum_whatever_its_weights() -> None:
    # a + 2 c + 1 at zero: 1/2 to each all the same, although the squared weights are 1 : 4.
    g = start()
    g.activation("a", torch.relu, "input", rectifier=True)
    g.activation("c", nn.functional.relu6, "input", rectifier=True)
    g.affine("add", lambda a, c: a + 2 * c, "a", "c", kind="sum")
    g.affine("shift", lambda x: x + 1, "add", kind="diagonal")
    relu_then_output(g, "shift", [[1]])
    same(explain(g, [0], bias="spread"), {"relu": [1], "shift": [1], "a": [0.5], "c": [0.5], "input": [1]})


def test_spread_splits_the_score_by_squares() -> None:
    # Two paths to one unit: u = (1+2, 1−1) = (3, 0) at x = 0, f = b = 1.
    same(explain(two_branches(), [0, 0], bias="spread"), {"input": [1, 0]})


def test_constants_under_spread() -> None:
    # Units without any weight: +1 is a constant's relevance. Its own unit cannot be given back.
    g = start()
    g.affine("fc", linear([[0, 1]], [1, 0]), "input", kind="linear")
    relu_then_output(g, "fc", [[1], [1]])
    same(explain(g, [2], bias="spread"), {"relu": [1, 2], "fc": [1, 2], "input": [2], "bias": [1]})
    # w² has no bias neuron, but a unit without weights is a constant in both modes.
    g = start("real")
    g.affine("fc", linear([[0, 1]], [1, 0]), "input", kind="linear")
    relu_then_output(g, "fc", [[1], [1]])
    same(explain(g, [2]), {"relu": [1, 2], "fc": [1, 2], "input": [2], "bias": [1]})
    same(explain(g, [2], bias="spread"), {"relu": [1, 2], "fc": [1, 2], "input": [2], "bias": [1]})


def test_a_negative_unit_is_explained_by_its_negative_contributions() -> None:
    # z = 2·1 − 1·4 − 1 = −3, tanh keeps the sign, the output weight is −1: f = tanh(3) = t, R_z = t.
    # s = −1: q = (0, 4), β = 1.
    g = start()
    g.affine("fc", linear([[2], [-1]], -1), "input", kind="linear")
    g.activation("tanh", torch.tanh, "fc")
    g.affine("out", linear([[-1]]), "tanh", kind="linear")
    t = math.tanh(3)
    same(explain(g, [1, 4]), {"tanh": [t], "fc": [t], "input": [0, 4 / 5 * t], "bias": [t / 5]})


def test_a_rectified_unit_below_zero_keeps_its_sign() -> None:
    # x = (3, 0): z = (−3, −3), relu (0, 0), and the score is the output's bias 3: by squares, R = (1.5, 1.5).
    # Each unit has s = +1, so q = max(0, w x) = 0, and is split by squares again.
    # Unit 0, weights (−1, 2): (1, 4)/5; unit 1, weights (−1, 1): halves. With s = −1, input 0 would take all.
    g = start()
    g.affine("fc", linear([[-1, -1], [2, 1]]), "input", kind="linear")
    g.activation("relu", torch.relu, "fc", rectifier=True)
    g.affine("out", linear([[1], [1]], 3), "relu", kind="linear")
    expected = {"relu": [1.5, 1.5], "fc": [1.5, 1.5], "input": [0.3 + 0.75, 1.2 + 0.75]}
    same(explain(g, [3, 0], bias="spread"), expected)
    # Without the mark the unit is signed, and −3 is explained by input 0.
    g = start()
    g.affine("fc", linear([[-1, -1], [2, 1]]), "input", kind="linear")
    g.activation("relu", torch.relu, "fc")
    g.affine("out", linear([[1], [1]], 3), "relu", kind="linear")
    same(explain(g, [3, 0], bias="spread"), {"relu": [1.5, 1.5], "fc": [1.5, 1.5], "input": [3, 0]})


def test_real_input_takes_squared_weights_without_bias() -> None:
    # z = 1·1 + 2·1 + 5 = 8: squares 1 : 4 whatever the bias.
    g = start("real")
    g.affine("fc", linear([[1], [2]], 5), "input", kind="linear")
    relu_then_output(g, "fc", [[1]])
    same(explain(g, [1, 1]), {"relu": [8], "fc": [8], "input": [8 / 5, 32 / 5]})


def test_real_input_beside_another_leaf_is_signed() -> None:
    # relu(x) = (2, 0); z = x·(1, 1) + relu(x)·(3, 3) = (2 − 1) + 6 = 7.
    # Leaves x and relu: q = (2, 0) from x, (6, 0) from relu: all to x_0 in the end.
    g = start("real")
    g.activation("first", torch.relu, "input", rectifier=True)
    g.affine("a", linear([[1], [1]]), "input", kind="linear")
    g.affine("b", linear([[3], [3]], 1), "first", kind="linear")
    g.affine("add", torch.add, "a", "b", kind="sum")
    relu_then_output(g, "add", [[1]])
    # Denominator 2 + 6 + 1 = 9 of z = 8.
    expected = {"relu": [8], "add": [8], "first": [16 / 3, 0], "input": [16 / 9 + 16 / 3, 0], "bias": [8 / 9]}
    same(explain(g, [2, -1]), expected)


def test_box_is_transformed_with_the_normalisation() -> None:
    # x in [0, 1], x' = 2x − 1 in [−1, 1]; x = (1, 1/4), x' = (1, −1/2), weights (1, −2): z = 2.
    # q = ((1+1)·1, (−1/2−1)·(−2)) = (2, 3); the constant −1 of the normalisation is no bias (folded it would be +1).
    g = start("box", 0.0, 1.0)
    g.affine("normalise", lambda x: 2 * x - 1, "input", kind="diagonal")
    g.affine("fc", linear([[1], [-2]]), "normalise", kind="linear")
    relu_then_output(g, "fc", [[1]])
    expected = {"relu": [2], "fc": [2], "normalise": [4 / 5, 6 / 5], "input": [4 / 5, 6 / 5]}
    same(explain(g, [1, 0.25]), expected)
    # Not in a box the same node is folded: z = 2 x_0 − 4 x_1 + 1: q = (2, 0), β = 1.
    g = start()
    g.affine("normalise", lambda x: 2 * x - 1, "input", kind="diagonal")
    g.affine("fc", linear([[1], [-2]]), "normalise", kind="linear")
    relu_then_output(g, "fc", [[1]])
    same(explain(g, [1, 0.25]), {"relu": [2], "fc": [2], "input": [4 / 3, 0], "bias": [2 / 3]})


def test_box_turned_round_by_a_negative_scale() -> None:
    # x in [0, 1], x' = 1 − 2x in [−1, 1]; x = (0, 3/4), x' = (1, −1/2): as before, q = (2, 3) of z = 2.
    g = start("box", 0.0, 1.0)
    g.affine("turn", lambda x: 1 - 2 * x, "input", kind="diagonal")
    g.affine("fc", linear([[1], [-2]]), "turn", kind="linear")
    relu_then_output(g, "fc", [[1]])
    expected = {"relu": [2], "fc": [2], "turn": [4 / 5, 6 / 5], "input": [4 / 5, 6 / 5]}
    same(explain(g, [0, 0.75]), expected)


def test_box_of_a_negative_unit() -> None:
    # Box [−1, 1], x = (0, 1/2), weights (1, −2), b = 0: z = −1, s = −1: q of (−1, 2) = (1, 3). f = tanh(1).
    g = start("box", -1.0, 1.0)
    g.affine("fc", linear([[1], [-2]]), "input", kind="linear")
    g.activation("tanh", torch.tanh, "fc")
    g.affine("out", linear([[-1]]), "tanh", kind="linear")
    t = math.tanh(1)
    same(explain(g, [0, 0.5]), {"tanh": [t], "fc": [t], "input": [t / 4, 3 * t / 4]})
    with pytest.raises(ValueError, match="leaves its box"):
        explain(g, [0, 1.5])


def norm_then(kind: str) -> Graph:
    g = start()
    g.norm("norm", "input", 1, torch.ones(2).double(), torch.tensor([1.0, 0.0]).double(), 0.0, kind="layer_norm")
    g.affine("fc", linear([[2], [1]]), "norm", kind=kind)
    return g


def test_layer_norm_folds_into_the_one_linear_layer_that_reads_it() -> None:
    # x = (3, 1): σ = 1, u = (3, 1), C u = (1, −1), y = (2, −1), z = 2·2 − 1 = 3.
    # Folded: W C = (1/2, −1/2), bias W β = 2: q = (3/2, 0), β = 2: (3/7, 0, 4/7) of 3.
    g = norm_then("linear")
    same(explain(g, [3, 1]), {"norm/u": [9 / 7, 0], "input": [9 / 7, 0], "bias": [12 / 7]})
    # Not folded into a convolution: score q = (4, 0), all 3 to y_0 = 3/2 − 1/2 + 1: q = 3/2, β = 1.
    g = norm_then("convolution")
    same(explain(g, [3, 1]), {"norm": [3, 0], "norm/u": [9 / 5, 0], "input": [9 / 5, 0], "bias": [6 / 5]})
    # Read twice: not folded either. The rectifiers keep the two readers apart.
    g = norm_then("linear")
    g.affine("fc2", linear([[1], [0]]), "norm", kind="linear")
    g.activation("a", torch.relu, "fc", rectifier=True)
    g.activation("b", torch.relu, "fc2", rectifier=True)
    g.affine("out", torch.add, "a", "b", kind="sum")
    # f = 3 + 2; fc gives 3 to y_0, fc2 gives 2 to y_0: 5, of which 3/5 to u_0.
    found = explain(g, [3, 1])
    assert found["norm"] == pytest.approx([5, 0])
    assert found["input"] == pytest.approx([3, 0])
    # Read by a gate as well: not folded; as for the convolution, all to y_0, of which 3/5 to u_0.
    g = norm_then("linear")
    g.affine("fc2", linear([[1], [0]]), "norm", kind="linear")
    g.activation("open", torch.sigmoid, "fc2")
    g.gate("mul", torch.mul, "fc", "open")
    f = 3 / (1 + math.exp(-2))
    expected = {"norm": [f, 0], "norm/u": [3 / 5 * f, 0], "input": [3 / 5 * f, 0], "bias": [2 / 5 * f]}
    expected |= {"mul": [f], "fc": [f]}
    same(explain(g, [3, 1]), expected)


def test_diagonal_after_a_weighted_operation_belongs_to_it() -> None:
    # fc1: z = x + 1 = 3; bn: 2 z − 4 = 2 (folded: 2 x − 2); fc2: weight 1, bias 0; relu; R = 2.
    # The leaf of fc2 is bn (all of 2); then q = 4, β = 0: all to x.
    # Were bn folded into fc2 (2 z − 4), fc1 would be the leaf: z = x + 1 gives the bias 1/3.
    g = start()
    g.affine("fc1", linear([[1]], 1), "input", kind="linear")
    g.affine("bn", lambda x: 2 * x - 4, "fc1", kind="diagonal")
    g.affine("fc2", linear([[1]]), "bn", kind="linear")
    relu_then_output(g, "fc2", [[1]])
    same(explain(g, [2]), {"relu": [2], "fc2": [2], "bn": [2], "input": [2]})


def test_diagonal_before_a_weighted_operation_folds_also_when_squared() -> None:
    # relu(x) = (0, 0), bn = (3, 1)·x + (1, 0), fc = (1, 1): folded (3, 1) x + 1. R = 1, by squares 9 : 1.
    g = start()
    g.activation("first", torch.relu, "input", rectifier=True)
    scale, shift = torch.tensor([3.0, 1.0]).double(), torch.tensor([1.0, 0.0]).double()
    g.affine("bn", lambda x: x * scale + shift, "first", kind="diagonal")
    g.affine("fc", linear([[1], [1]]), "bn", kind="linear")
    relu_then_output(g, "fc", [[1]])
    expected = {"relu": [1], "fc": [1], "first": [0.9, 0.1], "input": [0.9, 0.1]}
    same(explain(g, [0, 0], bias="spread"), expected)
    # Before an average it is no fold but a block of its own: bn = (1, 0) gets all at bn_0 and passes it on.
    g = start()
    g.activation("first", torch.relu, "input", rectifier=True)
    g.affine("bn", lambda x: x * scale + shift, "first", kind="diagonal")
    g.affine("mean", lambda x: x.mean(dim=1, keepdim=True), "bn", kind="average")
    relu_then_output(g, "mean", [[2]])
    expected = {"relu": [1], "mean": [1], "bn": [1, 0], "first": [1, 0], "input": [1, 0]}
    same(explain(g, [0, 0], bias="spread"), expected)


def test_a_sum_below_a_mixing_operation_ends_a_block_of_its_own() -> None:
    # a = relu(x) = (3, 1), read twice, and c = (−2 a_1, a_1): a + c = (1, 2), mean 3/2, of which a + c has 1/2 and 1.
    # (a + c)_0 = a_0 − 2 a_1: q = (3, 0), all to a_0. (a + c)_1 = a_1 + a_1: all to a_1.
    # Were the sum inside the mean's block, a_0 : a_1 : c_1 would share 3 : 1 : 1.
    g = start()
    g.activation("a", torch.relu, "input", rectifier=True)
    g.affine("c", linear([[0, 0], [-2, 1]]), "a", kind="linear")
    g.affine("add", torch.add, "a", "c", kind="sum")
    g.affine("mean", lambda x: x.mean(dim=1, keepdim=True), "add", kind="average")
    relu_then_output(g, "mean", [[1]])
    same(explain(g, [3, 1]), {"relu": [1.5], "mean": [1.5], "add": [0.5, 1], "a": [0.5, 1], "input": [0.5, 1]})


def test_one_mixing_operation_a_path() -> None:
    # Two linear layers without anything between: the first one's output is a leaf, with signed units.
    # x = 1: h = (2, −3), z = 2·1 + (−3)·(−1) = 5: q = (2, 3); R = 5: h = (2, 3); each to x: (2+3).
    g = start()
    g.affine("h", linear([[2, -3]]), "input", kind="linear")
    g.affine("flat", lambda x: x.flip(1), "h", kind="structural")
    g.affine("fc", linear([[-1], [1]]), "flat", kind="linear")
    relu_then_output(g, "fc", [[1]])
    same(explain(g, [1]), {"relu": [5], "fc": [5], "h": [2, 3], "input": [5]})


def test_a_tensor_read_twice_is_a_leaf() -> None:
    # x = 1, h = x + 1 = 2, f = h + relu(h) = 4: h has 2 from each reader, and halves it between x and the bias.
    g = start()
    g.affine("h", lambda x: x + 1, "input", kind="diagonal")
    g.activation("relu", torch.relu, "h", rectifier=True)
    g.affine("out", torch.add, "h", "relu", kind="sum")
    same(explain(g, [1]), {"relu": [2], "h": [4], "input": [2], "bias": [2]})


def test_structural_nodes_carry_relevance_back_and_constants_book_it() -> None:
    # x = (1, 2) padded with a constant 3; the square is read through a gate, so the padding stands alone.
    # Padded: (1, 2, 3), squared: (1, 4, 9), f = 14: R = (1, 4, 9), of which 9 lands on the constant.
    g = start()
    g.affine("pad", lambda x: nn.functional.pad(x, (0, 1), value=3.0), "input", kind="structural")
    g.gate("square", torch.square, "pad")
    g.affine("out", linear([[1], [1], [1]]), "square", kind="linear")
    same(explain(g, [1, 2]), {"square": [1, 4, 9], "pad": [1, 4, 9], "input": [1, 4], "bias": [9]})
    # No block, so also a zero is carried: (0) padded with 0, f = 2 by squares (1, 1), one half on the constant.
    g = start()
    g.affine("pad", lambda x: nn.functional.pad(x, (0, 1)), "input", kind="structural")
    g.gate("square", torch.square, "pad")
    g.affine("out", linear([[1], [1]], 2), "square", kind="linear")
    same(explain(g, [0], bias="spread"), {"square": [1, 1], "pad": [1, 1], "input": [1], "bias": [1]})


def test_activations() -> None:
    # sigmoid(ln 3) = 3/4 = 1/2 + 1/4: a third passes. sigmoid(−ln 3) = 1/4 = 1/2 − 1/4: nothing passes.
    def through(op: Callable[[Tensor], Tensor], **options: object) -> Graph:
        g = start()
        g.affine("fc", linear([[1, -1]]), "input", kind="linear")
        g.activation("act", op, "fc", **options)
        g.affine("out", linear([[4], [4]]), "act", kind="linear")
        return g

    x = math.log(3)
    expected = {"act": [3, 1], "fc": [1, 0], "input": [1], "bias": [3]}
    same(explain(through(torch.sigmoid), [x]), expected)
    same(explain(through(torch.sigmoid), [x], bias="spread"), {"act": [3, 1], "fc": [3, 1], "input": [4]})
    # softmax of (ln 3, −ln 3) = (9/10, 1/10); φ = exp: 3 = 1 + 2 passes two thirds, 1/3 = 1 − 2/3 nothing.
    found = explain(through(lambda z: z.softmax(dim=1), phi=torch.exp), [x])
    same(found, {"act": [3.6, 0.4], "fc": [2.4, 0], "input": [2.4], "bias": [1.6]})


def test_gates_take_nothing_and_do_not_end_a_block() -> None:
    # fc1 = (2, 1)·x, read by the diagonal and by a gate's branch: one active reader, so fc1 and bn stay one block.
    g = start()
    g.affine("fc1", linear([[2], [1]]), "input", kind="linear")
    g.affine("bn", lambda x: x + 1, "fc1", kind="diagonal")
    g.activation("open", torch.sigmoid, "fc1")
    g.gate("mul", torch.mul, "bn", "open")
    # x = (1, 2): fc1 = 4, bn = 5, f = 5 σ(4): q = (2, 2), β = 1.
    f = 5 / (1 + math.exp(-4))
    same(explain(g, [1, 2]), {"mul": [f], "bn": [f], "input": [0.4 * f, 0.4 * f], "bias": [f / 5]})


def test_attention_weights_are_an_average() -> None:
    # Tokens 2 and 3, read as values; weights (1/4, 3/4) for the one query: 1/2 + 9/4 = 11/4.
    g = start()
    g.function("weights", lambda x: torch.tensor([[[0.25, 0.75]]], dtype=torch.float64), "input")
    g.activation("value", torch.relu, "input", rectifier=True)
    g.affine("mix", lambda v, a: (a @ v[..., None])[..., 0], "value", kind="average", gates=("weights",))
    relu_then_output(g, "mix", [[1]])
    expected = {"relu": [2.75], "mix": [2.75], "value": [0.5, 2.25], "input": [0.5, 2.25]}
    same(explain(g, [2, 3]), expected)


def pooled(max_pool: bool, shift: float) -> Graph:
    """A 1×2×2 image minus a constant, pooled to one number, plus whatever makes the score positive."""
    g = start("box", 0.0, 4.0)
    g.affine("shift", lambda x: x - shift, "input", kind="diagonal")
    if max_pool:
        g.max_pool("pool", "shift", 2, 2)
    else:
        g.lp_pool("pool", "shift", 2, 2, 2)
    g.affine("out", lambda x: x.flatten(1) + 6, "pool", kind="diagonal")
    return g


@pytest.mark.parametrize(
    ("shift", "bias", "mode", "shares"),
    [
        # Maximum positive: in proportion to the positive ones.
        (1, "neuron", "proportional", [0, 1 / 4, 0, 3 / 4]),
        (1, "neuron", "winner", [0, 0, 0, 1]),
        # Maximum zero: the winner, or under spread evenly; winner means winner.
        (4, "neuron", "proportional", [0, 0, 0, 1]),
        (4, "spread", "proportional", [1 / 4] * 4),
        (4, "spread", "winner", [0, 0, 0, 1]),
        # Maximum negative: the winner.
        (5, "spread", "proportional", [0, 0, 0, 1]),
    ],
)
def test_max_pooling(shift: float, bias: str, mode: str, shares: Sequence[float]) -> None:
    # x = (0, 2, 1, 4); with shift 1 (−1, 1, 0, 3), with 4 (…, 0), with 5 (…, −1). f = max + 6.
    found = explain(pooled(True, shift), [[[0, 2], [1, 4]]], bias=bias, max_pool=mode)
    R = max(0.0, 4 - shift) if bias == "neuron" else 10 - shift
    assert found["pool"] == pytest.approx([R])
    assert found["input"] == pytest.approx([R * s for s in shares])


def test_lp_pooling() -> None:
    # x − 2 = (−2, 0, −1, 2): √9 = 3; shares |x| = 2 : 0 : 1 : 2; f = 3 + 6.
    image = [[[0, 2], [1, 4]]]
    found = explain(pooled(False, 2), image)
    same(found, {"pool": [3], "shift": [1.2, 0, 0.6, 1.2], "input": [1.2, 0, 0.6, 1.2], "bias": [6]})
    # All zero: evenly under spread.
    found = explain(pooled(False, 2), [[[2, 2], [2, 2]]], bias="spread")
    assert found["input"] == pytest.approx([1.5] * 4)
    # All zero in the other mode: the bias of the output takes the score before it comes here.
    found = explain(pooled(False, 2), [[[2, 2], [2, 2]]])
    same(found, {"pool": [0], "shift": [0] * 4, "input": [0] * 4, "bias": [6]})


def test_overlapping_padded_windows() -> None:
    # 3 × 3 image 1…9, windows of 3 with padding 1 and stride 2: the corners' 2 × 2 neighbourhoods. The target is the
    # first window, (1, 2, 4, 5), maximum 5: twelfths of 5.
    g = start()
    g.max_pool("pool", "input", 3, 2, 1)
    g.affine("flat", lambda x: x.flatten(1), "pool", kind="structural")
    found = explain(g, [[[1, 2, 3], [4, 5, 6], [7, 8, 9]]])
    assert found["input"] == pytest.approx([5 * n / 12 for n in (1, 2, 0, 4, 5, 0, 0, 0, 0)])
    # With dilation 2 and no padding the only window is the four corners: 1, 3, 7, 9, of 9.
    g = start()
    g.max_pool("pool", "input", 2, 1, 0, 2)
    g.affine("flat", lambda x: x.flatten(1), "pool", kind="structural")
    found = explain(g, [[[1, 2, 3], [4, 5, 6], [7, 8, 9]]])
    assert found["input"] == pytest.approx([9 * n / 20 for n in (1, 0, 3, 0, 0, 0, 7, 0, 9)])


def test_targets() -> None:
    # out = (x_0 + x_1, x_0 − x_1 ) at (1, 3): (4, −2).
    g = start()
    g.affine("out", linear([[1, 1], [1, -1]]), "input", kind="linear")
    same(explain(g, [1, 3], target=None), {"input": [1, 3]})
    same(explain(g, [1, 3], target=1), {"input": [0, 0]})
    # Weights (1, −1): u = (0, 2), f = 6.
    same(explain(g, [1, 3], target=np.array([[1.0, -1.0]])), {"input": [0, 6]})
    # An output that is no affine node: the target alone, on relu(out) = (4, 0).
    g.activation("relu", torch.relu, "out", rectifier=True)
    same(explain(g, [1, 3]), {"relu": [4, 0], "out": [4, 0], "input": [1, 3]})

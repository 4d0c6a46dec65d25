"""The table of operations: every family's rows are in it once, and what it says of a node."""

from __future__ import annotations

import importlib
import itertools
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import fx

from deeptaylor import operations
from deeptaylor.maps import ops
from deeptaylor.operations.flow import UNKNOWN_FLOW, Activation, Rectifier
from deeptaylor.operations.row import Row, alias_of
from deeptaylor.operations.table import (
    FAMILIES,
    TABLE,
    convolves,
    find_data_nodes,
    flow_of,
    is_never_negative,
    row_of,
    run_fast,
)
from graphs import Fixed, by_hand, captured_of, node_of
from operation_checks import checked_operations
from rows import EXAMPLES, IMAGE, LINE, drawn, fixed, label

aten = torch.ops.aten


@pytest.mark.parametrize("family", FAMILIES, ids=lambda m: m.__name__.rpartition(".")[2])
def test_every_row_of_a_family_is_in_the_table_as_the_family_wrote_it(family: ModuleType) -> None:
    assert family.ROWS
    assert all(TABLE[target] is row for target, row in family.ROWS.items())


def test_every_module_with_rows_is_a_family() -> None:
    found = [importlib.import_module(f"{operations.__name__}.{m.name}") for m in iter_modules(operations.__path__)]
    assert {m.__name__ for m in found if hasattr(m, "ROWS")} == {m.__name__ for m in FAMILIES}


def test_no_two_families_have_a_row_for_one_operation_and_the_table_has_no_other() -> None:
    for one, other in itertools.combinations(FAMILIES, 2):
        assert not one.ROWS.keys() & other.ROWS.keys()
    assert set(TABLE) == {target for family in FAMILIES for target in family.ROWS}


def test_every_row_says_something() -> None:
    assert [target for target, row in TABLE.items() if row == Row()] == []


def test_every_row_with_a_flow_or_a_range_has_an_example() -> None:
    tried = {t for target, *_ in EXAMPLES for t in (target, getattr(target, "overloadpacket", target))}
    said = {target for target, row in TABLE.items() if row.flow is not UNKNOWN_FLOW or row.range is not None}
    assert said - tried - checked_operations() == set(), "check each with helpers/operation_checks.py"


def test_what_no_row_names_is_nothing_known() -> None:
    node = by_hand(aten.cummax.default, LINE, 1).output
    assert row_of(node) == Row()
    assert flow_of(node) is UNKNOWN_FLOW
    assert flow_of(node.args[0]) is UNKNOWN_FLOW  # an input
    assert not is_never_negative(node)


# --- what a row can say -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("example", "rectifies"),
    [
        ((aten.clamp.default, LINE, 0.0), True),
        ((aten.clamp.default, LINE, 0.0, 6.0), True),
        ((aten.clamp.default, LINE, 0.0, -1.0), False),
        ((aten.clamp.default, LINE, -1.0), False),
        ((aten.clamp_min.default, LINE, 0), True),
        ((aten.hardtanh.default, LINE, 0.0, 6.0), True),
        ((aten.hardtanh.default, LINE), False),
        ((aten.threshold.default, LINE, 0.0, 0.0), True),
        ((aten.threshold.default, LINE, 0.0, 1.0), False),
    ],
    ids=lambda v: f"{label(v)} {v[2:]}" if isinstance(v, tuple) else "",
)
def test_the_arguments_decide_where_a_row_says_so(example: tuple[Any, ...], rectifies: bool) -> None:
    assert isinstance(flow_of(by_hand(*example).output), Rectifier if rectifies else Activation)


def test_another_name_of_an_operation_becomes_that_operation_with_its_arguments() -> None:
    captured = by_hand(aten.swapdims.default, LINE, 1, 2)
    alias_of(aten.transpose.int).rewrites["name"](captured, captured.output, set())
    assert captured.output.target is aten.transpose.int
    assert captured.output.args[1:] == (1, 2)


READS = {
    "values": (aten.mul.Tensor, LINE, LINE.flip(1)),
    "first": (aten.view_as.default, LINE, drawn(2, 24)),
    "shape": (aten.zeros_like.default, LINE),
    "type": (aten.new_zeros.default, LINE, [2, 3]),
}


@pytest.mark.parametrize("reads", READS)
def test_data_is_what_depends_on_the_values_of_an_input(reads: str) -> None:
    captured = by_hand(*READS[reads])
    assert row_of(captured.output).reads == reads
    assert (captured.output in find_data_nodes(captured)) == (reads in ("values", "first"))


def test_the_shape_of_an_input_makes_no_data() -> None:
    expanded = by_hand(aten.expand_as.default, fixed(1, 4, 6), LINE)
    assert row_of(expanded.output).reads == "first"
    assert find_data_nodes(expanded) == set(expanded.inputs)
    by_values = by_hand(aten.add.Tensor, fixed(1, 4, 6), LINE)
    assert find_data_nodes(by_values) == {*by_values.inputs, by_values.output}


def test_a_convolution_is_told_from_other_layers() -> None:
    assert convolves(by_hand(aten.conv2d.default, IMAGE, fixed(5, 4, 3, 3)).output)
    assert convolves(by_hand(aten.conv_transpose2d.input, IMAGE, fixed(4, 5, 3, 3)).output)
    assert not convolves(by_hand(aten.linear.default, LINE, fixed(3, 6)).output)
    assert not convolves(by_hand(aten.relu.default, LINE).output)


def test_a_graph_that_will_run_has_the_faster_operations_and_computes_the_same() -> None:
    captured = by_hand(aten.linear.default, LINE, fixed(3, 6), fixed(3))
    run_fast(captured.graph)
    assert captured.output.target is ops.linear
    found = fx.GraphModule(captured.constants, captured.graph)(LINE)
    torch.testing.assert_close(found, captured.output.meta["val"])


def test_what_is_set_aside_at_the_end_of_a_network_is_named_in_the_rows() -> None:
    final = {label((target,)) for target, row in TABLE.items() if row.is_final}
    assert final == {
        "sigmoid.default", "softmax.int", "_softmax.default", "log_softmax.int", "_log_softmax.default"
    }  # fmt: skip


# --- signs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("example", EXAMPLES, ids=label)
def test_what_is_called_never_below_zero_is_not(example: tuple[Any, ...]) -> None:
    node = by_hand(*example).output
    if is_never_negative(node):
        assert float(torch.as_tensor(node.meta["val"]).min()) >= 0


def test_what_is_never_below_zero_is_so_whatever_is_read() -> None:
    def above(*example: Any) -> bool:
        return is_never_negative(by_hand(*example).output)

    assert above(aten.relu.default, LINE)
    assert above(aten.softmax.int, LINE, -1)
    assert above(aten.square.default, LINE)
    assert above(aten.gt.Scalar, LINE, 0)  # a mask
    assert not above(aten.sum.dim_IntList, LINE.abs(), [1])  # of what happens to be positive
    assert not above(aten.elu.default, LINE.abs())
    doubled = captured_of(lambda x: x.relu() * x, LINE)
    assert is_never_negative(node_of(doubled, "relu"))
    assert not is_never_negative(node_of(doubled, "mul"))
    assert not is_never_negative(by_hand(aten.masked_fill.Scalar, LINE, Fixed(LINE > 0), -1.0).output)

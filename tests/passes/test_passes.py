"""Every pass by itself: the graph computes what it computed, in the words that the pass promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.passes import fold, rearrangements, rewrite
from deeptaylor.plan import planner
from graphs import captured_of, node_of, operations, value_of


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


# --- final_softmax ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("final", ["softmax", "log_softmax", "sigmoid"])
def test_the_final_softmax_is_set_aside_with_a_note(final: str) -> None:
    x, layer = drawn(2, 3), nn.Linear(3, 4).double()
    finals: dict[str, Callable[[Tensor], Tensor]] = {
        "softmax": lambda z: z.softmax(-1), "log_softmax": lambda z: z.log_softmax(-1), "sigmoid": torch.sigmoid,
    }  # fmt: skip
    captured = captured_of(lambda s, x: finals[final](s.a(x)), x, a=layer)
    output, notes, _ = planner.remove_final_softmax(captured)
    assert output is node_of(captured, "linear")
    assert notes == [f"the final {final} ({captured.output.name}) is set aside: its input, the logit, is explained"]


def test_a_softmax_below_a_reshape_is_set_aside_and_the_reshape_stays() -> None:
    x, layer = drawn(2, 3), nn.Linear(3, 4).double()
    captured = captured_of(lambda s, x: s.a(x).softmax(-1).reshape(-1, 2, 2), x, a=layer)
    output, notes, _ = planner.remove_final_softmax(captured)
    assert output is node_of(captured, "reshape")
    assert len(notes) == 1
    torch.testing.assert_close(value_of(captured, x), layer(x).detach().reshape(2, 2, 2))


def test_a_softmax_further_down_stays() -> None:
    captured = captured_of(lambda x: x.softmax(-1) + x, drawn(2, 3))
    output, notes, _ = planner.remove_final_softmax(captured)
    assert output is captured.output
    assert notes == []
    assert operations(captured) == ["softmax", "add"]


def test_every_one_of_several_at_the_end_is_set_aside() -> None:
    captured = captured_of(lambda x: x.exp().sigmoid().softmax(-1), drawn(2, 3))
    output, notes, _ = planner.remove_final_softmax(captured)
    assert output is node_of(captured, "exp")
    assert [note.split()[2] for note in notes] == ["softmax", "sigmoid"]


def test_a_sigmoid_that_is_joined_with_others_is_set_aside() -> None:
    x, layer = drawn(2, 3), nn.Linear(3, 4).double()

    def detector(s: Any, x: Tensor) -> Tensor:
        z = s.a(x)
        return torch.cat([z[:, :2] * 8, z[:, 2:].sigmoid()], 1).reshape(-1, 2, 2)

    captured = captured_of(detector, x, a=layer)
    output, notes, names = planner.remove_final_softmax(captured)
    assert output is captured.output
    assert names == ["sigmoid"]
    assert notes == ["the final sigmoid (sigmoid) is set aside: its input, the logit, is explained"]
    z = layer(x).detach()
    torch.testing.assert_close(value_of(captured, x), torch.cat([z[:, :2] * 8, z[:, 2:]], 1).reshape(2, 2, 2))


def test_a_sigmoid_that_boxes_read_too_stays_for_them() -> None:
    x, layer = drawn(2, 3), nn.Linear(3, 4).double()

    def detector(s: Any, x: Tensor) -> Tensor:  # as YOLOv5: one sigmoid for box and scores
        p = s.a(x).sigmoid()
        return torch.cat([p[:, :2] * 8, p[:, 2:]], 1)

    captured = captured_of(detector, x, a=layer)
    planner.remove_final_softmax(captured)
    z = layer(x).detach()
    torch.testing.assert_close(value_of(captured, x), torch.cat([z[:, :2].sigmoid() * 8, z[:, 2:]], 1))


def test_a_softmax_of_which_a_part_is_taken_stays() -> None:
    captured = captured_of(lambda x: x.softmax(-1)[:, 1:], drawn(2, 3))
    assert planner.remove_final_softmax(captured)[1] == []


def test_many_sigmoids_have_one_note() -> None:
    captured = captured_of(lambda x: torch.cat([(x * k).sigmoid() for k in range(1, 7)], 1), drawn(2, 3))
    _, notes, names = planner.remove_final_softmax(captured)
    assert names == ["sigmoid"]
    assert len(notes) == 1
    assert "and 3 more) is set aside" in notes[0]


def test_an_output_that_no_input_reaches_is_refused() -> None:
    captured = captured_of(lambda x: torch.ones_like(x).softmax(-1), drawn(2, 3))
    with pytest.raises(dt.PlanError, match="does not depend on its input"):
        planner.remove_final_softmax(captured)


# --- the others -------------------------------------------------------------------------------------------------------


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


def test_merge_makes_a_layer_and_its_update_one() -> None:
    x, layers = drawn(2, 4), {"whole": nn.Linear(4, 5), "a": nn.Linear(4, 1, bias=False), "b": nn.Linear(1, 5)}
    captured = captured_of(lambda s, x: s.whole(x) + s.b(s.a(x)), x, **layers)
    expected = value_of(captured, x)
    assert fold.merge_update(captured, node_of(captured, "add"))
    assert operations(captured) == ["linear"]
    torch.testing.assert_close(value_of(captured, x), expected)


def test_moves_carry_constants_there_and_back() -> None:
    x = drawn(2, 3, 4)
    captured = captured_of(lambda x: x.transpose(1, 2).reshape(-1, 12).relu(), x)
    base, found = rearrangements.find_base(node_of(captured, "relu").args[0])
    assert base is captured.inputs[0]
    assert [rearrangements.is_rearrangement(n) for n in found] == [True, True]
    above = torch.arange(12.0).reshape(1, 12)
    there = rearrangements.move_back(base, found, above)
    assert torch.equal(there, torch.arange(12.0).reshape(1, 4, 3).mT)
    assert torch.equal(rearrangements.move_forward(base, found, there), above)
    assert rearrangements.move_back(base, found, torch.arange(24.0).reshape(2, 12)) is None  # another for each sample


def test_what_loses_or_repeats_elements_is_no_move() -> None:
    captured = captured_of(lambda x: x.flip(1)[:, 1:].repeat(1, 2) + x.view_as(x.flip(0)).sum(1, True), drawn(2, 3))
    assert rearrangements.is_rearrangement(captured.output) is False
    found = {
        n.target._opname for n in captured.graph.nodes if n.op == "call_function" and rearrangements.is_rearrangement(n)
    }
    assert found == {"flip"}  # view_as takes its shape from another tensor


def test_one_type_brings_constants_to_the_type_of_the_input() -> None:
    x = drawn(2, 3)
    captured = captured_of(lambda x: x * torch.full((3,), 2.0, dtype=torch.float32), x)
    rewrite.rewrite(captured)
    (name,) = [str(n.target) for n in captured.graph.nodes if n.op == "get_attr"]
    assert captured.constants[name].dtype is torch.float32
    rewrite.unify_dtype(captured)
    assert captured.constants[name].dtype is torch.float64
    assert torch.equal(value_of(captured, x), x * 2)


def test_rewrite_drops_identities_and_computes_constants_once() -> None:
    x = drawn(2, 3)
    captured = captured_of(lambda x: nn.functional.dropout(x, 0.5, False).clone() + torch.ones(3).sin().exp(), x)
    rewrite.rewrite(captured)
    assert operations(captured) == ["scale_shift"]
    torch.testing.assert_close(value_of(captured, x), x + torch.ones(3).sin().exp())


def test_rewrite_computes_what_takes_only_the_type_of_an_input() -> None:
    x = drawn(2, 3)
    captured = captured_of(lambda x: x.relu() + x.new_zeros(3).exp(), x)
    rewrite.rewrite(captured)
    assert operations(captured) == ["relu", "scale_shift"]
    torch.testing.assert_close(value_of(captured, x), x.relu() + 1)


def test_rewrite_goes_through_the_stages_in_their_order() -> None:
    """A view behind an identity, a pooling of powers whose factor is computed, a product that becomes a layer."""
    x, w = drawn(2, 4, 6).abs(), nn.Linear(6, 3)

    def program(s: nn.Module, x: Tensor) -> Tensor:
        pooled = (nn.functional.avg_pool1d(x.clone().view(-1, 4, 6).square(), 2) * (torch.ones(()) + 1)).sqrt()
        return (pooled - pooled.mean(-1, keepdim=True)).flatten(1) @ torch.ones(12, 2, dtype=x.dtype) + s.w(x).sum(
            (1, 2)
        )[:, None]

    captured = captured_of(program, x, w=w)
    expected = value_of(captured, x)
    rewrite.rewrite(captured)
    assert operations(captured) == [
        "reshape", "lp_pool", "centre", "flatten", "linear", "linear", "sum", "slice", "unsqueeze", "add",
    ]  # fmt: skip
    torch.testing.assert_close(value_of(captured, x), expected)

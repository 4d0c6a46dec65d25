"""Constants are recorded, computed again with other parameters, and questions about values are asked again."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.graph.recording import ConstantProgram, Recording, is_recorded, record_as_text


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, -2.0, 4.0]))
        self.register_buffer("mean", torch.tensor([0.5, 0.5, 0.5]))
        self.mean: Tensor


def constants(model: Scaled) -> tuple[Tensor, Tensor]:
    """What a capture knows of them: other tensor objects in the same memory."""
    return model.weight.detach(), model.mean.detach()


def record(model: Scaled) -> tuple[Recording, Tensor, Tensor]:
    recording = Recording()
    w, mean = constants(model)
    recording.start(model, {"w": w, "mean": mean})
    return recording, w, mean


def test_a_program_computes_the_same_of_other_values() -> None:
    model = Scaled()
    recording, w, mean = record(model)
    with recording, torch.no_grad():
        positive = (w * torch.tensor([1.0, 1.0, 0.5]) - mean).clamp(min=0)
        low, high = positive.split([1, 2])
    program = recording.finish([low, high])
    model.weight.data.mul_(3)
    model.mean = torch.ones(3)
    found = program.compute()
    assert found is not None
    assert torch.equal(torch.cat(found), torch.tensor([2.0, 0.0, 5.0]))
    (gradient,) = torch.autograd.grad(torch.cat(found).sum(), model.weight)
    assert torch.equal(gradient, torch.tensor([1.0, 0.0, 0.5]))


def program_with_answers(model: Scaled) -> ConstantProgram:
    recording, w, mean = record(model)
    with recording:
        assert is_recorded(w * 2)
        assert not is_recorded(torch.ones(3))
        assert bool((w < 0).any())
        assert not torch.equal(w, mean)
        assert int((w > 0).sum()) == 2
        doubled = 2 * w
    assert not is_recorded(doubled)
    return recording.finish([doubled])


@pytest.mark.parametrize(
    ("values", "holds"),
    [([3.0, -1.0, 1.0], True), ([3.0, 1.0, 1.0], False), ([0.5, 0.5, 0.5], False), ([-1.0, -1.0, 1.0], False)],
)
def test_a_question_that_is_answered_otherwise_ends_the_program(values: list[float], holds: bool) -> None:
    model = Scaled()
    program = program_with_answers(model)
    model.weight.data.copy_(torch.tensor(values))
    assert (program.compute() is not None) is holds


def test_another_shape_or_dtype_ends_the_program() -> None:
    model = Scaled()
    program = program_with_answers(model)
    model.weight = nn.Parameter(torch.tensor([1.0, -2.0, 4.0, 1.0]))
    assert program.compute() is None
    model.weight = nn.Parameter(torch.tensor([1.0, -2.0, 4.0], dtype=torch.float64))
    assert program.compute() is None
    del model.weight
    assert program.compute() is None
    model.weight = nn.Parameter(torch.tensor([1.0, -2.0, 4.0]))
    assert program.compute() is not None


def test_a_number_that_is_read_names_its_parameter() -> None:
    recording, w, mean = record(Scaled())
    with recording, pytest.raises(dt.PlanError, match=r"cannot follow 'weight': a number is read from it"):
        float((w * 2).sum() + 1)
    with recording, record_as_text():
        assert f"{float(mean.sum())}" == "1.5"
        assert bool((w < 0).any())  # of a text, no question is asked again
    model = Scaled()
    recording, w, _ = record(model)
    with recording, record_as_text():
        assert bool((w < 0).any())
        same = w + 0
    program = recording.finish([same])
    model.weight.data.abs_()
    assert program.compute() is not None


def test_constants_are_not_written_to_unnoticed() -> None:
    recording, w, _ = record(Scaled())
    with recording, pytest.raises(NotImplementedError, match="writes to a constant"):
        (w * 2).add_(1)


def test_constants_in_the_memory_of_the_network_are_known() -> None:
    model = Scaled()
    recording, w, _ = record(model)
    with recording:
        part, other = w[1:], w + 0
    program = recording.finish([part, other])
    found = program.compute()
    assert found is not None
    assert [program.shares_memory(t) for t in found] == [True, False]

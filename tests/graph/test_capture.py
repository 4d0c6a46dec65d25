"""Networks that cannot be captured or planned, and interrupts while one is."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import signal
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from refusals import Layers, says

HERE = __file__


class InParallel(Layers):
    def forward(self, x: Tensor) -> Tensor:
        left = torch.cumsum(self.a(x), 1)
        right = torch.cummax(self.b(x), 1).values
        return self.c(left + right)


class InSeries(Layers):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.cumsum(self.a(x), 1)
        h = torch.renorm(self.b(h), 2, 0, 1.0)
        return self.c(h)


class InAnUnsupportedForm(Layers):
    def forward(self, x: Tensor) -> Tensor:
        h = 1.0 / self.a(x)  # a quotient is explained if its numerator depends on the input
        h = torch.cumsum(self.b(h), 1)
        return self.c(h)


@pytest.mark.parametrize(
    ("network", "lines"),
    [
        (InParallel, ("left = torch.cumsum(self.a(x), 1)", "right = torch.cummax(self.b(x), 1).values")),
        (InSeries, ("h = torch.cumsum(self.a(x), 1)", "h = torch.renorm(self.b(h), 2, 0, 1.0)")),
        (InAnUnsupportedForm, ("h = 1.0 / self.a(x)", "h = torch.cumsum(self.b(h), 1)")),
    ],
)
def test_all_unsupported_operations_are_listed_with_their_lines(network: type[Layers], lines: tuple[str, ...]) -> None:
    with pytest.raises(dt.UnsupportedOpError) as info:
        dt.Explainer(network().eval(), torch.rand(2, 4), bias="neuron")
    says(info.value, "2 operation(s)", f"{HERE}:", "What to do", *lines)
    assert isinstance(info.value, dt.PlanError)


def test_an_unsupported_operation_is_named_by_its_own_name() -> None:
    with pytest.raises(dt.UnsupportedOpError) as info:
        dt.Explainer(InParallel().eval(), torch.rand(2, 4), bias="neuron")
    says(info.value, "cumsum", "cummax")


def test_an_unsupported_operation_inside_a_gate_is_no_problem() -> None:
    class Gate(Layers):
        def forward(self, x: Tensor) -> Tensor:
            return self.c(self.a(x) * torch.sigmoid(torch.cumsum(self.b(x), 1)))

    e = dt.explain(Gate().eval(), torch.rand(2, 4), dt.margin(), bias="neuron")
    assert e.check().accounted


class Branches(Layers):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return self.c(self.a(x))
        return self.c(self.b(x))


class Item(Layers):
    def forward(self, x: Tensor) -> Tensor:
        times = int(x.argmax().item())
        for _ in range(times):
            x = self.a(x)
        return self.c(x)


@pytest.mark.parametrize("network", [Branches, Item])
def test_control_flow_that_depends_on_data_names_the_place(network: type[Layers]) -> None:
    with pytest.raises(dt.CaptureError) as info:
        dt.Explainer(network().eval(), torch.rand(2, 4), bias="neuron")
    says(info.value, "control flow", "depends on the values", "torch.where", "What to do")
    code, first = inspect.getsourcelines(network.forward)
    lines = [int(n) for n in re.findall(re.escape(HERE) + r":(\d+)", str(info.value))]
    assert str(info.value).count("\n") == 2
    assert info.value.__cause__ is not None  # torch's own words, without the frames that they came through
    assert info.value.__cause__.__traceback__ is None
    assert info.value.__cause__.__cause__ is info.value.__cause__.__context__ is None
    # The first statement of each forward is the one that needs the value.
    assert lines == [first + 1], f"{lines} for {code[1].strip()!r} at {first + 1}, in: {info.value}"


def test_an_exception_of_the_network_itself_is_passed_on_with_its_place() -> None:
    class Fails(Layers):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("no weights were loaded")

    with pytest.raises(dt.CaptureError) as info:
        dt.Explainer(Fails().eval(), torch.rand(2, 4), bias="neuron")
    says(info.value, "no weights were loaded", f"{HERE}:", "Correct the network")


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.memory, self.head = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([len(x[0])] * len(x)), batch_first=True)
        return self.head(self.memory(packed)[1].squeeze(0))


def test_a_packed_sequence_is_refused_and_the_layer_named() -> None:
    with pytest.raises(dt.CaptureError) as info:
        dt.Explainer(Packed(), torch.rand(2, 5, 4))
    says(info.value, "GRU(4, 6, batch_first=True) as 'memory'", "packed sequences cannot be captured")


def test_leaving_torch_names_the_place() -> None:
    class Numpy(Layers):
        def forward(self, x: Tensor) -> Tensor:
            return torch.from_numpy(self.c(x).numpy())

    with pytest.raises(dt.CaptureError) as info:
        dt.Explainer(Numpy().eval(), torch.rand(2, 4), bias="neuron")
    says(info.value, ".numpy()", f"{HERE}:", "What to do")


def test_a_constant_network_has_nothing_to_explain() -> None:
    class Constant(Layers):
        def forward(self, x: Tensor) -> Tensor:
            return torch.ones(x.shape[0], 3)

    with pytest.raises(dt.PlanError, match="does not depend on its input"):
        dt.Explainer(Constant().eval(), torch.rand(2, 4), bias="neuron")


def test_what_is_no_network_is_refused() -> None:
    with pytest.raises(dt.DeepTaylorError) as info:
        dt.Explainer(torch.relu, torch.rand(2, 4), bias="neuron")
    says(info.value, "nn.Module")


class Several(Layers):
    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"logits": self.c(x), "hidden": (self.a(x), self.b(x))}


def test_several_outputs_need_a_choice() -> None:
    with pytest.raises(dt.PlanError) as info:
        dt.Explainer(Several().eval(), torch.rand(2, 4), bias="neuron")
    says(info.value, "returns a dict of 3 tensors", "logits, hidden", "output='logits'", "output=")
    assert "']" not in str(info.value), "names are written as a person would write them"


@pytest.mark.parametrize("output", ["logit", 3, -1])
def test_an_output_that_does_not_exist_names_those_that_do(output: Any) -> None:
    with pytest.raises(dt.PlanError) as info:
        dt.Explainer(Several().eval(), torch.rand(2, 4), output=output, bias="neuron")
    says(info.value, f"no output {output!r}", "0: logits")


@pytest.mark.parametrize("inside", ["cause", "context", "text"])
def test_ctrl_c_during_capture_stays_an_interrupt(inside: str) -> None:
    class Interrupted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if inside == "text":
                raise RuntimeError("argument 'size' failed: KeyboardInterrupt: <EMPTY MESSAGE>")
            try:
                raise KeyboardInterrupt
            except KeyboardInterrupt as error:
                if inside == "cause":
                    raise RuntimeError("wrapped") from error
                raise AttributeError("module has no attribute 'exc'")  # noqa: B904

    with pytest.raises(KeyboardInterrupt):
        dt.Explainer(Interrupted(), torch.ones(1, 4), bias="neuron")


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("becomes", ["another error", "nothing"])
def test_ctrl_c_that_torch_swallows_stays_an_interrupt(becomes: str) -> None:
    class Interrupted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if torch.compiler.is_compiling():
                with contextlib.suppress(KeyboardInterrupt):
                    os.kill(os.getpid(), signal.SIGINT)
                if becomes == "another error":  # seen of a sum that was interrupted
                    raise TypeError("unsupported operand type(s) for +: 'FakeTensor' and 'FakeTensor'")
            return x.relu()

    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            dt.Explainer(Interrupted(), torch.rand(2, 4), bias="neuron")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_refused_network_is_said_once_and_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if x.sum() > 0 else x

    with pytest.raises(dt.CaptureError, match=r"torch\.where"):
        dt.Explainer(Branching(), torch.ones(1, 4), bias="neuron")
    assert capfd.readouterr() == ("", "")


class Mapped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(4)
        return x * torch.vmap(lambda place: place + 1)(places)


def test_vmap_is_refused_with_what_to_do() -> None:
    with pytest.raises(dt.CaptureError, match=r"calls torch.vmap.*\n.*transformers>=5"):
        dt.Explainer(Mapped(), torch.rand(2, 4))

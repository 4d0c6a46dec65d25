"""What a user does wrong, and what the user is told: the thing, the cause and the way out, before any work is done."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.run import inputs
from deeptaylor.run import prepare as prepare_module
from deeptaylor.run import target as targets
from deeptaylor.run.checksum import checksums

HERE = __file__


def says(text: object, *words: str) -> None:
    """Every word is in the text."""
    missing = [w for w in words if w not in str(text)]
    assert not missing, f"{missing} not said in: {text}"


@contextlib.contextmanager
def no_work(explainer: dt.Explainer) -> Iterator[None]:
    """Fail if any captured network runs."""

    def ran(*_: Any) -> None:
        raise AssertionError("the network ran before the input was refused")

    handles = [e.network.register_forward_pre_hook(ran) for e in explainer.engines.values()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def refusal(explainer: dt.Explainer, x: Any, target: Any = None, error: type[Exception] = dt.InputError) -> str:
    """The message with which an input or a target is refused, before the network runs."""
    with no_work(explainer), pytest.raises(error) as info:
        explainer.explain(x, target)
    return str(info.value)


@pytest.fixture
def no_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if anything is captured."""

    def captured(*_: Any) -> None:
        raise AssertionError("the network was captured before the input was refused")

    monkeypatch.setattr(prepare_module, "capture", captured)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def cnn() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).eval()


def mlp(last: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, last)).eval()


def tokens() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 3)).eval()


@pytest.fixture(scope="module")
def pictures() -> dt.Explainer:
    return dt.Explainer(cnn(), torch.rand(1, 3, 4, 4), dt.Box(0, 1))


@pytest.fixture(scope="module")
def vectors() -> dt.Explainer:
    return dt.Explainer(mlp(), torch.rand(2, 4), dt.NonNegative())


@pytest.fixture(scope="module")
def words() -> dt.Explainer:
    return dt.Explainer(tokens(), torch.zeros(2, 3, dtype=torch.long))


# --- values -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_are_refused_with_their_index(pictures: dt.Explainer, bad: float) -> None:
    x = torch.rand(2, 3, 4, 4)
    x[1, 2, 0, 3] = bad
    says(refusal(pictures, x), "NaN", "infinite", "1 value", "(1, 2, 0, 3)", "input")


def test_all_non_finite_values_are_counted_and_the_first_is_named(pictures: dt.Explainer) -> None:
    x = torch.rand(2, 3, 4, 4)
    x[0, 1, 2, 2] = float("nan")
    x[1] = float("inf")
    says(refusal(pictures, x), str(1 + 3 * 4 * 4), "(0, 1, 2, 2)")


def test_values_outside_the_box_are_counted_and_measured(pictures: dt.Explainer) -> None:
    x = torch.rand(1, 3, 4, 4)
    x[0, 0, 1, 2], x[0, 2, 3, 3] = 3.5, -0.25
    says(refusal(pictures, x), "[0, 1]", "2 of 48", "2.5", "(0, 0, 1, 2)", "3.5", "normalisation")


def test_values_outside_per_channel_bounds_are_found() -> None:
    explainer = dt.Explainer(cnn(), torch.zeros(1, 3, 4, 4), dt.Box([-1.0, -2.0, -3.0], [1.0, 2.0, 3.0]))
    x = torch.full((1, 3, 4, 4), 2.5)
    text = refusal(explainer, x)
    says(text, "32 of 48", "1.5")  # channels 0 and 1, 16 values each; channel 0 leaves its box by 1.5
    x[:, 0], x[:, 1] = 0.5, -1.5
    assert explainer.explain(x).relevance.shape == x.shape


def test_negative_values_in_a_non_negative_domain_are_counted_and_measured(vectors: dt.Explainer) -> None:
    x = torch.tensor([[1.0, 2.0, -0.5, 0.0], [1.0, -2.0, 1.0, 1.0]])
    says(refusal(vectors, x), "non-negative", "2 of 8", "2", "(0, 2)", "-0.5")


def test_rounding_beyond_the_box_is_not_an_error(pictures: dt.Explainer) -> None:
    e = pictures.explain(torch.full((1, 3, 4, 4), 1 + 5e-7))
    assert bool(torch.isfinite(e.relevance).all())
    refusal(pictures, torch.full((1, 3, 4, 4), 1 + 1e-4))


@pytest.mark.usefixtures("no_capture")
@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.full((1, 3, 4, 4), float("nan")), ("NaN", "(0, 0, 0, 0)")),
        (torch.full((1, 3, 4, 4), 7.0), ("48 of 48", "6")),
    ],
)
def test_the_one_call_refuses_bad_values_before_it_captures(x: Tensor, words: tuple[str, ...]) -> None:
    with pytest.raises(dt.InputError) as info:
        dt.explain(cnn(), x, domain=dt.Box(0, 1))
    says(info.value, *words)


# --- shapes and types ---------------------------------------------------------------------------------------------


def test_wrong_channels_say_expected_and_got(pictures: dt.Explainer) -> None:
    says(refusal(pictures, torch.rand(2, 1, 4, 4)), "expected 3 channels", "got 1", "(2, 1, 4, 4)")


def test_wrong_features_say_expected_and_got(vectors: dt.Explainer) -> None:
    says(refusal(vectors, torch.rand(2, 6)), "expected 4 features", "got 6")


def test_a_missing_batch_dimension_is_recognised(pictures: dt.Explainer) -> None:
    says(refusal(pictures, torch.rand(3, 4, 4)), "expected 4 dimensions", "got 3", "(3, 4, 4)", "unsqueeze(0)")


def test_too_many_dimensions_say_expected_and_got(pictures: dt.Explainer) -> None:
    says(refusal(pictures, torch.rand(1, 1, 3, 4, 4)), "expected 4 dimensions", "got 5", "(1, 1, 3, 4, 4)")


def test_a_size_the_network_cannot_take_says_expected_and_got(pictures: dt.Explainer) -> None:
    says(refusal(pictures, torch.rand(1, 3, 5, 5)), "(3, 4, 4)", "(3, 5, 5)")


def test_a_scalar_has_no_batch(vectors: dt.Explainer) -> None:
    says(refusal(vectors, torch.tensor(1.0)), "batch dimension", "unsqueeze(0)")


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_integers_for_floats_are_refused(pictures: dt.Explainer, dtype: torch.dtype) -> None:
    says(refusal(pictures, torch.ones(1, 3, 4, 4, dtype=dtype)), "integers", str(dtype), "torch.float32", "convert")


def test_floats_for_integers_are_refused(words: dt.Explainer) -> None:
    says(refusal(words, torch.ones(2, 3)), "torch.float32", "integers", "torch.int64")


@pytest.mark.usefixtures("no_capture")
def test_a_token_that_does_not_exist_is_refused(words: dt.Explainer) -> None:
    with pytest.raises(dt.InputError) as info:
        words.explain(torch.tensor([[0, 1, 2], [4, 9, 0]]))
    says(info.value, "9", "5")


@pytest.mark.parametrize("dtype", [torch.complex64, torch.bool])
def test_complex_and_boolean_inputs_are_refused(vectors: dt.Explainer, dtype: torch.dtype) -> None:
    says(refusal(vectors, torch.ones(2, 4, dtype=dtype)), str(dtype), "real")


def test_an_empty_batch_is_refused(pictures: dt.Explainer) -> None:
    says(refusal(pictures, torch.rand(0, 3, 4, 4)), "empty batch")
    with pytest.raises(dt.InputError) as info:
        dt.Explainer(cnn(), torch.rand(0, 3, 4, 4))
    says(info.value, "empty batch")


@pytest.mark.parametrize("x", [None, 3.0, "picture.png", [[0.1, 0.2, 0.3, 0.4]]])
def test_what_is_no_tensor_is_refused(vectors: dt.Explainer, x: Any) -> None:
    says(refusal(vectors, x), "tensor", type(x).__name__)


def test_a_numpy_array_is_refused(vectors: dt.Explainer) -> None:
    says(refusal(vectors, torch.rand(1, 4).numpy()), "torch tensor", "ndarray")


def test_the_number_of_inputs_is_checked(vectors: dt.Explainer) -> None:
    says(refusal(vectors, (torch.rand(1, 4), torch.rand(1, 4))), "takes 1 input", "got 2")


def test_inputs_of_different_batch_sizes_are_refused() -> None:
    class Sum(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a + b

    explainer = dt.Explainer(Sum(), (torch.rand(2, 3), torch.rand(2, 3)), dt.NonNegative())
    says(refusal(explainer, (torch.rand(2, 3), torch.rand(3, 3))), "batch sizes", "[2, 3]")


def test_another_device_is_refused(vectors: dt.Explainer) -> None:
    says(refusal(vectors, torch.rand(2, 4, device="meta")), "network is on cpu", "input on meta", "x.to('cpu')")


@pytest.mark.usefixtures("no_capture")
def test_an_example_on_another_device_is_refused() -> None:
    with pytest.raises(dt.InputError) as info:
        dt.Explainer(mlp(), torch.rand(2, 4, device="meta"))
    says(info.value, "network is on cpu", "example on meta", "move one")
    with pytest.raises(dt.InputError) as info:
        dt.Explainer(mlp().to("meta"), torch.rand(2, 4))
    says(info.value, "network is on meta", "example on cpu")


def test_another_dtype_is_refused(vectors: dt.Explainer) -> None:
    text = refusal(vectors, torch.rand(2, 4, dtype=torch.float64))
    says(text, "torch.float32", "torch.float64", "x.to(torch.float32)", "explainer.to(torch.float64)")


@pytest.mark.usefixtures("no_capture")
def test_an_example_of_another_dtype_is_refused() -> None:
    with pytest.raises(dt.InputError) as info:
        dt.Explainer(mlp(), torch.rand(2, 4, dtype=torch.float64))
    says(info.value, "computes in torch.float32", "example is torch.float64", "convert")


# --- float16 ------------------------------------------------------------------------------------------------------


def half(rows: list[list[float]], top: float) -> nn.Sequential:
    """A bias-free network in float16: equal units, then `top` times their sum."""
    weight = torch.tensor(rows)
    net = nn.Sequential(
        nn.Linear(weight.shape[1], len(rows), bias=False), nn.ReLU(), nn.Linear(len(rows), 1, bias=False)
    )
    with torch.no_grad():
        net[0].weight.copy_(weight)
        net[2].weight.fill_(top)
    return net.eval().half()


def test_a_score_that_overflows_float16_is_said_and_computed_again() -> None:
    # 4 units of 1000 · 4 = 4000 each; 100 · 4 · 4000 = 1.6e6 > 65504.
    x = torch.ones(2, 4, dtype=torch.float16)
    explainer = dt.Explainer(half([[1000.0] * 4] * 4, 100.0), x, dt.NonNegative())
    with pytest.warns(dt.DeepTaylorWarning, match="float16 overflowed.*float32"):
        e = explainer.explain(x)
    assert e.score.tolist() == [1.6e6, 1.6e6]
    assert torch.allclose(e.relevance.float(), torch.full((2, 4), 4e5))
    says(e.check(), "float16 overflowed", "float32")
    assert explainer.engines["4f"].network is not None
    with pytest.warns(dt.DeepTaylorWarning, match="float16 overflowed"):
        assert torch.allclose(e.at("1").float(), torch.full((2, 4), 4e5))


def test_a_denominator_that_overflows_float16_is_said_and_computed_again() -> None:
    # z = 3 · 30000 − 3 · 29000 = 3000 fits float16, Σ z⁺ = 90000 does not: R / ∞ = 0 would lose everything silently.
    x = torch.ones(2, 6, dtype=torch.float16)
    explainer = dt.Explainer(half([[30000.0] * 3 + [-29000.0] * 3] * 4, 1.0), x, dt.NonNegative())
    with pytest.warns(dt.DeepTaylorWarning, match="float16 overflowed.*float32"):
        e = explainer.explain(x)
    assert torch.allclose(e.relevance.float()[:, :3], e.score.float()[:, None] / 3, rtol=1e-2)
    assert e.check().accounted


def test_float16_that_does_not_overflow_is_explained_in_float16() -> None:
    x = torch.ones(2, 4, dtype=torch.float16)
    e = dt.Explainer(half([[1.0] * 4] * 4, 1.0), x, dt.NonNegative()).explain(x)
    assert e.relevance.dtype == torch.float16
    assert e.relevance.tolist() == [[4.0] * 4] * 2
    assert not e.notes


def test_overflow_in_float32_is_an_error() -> None:
    net = half([[1000.0] * 4] * 4, 100.0).float()
    explainer = dt.Explainer(net, torch.ones(1, 4), dt.NonNegative())
    with pytest.raises(dt.InputError) as info:
        explainer.explain(torch.full((1, 4), 1e36))
    says(info.value, "not finite", "overflow", "scale")


# --- domains ------------------------------------------------------------------------------------------------------


def test_a_box_upside_down_is_refused() -> None:
    with pytest.raises(dt.InputError, match=r"low must not exceed high.*swapped"):
        dt.Box(1.0, 0.0)
    with pytest.raises(dt.InputError, match=r"low must not exceed high"):
        dt.Box([0.0, 0.0, 2.0], 1.0)


@pytest.mark.parametrize(
    "bounds", [(0.0, float("inf")), (float("-inf"), 0.0), (float("nan"), 1.0), ([0.0, float("nan")], 1.0)]
)
def test_a_box_without_finite_bounds_is_refused(bounds: Any) -> None:
    with pytest.raises(dt.InputError, match=r"bounds must be finite.*Real\(\) or NonNegative\(\)"):
        dt.Box(*bounds)


def test_bounds_that_do_not_fit_each_other_are_refused() -> None:
    with pytest.raises(dt.InputError, match=r"low has shape \(2,\) and high \(3,\)"):
        dt.Box([0.0, 0.0], [1.0, 1.0, 1.0])


@pytest.mark.usefixtures("no_capture")
@pytest.mark.parametrize("shape", [(2,), (4, 4, 3), (2, 3, 4, 4), (3, 5, 4)])
def test_bounds_that_do_not_fit_the_samples_are_refused_before_capture(shape: tuple[int, ...]) -> None:
    with pytest.raises(dt.InputError) as info:
        dt.Explainer(cnn(), torch.rand(1, 3, 4, 4), dt.Box(torch.zeros(shape), torch.ones(shape)))
    says(info.value, str(shape), "(3, 4, 4)", "one number a channel")


@pytest.mark.parametrize("shape", [(2,), (3, 5, 4)])
def test_bounds_that_do_not_fit_the_samples_are_refused_at_the_latest_when_explaining(shape: tuple[int, ...]) -> None:
    x = torch.rand(1, 3, 4, 4)
    with pytest.raises(dt.InputError) as info:
        dt.Explainer(cnn(), x, dt.Box(torch.zeros(shape), torch.ones(shape))).explain(x)
    says(info.value, str(shape), "(3, 4, 4)", "one number a channel")


def test_a_normalisation_without_spread_is_refused() -> None:
    with pytest.raises(dt.InputError, match="std must be positive"):
        dt.Box.from_normalisation([0.5, 0.5], [0.2, 0.0])


def test_a_box_without_zero_warns_at_the_users_line() -> None:
    with pytest.warns(dt.DeepTaylorWarning) as record:
        dt.Explainer(mlp(), torch.full((1, 4), 1.5), dt.Box(1, 2))
    says(record[0].message, "[1, 2]", "does not contain zero", "linear", "Shift")
    assert record[0].filename == HERE


def test_the_number_of_domains_is_checked() -> None:
    with pytest.raises(dt.PlanError, match="2 domains were given for 1 inputs"):
        dt.Explainer(mlp(), torch.rand(1, 4), [dt.Real(), dt.Real()])


@pytest.mark.usefixtures("no_capture")
@pytest.mark.parametrize("domain", ["box", dt.Real, (0.0, 1.0), 1.0])
def test_what_is_no_domain_is_refused(domain: Any) -> None:
    with pytest.raises(dt.PlanError) as info:
        dt.Explainer(mlp(), torch.rand(1, 4), domain)
    says(info.value, "domain", "Box")


@pytest.mark.usefixtures("no_capture")
def test_unknown_settings_name_the_known_ones() -> None:
    with pytest.raises(dt.PlanError, match="bias must be one of 'neuron', 'spread'; got 'none'"):
        dt.Explainer(mlp(), torch.rand(1, 4), bias="none")
    with pytest.raises(dt.PlanError, match="max_pool must be one of 'proportional', 'winner'; got 'average'"):
        dt.Explainer(mlp(), torch.rand(1, 4), max_pool="average")


# --- networks that cannot be captured or planned ------------------------------------------------------------------


class Layers(nn.Module):
    """Three linear layers for the networks below."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)


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
        h = torch.roll(self.a(x), 1)  # without dims it rolls across samples
        h = torch.cumsum(self.b(h), 1)
        return self.c(h)


@pytest.mark.parametrize(
    ("network", "lines"),
    [
        (InParallel, ("left = torch.cumsum(self.a(x), 1)", "right = torch.cummax(self.b(x), 1).values")),
        (InSeries, ("h = torch.cumsum(self.a(x), 1)", "h = torch.renorm(self.b(h), 2, 0, 1.0)")),
        (InAnUnsupportedForm, ("h = torch.roll(self.a(x), 1)", "h = torch.cumsum(self.b(h), 1)")),
    ],
)
def test_all_unsupported_operations_are_listed_with_their_lines(network: type[Layers], lines: tuple[str, ...]) -> None:
    with pytest.raises(dt.UnsupportedOpError) as info:
        dt.Explainer(network().eval(), torch.rand(2, 4))
    says(info.value, "2 operation(s)", f"{HERE}:", "What to do", *lines)
    assert isinstance(info.value, dt.PlanError)


def test_an_unsupported_operation_is_named_by_its_own_name() -> None:
    with pytest.raises(dt.UnsupportedOpError) as info:
        dt.Explainer(InParallel().eval(), torch.rand(2, 4))
    says(info.value, "cumsum", "cummax")


def test_an_unsupported_operation_inside_a_gate_is_no_problem() -> None:
    class Gate(Layers):
        def forward(self, x: Tensor) -> Tensor:
            return self.c(self.a(x) * torch.sigmoid(torch.cumsum(self.b(x), 1)))

    e = dt.explain(Gate().eval(), torch.rand(2, 4), dt.margin())
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
        dt.Explainer(network().eval(), torch.rand(2, 4))
    says(info.value, "control flow", "depends on the values", "torch.where", "What to do")
    code, first = inspect.getsourcelines(network.forward)
    lines = [int(n) for n in re.findall(re.escape(HERE) + r":(\d+)", str(info.value))]
    # The first statement of each forward is the one that needs the value.
    assert lines == [first + 1], f"{lines} for {code[1].strip()!r} at {first + 1}, in: {info.value}"


def test_an_exception_of_the_network_itself_is_passed_on_with_its_place() -> None:
    class Fails(Layers):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("no weights were loaded")

    with pytest.raises(dt.CaptureError) as info:
        dt.Explainer(Fails().eval(), torch.rand(2, 4))
    says(info.value, "no weights were loaded", f"{HERE}:", "What to do")


def test_leaving_torch_names_the_place() -> None:
    class Numpy(Layers):
        def forward(self, x: Tensor) -> Tensor:
            return torch.from_numpy(self.c(x).numpy())

    with pytest.raises(dt.CaptureError) as info:
        dt.Explainer(Numpy().eval(), torch.rand(2, 4))
    says(info.value, ".numpy()", f"{HERE}:", "What to do")


def test_a_constant_network_has_nothing_to_explain() -> None:
    class Constant(Layers):
        def forward(self, x: Tensor) -> Tensor:
            return torch.ones(x.shape[0], 3)

    with pytest.raises(dt.PlanError, match="does not depend on its input"):
        dt.Explainer(Constant().eval(), torch.rand(2, 4))


def test_what_is_no_network_is_refused() -> None:
    with pytest.raises(dt.DeepTaylorError) as info:
        dt.Explainer(torch.relu, torch.rand(2, 4))
    says(info.value, "nn.Module")


class Several(Layers):
    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"logits": self.c(x), "hidden": (self.a(x), self.b(x))}


def test_several_outputs_need_a_choice() -> None:
    with pytest.raises(dt.PlanError) as info:
        dt.Explainer(Several().eval(), torch.rand(2, 4))
    says(info.value, "returns 3 tensors", "0: logits", "1: hidden", "2: hidden", "output=")
    assert "']" not in str(info.value), "names are written as a person would write them"


@pytest.mark.parametrize("output", ["logit", 3, -1])
def test_an_output_that_does_not_exist_names_those_that_do(output: Any) -> None:
    with pytest.raises(dt.PlanError) as info:
        dt.Explainer(Several().eval(), torch.rand(2, 4), output=output)
    says(info.value, f"no output {output!r}", "0: logits")


# --- training mode ------------------------------------------------------------------------------------------------


def noisy() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    with torch.no_grad():
        net[1].running_mean.uniform_(-0.2, 0.2)
        net[1].running_var.uniform_(0.5, 2.0)
    return net.train()


def test_training_mode_warns_and_is_explained_in_eval_mode() -> None:
    net, x = noisy(), torch.rand(3, 4)
    net[4].eval()
    modes = [m.training for m in net.modules()]
    with pytest.warns(dt.DeepTaylorWarning) as record:
        e = dt.explain(net, x, 1, dt.NonNegative())
    says(record[0].message, "training mode", "BatchNorm1d", "Dropout", "eval", "restored", "model.eval()")
    assert [m.training for m in net.modules()] == modes
    quiet = dt.explain(net.eval(), x, 1, dt.NonNegative())
    assert torch.equal(e.relevance, quiet.relevance)
    assert torch.allclose(e.score, net(x)[:, 1], atol=1e-6)


def test_the_training_warning_points_at_the_users_line() -> None:
    with pytest.warns(dt.DeepTaylorWarning) as record:
        dt.Explainer(noisy(), torch.rand(3, 4))
    assert [w.filename for w in record] == [HERE]


def test_training_mode_is_restored_after_an_exception() -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("no")

    net = nn.Sequential(noisy(), Fails())
    net[0][3].eval()
    modes = [m.training for m in net.modules()]
    fast = torch.backends.mha.get_fastpath_enabled()
    with pytest.warns(dt.DeepTaylorWarning, match="training mode"), pytest.raises(dt.CaptureError):
        dt.Explainer(net, torch.rand(3, 4))
    assert [m.training for m in net.modules()] == modes
    assert torch.backends.mha.get_fastpath_enabled() == fast


def test_training_mode_of_what_does_not_differ_is_quiet() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dt.Explainer(mlp().train(), torch.rand(2, 4))


def test_batch_norm_without_statistics_mixes_samples_and_is_refused() -> None:
    net = nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.ReLU(), nn.Linear(4, 3)
    ).eval()
    with pytest.raises(dt.UnsupportedOpError) as info:
        dt.Explainer(net, torch.rand(2, 4))
    says(info.value, "batch_norm", "module '1'")


# --- stale networks -----------------------------------------------------------------------------------------------


def _step(net: nn.Module) -> None:
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()


def _load(net: nn.Module) -> None:
    net.load_state_dict({k: v + 0.5 for k, v in net.state_dict().items()})


def _whole_data(net: nn.Module) -> None:
    net[0].weight.data.mul_(2)


def _one_value_of_data(net: nn.Module) -> None:
    net[0].weight.data[1, 1] += 1


def _other_data(net: nn.Module) -> None:
    net[0].weight.data = net[0].weight.data + 1


def _replaced(net: nn.Module) -> None:
    net[0].weight = nn.Parameter(net[0].weight.detach() * 2)


def _no_grad(net: nn.Module) -> None:
    with torch.no_grad():
        net[0].weight[3, 2] -= 1


def _fused_step(net: nn.Module) -> None:
    net(torch.ones(1, 4)).sum().backward()
    torch.optim.Adam(net.parameters(), lr=0.1, fused=True).step()  # writes without torch counting it


def _signs_of_data(net: nn.Module) -> None:
    net[0].weight.data[:, 3].neg_()


def _negated_data(net: nn.Module) -> None:
    net[0].weight.data.neg_()


def _permuted_data(net: nn.Module) -> None:
    net[0].weight.data.copy_(net[0].weight.data.flip(1))


CHANGES = [
    _step, _fused_step, _load, _whole_data, _one_value_of_data, _signs_of_data, _negated_data, _permuted_data,
    _other_data, _replaced, _no_grad
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__.strip("_"))
def test_a_changed_network_is_refused_until_refreshed(change: Any) -> None:
    net, x = mlp(), torch.rand(2, 4)
    explainer = dt.Explainer(net, x, dt.NonNegative())
    before = explainer.explain(x, 0)
    change(net)
    text = refusal(explainer, x, 0, dt.StaleModelError)
    says(text, "changed since it was captured", "0.weight", "explainer.refresh()")
    with pytest.raises(dt.StaleModelError):
        before.at("1")
    assert explainer.refresh() is explainer
    after = explainer.explain(x, 0)
    assert torch.equal(after.relevance, dt.Explainer(net, x, dt.NonNegative()).explain(x, 0).relevance)
    assert torch.allclose(after.score, net(x)[:, 0])
    assert not torch.equal(after.score, before.score)


def test_plain_tensors_are_refused_too_where_the_network_changed() -> None:
    net, x = mlp(), torch.rand(2, 4)
    explainer = dt.Explainer(net, x, dt.NonNegative())
    explainer(x, 0)
    with torch.no_grad():
        net[0].weight.mul_(2)
    with pytest.raises(dt.StaleModelError, match="refresh"):
        explainer(x, 0)


@pytest.mark.parametrize("fused", [False, True])
def test_plain_tensors_are_refused_too_after_a_step_of_training(fused: bool) -> None:
    net, other, x = mlp(), mlp(), torch.rand(2, 4)
    explainer = dt.Explainer(net, x, dt.NonNegative())
    for trained in (other, net):  # the first is somebody else's
        explainer(x, 0)
        trained(x).sum().backward()
        torch.optim.AdamW(trained.parameters(), lr=0.1, fused=fused).step()
    with pytest.raises(dt.StaleModelError, match="refresh"):
        explainer(x, 0)


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net.__setitem__(1, nn.Tanh()),
        lambda net: net.append(nn.Linear(3, 2)),
        lambda net: net.append(nn.ReLU()),
        lambda net: net.__setitem__(1, nn.LeakyReLU(0.5)),
    ],
    ids=["replaced", "layer more", "activation more", "other slope"],
)
def test_a_network_with_other_parts_is_refused(change: Any) -> None:
    x = torch.rand(2, 4)
    net = nn.Sequential(nn.Linear(4, 5), nn.LeakyReLU(0.1), nn.Linear(5, 3)).eval()
    explainer = dt.Explainer(net, x, dt.NonNegative())
    change(net)
    says(refusal(explainer, x, 0, dt.StaleModelError), "(module)", "refresh()")
    with pytest.raises(dt.StaleModelError):
        explainer(x, 0)


def test_a_part_replaced_by_its_like_is_no_change() -> None:
    net, x = mlp(), torch.rand(2, 4)
    explainer = dt.Explainer(net, x, dt.NonNegative())
    before = explainer(x, 0)[1]
    net[1] = nn.ReLU()
    assert torch.equal(explainer(x, 0)[1], before)
    assert torch.equal(explainer.explain(x, 0).relevance, before)


def test_what_modules_say_of_themselves_is_no_change() -> None:
    class Talking(nn.ReLU):
        """Says something else each time, as modules that count do; or fails."""

        said = 0

        def extra_repr(self) -> str:
            self.said += 1
            assert self.said < 3
            return str(self.said)

    net, x = nn.Sequential(nn.Linear(4, 5), Talking(), nn.Dropout(0.5), nn.Linear(5, 3)).eval(), torch.rand(2, 4)
    explainer = dt.Explainer(net, x, dt.NonNegative())
    net[2].p = 0.1
    for _ in range(4):
        explainer.explain(x)


def checksum_of(t: Tensor) -> int:
    """Among others, which must not matter."""
    return checksums([torch.ones(3), t, torch.zeros(0), t[:1]])[1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.uint8])
@pytest.mark.parametrize("size", [1, 7, 64, 1021, 30000, 600001])
def test_the_checksum_sees_a_bit_a_sign_and_an_order(dtype: torch.dtype, size: int) -> None:
    t = (torch.randn(size, generator=torch.Generator().manual_seed(size)) * 100).to(dtype)
    known = checksum_of(t)
    assert checksum_of(t.clone()) == known
    assert checksum_of(torch.cat([t[:1], t])[1:]) == known  # wherever it begins
    for k in {0, size // 3, size - 1}:
        bits = t.clone().view(torch.uint8)
        place = k * t.element_size()
        bits[place] ^= 1
        assert checksum_of(bits.view(dtype)) != known
        bits[place] ^= 1
        bits[place + t.element_size() - 1] ^= 128  # the sign
        assert checksum_of(bits.view(dtype)) != known
    if size > 1:
        assert checksum_of(t.roll(1)) != known
    assert checksum_of(-t) != known


def test_a_refresh_that_fails_leaves_the_network_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = mlp(), torch.rand(2, 4)
    explainer = dt.Explainer(net, x, dt.NonNegative())
    with torch.no_grad():
        net[0].weight.mul_(2)
    with monkeypatch.context() as broken:
        broken.setattr(net, "forward", lambda x: x.nonsense())
        with pytest.raises(dt.CaptureError):
            explainer.refresh()
    with pytest.raises(dt.StaleModelError):
        explainer(x, 0)
    explainer.refresh()
    explainer(x, 0)


def test_no_state_dict_is_loaded_into_the_users_network() -> None:
    net, other, x = mlp(), mlp(), torch.rand(2, 4)
    nn.init.normal_(other[0].weight)
    before = {name: t.clone() for name, t in net.state_dict().items()}
    explainer = dt.Explainer(net, x, dt.NonNegative())
    assert not explainer.state_dict()
    explainer.load_state_dict(dt.Explainer(other, x, dt.NonNegative()).state_dict())
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())


def test_a_network_made_in_inference_mode_is_explained() -> None:
    with torch.inference_mode():
        net = mlp()
        x = torch.rand(2, 4)
        e = dt.Explainer(net, x, dt.NonNegative()).explain(x)
    assert e.check().accounted


@pytest.mark.parametrize(
    ("target", "what"),
    [
        (3, "out of range"),
        (-1, "out of range"),
        (torch.tensor([0, 7]), "out of range"),
        (torch.arange(6) % 3, "shape"),
        (torch.eye(3), "output's shape"),
        (torch.tensor([True, False]), "A target is"),
        ([0, 1], "A target is"),
    ],
    ids=["class 3 of 3", "negative", "one of two", "too many", "weights", "bool", "list"],
)
def test_a_call_refuses_the_targets_that_explain_refuses(target: Any, what: str) -> None:
    explainer, x = dt.Explainer(mlp(), torch.rand(2, 4), dt.NonNegative()), torch.rand(2, 4)
    for refused in (explainer, explainer.explain):
        with pytest.raises(dt.TargetError, match=what):
            refused(x, target)


def test_a_call_refuses_an_empty_batch() -> None:
    explainer = dt.Explainer(mlp(), torch.rand(2, 4), dt.NonNegative())
    with pytest.raises(dt.InputError, match="empty"):
        explainer(torch.rand(0, 4))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32])
def test_classes_come_in_every_type_of_integer(dtype: torch.dtype) -> None:
    explainer, x = dt.Explainer(nn.Linear(4, 300), torch.rand(2, 4), dt.NonNegative()), torch.rand(2, 4)
    for target in (torch.tensor([3, 100]), torch.tensor([[3, 4], [100, 1]])):
        assert torch.equal(explainer(x, target.to(dtype))[1], explainer(x, target)[1])


def test_vmap_over_an_explainer() -> None:
    """Values are not there to be looked at, and nothing looks."""
    explainer, x = dt.Explainer(mlp(), torch.rand(2, 4), dt.NonNegative()), torch.rand(3, 2, 4)
    classes, weights = torch.tensor([[0, 1], [2, 0], [1, 1]]), torch.rand(3, 2, 3)
    for target in (classes, weights):
        expected = torch.stack([explainer(a, t)[1] for a, t in zip(x, target, strict=True)])
        torch.testing.assert_close(torch.vmap(lambda a, t: explainer(a, t)[1])(x, target), expected)


def test_a_class_that_does_not_exist_has_no_score() -> None:
    """Where nobody looks, as in exported explainers and on GPUs: not a number, instead of an empty map."""
    v, _ = targets.weights(torch.tensor([[1, 3], [-1, 2]]), torch.rand(2, 3))
    assert v.isnan().all(-1).tolist() == [[False, True], [True, False]]
    assert v[0, 0].tolist() == [0, 1, 0]
    assert v[1, 1].tolist() == [0, 0, 1]


def test_a_network_that_insists_on_its_batch_is_refreshed_and_scored() -> None:
    class Four(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.view(4, 4))

    x = torch.rand(4, 4)
    explainer = dt.Explainer(Four().eval(), x, dt.NonNegative())
    expected = explainer(x, 0)[1]
    assert torch.equal(explainer.refresh()(x, 0)[1], expected)
    assert torch.allclose(explainer(x, lambda out: out[:, 0])[1], expected)


def test_a_changed_buffer_is_refused() -> None:
    net, x = noisy().eval(), torch.rand(3, 4)
    explainer = dt.Explainer(net, x)
    net.train()(x)  # updates the running statistics
    says(refusal(explainer, x, 0, dt.StaleModelError), "running_mean", "refresh()")


def test_a_changed_network_is_refused_for_a_callable_target_too() -> None:
    net, x = mlp(), torch.rand(2, 4)
    explainer = dt.Explainer(net, x)

    def difference(out: Tensor) -> Tensor:
        return out[:, 1] - out[:, 0]

    explainer.explain(x, difference)
    _no_grad(net)
    with pytest.raises(dt.StaleModelError, match=r"refresh\(\)"):
        explainer.explain(x, difference)
    e = explainer.refresh().explain(x, difference)
    assert torch.allclose(e.score, difference(net(x)))


def test_gradients_and_modes_do_not_make_a_network_stale() -> None:
    net, x = noisy().eval(), torch.rand(3, 4)
    explainer = dt.Explainer(net, x)
    net(x).sum().backward()
    net.train().requires_grad_(False)
    assert explainer.explain(x).relevance.shape == x.shape


# --- targets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "wrong"),
    [
        (3, "3"),
        (-1, "-1"),
        (torch.tensor([0, 3]), "3"),
        (torch.tensor([[0, 1], [-2, 1]]), "-2"),
        (dt.margin(7, 0), "7"),
    ],
)
def test_a_class_out_of_range_names_the_range(vectors: dt.Explainer, target: Any, wrong: str) -> None:
    text = refusal(vectors, torch.rand(2, 4), target, dt.TargetError)
    says(text, f"target {wrong} is out of range", "3 classes", "0 to 2")


def test_a_margins_other_class_out_of_range_is_named(vectors: dt.Explainer) -> None:
    text = refusal(vectors, torch.rand(2, 4), dt.margin(0, 5), dt.TargetError)
    says(text, "other", "5 is out of range", "0 to 2")


@pytest.mark.parametrize("shape", [(3,), (1,), (3, 2), (2, 2, 1), (2, 0)])
def test_integer_targets_of_the_wrong_shape_say_expected_and_got(vectors: dt.Explainer, shape: tuple[int, ...]) -> None:
    text = refusal(vectors, torch.rand(2, 4), torch.zeros(shape, dtype=torch.long), dt.TargetError)
    says(text, "(batch,)", "(batch, K)", "2", str(shape))


@pytest.mark.parametrize("shape", [(2,), (3, 3), (2, 4)])
def test_weights_of_the_wrong_shape_say_expected_and_got(vectors: dt.Explainer, shape: tuple[int, ...]) -> None:
    text = refusal(vectors, torch.rand(2, 4), torch.ones(shape), dt.TargetError)
    says(text, "(2, 3)", str(shape))


def test_weights_that_are_not_finite_are_refused(vectors: dt.Explainer) -> None:
    weights = torch.ones(2, 3)
    weights[1, 2] = float("nan")
    says(refusal(vectors, torch.rand(2, 4), weights, dt.TargetError), "finite")


@pytest.mark.parametrize(
    "target",
    [True, False, torch.tensor([True, False]), dt.margin(True), "cat", 1.0, [0, 1], {"class": 1}],
    ids=["True", "False", "tensor of bools", "margin of a bool", "text", "float", "list", "dict"],
)
def test_a_target_of_the_wrong_type_names_the_right_ones(vectors: dt.Explainer, target: Any) -> None:
    text = refusal(vectors, torch.rand(2, 4), target, dt.TargetError)
    says(text, "None", "int", "tensor", "dt.margin", "callable", "bool" if "bool" in repr(target) else "got")


@pytest.mark.parametrize(
    "target",
    [dt.margin("cat"), dt.margin(0.5), dt.margin(0, torch.tensor([0.0, 1.0])), dt.margin(torch.tensor([0, 1, 2]))],
)
def test_a_margin_of_what_are_no_classes_is_refused(vectors: dt.Explainer, target: Any) -> None:
    says(refusal(vectors, torch.rand(2, 4), target, dt.TargetError), "margin")


@pytest.mark.parametrize("score", [lambda out: out.sum(), lambda out: 3.0, lambda out: out])
def test_a_callable_that_makes_no_number_a_sample_is_refused(vectors: dt.Explainer, score: Any) -> None:
    with pytest.raises(dt.TargetError) as info:
        vectors.explain(torch.rand(2, 4), score)
    says(info.value, "callable target", "one number a sample", "(batch,)")


def test_a_callable_that_fails_says_so() -> None:
    explainer = dt.Explainer(mlp(), torch.rand(2, 4))
    with pytest.raises(dt.DeepTaylorError) as info:
        explainer.explain(torch.rand(2, 4), lambda out: out[:, 7])
    says(info.value, "7")


def test_a_network_of_one_number_has_no_classes() -> None:
    explainer = dt.Explainer(nn.Sequential(mlp(1), nn.Flatten(0)), torch.rand(2, 4))
    for target in (1, torch.tensor([0, 1]), torch.tensor([1, 1])):
        says(refusal(explainer, torch.rand(2, 4), target, dt.TargetError), "one number a sample", "Leave target out")
    says(refusal(explainer, torch.rand(2, 4), dt.margin(), dt.TargetError), "margin", "(batch, classes ≥ 2)")


def test_a_network_of_pictures_has_no_classes() -> None:
    explainer = dt.Explainer(nn.Conv2d(1, 2, 1).eval(), torch.rand(2, 1, 3, 3))
    for target in (None, 0, torch.tensor([0, 1])):
        text = refusal(explainer, torch.rand(2, 1, 3, 3), target, dt.TargetError)
        says(text, "(2, 2, 3, 3)", "(batch, classes)", "weights", "callable")


# --- nothing to explain -------------------------------------------------------------------------------------------


def constant_logits(*logits: float) -> nn.Sequential:
    """Logits that are what they are: 0 · h + b."""
    net = mlp(len(logits))
    with torch.no_grad():
        net[2].weight.zero_()
        net[2].bias.copy_(torch.tensor(logits))
    return net


def test_a_negative_score_gives_an_empty_map_that_says_so() -> None:
    x = torch.rand(2, 4)
    explainer = dt.Explainer(constant_logits(-1.0, -2.0), x, dt.NonNegative())
    e = explainer.explain(x, 0)
    assert e.score.tolist() == [-1.0, -1.0]
    assert not e.relevance.any()
    assert float(e.ledger.total.abs().max()) == 0
    says(e.check(), "2 of 2 scores are negative", "empty", "dt.margin(")
    assert e.check().negative == 2
    for shown in (str(e), e._repr_html_()):
        says(shown, "negative", "dt.margin(")


def test_the_margin_that_is_offered_answers() -> None:
    x = torch.rand(2, 4)
    e = dt.Explainer(constant_logits(-1.0, -2.0), x, dt.NonNegative()).explain(x, dt.margin(0, 1))
    assert e.score.tolist() == [1.0, 1.0]
    assert e.check().negative == 0


def test_a_zero_score_is_no_evidence_and_offers_a_margin() -> None:
    x = torch.rand(2, 4)
    e = dt.Explainer(constant_logits(0.0, -2.0), x, dt.NonNegative()).explain(x, 0)
    assert not e.relevance.any()
    says(e.check(), "2 of 2 scores are zero", "no evidence", "empty")
    assert e.check().empty == 2
    says(e.check(), "dt.margin(")


def test_every_empty_map_of_many_targets_is_counted() -> None:
    x = torch.rand(2, 4)
    e = dt.Explainer(constant_logits(1.0, -1.0, 0.0), x, dt.NonNegative()).explain(x, torch.tensor([[0, 1], [1, 2]]))
    says(e.check(), "2 of 4 scores are negative", "1 of 4 scores are zero", "accounted")


def test_zero_over_zero_is_dropped_and_booked() -> None:
    # "flat" hands each of the five hidden units a fifth of f = 5, though none is active: below, 0/0 for each of them.
    net = mlp(1)
    with torch.no_grad():
        net[0].weight.fill_(-1.0)
        net[0].bias.fill_(-1.0)
        net[2].weight.fill_(1.0)
        net[2].bias.fill_(5.0)
    explainer = dt.Explainer(net, torch.rand(2, 4), dt.NonNegative(), rules={"2": dt.rules.Flat()})
    e = explainer.explain(torch.rand(2, 4))
    assert e.score.tolist() == [5.0, 5.0]
    assert e.ledger.dropped.tolist() == [5.0, 5.0]
    assert e.ledger.input.tolist() == [0.0, 0.0]
    assert e.check().accounted
    assert not e.check().conservative


# --- rules --------------------------------------------------------------------------------------------------------


class Residual(Layers):
    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.a(x))
        return self.c(F.relu(self.b(h) + h))


def plan_error(network: nn.Module, rules: dict[str, Any], x: Tensor | None = None) -> str:
    with pytest.raises(dt.PlanError) as info:
        dt.Explainer(network, torch.rand(2, 4) if x is None else x, dt.NonNegative(), rules=rules)
    return str(info.value)


def test_a_pattern_that_matches_nothing_names_what_there_is() -> None:
    says(plan_error(mlp(), {"features.*": dt.rules.Flat()}), "'features.*'", "'0'", "'2'", "explainer.plan")


def test_every_pattern_that_matches_nothing_is_named() -> None:
    rules = {"first": dt.rules.Flat(), "0": dt.rules.Flat(), "last": dt.rules.Flat()}
    text = plan_error(mlp(), rules)
    says(text, "'first'", "'last'")
    assert "'0', 'last'" not in text


def test_two_rules_for_one_block_are_refused() -> None:
    text = plan_error(Residual(), {"b": dt.rules.Epsilon(0.25), "add": dt.rules.Flat()})
    says(text, "eps=0.25", "flat", "one detection block", "add", f"{HERE}:", "one rule")


def test_one_rule_given_twice_for_one_block_is_one_rule() -> None:
    explainer = dt.Explainer(
        Residual(), torch.rand(2, 4), rules={"b": dt.rules.Epsilon(0.25), "add": dt.rules.Epsilon(0.25)}
    )
    assert [r.rule for r in explainer.plan.rows if r.node == "add"] == ["eps=0.25"]


def test_a_rule_for_what_is_no_block_is_refused() -> None:
    says(plan_error(mlp(), {"1": dt.rules.Epsilon(0.25)}), "eps=0.25", "relu", "module '1'", "only detection blocks")


def test_a_pattern_leaves_out_what_is_no_block() -> None:
    # design.md: rules={"classifier.*": Epsilon(0.25)} for a classifier with activations in it.
    explainer = dt.Explainer(mlp(), torch.rand(2, 4), rules={"*": dt.rules.Epsilon(0.25)})
    assert {r.op: r.rule for r in explainer.plan.rows} == {"linear": "eps=0.25", "relu": "pass"}


def test_pass_where_shapes_differ_is_refused() -> None:
    says(plan_error(mlp(), {"0": dt.rules.Pass()}), "pass", "one shape", "linear", "module '0'")


def test_pass_at_the_output_is_refused() -> None:
    # The output's block is completed by the target: one unit, whatever the shape of the layer.
    says(plan_error(mlp(5), {"2": dt.rules.Pass()}), "pass", "module '2'")


@pytest.mark.parametrize("rule", [dt.rules.Flat, "flat", None, 0.25])
def test_what_is_no_rule_is_refused(rule: Any) -> None:
    says(plan_error(mlp(), {"0": rule}), "'0'", "rule")
    if rule is not None:
        with pytest.raises(dt.PlanError, match="first"):
            dt.Explainer(mlp(), torch.rand(2, 4), first=rule)


def test_alpha_and_beta_must_differ_by_one() -> None:
    with pytest.raises(dt.PlanError, match=r"alpha − beta = 1.*got 2 and 2"):
        dt.rules.AlphaBeta(2.0, 2.0)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dt.rules.Epsilon(-1), "Epsilon needs a finite number epsilon ≥ 0, got -1"),
        (lambda: dt.rules.Epsilon(NAN), "Epsilon needs a finite number epsilon ≥ 0, got nan"),
        (lambda: dt.rules.Epsilon("small"), "Epsilon needs a finite number epsilon ≥ 0, got 'small'"),  # type: ignore[arg-type]
        (lambda: dt.rules.Gamma(-0.5), "Gamma needs a finite number gamma ≥ 0, got -0.5"),
        (lambda: dt.rules.Gamma(INF), "Gamma needs a finite number gamma ≥ 0, got inf"),
        (lambda: dt.rules.AlphaBeta(NAN, 1), "AlphaBeta needs a finite number alpha ≥ 0, got nan"),
        (lambda: dt.rules.AlphaBeta(0, -1), "AlphaBeta needs a finite number beta ≥ 0, got -1"),
        (lambda: dt.rules.ZBox(1, 0), "ZBox: low must not exceed high"),
        (lambda: dt.rules.ZBox(NAN, 1), "ZBox: bounds must be finite"),
        (lambda: dt.rules.ZBox(0), "ZBox needs both bounds"),
    ],
)
def test_a_rule_with_bad_numbers(make: Callable[[], dt.rules.Rule], message: str) -> None:
    with pytest.raises(dt.PlanError, match=re.escape(message)):
        make()


class Product(Layers):
    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.a(x) * self.b(x))


def test_an_ambiguous_product_asks() -> None:
    with pytest.raises(dt.PlanError) as info:
        dt.Explainer(Product(), torch.rand(2, 4))
    says(
        info.value, "'mul': dt.rules.Signal(0)", "Signal(1)", "linear and linear_1", f"{HERE}:", "self.a(x) * self.b(x)"
    )


@pytest.mark.parametrize(("operand", "signal", "gate"), [(0, "a", "b"), (1, "b", "a")])
def test_signal_answers_an_ambiguous_product(operand: int, signal: str, gate: str) -> None:
    x = torch.rand(3, 4)
    explainer = dt.Explainer(Product(), x, dt.NonNegative(), rules={"mul": dt.rules.Signal(operand)})
    e = explainer.explain(x, dt.margin())
    assert e.check().accounted
    assert float(e.at(signal).sum()) > 0
    with pytest.raises(dt.BoundaryError, match="gate"):
        e.at(gate)


@pytest.mark.parametrize("operand", [2, -1, "a"])
def test_a_signal_that_is_no_operand_is_refused(operand: Any) -> None:
    with pytest.raises(dt.PlanError, match="Signal"):
        dt.Explainer(Product(), torch.rand(2, 4), rules={"mul": dt.rules.Signal(operand)})


def test_a_signal_for_what_is_no_product_is_refused() -> None:
    says(plan_error(mlp(), {"0": dt.rules.Signal(0)}), "signal", "linear", "module '0'")


@pytest.mark.parametrize("rule", [dt.rules.Epsilon(), dt.rules.Z(), dt.rules.Gamma(), dt.rules.AlphaBeta()], ids=str)
def test_rules_that_take_differences_are_refused_in_types_of_few_digits(rule: dt.rules.Rule) -> None:
    net = half([[1.0] * 4] * 4, 1.0)
    x = torch.ones(2, 4, dtype=torch.float16)
    explainer = dt.Explainer(net, x, dt.NonNegative(), rules={"0": rule})
    for explain in (explainer.explain, explainer, lambda x: explainer.relevance_at("1", x)):
        with pytest.raises(dt.PlanError) as info:
            explain(x)
        says(info.value, str(rule), "differences", "float16", "explainer.float()")
    explainer.float().explain(x.float())


def test_a_logit_difference_is_refused_in_types_of_few_digits() -> None:
    x = torch.ones(2, 4, dtype=torch.float16)
    two = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).eval().half()
    with pytest.raises(dt.TargetError) as info:
        dt.explain(two, x, dt.margin(1, 0), dt.NonNegative())
    says(info.value, "float16", "float32")


@pytest.mark.parametrize("survives", [False, True])
def test_bfloat16_on_a_processor_that_dies_of_it_is_refused(survives: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "" if survives else "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    real = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **rest: real([*command[:2], code], **rest))
    inputs._survives_bfloat16.cache_clear()
    try:
        if survives:
            inputs.check_processor([torch.ones(2, dtype=torch.bfloat16)])
            return
        with pytest.raises(dt.InputError) as info:
            dt.Explainer(mlp().bfloat16(), torch.ones(2, 4, dtype=torch.bfloat16))
        says(info.value, "bfloat16", "explainer.float()")
    finally:
        inputs._survives_bfloat16.cache_clear()


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
        dt.Explainer(Interrupted(), torch.ones(1, 4))


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
            dt.Explainer(Interrupted(), torch.rand(2, 4))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_refused_network_is_said_once_and_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if x.sum() > 0 else x

    with pytest.raises(dt.CaptureError, match=r"torch\.where"):
        dt.Explainer(Branching(), torch.ones(1, 4))
    assert capfd.readouterr() == ("", "")

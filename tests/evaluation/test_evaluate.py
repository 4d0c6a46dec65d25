"""`dt.evaluate`: which methods and metrics, what is left out and said, and runs that were broken off."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.engine.deletion import Case, Deletion, Flipping, Maps, Measurement, Metric
from deeptaylor.errors import InputError
from deeptaylor.evaluation import evaluate as module
from deeptaylor.evaluation.baselines import BASELINES
from deeptaylor.evaluation.evaluate import LIBRARY_METHODS, USUAL, choose_methods, choose_metrics, evaluate
from deeptaylor.evaluation.metrics import METRICS
from deeptaylor.evaluation.scores import Evaluation, parse_evaluation
from deeptaylor.settings import METHODS as WORDS
from deeptaylor.support.statistics import bootstrap
from known_truth import CLASSES, SIDE, Quarters, case, random_maps, true_maps
from untouched import changes, snapshot

SMALL = Flipping(patch=3, fill="zero")


def run(methods: Any, metrics: Sequence[str | Metric] = (SMALL,), **more: Any) -> Evaluation:
    given = case()
    return evaluate(given.network, given.x, methods, metrics, classes=given.classes, **more)


def raising(net: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    raise ValueError("cannot explain this")


def with_nan(*samples: int) -> Maps:
    """The true maps, but for these samples, told by their first pixel."""
    marks = case().x[list(samples), 0, 0, 0]

    def method(net: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
        bad = torch.isin(x[:, 0, 0, 0], marks)
        return true_maps(net, x, classes).where(~bad[:, None, None, None], torch.nan)

    return method


# --- what it gives ----------------------------------------------------------------------------------------------------


def test_values_are_those_of_the_metric_itself_whatever_the_batches() -> None:
    given = case()
    wanted = SMALL.measure(given, true_maps(given.network, given.x, given.classes)[:, 0])
    for more in ({}, {"explained": 4}, {"batch": 5, "explained": 1}):
        found = run([true_maps], **more).of("flipping", "true_maps")
        np.testing.assert_allclose(found.values, wanted.values.numpy(), atol=1e-12)
        for name, curve in wanted.curves.items():
            np.testing.assert_allclose(found.curves[name], curve.mean(0).numpy(), atol=1e-12)
        assert found.at == SMALL.shares
        assert found.interval == bootstrap(found.values)


def test_a_map_that_knows_comes_before_noise_by_several_metrics() -> None:
    found = run([random_maps, true_maps], (SMALL, Deletion(patch=3, fill="zero"), "random logit"))
    assert list(found.metrics) == ["flipping", "deletion", "random logit"]
    for metric in found.metrics:
        assert [s.method for s in found.ranked(metric)] == ["true_maps", "random_maps"]
    assert found.about == {"network": "Quarters", "samples": 6, "shape": [1, SIDE, SIDE], "seed": 0}


def test_the_network_stays_as_it_was() -> None:
    given = case()
    given.network.train()
    before = snapshot(given.network)

    def method(net: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
        assert not net.training
        return x

    assert evaluate(given.network, given.x, [method], [SMALL]).failed == {}
    assert isinstance(given.network, Quarters)
    given.network.passes.clear()
    assert changes(given.network, before) == []
    assert given.network.training


def test_without_classes_the_networks_first_are_explained() -> None:
    given, asked = case(), list[int]()

    def method(net: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
        asked.extend(classes.tolist())
        return x

    evaluate(given.network, given.x, [method], [SMALL], batch=4)
    assert asked == given.network(given.x).argmax(1).tolist()


def test_our_methods_and_opponents_by_name() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)).eval()
    found = evaluate(net, torch.rand(2, 1, 8, 8), ["deep Taylor", "gradient", "random"], [Flipping(patch=2)])
    assert [s.method for s in found.scores] == ["deep Taylor", "gradient", "random"]
    assert found.failed == {}


def test_every_word_of_a_method_is_judged_and_the_reason_of_auto_is_told() -> None:
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.GELU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 3)).eval()
    with torch.no_grad():
        net[4].bias.add_(1)  # type: ignore[index, operator, union-attr]
    x = torch.rand(3, 1, 12, 12)
    found = evaluate(net, x, list(WORDS), [Flipping(patch=4)], domain=dt.Box(0, 1))
    assert found.failed == {}
    assert [s.method for s in found.scores] == list(WORDS)
    (note,) = found.notes
    assert note.startswith("auto: Method: ")
    assert "because the network has gelu, so both methods were tested on the first 3 inputs" in note
    by = {s.method: s.values for s in found.scores}
    chosen = "secant" if "Method: secants" in note else "deep-taylor"
    np.testing.assert_array_equal(by["auto"], by[chosen])


def test_a_comparison_with_the_blurred_picture_is_a_method() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))
    x, classes = torch.rand(2, 1, 8, 8), torch.tensor([2, 0])
    (maps,) = choose_methods("secant, blurred reference", None).values()
    assert torch.equal(maps(net, x, classes), dt.Explainer(net).between(x, "blur", classes).relevance)


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_networks_of_one_number(shape: tuple[int, ...]) -> None:
    class Sum(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1).sum(1).reshape(shape)

    found = evaluate(Sum(), torch.rand(3, 1, 6, 6), {"input": lambda net, x, c: x}, [Flipping(patch=2, fill="zero")])
    assert found.of("flipping", "input").interval.low > 0
    # With pictures for mosaics there are no classes; what else is asked goes on.
    both = evaluate(Sum(), torch.rand(3, 1, 6, 6), {"input": lambda net, x, c: x}, [Flipping(patch=2), "grid pointing"])
    assert list(both.metrics) == ["flipping"]


def test_progress_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    run([true_maps, random_maps], explained=4, progress=lambda *step: told.append(step))
    assert told == [("true_maps", 0, 4), ("true_maps", 1, 4), ("random_maps", 2, 4), ("random_maps", 3, 4)]


# --- names ------------------------------------------------------------------------------------------------------------


def test_unknown_methods_are_refused_with_those_that_there_are() -> None:
    with pytest.raises(
        InputError, match="There is no method called 'deep tailor'; there are auto, deep-taylor, "
    ) as caught:
        run(["deep tailor"])
    for name in (*LIBRARY_METHODS, *BASELINES):
        assert name in str(caught.value)


def test_unknown_metrics_are_refused_with_those_that_there_are() -> None:
    with pytest.raises(InputError, match="There is no metric called 'flip'; there are flipping, deletion, ") as caught:
        run([true_maps], ["flip"])
    for name in METRICS:
        assert name in str(caught.value)


def test_one_name_needs_no_list() -> None:
    assert list(choose_methods("contrast", None)) == ["contrast"]
    assert list(choose_metrics("road")) == ["road"]


def test_none_at_all_is_refused() -> None:
    for none in ([], {}):
        with pytest.raises(InputError, match="methods= names none"):
            run(none)
    with pytest.raises(InputError, match="metrics= names none; there are flipping"):
        run([true_maps], [])


def test_the_usual_methods_are_those_that_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "list_installed", lambda: ["random"])
    assert list(choose_methods(None, None)) == [name for name in USUAL if name not in BASELINES or name == "random"]
    monkeypatch.setattr(
        module, "list_installed", lambda: pytest.fail("packages are imported only where they are needed")
    )
    choose_methods(["random"], None)


def test_our_methods_are_told_the_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(module, "make_library_methods", lambda domain: told.append(domain) or {})
    run([true_maps], domain=dt.Box(0.0, 1.0))
    given = case()
    evaluate(dt.Pretrained(given.network, None, None, domain=dt.Real()), given.x, [true_maps], [SMALL])
    assert told == [dt.Box(0.0, 1.0), dt.Real()]


def test_callables_by_their_names_or_by_the_users() -> None:
    assert list(choose_methods([true_maps, "random"], None)) == ["true_maps", "random"]
    assert choose_methods({"mine": true_maps}, None) == {"mine": true_maps}
    assert [s.method for s in run({"mine": true_maps, "noise": random_maps}).scores] == ["mine", "noise"]
    with pytest.raises(InputError, match=r"Two methods are called '<lambda>': give them names of their own, \{name"):
        choose_methods([lambda n, x, c: x, lambda n, x, c: -x], None)


def test_one_metric_with_several_settings() -> None:
    found = run([true_maps], [SMALL, Flipping(patch=3, fill="mean"), "deletion"])
    zero, mean, deletion = found.metrics
    assert (zero, mean, deletion) == ("flipping, patch=3, fill=zero", "flipping, patch=3, fill=mean", "deletion")
    assert len(found.of(zero, "true_maps").values) == 6
    assert not np.allclose(found.of(zero, "true_maps").values, found.of(mean, "true_maps").values)
    with pytest.raises(InputError, match="Some metrics are given twice: flipping"):
        run([true_maps], [Flipping(), "flipping"])


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "classes", [torch.zeros(5), torch.zeros(6, 1), torch.full((6,), CLASSES), torch.full((6,), -1)]
)
def test_classes_that_do_not_fit(classes: Tensor) -> None:
    with pytest.raises(InputError, match=r"classes= is one number per input, 0 to 3; got shape .* for 6 inputs"):
        evaluate(Quarters(), case().x, [true_maps], classes=classes)


def test_masks_that_do_not_fit_and_none_where_they_are_needed() -> None:
    with pytest.raises(InputError, match=r"masks= has shape \(6, 3, 3\); for these inputs it is \(6, 12, 12\)"):
        run([true_maps], ["inside"], masks=torch.ones(6, 3, 3))
    with pytest.raises(InputError, match=r"inside needs the true regions: give masks=, \(samples"):
        run([true_maps], ["inside", SMALL])
    found = run([true_maps], ["inside"], masks=torch.ones(6, SIDE, SIDE))
    assert found.of("inside", "true_maps").values.tolist() == [1] * 6


def test_no_inputs_and_outputs_that_are_no_classes() -> None:
    with pytest.raises(InputError, match="no inputs to evaluate on"):
        evaluate(Quarters(), case().x[:0], [true_maps])
    with pytest.raises(
        InputError, match=r"\(batch, classes\), or one number per sample; the network gives \(1, 1, 12, 12"
    ):
        evaluate(nn.Identity(), case().x, [true_maps])


def test_a_folder_needs_to_know_how_photographs_are_prepared(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"A folder of photographs needs a dt.Pretrained"):
        evaluate(Quarters(), tmp_path, [true_maps])


def test_a_method_that_raises_is_named_and_the_others_go_on() -> None:
    found = run([raising, true_maps])
    assert found.failed == {"raising": "ValueError: cannot explain this"}
    assert [s.method for s in found.scores] == ["true_maps"]
    assert "left out: raising: ValueError: cannot explain this" in str(found)


def test_maps_of_another_shape_are_a_failure_of_their_method() -> None:
    found = run({"small": lambda net, x, c: x[..., :3], "true": true_maps})
    assert found.failed == {
        "small": "InputError: the method's maps have shape (6, 1, 12, 3); expected (6, 1, 12, 12) or (6, 12, 12)"
    }


def test_maps_that_are_no_numbers_are_not_counted() -> None:
    found = run({"some": with_nan(1, 4), "true": true_maps}, explained=4)
    some, true = (found.of("flipping", name) for name in ("some", "true"))
    assert found.notes == ("some: 2 of 6 maps are NaN or infinite; these are not counted.",)
    assert np.isnan(some.values).nonzero()[0].tolist() == [1, 4]
    assert some.interval.samples == 4
    good = [0, 2, 3, 5]
    np.testing.assert_array_equal(some.values[good], true.values[good])
    # Nor in the curves.
    mean = (some.curves["least first"] - some.curves["most first"]).mean()
    assert mean == pytest.approx(some.values[good].mean())


def test_maps_that_are_all_no_numbers_are_a_failure() -> None:
    found = run({"all": with_nan(*range(6)), "true": true_maps})
    assert found.failed == {"all": "InputError: all of its maps are NaN or infinite"}
    assert [s.method for s in found.scores] == ["true"]


def test_a_metric_that_cannot_judge_a_method_leaves_the_others() -> None:
    class Fails:
        name, about, higher = "fails", "nothing", True

        def measure(self, case: Case, R: Tensor, method: Maps) -> Measurement:
            if method is random_maps:
                raise RuntimeError("not this one")
            return Measurement(torch.ones(len(R)))

    found = run([true_maps, random_maps], [Fails(), SMALL], explained=4)
    assert found.failed == {"random_maps, by fails": "RuntimeError: not this one"}
    assert [(s.metric, s.method) for s in found.scores] == [
        ("fails", "true_maps"), ("flipping", "true_maps"), ("flipping", "random_maps"),
    ]  # fmt: skip


def test_too_few_classes_for_mosaics_are_said_and_the_rest_goes_on() -> None:
    given = case(3)  # of three classes
    found = evaluate(given.network, given.x, [true_maps], [SMALL, "grid pointing"])
    assert list(found.metrics) == ["flipping"]
    assert len(found.scores) == 1
    assert len(found.notes) == 1
    assert found.notes[0].startswith("grid pointing: left out. Grid pointing needs pictures of at least 4 classes")
    with pytest.raises(InputError, match="Grid pointing needs pictures of at least 4 classes"):
        evaluate(given.network, given.x, [true_maps], ["grid pointing"])


# --- mosaics, and runs that were broken off ---------------------------------------------------------------------------


class Means(nn.Module):
    """Probabilities of its own: class k where the picture is as bright as k."""

    def forward(self, x: Tensor) -> Tensor:
        return (-50 * (x.mean((1, 2, 3))[:, None] - torch.arange(5)).square()).softmax(1)


def greys() -> Tensor:
    return torch.arange(5.0)[:, None, None, None].expand(-1, 1, 4, 4)


def own_cell(net: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    return (x == classes[:, None, None, None]).float()


def test_mosaics_of_networks_with_probabilities_and_intervals_by_mosaic() -> None:
    flipping = Flipping(patch=2, fill="zero")
    found = evaluate(Means(), greys(), [own_cell], ["grid pointing", flipping], mosaic_count=7, explained=3)
    assert found.of("grid pointing", "own_cell").values.tolist() == [1] * 28
    assert found.groups["grid pointing"].tolist() == [k // 4 for k in range(28)]
    assert list(found.groups) == ["grid pointing"]
    assert len(found.of("flipping", "own_cell").values) == 5


def test_a_run_that_was_broken_off_goes_on_where_it_was() -> None:
    kept: list[Evaluation] = []
    calls: list[str] = []

    def counted(name: str, method: Maps) -> Maps:
        def maps(net: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
            calls.append(name)
            return method(net, x, classes)

        return maps

    def broken_off(net: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
        raise KeyboardInterrupt

    metrics = (SMALL, Deletion(patch=3, fill="zero"))
    first = {"some": counted("some", with_nan(2)), "true": counted("true", true_maps)}
    whole = run(first, metrics)
    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        run({**first, "true": broken_off}, metrics, keep=kept.append)
    assert calls == ["some"]
    known = parse_evaluation(json.loads(json.dumps(kept[-1].record())))
    again = run(first, metrics, known=known, keep=kept.append)
    assert calls == ["some", "true"]

    def without_time(e: Evaluation) -> dict[str, Any]:
        record = e.record()
        for s in record["scores"]:
            s.pop("seconds")
        return record

    assert without_time(again) == without_time(whole)
    assert without_time(kept[-1]) == without_time(whole)

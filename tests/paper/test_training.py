from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deeptaylor.models.networks.paper_networks import PAPER_NETWORKS, DetectionPooling, OneLayer, TwoLayer, load_network
from deeptaylor.paper import training
from deeptaylor.paper.digit_pairs import Digits, Pairs, held_out_pairs
from deeptaylor.paper.training import Progress, TrainingError, evaluate, train


@pytest.fixture(scope="module")
def digits() -> Digits:
    """Stand-ins that can be told apart: a bar of its own row for every class, with noise around it."""
    random = np.random.default_rng(0)

    def drawn(count: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        labels = (np.arange(count) % 10).astype(np.uint8)
        images = random.integers(0, 40, (count, 28, 28), dtype=np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[2 * label + 4 : 2 * label + 6, 6:22] = 255
        return images, labels

    return Digits(*drawn(200), *drawn(100))


def bits(network: DetectionPooling) -> bytes:
    return b"".join(p.detach().numpy().tobytes() for p in network.parameters())


def interrupt_at(step: int) -> Callable[[Progress], None]:
    def progress(now: Progress) -> None:
        if now.step >= step:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("name", PAPER_NETWORKS)
def test_training_learns_and_keeps_biases_where_they_may_be(name: str, digits: Digits) -> None:
    network = PAPER_NETWORKS[name]()
    pairs = held_out_pairs(digits, 500)
    before = evaluate(network, pairs)
    seen: list[Progress] = []
    last = train(network, digits, learning_rate=1e-4, steps=600, stretch=50, max_shift=0, progress=seen.append)
    after = evaluate(network, pairs)
    assert [p.step for p in seen] == list(range(50, 601, 50))
    assert last == seen[-1]
    assert after["mse"] < 600 < before["mse"]
    assert after["accuracy"] > 0.95
    for key, value in network.named_parameters():
        if key.endswith("bias"):
            assert (value <= 0).all()
            assert (value < 0).any()


def test_a_step_is_the_gradient_step_by_hand(digits: Digits) -> None:
    network, rate = OneLayer(seed=1), 1e-5
    W, b = (p.detach().double().numpy() for p in (network.detection.weight, network.detection.bias))
    generator = torch.Generator().manual_seed(7)
    pairs = training.PairSampler(digits.train_images, digits.train_labels).sample(20, generator)
    x, t = pairs.images.flatten(1).double().numpy(), pairs.target.double().numpy()
    # f = Σ_j max(0, z_j);  ∂ mean (f − t)² / ∂z_j = 2 (f − t) / 20 where z_j > 0.
    z = x @ W.T + b
    f = np.maximum(0, z).sum(1)
    delta = 2 / 20 * (f - t)[:, None] * (z > 0)
    # The one step of a training of one step is still at the full rate.
    last = train(network, digits, learning_rate=rate, steps=1, seed=7)
    np.testing.assert_allclose(network.detection.weight.detach().numpy(), W - rate * delta.T @ x, atol=1e-6)
    np.testing.assert_allclose(
        network.detection.bias.detach().numpy(), np.minimum(0, b - rate * delta.sum(0)), atol=1e-6
    )
    assert last.loss == pytest.approx(((f - t) ** 2).mean(), rel=1e-5)


def test_the_learning_rate_rises_stays_and_falls() -> None:
    rates = [training._rate(step, 300, 0.5) for step in range(301)]
    assert rates[:3] == pytest.approx([0.5 / 3, 1 / 3, 0.5])
    assert rates[2:201] == pytest.approx([0.5] * 199)
    assert rates[250] == pytest.approx(0.25)
    assert np.diff(rates[200:]) == pytest.approx(np.full(100, -0.005))
    assert rates[300] == 0


@pytest.mark.parametrize("name", PAPER_NETWORKS)
def test_resuming_gives_the_same_bits(name: str, digits: Digits, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"learning_rate": 3e-5, "steps": 70, "stretch": 8, "seed": 4}
    whole = PAPER_NETWORKS[name]()
    last = train(whole, digits, **settings)
    file = tmp_path / "checkpoint"
    for step in (24, 48):
        with pytest.raises(KeyboardInterrupt):
            train(
                PAPER_NETWORKS[name](),
                digits,
                **settings,
                checkpoint=file,
                checkpoint_every=20,
                progress=interrupt_at(step),
            )
    assert torch.load(file, weights_only=True)["step"] == 40, "the second run went on from the first"
    resumed = PAPER_NETWORKS[name](seed=99)
    seen: list[Progress] = []
    assert train(resumed, digits, **settings, checkpoint=file, progress=seen.append) == last
    assert [p.step for p in seen] == [48, 56, 64, 70]
    assert bits(resumed) == bits(whole)
    again = PAPER_NETWORKS[name](seed=98)
    assert train(again, digits, **settings, checkpoint=file) == last, "a finished training is not begun again"
    assert bits(again) == bits(whole)
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"]


def test_the_seed_decides(digits: Digits) -> None:
    ends = []
    for seed in (1, 1, 2):
        network = OneLayer()
        train(network, digits, learning_rate=3e-5, steps=5, seed=seed)
        ends.append(bits(network))
    assert ends[0] == ends[1] != ends[2]


def test_the_checkpoint_of_another_training_is_refused(digits: Digits, tmp_path: Path) -> None:
    file = tmp_path / "checkpoint"
    train(OneLayer(), digits, learning_rate=3e-5, steps=4, checkpoint=file)
    with pytest.raises(
        TrainingError, match=r"of another training \(steps 4, now 5; seed 0, now 1\); name another file"
    ):
        train(OneLayer(), digits, learning_rate=3e-5, steps=5, seed=1, checkpoint=file)
    with pytest.raises(TrainingError, match="network 'OneLayer', now 'TwoLayer'"):
        train(TwoLayer(), digits, learning_rate=3e-5, steps=4, checkpoint=file)
    fewer = Digits(digits.train_images[:100], digits.train_labels[:100], digits.test_images, digits.test_labels)
    with pytest.raises(TrainingError, match=r"of another training \(digits"):
        train(OneLayer(), fewer, learning_rate=3e-5, steps=4, checkpoint=file)


@pytest.mark.parametrize("damage", ["cut", "junk", "empty", "other"])
def test_a_damaged_checkpoint_is_refused(damage: str, digits: Digits, tmp_path: Path) -> None:
    file = tmp_path / "checkpoint"
    train(OneLayer(), digits, learning_rate=3e-5, steps=4, checkpoint=file)
    if damage == "other":
        torch.save([1, 2], file)
    else:
        whole = file.read_bytes()
        file.write_bytes({"cut": whole[: len(whole) // 2], "junk": b"junk" * 50, "empty": b""}[damage])
    with pytest.raises(TrainingError, match=r"is not a checkpoint that can be read .*remove it to start again"):
        train(OneLayer(), digits, learning_rate=3e-5, steps=4, checkpoint=file)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": 0}, "steps must be a whole number, at least 1; got 0"),
        ({"steps": 1e3}, "steps must be a whole number, at least 1; got 1000.0"),
        ({"batch": -1}, "batch must be a whole number"),
        ({"stretch": True}, "stretch must be a whole number"),
        ({"checkpoint_every": 0}, "checkpoint_every must be a whole number"),
        ({"learning_rate": 0}, "learning_rate must be a positive number; got 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be a positive number; got nan"),
        ({"device": "toaster"}, "there is no device 'toaster'"),
        ({"device": "meta"}, "training runs on cpu or cuda; got 'meta'"),
        ({"max_shift": 30}, "max_shift is a number of pixels"),
    ],
)
def test_wrong_arguments(wrong: dict[str, object], message: str, digits: Digits) -> None:
    arguments: dict[str, Any] = {"learning_rate": 1e-5, "steps": 2, **wrong}
    with pytest.raises(ValueError, match=message):
        train(OneLayer(), digits, **arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_cuda_the_error_says_so(digits: Digits) -> None:
    with pytest.raises(TrainingError, match="no CUDA device here; leave the device out"):
        train(OneLayer(), digits, learning_rate=1e-5, steps=2, device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("name", PAPER_NETWORKS)
def test_on_a_gpu_the_replayed_steps_are_those_of_the_cpu(name: str, digits: Digits) -> None:
    ends = []
    for device in ("cpu", "cuda"):
        network = PAPER_NETWORKS[name]()
        # Three stretches and a half: the last is not replayed.
        last = train(network, digits, learning_rate=1e-5, steps=35, stretch=10, device=device)
        ends.append((network.cpu(), last.loss))
    for a, b in zip(ends[0][0].parameters(), ends[1][0].parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-3)
    assert ends[0][1] == pytest.approx(ends[1][1], rel=1e-3)


def test_a_rate_too_large_is_noticed_and_not_kept(digits: Digits, tmp_path: Path) -> None:
    class Growing(OneLayer):
        """Two thirds of the neurons' sum: no ReLU can die, so that too large a step explodes."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h: torch.Tensor = self.detection(x.flatten(1))
            return h.sum(1)

    with pytest.raises(TrainingError, match=r"no longer a number after step 0; the learning rate 1 is too large"):
        train(Growing(), digits, learning_rate=1.0, steps=60, checkpoint=tmp_path / "checkpoint")
    assert not list(tmp_path.iterdir())


def test_evaluation_by_hand() -> None:
    class First(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(1.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.scale * x[:, 0, 0, 0]

    images = torch.zeros(4, 1, 28, 56)
    images[:, 0, 0, 0] = torch.tensor([90.0, 40.0, 50.0, 60.0])
    target = torch.tensor([100.0, 100.0, 0.0, 0.0])
    pairs = Pairs(images, target, torch.zeros(4, dtype=torch.long), torch.zeros(4, 2, dtype=torch.long))
    # Squares 100, 3600, 2500, 3600; right: 90 > 50 and 50 ≤ 50.
    assert evaluate(First(), pairs, batch=3) == {"mse": 2450.0, "accuracy": 0.5}


def test_command_line(
    digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("safetensors")
    monkeypatch.setattr(training, "load_digits", lambda folder: digits)
    monkeypatch.setattr(training, "_HELD_OUT", 100)
    out = tmp_path / "new" / "one.safetensors"
    arguments = ["--network", "one-layer", "--steps", "20", "--seed", "3", "--learning-rate", "2e-5", "--out", str(out)]
    assert training.main(arguments) == 0
    printed = capsys.readouterr()
    assert "one-layer: 20 steps" in printed.out
    assert "held-out digits moved by up to 0 pixels: accuracy" in printed.out
    assert printed.err == ""
    expected = OneLayer(seed=3)
    train(expected, digits, learning_rate=2e-5, steps=20, seed=3)
    network = load_network("one-layer", out)
    assert isinstance(network, OneLayer)
    assert bits(network) == bits(expected)


def test_command_line_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--network", "one-layer", "--out", str(tmp_path / "x"), "--digits", str(tmp_path / "nowhere")]
    assert training.main(arguments) == 2
    assert "nowhere is not a folder" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        training.main(["--network", "three-layer"])


def test_command_line_takes_a_rate_of_zero_at_its_word(
    digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(training, "load_digits", lambda folder: digits)
    assert training.main(["--network", "one-layer", "--out", str(tmp_path / "x"), "--learning-rate", "0"]) == 2
    assert "learning_rate must be a positive number; got 0.0" in capsys.readouterr().err


def test_the_progress_line_is_for_terminals(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = training.Progressing()
    line.show(Progress(10, 40, 5.0, 1e-4))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    line.show(Progress(10, 40, 5.0, 1e-4))
    line.show(Progress(20, 40, 5.0, 1e-4))
    line.clear()
    assert "step 20 of 40, loss 5.0" in capsys.readouterr().err

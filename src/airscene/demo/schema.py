"""OpenAPI 3.1 description of the demo's API, written by hand."""

from collections.abc import Sequence
from typing import Any

from airscene.version import __version__

NUMBERS = {"type": "array", "items": {"type": "number"}}
DATA_URL = {"type": "string", "description": "A PNG image as a data URL."}


def openapi(models: Sequence[str]) -> dict[str, Any]:
    """Return the document served at /openapi.json."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "airscene demo",
            "version": __version__,
            "description": "Decomposes an image into its objects, and renders scenes from codes. "
            "Coordinates in 2D scenes are in pixels of the given image: x to the right, y down.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {
            "/models": {"get": _models()},
            "/infer": {"post": _infer()},
            "/render": {"post": _render()},
            "/sample": {"get": _sample()},
        },
        "components": {
            "parameters": {
                "model": _query(
                    "model",
                    {"type": "string", "enum": list(models)},
                    "Name of the model (default: the first one listed).",
                ),
                "patches": _query(
                    "patches", {"enum": [0, 1], "default": 0}, "1: include pictures."
                ),
            },
            "schemas": _schemas(),
            "responses": {
                "error": _answer("A one-line description of the error.", _ref("schemas", "Error"))
            },
        },
    }


def _models() -> dict[str, Any]:
    listed = {"type": "array", "items": _ref("schemas", "Model")}
    return _operation("listModels", "List the available models", [], listed)


def _infer() -> dict[str, Any]:
    flag = {"enum": [0, 1], "default": 0}
    parameters = [
        *_common(),
        _query("invert", flag, "1: invert the image, for dark objects on a light background."),
        _query(
            "seen",
            flag,
            "1: the image is light on black, even for models that expect dark on light.",
        ),
        _query(
            "preview",
            flag,
            "1: include `image`, the image as it was read, with at most 512 pixels per side. If "
            "it is read whole: with contrast for the eye, and at most 1,600 pixels per side.",
        ),
        _query(
            "whole",
            {"enum": [0, 1]},
            "1: read the image at the scale of training, however large it is and however many "
            "objects it has; 0: resize it to the model's size (default: the model's `whole`).",
        ),
        _query(
            "tile",
            {"type": "integer", "minimum": 2, "maximum": 10_000},
            "For objects of another size than in training: the side in pixels of the square that "
            "is resized to the model's image (default: the model's `tile`). Implies whole=1.",
        ),
        _query("outlines", flag, "1: include `outline`, the outline of each object."),
    ]
    binary = {"schema": {"type": "string", "format": "binary"}}
    kinds = ("image/png", "image/jpeg", "image/tiff", "image/webp", "application/octet-stream")
    content: dict[str, Any] = dict.fromkeys(kinds, binary)
    content["application/json"] = {"schema": _ref("schemas", "Image")}
    found = {"oneOf": [_ref("schemas", "Scene"), _ref("schemas", "Layout")]}
    return _operation("infer", "Find the objects in an image", parameters, found, content)


def _render() -> dict[str, Any]:
    wanted = {"oneOf": [_ref("schemas", "SceneToDraw"), _ref("schemas", "LayoutToDraw")]}
    content = {"application/json": {"schema": wanted}}
    drawn = _ref("schemas", "Drawing")
    return _operation("render", "Render a scene from its codes", _common()[:1], drawn, content)


def _sample() -> dict[str, Any]:
    parameters = [
        *_common(),
        _query(
            "n", {"type": "integer", "minimum": 0}, "Number of objects (default: drawn from p(n))."
        ),
        _query(
            "seed", {"type": "integer", "minimum": 0, "default": 0}, "Seed of the random scene."
        ),
    ]
    found = {"oneOf": [_ref("schemas", "Scene"), _ref("schemas", "Layout")]}
    return _operation("sample", "Sample a random scene from the prior", parameters, found)


def _schemas() -> dict[str, Any]:
    pose = {"type": "object", "additionalProperties": {"type": "number"}}
    whole, number, text = {"type": "integer"}, {"type": "number"}, {"type": "string"}
    rows = {"type": "array", "items": {"type": "array"}}
    where = {**_list(number, 3), "description": "Side length and centre (x, y) of the window."}
    outline = {**_list(_list(number, 2)), "description": "Polygon around its pixels: points x, y."}
    code = {"where": where, "what": NUMBERS}
    thing = {"kind": text, "pose": pose}
    return {
        "Error": _object({"error": text}),
        "Image": {
            "description": "Rows of numbers, or of [r, g, b]: floats from 0 to 1, or integers from "
            "0 to 255. Integers are read as floats if none of them is above 1.",
            "oneOf": [rows, _object({"image": rows})],
        },
        "Model": _object(
            {"name": text, "kind": {"enum": ["2d", "3d"]}, "height": whole, "width": whole}
            | {"channels": whole, "max_objects": whole, "description": text},
            {"codes": whole, "whole": {"type": "boolean"}, "tile": whole}
            | {"kinds": _list(text), "parameters": _list(text)},
        ),
        "Object": _object(
            {"presence": number, "box": _list(number, 4), "window": _list(number, 4), **code},
            {"patch": DATA_URL, "outline": outline},
        ),
        "Scene": _object(
            {"count": whole, "count_interval": _list(whole, 2), "count_posterior": NUMBERS}
            | {"objects": _list(_ref("schemas", "Object")), "elbo": {"type": ["number", "null"]}}
            | {"residual": number, "height": whole, "width": whole},
            {"reconstruction": DATA_URL, "image": DATA_URL},
        ),
        "Thing": _object(
            {**thing, "presence": number, "kinds": pose, "sd": pose}
            | {"outside": {"type": "boolean"}},
            {"position_cm": _list(number, 2), "angle_deg": {"type": ["number", "null"]}}
            | {"symmetry": number},
        ),
        "Layout": _object(
            {"count": whole, "presence": NUMBERS, "objects": _list(_ref("schemas", "Thing"))},
            {"rendered": {"type": ["string", "null"]}, "renderer": text, "image": DATA_URL},
        ),
        "SceneToDraw": _object(
            {"objects": _list(_object(code))}, {"height": whole, "width": whole}
        ),
        "LayoutToDraw": _object({"objects": _list(_object(thing))}),
        "Drawing": _object(
            {"image": DATA_URL},
            {"objects": _list(_object({"patch": DATA_URL, "box": _list(number, 4)}))},
        ),
    }


# --- Pieces ----------------------------------------------------------------------------------


def _operation(
    name: str, summary: str, parameters: list[Any], answer: Any, content: Any = None
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": summary,
        "parameters": parameters,
        "responses": {"200": _answer(summary, answer), "default": _ref("responses", "error")},
    }
    if content:
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _common() -> list[Any]:
    return [_ref("parameters", "model"), _ref("parameters", "patches")]


def _query(name: str, schema: Any, description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": schema, "description": description}


def _answer(description: str, schema: Any) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _ref(group: str, name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/{group}/{name}"}


def _list(items: Any, length: int | None = None) -> dict[str, Any]:
    exact = {} if length is None else {"minItems": length, "maxItems": length}
    return {"type": "array", "items": items, **exact}


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    properties = {**required, **(optional or {})}
    return {"type": "object", "properties": properties, "required": list(required)}

"""config/openapi.json says what the server takes and answers: routes and keys against the sources, answers of a live
fleet against the schemas."""
import json
import pathlib
import re

import numpy

from harness import FMNIST, Fleet

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOC = json.loads((ROOT / "config" / "openapi.json").read_text())
TYPES = {"string": str, "boolean": bool, "object": dict, "array": list}


def _resolve(schema):
    while "$ref" in schema:
        schema = DOC["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return schema


def _wrong(schema, value, at="$"):
    """What is wrong with a value by its schema, or None."""
    schema = _resolve(schema)
    if value is None:
        return None if schema.get("nullable") else f"{at} is null"
    for part in schema.get("allOf", ()):
        if wrong := _wrong(part, value, at):
            return wrong
    if "oneOf" in schema and all(_wrong(part, value, at) for part in schema["oneOf"]):
        return f"{at} is {value!r}"
    kind = schema.get("type")
    if kind in ("integer", "number"):
        fits = isinstance(value, int if kind == "integer" else (int, float)) and not isinstance(value, bool)
    else:
        fits = kind is None or isinstance(value, TYPES[kind])
    if not fits or ("enum" in schema and value not in schema["enum"]):
        return f"{at} is {value!r:.80}"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        return f"{at} is {value!r:.80}"
    for i, item in enumerate(value if kind == "array" else ()):
        if wrong := _wrong(schema["items"], item, f"{at}[{i}]"):
            return wrong
    if kind == "object":
        known, more = schema.get("properties", {}), schema.get("additionalProperties", True)
        for key in schema.get("required", ()):
            if key not in value:
                return f"{at}.{key} is missing"
        for key, item in value.items():
            if key not in known and more is False:
                return f"{at}.{key} is not documented"
            part = known.get(key, more)
            if isinstance(part, dict) and (wrong := _wrong(part, item, f"{at}.{key}")):
                return wrong
    return None


def _check(fleet, method, path, pattern, body=None, status=200):
    got, answer = fleet.request(method, path, body)
    responses = DOC["paths"][pattern][method.lower()]["responses"]
    assert got == status, (path, got, answer)
    response = responses.get(str(status), responses["default"])
    wrong = _wrong(response["content"]["application/json"]["schema"], answer)
    assert wrong is None, (path, wrong)
    return answer


def test_document_and_sources_agree():
    text = (ROOT / "scheduler" / "rest.c").read_text()
    routes = set(re.findall(r'\{"(GET|POST|PUT|DELETE)", "(/[^"]*)"', text))
    listings = re.findall(r"^    ROW\((\w+)\),", (ROOT / "scheduler" / "columns.c").read_text(), re.M)
    routes |= {("GET", f"/v1/{name}") for name in listings}
    documented = {(method.upper(), re.sub(r"\{\w+\}", "*", path)) for path, item in DOC["paths"].items() for method in item}
    assert len(listings) > 5 and routes == documented, routes ^ documented
    job = re.search(r"parse_job\(.*?known\[\] = \{(.*?)NULL\}", (ROOT / "scheduler" / "job.c").read_text(), re.S).group(1)
    schemas = DOC["components"]["schemas"]
    keys = set(re.findall(r'"(\w+)"', job))
    assert keys == set(schemas["PlanRequest"]["properties"]), keys ^ set(schemas["PlanRequest"]["properties"])
    assert keys - {"explain", "timeline"} == set(schemas["JobRequest"]["properties"])
    names = [op["operationId"] for item in DOC["paths"].values() for op in item.values()]
    assert len(set(names)) == len(names)
    for reference in re.findall(r'"#/components/schemas/(\w+)"', json.dumps(DOC)):
        assert reference in schemas, reference


def test_answers_are_as_documented():
    with Fleet() as fleet:
        fleet.agent("pc")
        fleet.agent("phone")
        fleet.wait_links(("pc", "phone"), ("phone", "pc"))
        fleet.add_model(FMNIST, "fmnist")
        _check(fleet, "GET", "/v1/status", "/v1/status")
        _check(fleet, "GET", "/v1/models/fmnist", "/v1/models/{model}")
        _check(fleet, "GET", "/v1/blobs/" + "0" * 64, "/v1/blobs/{hash}")
        ask = {"kind": "batch", "model": "fmnist", "batch": 64, "source": "pc"}
        _check(fleet, "POST", "/v1/plan", "/v1/plan", ask)
        _check(fleet, "POST", "/v1/plan", "/v1/plan", {**ask, "explain": True})
        _check(fleet, "POST", "/v1/plan", "/v1/plan", {**ask, "kind": "train", "timeline": True})
        _check(fleet, "POST", "/v1/plan", "/v1/plan", {**ask, "explain": "yes"}, 400)
        for name in ("PlanRequest", "JobRequest"):  # what is below is refused, as is documented
            least = DOC["components"]["schemas"][name]["properties"]["microbatch"]["minimum"]
            _check(fleet, "POST", "/v1/plan", "/v1/plan", {**ask, "microbatch": least})
            _check(fleet, "POST", "/v1/plan", "/v1/plan", {**ask, "microbatch": least - 1}, 400)
        _check(fleet, "POST", "/v1/plan", "/v1/plan", {**ask, "pin": ["first", "last"], "deadline_ms": 1}, 400)
        data = fleet.dir / "few"
        data.mkdir()
        numpy.save(data / "x.npy", numpy.zeros((64, 1, 28, 28), "float32"))
        numpy.save(data / "y.npy", numpy.zeros(64, "int64"))
        done = fleet.yoke("--json", "batch", "fmnist", f"--data={data}", "--batch=8", f"--output={fleet.dir / 'y.npy'}").last()
        job = done["job"]
        _check(fleet, "GET", f"/v1/jobs/{job}", "/v1/jobs/{job}")
        for tail in ("events", "plan", "outputs", "request", "steps", "epochs", "use"):
            _check(fleet, "GET", f"/v1/jobs/{job}/{tail}", "/v1/jobs/{job}/" + tail)
        _check(fleet, "GET", f"/v1/jobs/{job}/timeline", "/v1/jobs/{job}/timeline")
        _check(fleet, "GET", "/v1/jobs/999", "/v1/jobs/{job}", status=404)
        for path in DOC["paths"]:
            if re.fullmatch(r"/v1/\w+", path) and "get" in DOC["paths"][path]:
                _check(fleet, "GET", path, path)

"""What the receiver serves, as OpenAPI 3.1: `GET /openapi.json`."""

from importlib.metadata import version
from typing import Any, Final

from strandline.rows import unit
from strandline.server.body import ENCODINGS

_NAME: Final = r"^[A-Za-z][A-Za-z0-9_.-]{0,127}$"
_NUMBER: Final = r"^(0|[1-9][0-9]{0,17})$"
_HEX32: Final = "^[0-9a-f]{32}$"
_ENCODED: Final = r"^(%[0-9A-Fa-f]{2}|[!-$&-~])+$"
_RANGES: Final = {
    "type": "array",
    "description": "Ranges [lo, hi]: seqs above lo up to and including hi.",
    "items": {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 2, "maxItems": 2},
}
_ENCODING: Final = {
    "name": "Content-Encoding",
    "in": "header",
    "description": "How the body is packed.",
    "schema": {"type": "string", "enum": [*ENCODINGS]},
}
_RETRY: Final = {
    "Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}, "required": True}
}

_HEADERS: Final = (
    (unit.UNIT_ID, _HEX32, "Of SHA-256 over the NUL-joined origin, epoch, dataset, source, lo, hi."),
    (unit.ORIGIN, _HEX32, "The id of the sender's store."),
    (unit.NODE, _ENCODED, "The sender's name, percent-encoded."),
    (unit.INSTANCE, _ENCODED, "The sink that sends, percent-encoded."),
    (unit.EPOCH, _NUMBER, "The epoch of the sink."),
    (unit.DATASET, _NAME, "The dataset, as the sender calls it."),
    (unit.SOURCE, _ENCODED, "The source, percent-encoded."),
    (unit.RANGE, r"^(0|[1-9][0-9]{0,18})-[1-9][0-9]{0,18}$", "lo-hi: seqs above lo up to hi."),
    (unit.ROWS, _NUMBER, "Lines of the body; no more than hi - lo."),
    (unit.SHA256, "^[0-9a-f]{64}$", "SHA-256 of the body before it was packed."),
    (unit.SCHEMA, r"^\{[ -~]*\}$", "Column to type as a JSON object in ASCII."),
)
# Both or none.
_LIFE: Final = (
    (unit.INTENT, _ENCODED, "The id of the delivery that the unit is a part of, percent-encoded."),
    (unit.THROUGH, _NUMBER, "Up to this seq the sender may have sent rows in earlier deliveries."),
)


def description(*, with_metrics: bool = False) -> dict[str, Any]:
    """All that is served; /metrics only where it is."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Strandline receiver",
            "version": version("strandline"),
            "description": "Takes rows of other nodes in, each once.",
        },
        "paths": {
            "/v1/append/{dataset}": {"post": _append()},
            unit.INGEST + "/{signal}": {"post": _ingest()},
            unit.RANGES + "/{origin}": {"get": _ranges()},
            "/healthz": {"get": _plain("healthz", "Whether this process runs.")},
            "/readyz": {
                "get": _plain("readyz", "Whether it can store.", failing={"503": _refused("It cannot now.")})
            },
            "/openapi.json": {"get": _plain("openapi", "This description.")},
            **({"/metrics": {"get": _metrics()}} if with_metrics else {}),
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Stored": _object(
                    {"stored": {"type": "integer", "minimum": 0}, "duplicate": {"type": "boolean"}}
                ),
                "Receipt": _object(
                    {
                        "dataset": {"type": "string"},
                        "request_id": {"type": "string"},
                        "rows": {"type": "integer", "minimum": 0},
                        "quarantined": {"type": "integer", "minimum": 0},
                        "ranges": {
                            "type": "object",
                            "description": "Source to [lo, hi]: its rows have the seqs above lo up to hi.",
                        },
                        "is_repeat": {"type": "boolean"},
                    }
                ),
                "Error": {
                    "type": "object",
                    "required": ["error"],
                    "properties": {
                        "error": {"type": "string", "description": "What it is, in snake case."},
                        "message": {"type": "string"},
                        "hint": {"type": "string"},
                        "ranges": _RANGES,
                        "newest": {"type": "integer", "minimum": 1},
                        "lines": {"type": "array", "items": {"type": "integer", "minimum": 1}},
                        "refused": {"type": "array", "items": {"type": "object"}},
                    },
                },
                "Strands": _object(
                    {
                        "origin": {"type": "string"},
                        "strands": {
                            "type": "array",
                            "items": _object(
                                {
                                    "epoch": {"type": "integer", "minimum": 0},
                                    "dataset": {"type": "string"},
                                    "source": {"type": "string"},
                                    "ranges": _RANGES,
                                    "newest": {
                                        "type": "object",
                                        "description": "By sink: the highest seq that came, and its intent.",
                                        "additionalProperties": _object(
                                            {
                                                "seq": {"type": "integer", "minimum": 1},
                                                "intent": {"type": "string"},
                                            }
                                        ),
                                    },
                                }
                            ),
                        },
                        "after": {"type": ["string", "null"], "description": "Give it to get the next page."},
                    }
                ),
            },
        },
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": [*properties], "properties": properties}


def _append() -> dict[str, Any]:
    rows = {"type": "array", "items": {"type": "object"}}
    return {
        "operationId": "append",
        "summary": "Store and number rows of a producer; a repeat under the same key stores nothing.",
        "security": [{"token": []}],
        "parameters": [
            _parameter("path", "dataset", _NAME, "Where the rows go."),
            _parameter("query", "source", None, "Where they come from.", required=False),
            _parameter(
                "query", "on_bad", "^(refuse|quarantine)$", "What becomes of bad rows.", required=False
            ),
            _parameter("header", "Idempotency-Key", None, "Makes a repeat harmless.", required=False),
            _ENCODING,
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": rows},
                unit.MIME: {"schema": {"type": "string", "description": "A JSON object a line."}},
                "application/vnd.apache.arrow.stream": {"schema": {"type": "string", "format": "binary"}},
            },
        },
        "responses": {
            "202": _ok("They are stored.", "Receipt"),
            "200": _ok("They were stored before.", "Receipt"),
            "400": _refused("A body, a query or a key that could not be."),
            "401": _refused("No token, or none that is known."),
            "403": _refused("The token is for other datasets, or for other nodes."),
            "404": _refused("There is no such dataset here (`dataset_unknown`)."),
            "408": _refused("The body did not come in time."),
            "413": _refused("The body is too large, as it came or unpacked."),
            "415": _refused("The body is of another type, or packed another way."),
            "422": _refused("Rows that the dataset cannot hold: `lines`, from 1; or a source too long."),
            "429": {**_refused("The token sends too much."), "headers": _RETRY},
            "500": _refused("What is stored here is damaged."),
            "503": {**_refused("It cannot store now (`spool_full`, `busy`, …)."), "headers": _RETRY},
        },
    }


def _ingest() -> dict[str, Any]:
    headers = [_parameter("header", name, pattern, text) for name, pattern, text in _HEADERS]
    headers += [_parameter("header", name, pattern, text, required=False) for name, pattern, text in _LIFE]
    return {
        "operationId": "ingest",
        "summary": "Store the rows (lo, hi] of one strand of another node, once.",
        "security": [{"token": []}],
        "parameters": [
            _parameter("path", "signal", _NAME, "Names the dataset where the rows go."),
            *headers,
            _ENCODING,
        ],
        "requestBody": {
            "required": True,
            "content": {unit.MIME: {"schema": {"type": "string", "description": "A JSON object a line."}}},
        },
        "responses": {
            "202": _ok("They are stored.", "Stored"),
            "200": _ok("They were stored before.", "Stored"),
            "400": _refused("A header, or a body that is not what the headers say (`integrity`)."),
            "401": _refused("No token, or none that is known."),
            "403": _refused("The token is for other datasets or origins."),
            "404": _refused("There is no such dataset here (`dataset_unknown`)."),
            "408": _refused("The body did not come in time."),
            "409": _refused(
                "Some are stored: `ranges`, send the others. Or the sender was put back from a copy, or "
                "is a copy: `other_life`."
            ),
            "413": _refused("The body is too large, as it came or unpacked."),
            "415": _refused("The body is of another type, or packed another way."),
            "422": _refused("Rows that the dataset cannot hold: `lines`, from 1; or a source too long."),
            "429": {**_refused("The token sends too much."), "headers": _RETRY},
            "500": _refused("What is stored here is damaged."),
            "503": {**_refused("It cannot store now (`spool_full`, `busy`, …)."), "headers": _RETRY},
        },
    }


def _ranges() -> dict[str, Any]:
    asked = [
        ("epoch", _NUMBER, "Of one epoch."),
        ("dataset", _NAME, "Of one dataset, as the sender calls it."),
        ("source", None, "Of one source."),
        ("after", None, "What the page before gave as `after`."),
    ]
    return {
        "operationId": "ranges",
        "summary": "The ranges that are stored here of another node, by pages of strands.",
        "security": [{"token": []}],
        "parameters": [
            _parameter("path", "origin", _HEX32, "The id of the other node's store."),
            *(_parameter("query", name, pattern, text, required=False) for name, pattern, text in asked),
        ],
        "responses": {
            "200": _ok("Those that the token is for.", "Strands"),
            "400": _refused("An origin or a query that could not be."),
            "401": _refused("No token, or none that is known."),
            "403": _refused("The token is for other datasets or origins."),
            "500": _refused("What is stored here is damaged."),
            "503": {**_refused("The store does not answer."), "headers": _RETRY},
        },
    }


def _metrics() -> dict[str, Any]:
    text = {"text/plain": {"schema": {"type": "string"}}}
    return {
        "operationId": "metrics",
        "summary": "How the node stands, for Prometheus. Who asks from this machine needs no token.",
        "security": [{}, {"token": []}],
        "responses": {
            "200": {"description": "In the text format of Prometheus.", "content": text},
            "401": _refused("From elsewhere: no token, or none that is known."),
            "403": _refused("The token is for some datasets or nodes only."),
            "500": _refused("What is stored here is damaged."),
            "503": {**_refused("The store does not answer."), "headers": _RETRY},
        },
    }


def _plain(name: str, summary: str, *, failing: dict[str, Any] | None = None) -> dict[str, Any]:
    ok = {"description": "It does.", "content": {"application/json": {"schema": {"type": "object"}}}}
    return {"operationId": name, "summary": summary, "responses": {"200": ok, **(failing or {})}}


def _parameter(
    place: str, name: str, pattern: str | None, text: str, *, required: bool = True
) -> dict[str, Any]:
    schema = {"type": "string"} if pattern is None else {"type": "string", "pattern": pattern}
    return {"name": name, "in": place, "required": required, "description": text, "schema": schema}


def _refused(text: str) -> dict[str, Any]:
    return _ok(text, "Error")


def _ok(text: str, schema: str) -> dict[str, Any]:
    reference = {"$ref": f"#/components/schemas/{schema}"}
    return {"description": text, "content": {"application/json": {"schema": reference}}}

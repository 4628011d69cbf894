"""The API's description for programs: OpenAPI 3.1, made from the route table and the pydantic models."""

import json
import re
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from linkpass import __version__
from linkpass.api import Problem
from linkpass_agent.api import EVENTS, MAX_EVENTS, MAX_SEQ, OPERATIONS, Operation

QUERY = {
    "since": {
        "description": "only events after this number",
        "schema": {"type": "integer", "minimum": 0, "maximum": MAX_SEQ},
    },
    "limit": {
        "description": "at most so many events: the first after `since`, or the newest",
        "schema": {"type": "integer", "minimum": 1, "maximum": MAX_EVENTS, "default": EVENTS},
    },
    "history": {
        "description": "1: also alarms that are over",
        "schema": {"type": "integer", "minimum": 0, "maximum": 1, "default": 0},
    },
    "job": {
        "description": "only queue pairs of this job",
        "schema": {"type": "integer", "minimum": 0, "maximum": MAX_SEQ},
    },
}
ERRORS = {
    400: "the request can't be understood",
    403: "the peer's uid may not change anything",
    404: "no such port, job or queue pair",
    408: "the body did not come in time",
    409: "a guard refused",
    413: "the body is too large",
}


def document() -> str:
    """The whole description, as JSON text."""
    models = {m for o in OPERATIONS for m in (o.answer, o.body) if m} | {Problem}
    ordered = sorted(models, key=lambda m: m.__name__)
    refs, schemas = models_json_schema(
        [(m, "serialization") for m in ordered], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, refs)
    return json.dumps(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "LinkPass agent",
                "version": __version__,
                "description": "HTTP/1.1 over the agent's Unix socket. Times and ages are seconds.",
            },
            "paths": paths,
            "components": {"schemas": schemas["$defs"]},
        }
    )


def _operation(o: Operation, refs: dict[Any, Any]) -> dict[str, Any]:
    def schema(model: type[BaseModel]) -> Any:
        return refs[(model, "serialization")]

    kind = "application/x-ndjson" if o.shape == "lines" else "application/json"
    answer = schema(o.answer) if o.answer else {"type": "object"}
    if o.shape == "list":
        answer = {"type": "array", "items": answer}
    problem = {"application/json": {"schema": schema(Problem)}}
    found: dict[str, Any] = {
        "operationId": o.name,
        "summary": o.summary,
        "responses": {
            "200": {"description": o.summary, "content": {kind: {"schema": answer}}},
            **{str(code): {"description": ERRORS[code], "content": problem} for code in o.errors},
        },
    }
    parameters = [
        *({"name": n, "in": "path", "required": True, "schema": {"type": "string"}} for n in _names(o.path)),
        *({"name": n, "in": "query", "required": False, **QUERY[n]} for n in o.query),
    ]
    if parameters:
        found["parameters"] = parameters
    if o.body:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema(o.body)}}}
    return found


def _names(path: str) -> list[str]:
    return re.findall(r"{(\w+)}", path)

"""The OpenAPI document, compared with the routes, the parameters and real answers."""

import json
import re
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from shardstream.streams.encoding import EVENT_NAMES
from shardstream.streams.openapi import openapi_document
from shardstream.streams.request import PARAMETERS, StreamFormat
from tests.shardstream.streams.stream_server import stream_server
from tests.topics.shard_writer import Writers
from tests.topics.splits import FAR_US
from topics.kafka.client import ClientConfig


def test_the_document_names_all_routes(
    tmp_path: Path, config: ClientConfig, keyspace: str, writers: Writers
) -> None:
    """It is served, names every route with its method, and every answer that comes is in it."""
    (writer,) = writers("-")
    writer.commit((0, 1))
    writer.heartbeat(FAR_US)
    with stream_server(tmp_path, config, keyspace) as server:
        _, _, document = server.ask("/v1/openapi.json")
        routes = {
            (route.path, method.lower())
            for route in server.service.routes()
            for method in (route.methods or ())
        } - {(route.path, "head") for route in server.service.routes()}
        with server.ndjson(("start", "earliest")) as lines:
            shown = [next(lines) for _ in range(3)]
        [event] = [line for line in shown if "seq" in line][:1]
        tokens = {"a": event["token"], "b": event["token"]}
        answers = [
            (path, method, *server.ask(asked, method.upper(), body))
            for path, method, asked, body in (
                ("/v1/streams/{keyspace}", "get", "/v1/streams/none", None),
                ("/v1/streams/{keyspace}", "get", server.path([("start", "x")]), None),
                ("/v1/keyspaces", "get", "/v1/keyspaces", None),
                ("/v1/keyspaces/{keyspace}", "get", f"/v1/keyspaces/{keyspace}", None),
                ("/v1/keyspaces/{keyspace}", "get", "/v1/keyspaces/none", None),
                ("/v1/tokens/compare", "post", "/v1/tokens/compare", "{}"),
                ("/v1/positions/{position}", "get", f"/v1/positions/{event['position']}", None),
                ("/v1/positions/{position}", "get", f"/v1/positions/{event['token']}", None),
                ("/v1/positions/{position}", "get", "/v1/positions/x", None),
                ("/v1/tokens/compare", "post", "/v1/tokens/compare", json.dumps(tokens)),
            )
        ]

    assert {(path, method) for path, found in document["paths"].items() for method in found} == (
        routes
    )
    for path, method, status, headers, answer in answers:
        described = document["paths"][path][method]["responses"][str(status)]["content"]
        assert [*described] == [headers["content-type"]]
        # References begin at the document, so its components are beside the schema.
        schema = {**document, **described[headers["content-type"]]["schema"]}
        Draft202012Validator(closed(schema)).validate(answer)
    known = document["components"]["schemas"]["Event"]["properties"]
    assert {name for line in shown for name in line} <= known.keys()


def closed(schema: Any) -> Any:
    """The same schema, of objects that have nothing else."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(each) for name, each in schema.items()}
    if schema.get("type") == "object" and "properties" in schema:
        found["additionalProperties"] = schema.get("additionalProperties", False)
    return found


def test_the_document_names_all_parameters() -> None:
    """Streams have the parameters, formats and event names that the server knows."""
    document = openapi_document()
    stream: dict[str, Any] = document["paths"]["/v1/streams/{keyspace}"]["get"]
    given = [each["name"] for each in stream["parameters"] if each["in"] == "query"]
    content = stream["responses"]["200"]["content"]
    described = content[StreamFormat.SSE.value]["schema"]["description"]

    assert given == [*PARAMETERS]
    assert all(each["schema"] for each in stream["parameters"])
    assert [*content] == [each.value for each in StreamFormat]
    assert all(re.search(rf"\b{name}\b", described) for name in EVENT_NAMES)
    references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert references == document["components"]["schemas"].keys()

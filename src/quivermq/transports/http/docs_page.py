"""The OpenAPI document as one page that loads nothing: no scripts, no network."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #1d2733; background: #fff; }
h1 small { color: #66727f; font-weight: normal; font-size: 1rem; }
section { border-top: 1px solid #dde3ea; padding: .5rem 0 1rem; }
code, h2 { font-family: ui-monospace, monospace; }
h2 { font-size: 1.1rem; } h2 b { color: #0b6e4f; }
table { border-collapse: collapse; margin: .5rem 0 1rem; }
th, td { text-align: left; vertical-align: top; padding: .15rem 1.2rem .15rem 0; }
th { color: #66727f; font-weight: normal; }
@media (prefers-color-scheme: dark) { body { color: #dce3ea; background: #14191f; }
  section { border-color: #2c3641; } h2 b { color: #58c9a3; } }
"""

Json = Mapping[str, Any]


def docs_page(openapi: Json) -> str:
    """All routes with what they take and answer, and all models."""
    info = openapi["info"]
    models = openapi.get("components", {}).get("schemas", {})
    title = f"{escape(info['title'])} <small>{escape(info['version'])}</small>"
    return "\n".join(
        [
            "<!doctype html>",
            f'<html lang="en"><meta charset="utf-8"><title>{escape(info["title"])} API</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<style>{_STYLE}</style>",
            f"<h1>{title}</h1>",
            f"<p>{escape(info.get('description', ''))}</p>",
            '<p>For programs: <a href="/openapi.json">openapi.json</a></p>',
            *_routes(openapi["paths"]),
            "<h1>Models</h1>",
            *(_model(name, model) for name, model in models.items() if "properties" in model),
            "</html>",
        ]
    )


def _routes(paths: Json) -> Iterator[str]:
    for path, methods in paths.items():
        for method, route in methods.items():
            yield "<section>"
            yield f"<h2><b>{method.upper()}</b> {escape(path)}</h2>"
            yield f"<p>{escape(route.get('description', ''))}</p>"
            if route.get("parameters"):
                rows = [
                    (one["name"], one["in"], one.get("description", ""))
                    for one in route["parameters"]
                ]
                yield _table(("parameter", "in", ""), rows)
            yield _table(("status", "answer", ""), list(_answers(route["responses"])))
            yield "</section>"


def _answers(responses: Json) -> Iterator[tuple[str, str, str]]:
    for status, response in responses.items():
        kinds = [
            _kind(content.get("schema", {})) or media
            for media, content in response.get("content", {}).items()
        ]
        yield status, ", ".join(kinds), response.get("description", "")


def _model(name: str, model: Json) -> str:
    rows = [
        (field, _kind(schema), schema.get("description", ""))
        for field, schema in model["properties"].items()
    ]
    text = escape(model.get("description", ""))
    fields = _table(("field", "type", ""), rows)
    return f'<section id="{escape(name)}"><h2>{escape(name)}</h2><p>{text}</p>{fields}</section>'


def _kind(schema: Json) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(map(_kind, schema["anyOf"]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}"
    if "const" in schema:
        return f'"{schema["const"]}"'
    return str(schema.get("type", ""))


def _table(head: tuple[str, ...], rows: list[tuple[str, str, str]]) -> str:
    first = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    rest = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(kind)}</td>"
        f"<td>{escape(text)}</td></tr>"
        for name, kind, text in rows
    )
    return f"<table><tr>{first}</tr>{rest}</table>"

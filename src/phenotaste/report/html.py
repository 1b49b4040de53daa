"""The review page: one self-contained HTML file with the content, its style and its script."""

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from phenotaste.disclosure import printable
from phenotaste.report.schema import Content

STYLES = ("page.css", "card.css", "print.css")
# Joined to one script, in this order.
SCRIPTS = (
    "dom.js",
    "relevance.js",
    "bars.js",
    "charts.js",
    "review.js",
    "review_file.js",
    "evidence.js",
    "card.js",
    "overview.js",
    "toolbar.js",
    "main.js",
)


def render(content: Content | Mapping[str, Any]) -> str:
    """Render the page. It makes no network requests, and its security policy allows only its own script and style."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    record = content.as_dict() if isinstance(content, Content) else content
    environment = Environment(
        loader=PackageLoader("phenotaste.report", "web"), autoescape=True, undefined=StrictUndefined
    )
    style = "\n".join(read_asset(name) for name in STYLES)
    script = '"use strict";\n(() => {\n' + "\n".join(read_asset(name) for name in SCRIPTS) + "})();\n"
    return environment.get_template("page.html").render(
        title=printable(record["title"]),
        trusted=record["trusted"],
        version=record["version"],
        fingerprint=record["fingerprint"],
        style=Markup(style),  # part of the package, and allowed by its hash
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        content=Markup(as_json(record)),  # escaped by as_json
    )


def as_json(record: Mapping[str, Any]) -> str:
    """Encode as JSON in which no name can end the script element or open a comment."""
    text = json.dumps(record, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def read_asset(name: str) -> str:
    return files("phenotaste.report").joinpath("web", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

"""The review page: one self-contained HTML file made of the content, our own style and our own script."""

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from phenotaste.disclosure import printable
from phenotaste.report.record import Content

STYLES = ("page.css", "card.css", "print.css")
# One script in the page, read in this order.
SCRIPTS = (
    "dom.js",
    "relevance.js",
    "bars.js",
    "charts.js",
    "review.js",
    "reading.js",
    "evidence.js",
    "card.js",
    "overview.js",
    "toolbar.js",
    "main.js",
)


def render(content: Content | Mapping[str, Any]) -> str:
    """The page as text. It asks the network for nothing, and may run no script and no style but its own."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    record = content.as_dict() if isinstance(content, Content) else content
    environment = Environment(
        loader=PackageLoader("phenotaste.report", "web"), autoescape=True, undefined=StrictUndefined
    )
    style = "\n".join(_part(name) for name in STYLES)
    script = '"use strict";\n(() => {\n' + "\n".join(_part(name) for name in SCRIPTS) + "})();\n"
    return environment.get_template("page.html").render(
        title=printable(record["title"]),
        trusted=record["trusted"],
        version=record["version"],
        fingerprint=record["fingerprint"],
        style=Markup(style),  # ours, and allowed by its hash
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        content=Markup(as_json(record)),  # as_json leaves nothing a browser could take for markup
    )


def as_json(record: Mapping[str, Any]) -> str:
    """JSON that can stand in a page: no name in it can end the script element or open a comment."""
    text = json.dumps(record, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _part(name: str) -> str:
    return files("phenotaste.report").joinpath("web", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

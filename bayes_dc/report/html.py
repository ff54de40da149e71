"""report.html: one file that shows report.json and the pictures, and needs no network.

Its one script, inline, makes tables sortable; without it the page reads as it is.
"""

import base64
import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image

from bayes_dc.report.text import number, share, short

THUMBNAIL = 128

_BETTER = {
    "higher": "higher is better",
    "lower": "lower is better",
    "zero": "0 is best",
    "none": "no score",
}

_SCORE_TITLES = {
    "accuracy": "Accuracy",
    "nll": "NLL",
    "brier": "Brier",
    "ece": "ECE",
    "entropy": "Entropy",
    "expected_entropy": "Expected entropy",
    "mutual_information": "MI",
}

# Part of the page, its title, and whether a report has it.
_PARTS: tuple[tuple[str, str, Callable[[Mapping[str, Any]], object]], ...] = (
    ("summary", "Summary", lambda d: True),
    ("metrics", "Metrics", lambda d: d["metrics"]),
    ("calibration", "Calibration", lambda d: d["reliability"]),
    ("selective", "Selective prediction", lambda d: d["review"]),
    ("ood", "Other inputs", lambda d: d["ood"]),
    ("shift", "Changed inputs", lambda d: d["shift"]),
    ("compared", "Side by side", lambda d: d["compared"]),
    ("convergence", "Passes", lambda d: d["convergence"] or d["seeds"]),
    ("first", "Inputs", lambda d: True),
    ("classes", "Classes", lambda d: d["per_class"]),
    ("cost", "Cost", lambda d: True),
    ("settings", "Settings", lambda d: True),
    ("environment", "Environment", lambda d: True),
    ("definitions", "Definitions", lambda d: True),
)


def render_html(
    document: Mapping[str, Any],
    charts: Mapping[str, tuple[bytes, bytes]],
    image: Callable[[int], np.ndarray],
    other_images: Sequence[Callable[[int], np.ndarray]] = (),
) -> str:
    """Render the report for people.

    Args:
        document: What ``build_document`` returned. All text in it is escaped.
        charts: PNG files by name, each for light and for dark screens; one that is absent is not
            shown.
        image: Gives the picture of an input as uint8 ``[H, W, 1 or 3]``.
        other_images: The same for every set of other inputs, in the order of ``document["ood"]``.

    Returns:
        An HTML page with everything inside; its policy forbids it to load anything.
    """
    environment = Environment(
        loader=PackageLoader("bayes_dc.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=number,
        share=share,
        short=short,
        value=_value,
        sort_key=_sort_key,
        better=_BETTER.__getitem__,
        mib=lambda size: f"{size / 2**20:.0f} MiB",
        pretty=lambda data: json.dumps(data, indent=2, ensure_ascii=False),
    )
    loader = environment.loader
    assert loader is not None
    script = loader.get_source(environment, "sort.js")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return environment.get_template("report.html").render(
        d=document,
        charts={name: tuple(map(data_uri, pair)) for name, pair in charts.items()},
        thumbnail=lambda i: thumbnail(image(i)),
        other_thumbnail=lambda k: lambda i: thumbnail(other_images[k](i)),
        parts=[(part, title) for part, title, there in _PARTS if there(document)],
        own_name=document["name"] or "this network",
        score_titles=_SCORE_TITLES,
        script=script,
        script_hash=f"sha256-{digest}",
    )


def thumbnail(pixels: np.ndarray) -> str:
    """Return a small picture as a data URI; pictures that are small already keep their pixels.

    Args:
        pixels: uint8 ``[H, W, 1 or 3]``.

    Returns:
        ``data:image/png;base64,…``, at most 128 pixels wide and high.
    """
    picture = Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels)
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    picture.save(buffer, format="png")
    return data_uri(buffer.getvalue())


def data_uri(png: bytes) -> str:
    """Return a PNG file as a data URI.

    Args:
        png: The file.

    Returns:
        ``data:image/png;base64,…``
    """
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def _sort_key(value: float | str | None) -> str:
    """What a cell is sorted by: nothing for a number that does not exist."""
    return "" if value is None else str(value)


def _value(value: float | str | None, unit: str) -> str:
    """A metric in its unit."""
    return share(value) if unit == "share" else number(value)

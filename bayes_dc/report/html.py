"""report.html: one file that shows report.json and the pictures; needs no script and no network."""

import base64
import io
import json
from collections.abc import Callable, Mapping

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


def render_html(
    document: Mapping[str, object],
    charts: Mapping[str, tuple[bytes, bytes]],
    image: Callable[[int], np.ndarray],
) -> str:
    """Render the report for people.

    Args:
        document: What ``build_document`` returned. All text in it is escaped.
        charts: PNG files by name, ``reliability`` and ``mutual_information``, each for light and
            for dark screens; one that is absent is not shown.
        image: Gives the picture of an input as uint8 ``[H, W, 1 or 3]``.

    Returns:
        An HTML page with everything inside.
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
        better=_BETTER.__getitem__,
        mib=lambda size: f"{size / 2**20:.0f} MiB",
        pretty=lambda data: json.dumps(data, indent=2, ensure_ascii=False),
    )
    shown = {name: tuple(map(data_uri, pair)) for name, pair in charts.items()}
    template = environment.get_template("report.html")
    return template.render(d=document, charts=shown, thumbnail=lambda i: thumbnail(image(i)))


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


def _value(value: float | str | None, unit: str) -> str:
    """A metric in its unit."""
    return share(value) if unit == "share" else number(value)

"""Images of every odd kind: shown as they should look, or refused with their name."""

import io
import os
import shutil
import struct
import zlib

import numpy as np
import pytest
from damage import cuts, flips, refused
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from bayes_dc.datasets import DatasetError, images, read_image

RED = (250, 10, 20)


def red(size=(6, 4), mode="RGB"):
    return Image.new("RGB", size, RED).convert(mode)


def encoded(picture, kind, **options):
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def chunk(kind, content):
    check = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)


def png(width, height, depth, colour, rows=b"", extra=b""):
    """A PNG with any header; ``rows`` with a filter byte before each."""
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    data = chunk(b"IHDR", head) + extra + chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + data + chunk(b"IEND", b"")


def animated(kind, **options):
    other = Image.new("RGB", (6, 4), (0, 0, 255))
    return encoded(red(), kind, save_all=True, append_images=[other, other], **options)


def row16(*values):
    return (b"\0" + struct.pack(f">{len(values)}H", *values) * 4) * 4


def transparent_palette():
    return encoded(red().quantize(4), "PNG", transparency=bytes([0, 128, 255, 10]))


SHOWN = {
    "one pixel": (encoded(red((1, 1)), "PNG"), RED),
    "CMYK": (encoded(red(mode="CMYK"), "JPEG", quality=100, subsampling=0), RED),
    "palette": (encoded(red().quantize(4), "PNG"), RED),
    "palette with transparency": (transparent_palette(), RED),
    "palette of a GIF": (encoded(red().quantize(4), "GIF"), RED),
    "transparent": (encoded(Image.new("RGBA", (6, 4), (*RED, 0)), "PNG"), RED),
    "black and white": (encoded(Image.new("1", (6, 4), 1), "PNG"), (255, 255, 255)),
    "grey with transparency": (encoded(Image.new("LA", (6, 4), (90, 7)), "PNG"), (90, 90, 90)),
    "16 bit of colour": (png(4, 4, 16, 2, row16(250 << 8, 10 << 8, 20 << 8)), RED),
    "16 bit of grey with transparency": (png(4, 4, 16, 4, row16(90 << 8, 0)), (90, 90, 90)),
    "animated GIF": (animated("GIF"), RED),
    "animated PNG": (animated("PNG"), RED),
    "animated WebP": (animated("WEBP", lossless=True), RED),
    "pages of a TIFF": (animated("TIFF"), RED),
    "pictures of a phone": (animated("MPO", quality=100, subsampling=0), RED),
    "30 000 pixels wide": (encoded(red((30_000, 9)), "PNG"), RED),
    "30 000 pixels high": (encoded(red((9, 30_000)), "PNG"), RED),
}


@pytest.mark.parametrize("suffix", ["png", "jpg", "tif"])
@pytest.mark.parametrize(("content", "colour"), SHOWN.values(), ids=SHOWN)
def test_whole_pictures_look_as_they_should_whatever_the_suffix(tmp_path, content, colour, suffix):
    path = tmp_path / f"picture.{suffix}"
    path.write_bytes(content)
    pixels = read_image(path, 3, 5, 4).astype(int)
    assert pixels.shape == (5, 4, 3)
    assert np.abs(pixels - colour).max() <= 1  # JPEG and CMYK round


def commented(characters):
    comment = PngInfo()
    comment.add_text("k", "x" * characters, zip=True)
    return encoded(red(), "PNG", pnginfo=comment)


def other(kind, **options):
    return encoded(red(), kind, **options)


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(x) run\n%%EOF\n"
UNKNOWN = "its content is none of BMP, GIF, JPEG, PNG, PPM, TIFF, WEBP."
TIFF_HEAD = b"II*\0\x08\0\0\0"

REFUSED = {
    "16 bit of grey": (png(4, 4, 16, 0, row16(40_000)), "mode I;16 has more than 8 bits"),
    "16 bit PGM": (b"P5 3 3 65535\n" + bytes(18), "mode I has more than 8 bits"),
    "32 bit": (encoded(Image.new("I", (4, 4)), "TIFF"), "mode I has"),
    "floats": (encoded(Image.new("F", (4, 4)), "TIFF"), "mode F has more than 8 bits"),
    "PostScript": (POSTSCRIPT, UNKNOWN),
    "PDF": (other("PDF"), UNKNOWN),
    "icon": (other("ICO"), UNKNOWN),
    "JPEG 2000": (other("JPEG2000"), UNKNOWN),
    "drawing": (b'<svg xmlns="http://www.w3.org/2000/svg"></svg>', UNKNOWN),
    "page": (b"<!doctype html><title>404</title>", UNKNOWN),
    "array": (b"\x93NUMPY\1\0", UNKNOWN),
    "nothing": (b"", UNKNOWN),
    "no width": (png(0, 4, 8, 2), UNKNOWN),
    "no pixels": (png(4, 4, 8, 2), "truncated"),
    "900 million pixels": (png(30_000, 30_000, 1, 0), "pixels"),
    "largest that PNG allows": (png(2**31 - 1, 2**31 - 1, 1, 0), "pixels"),
    "144 million pixels": (
        png(12_000, 12_000, 1, 0),
        "12000 × 12000 pixels are more than 67108864",
    ),
    "bomb of text": (commented(10**8), "too large"),
    "TIFF whose directory is itself": (TIFF_HEAD + b"\0\0\x08\0\0\0", ""),
    "TIFF of 65535 entries": (TIFF_HEAD + b"\xff\xff" + bytes(12), ""),
}


@pytest.mark.filterwarnings("ignore:Image size:PIL.Image.DecompressionBombWarning")
@pytest.mark.filterwarnings("ignore:.*EXIF.*:UserWarning", "ignore:Truncated File:UserWarning")
@pytest.mark.parametrize(("content", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_shown_is_refused_with_its_name(tmp_path, content, message):
    path = tmp_path / "picture.png"
    path.write_bytes(content)
    text = refused(lambda: read_image(path, 3, 4, 4), "DatasetError", path, mib=64, seconds=10)
    assert text.startswith(f"DatasetError: cannot read image {path}: ")
    assert message in text
    assert "Replace it by a whole 8-bit image (PNG, JPEG, …) or remove it." in text


def test_no_program_is_started_for_a_picture(tmp_path, monkeypatch):
    """Pillow would call Ghostscript for PostScript, whose programs may do anything."""
    marker, tool = tmp_path / "marker", tmp_path / "gs"
    tool.write_text(f"#!/bin/sh\ntouch {marker}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert shutil.which("gs") == str(tool)
    path = tmp_path / "picture.png"
    path.write_bytes(POSTSCRIPT)
    with pytest.raises(DatasetError, match="its content is none of"):
        read_image(path, 3, 4, 4)
    assert not marker.exists()


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8))
KINDS = {
    "png": "PNG",
    "jpg": "JPEG",
    "gif": "GIF",
    "bmp": "BMP",
    "ppm": "PPM",
    "tif": "TIFF",
    "webp": "WEBP",
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_cut_at_every_hundredth_is_refused(tmp_path, kind):
    """Up to what follows the pixels: an end mark may be missing."""
    path = tmp_path / f"picture.{kind}"
    whole = encoded(NOISE, KINDS[kind])
    shown = []
    for percent, content in enumerate(cuts(whole)):
        path.write_bytes(content)
        try:
            shown.append((percent, read_image(path, 3, 40, 40)))
        except DatasetError as error:
            text = str(error)
            assert text.startswith(f"cannot read image {path}: "), text
    path.write_bytes(whole)
    expected = read_image(path, 3, 40, 40)
    assert all(percent >= 90 for percent, _ in shown)
    assert all(np.array_equal(pixels, expected) for _, pixels in shown)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_changed_bits_give_pixels_or_the_named_error(tmp_path, kind):
    path = tmp_path / f"picture.{kind}"
    for content in flips(encoded(NOISE, KINDS[kind])):
        path.write_bytes(content)
        try:
            assert read_image(path, 3, 8, 8).shape == (8, 8, 3)
        except DatasetError as error:
            assert str(path) in str(error)  # noqa: PT017 - many


def test_a_pipe_does_not_block(tmp_path):
    path = tmp_path / "picture.png"
    os.mkfifo(path)
    text = refused(lambda: read_image(path, 3, 4, 4), "DatasetError", path, seconds=5)
    assert "it is a device, a pipe or a socket" in text


def test_the_largest_picture_is_larger_than_a_photograph():
    assert images.MAX_PIXELS > 60e6

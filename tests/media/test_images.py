"""Images: the hostile files, odd modes, damage, and where media may lie."""

from __future__ import annotations

import base64
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from helpers.hard import HARD, hard_rows
from vlmrl.errors import MediaError, UserError
from vlmrl.media.access import Access, reference
from vlmrl.media.decode import measure_image
from vlmrl.media.image import MAX_PIXELS, load_image
from vlmrl.schema import Media

RED, GREEN, BLUE, WHITE = (220, 20, 20), (20, 180, 20), (20, 20, 220), (250, 250, 250)


def corners(picture: Image.Image) -> dict[str, tuple[int, ...]]:
    """Colours 8 px from each corner."""
    w, h = picture.size
    places = {"TL": (8, 8), "TR": (w - 9, 8), "BL": (8, h - 9), "BR": (w - 9, h - 9)}
    return {name: picture.getpixel(place) for name, place in places.items()}


@pytest.mark.parametrize("row", hard_rows("image"), ids=lambda row: row["file"])
def test_hard_image_is_decoded_right_or_refused_by_name(row: dict[str, Any]) -> None:
    medium = Media("image", path=str(HARD / row["file"]))
    access = Access(root=str(HARD))
    try:
        picture = load_image(medium, access)
    except MediaError as error:
        assert row["expect"] != "decode", str(error)
        assert row["file"] in str(error)
        assert "\n" not in str(error)
        return
    assert row["expect"] != "refuse"
    assert picture.mode == "RGB"
    if "width" in row:
        assert picture.size == (row["width"], row["height"])
    assert measure_image(medium, access) == picture.size
    near = row.get("tolerance", 3)
    for name, colour in row.get("corners", {}).items():
        np.testing.assert_allclose(corners(picture)[name], colour, atol=near)
    if "mean_8bit" in row:
        assert np.asarray(picture).mean() == pytest.approx(row["mean_8bit"], abs=1)


def quarters(width: int = 40, height: int = 20) -> Image.Image:
    """Red, green over blue, white."""
    picture = Image.new("RGB", (width, height), WHITE)
    picture.paste(RED, (0, 0, width // 2, height // 2))
    picture.paste(GREEN, (width // 2, 0, width, height // 2))
    picture.paste(BLUE, (0, height // 2, width // 2, height))
    return picture


def encoded(picture: Image.Image, file_format: str, **options: Any) -> Media:
    buffer = io.BytesIO()
    picture.save(buffer, format=file_format, **options)
    return Media("image", data=buffer.getvalue())


# The stored image that each EXIF orientation turns back into the upright one.
STORED = {
    1: lambda p: p,
    2: lambda p: p.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    3: lambda p: p.transpose(Image.Transpose.ROTATE_180),
    4: lambda p: p.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
    5: lambda p: p.transpose(Image.Transpose.TRANSPOSE),
    6: lambda p: p.transpose(Image.Transpose.ROTATE_90),
    7: lambda p: p.transpose(Image.Transpose.TRANSVERSE),
    8: lambda p: p.transpose(Image.Transpose.ROTATE_270),
}


@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("file_format", ["PNG", "TIFF", "WEBP"])
def test_exif_orientation_gives_the_upright_picture(orientation: int, file_format: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if file_format == "WEBP" else {}
    medium = encoded(STORED[orientation](quarters()), file_format, exif=exif, **options)
    np.testing.assert_array_equal(load_image(medium), quarters())
    assert measure_image(medium, Access()) == (40, 20)


def test_sixteen_bit_gray_is_scaled_by_257() -> None:
    values = np.arange(0, 65536, 257, dtype=np.uint16).reshape(16, 16)
    for file_format in ("PNG", "TIFF"):
        picture = load_image(encoded(Image.fromarray(values), file_format))
        np.testing.assert_array_equal(np.asarray(picture)[:, :, 0], values // 257)


def test_sixteen_bit_netpbm_is_scaled_too() -> None:
    values = np.array([[0, 65535], [257 * 100, 257 * 200]], dtype=">u2")
    picture = load_image(Media("image", data=b"P5 2 2 65535\n" + values.tobytes()))
    np.testing.assert_array_equal(np.asarray(picture)[:, :, 0], [[0, 255], [100, 200]])


def test_hidden_colour_of_a_sixteen_bit_picture_becomes_white() -> None:
    values = np.array([[0, 500], [1000, 65535]], dtype=np.uint16)
    medium = encoded(Image.fromarray(values), "PNG", transparency=500)
    assert load_image(medium).getpixel((1, 0)) == (255, 255, 255)
    assert load_image(medium).getpixel((0, 1)) == (4, 4, 4)


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparent_pixels_show_white_and_not_what_they_hide(mode: str) -> None:
    layer = Image.new(mode, (4, 1), (10, 0) if mode == "LA" else (10, 20, 30, 0))
    layer.putpixel((1, 0), (10, 255) if mode == "LA" else (10, 20, 30, 255))
    layer.putpixel((2, 0), (0, 128) if mode == "LA" else (0, 0, 0, 128))
    picture = load_image(encoded(layer, "PNG"))
    assert picture.getpixel((0, 0)) == (255, 255, 255)
    assert picture.getpixel((1, 0)) == ((10, 10, 10) if mode == "LA" else (10, 20, 30))
    assert picture.getpixel((2, 0)) == (127, 127, 127)


def test_transparent_palette_and_rgb_colours_become_white() -> None:
    palette = quarters().quantize(8)
    hidden = palette.getpixel((0, 0))
    picture = load_image(encoded(palette, "PNG", transparency=hidden))
    assert corners(picture)["TL"] == (255, 255, 255)
    assert corners(picture)["TR"] == GREEN
    picture = load_image(encoded(quarters(), "PNG", transparency=RED))
    assert corners(picture)["TL"] == (255, 255, 255)


def test_float_picture_is_scaled_from_zero_to_one_and_otherwise_refused() -> None:
    values = np.array([[0.0, 0.5], [1.0, 0.25]], dtype=np.float32)
    picture = load_image(encoded(Image.fromarray(values), "TIFF"))
    np.testing.assert_array_equal(np.asarray(picture)[:, :, 0], [[0, 128], [255, 64]])
    for bad in (values * 300, values - 1, values * np.nan):
        with pytest.raises(MediaError, match=r"0\.\.1"):
            load_image(encoded(Image.fromarray(bad), "TIFF"))


def test_animation_gives_its_first_frame() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, GREEN, BLUE)]
    for file_format in ("GIF", "PNG", "WEBP"):
        options = {"lossless": True} if file_format == "WEBP" else {}
        medium = encoded(frames[0], file_format, save_all=True, append_images=frames[1:], **options)
        assert load_image(medium).getpixel((4, 4)) == RED


def test_too_many_pixels_are_refused_from_the_header() -> None:
    side = int(MAX_PIXELS**0.5) + 1
    medium = encoded(Image.new("1", (side, side)), "PNG")
    with pytest.raises(MediaError, match="max_image_pixels leaves 67108864"):
        load_image(medium)
    with pytest.raises(MediaError, match="max_image_pixels"):
        measure_image(medium, Access())


def jpeg(**options: Any) -> bytes:
    """A JPEG of smooth noise, 320 x 240 pixels."""
    noise = np.random.default_rng(0).integers(0, 255, (16, 21, 3), dtype=np.uint8)
    image = Image.fromarray(noise).resize((320, 240), Image.Resampling.BICUBIC)
    return encoded(image.convert(options.pop("mode", "RGB")), "JPEG", **options).data or b""


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("damage", ["cut", "hole", "zeros"])
def test_damaged_jpeg_that_ends_as_it_should_is_refused(
    damage: str, mode: str, progressive: bool
) -> None:
    data = jpeg(quality=90, progressive=progressive, mode=mode)
    half = len(data) // 2
    if damage == "cut":
        data = data[:half] + b"\xff\xd9"
    elif damage == "hole":
        data = data[:half] + data[half + len(data) // 4 :]
    else:
        data = data[:half] + bytes(half - 2) + b"\xff\xd9"
    with pytest.raises(MediaError, match="damaged or unsupported image: "):
        load_image(Media("image", data=data))


@pytest.mark.parametrize("height", [120, 480])
def test_jpeg_whose_header_lies_about_its_height_is_refused(height: int) -> None:
    data = bytearray(jpeg())
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 7] = height.to_bytes(2, "big")
    with pytest.raises(MediaError, match="damaged"):
        load_image(Media("image", data=bytes(data)))


@pytest.mark.parametrize("sampling", ["444", "422", "420", "440", "411", "gray"])
@pytest.mark.parametrize("progressive", [False, True])
def test_pixels_of_a_good_jpeg_are_those_of_pillow(sampling: str, progressive: bool) -> None:
    image = np.asarray(Image.open(io.BytesIO(jpeg())))[:233, :315]
    if sampling == "gray":
        image = np.ascontiguousarray(image[:, :, :1])
    data = simplejpeg.encode_jpeg(
        np.ascontiguousarray(image),
        85,
        "GRAY" if sampling == "gray" else "RGB",
        "444" if sampling == "gray" else sampling,
    )
    if progressive:
        data = encoded(Image.open(io.BytesIO(data)), "JPEG", progressive=True, quality="keep").data
    expected = Image.open(io.BytesIO(data)).convert("RGB")
    np.testing.assert_array_equal(load_image(Media("image", data=data)), expected)


def test_postscript_is_not_handed_to_a_program() -> None:
    with pytest.raises(MediaError, match="not an image we read"):
        load_image(Media("image", data=b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"))


@pytest.mark.parametrize(
    "file_format", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000"]
)
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_truncated_picture_is_never_shown_half(file_format: str, share: float) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    data = encoded(Image.fromarray(noise), file_format).data
    assert data is not None
    with pytest.raises(MediaError):
        load_image(Media("image", data=data[: int(len(data) * share)]))


@pytest.mark.filterwarnings("ignore::UserWarning")
@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "JPEG2000", "PPM", "AVIF"]),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=12),
    st.floats(0.05, 1),
)
def test_damaged_bytes_give_a_picture_or_a_media_error(
    file_format: str, flips: list[tuple[float, int]], share: float
) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    options = {"exif": exif} if file_format in ("PNG", "JPEG", "WEBP") else {}
    data = bytearray(encoded(quarters(), file_format, **options).data or b"")
    for place, value in flips:
        data[int(place * len(data))] = value
    medium = Media("image", data=bytes(data[: int(len(data) * share)]))
    try:
        assert load_image(medium).mode == "RGB"
    except MediaError:
        pass


# ------------------------------------------------------------------------------------ references


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    quarters().save(home / "a.png")
    quarters().save(tmp_path / "secret.png")
    return home


def test_every_spelling_of_a_picture_is_understood(folder: Path) -> None:
    data = (folder / "a.png").read_bytes()
    text = base64.b64encode(data).decode()
    values = [
        "a.png",
        str(folder / "a.png"),
        data,
        text,
        f"data:image/png;base64,{text}",
        {"bytes": data, "path": None},
        {"bytes": None, "path": "a.png"},
        quarters(),
    ]
    for value in values:
        picture = load_image(reference(value, folder), Access(root=str(folder)))
        np.testing.assert_array_equal(picture, quarters())


def test_a_reference_selects_a_part_of_a_video(tmp_path: Path) -> None:
    part = reference({"path": "a.mp4", "start": 2.5, "end": 4.0}, tmp_path, "video")
    assert part == Media("video", path=str(tmp_path / "a.mp4"), start=2.5, end=4.0)


@pytest.mark.parametrize("value", [None, "", 3, {"bytes": None, "path": None}, ["a.png"]])
def test_what_is_no_picture_reference_is_refused(value: Any) -> None:
    with pytest.raises(UserError, match="expected a path"):
        reference(value)


def test_broken_base64_is_a_media_error() -> None:
    with pytest.raises(MediaError, match="base64"):
        reference("data:image/png;base64,$$$")


def test_no_path_leads_out_of_the_root(folder: Path) -> None:
    os.symlink(folder.parent / "secret.png", folder / "link.png")
    os.symlink(folder.parent, folder / "up")
    access = Access(root=str(folder))
    for path in ("../secret.png", str(folder.parent / "secret.png"), "link.png", "up/secret.png"):
        with pytest.raises(MediaError, match="is outside") as caught:
            load_image(reference(path, folder), access)
        assert "secret.png" in str(caught.value) or "link.png" in str(caught.value)
        assert str(folder) in str(caught.value)
    with pytest.raises(MediaError, match=r"set data\.media_root"):
        load_image(reference("a.png", folder), Access())


def test_special_files_are_refused_without_waiting(folder: Path) -> None:
    os.mkfifo(folder / "pipe.png")
    os.symlink(folder / "loop.png", folder / "loop.png")
    for name in ("pipe.png", "loop.png", "nul\0byte.png", "x" * 5000 + ".png"):
        with pytest.raises(MediaError):
            load_image(reference(name, folder), Access(root=str(folder)))


# ------------------------------------------------------------------------------------- structure


def test_png_whose_pixels_do_not_fit_their_checksum_is_refused() -> None:
    """Some damage leaves the pixels readable to Pillow, and wrong."""
    noise = np.random.default_rng(0).integers(0, 255, (6, 8, 3), dtype=np.uint8)
    whole = Image.fromarray(noise).resize((64, 48), Image.Resampling.BICUBIC)
    data = encoded(whole, "PNG").data
    assert data is not None
    silent = 0
    for at in range(len(data) - 700, len(data) - 20, 2):
        harmed = data[:at] + b"\xff\xff\xff\xff" + data[at + 4 :]
        try:
            with Image.open(io.BytesIO(harmed)) as plain:
                silent += plain.convert("RGB").tobytes() != whole.tobytes()
        except OSError:
            pass
        with pytest.raises(MediaError, match=r"the checksum of its chunk b'IDAT' does not fit"):
            load_image(Media("image", data=harmed))
    assert silent


def test_netpbm_with_a_comment_is_read() -> None:
    data = b"P6 # by hand\n2 1 # small\n255\n" + bytes([255, 0, 0, 0, 0, 255])
    assert load_image(Media("image", data=data)).getpixel((1, 0)) == (0, 0, 255)
    long = b"P5 300 300 255\n" + b"# " * 45000
    assert load_image(Media("image", data=long)).size == (300, 300)


@pytest.mark.parametrize(
    ("file_format", "options"),
    [
        ("JPEG", {"progressive": True}),
        ("PNG", {}),
        ("GIF", {}),
        ("BMP", {}),
        ("WEBP", {}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("JPEG2000", {}),
        ("JPEG2000", {"tile_size": (64, 64)}),
        ("PPM", {}),
    ],
)
def test_a_file_that_is_cut_is_refused(file_format: str, options: dict[str, Any]) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (12, 16, 3), dtype=np.uint8)
    whole = Image.fromarray(noise).resize((160, 120), Image.Resampling.BICUBIC)
    data = encoded(whole, file_format, **options).data or b""
    for part in range(1, 20):
        with pytest.raises(MediaError):
            load_image(Media("image", data=data[: len(data) * part // 20]))

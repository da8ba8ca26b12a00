"""Images: any common file to upright 8-bit RGB, or a MediaError that names it and says why.

A plain `Image.open(path).convert("RGB")` silently gets these wrong: EXIF orientation, 16-bit and
float values, transparency (composited on white here, so that no hidden pixel shows), damaged and
truncated files (never a half-grey image), decompression bombs (refused from the header, or for more
chunks than images have). The pixels of a JPEG come from simplejpeg, which raises where libjpeg warns of
damage; Pillow would return the decoder's guess. Nor does Pillow compare the checksums of a PNG's pixels.
An animated image gives its first frame. ICC profiles are not applied.
"""

from __future__ import annotations

import re
import struct
import warnings
import zlib
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import simplejpeg
from PIL import Image

from vlmrl.errors import MediaError
from vlmrl.media.access import Access, open_media
from vlmrl.schema import Media

# --------------------------------------------------------------------------------------------------
# Which images are safe to decode in the trainer, as their first bytes tell.
#
# A small JPEG, PNG, WebP or BMP of the ordinary kind decodes in milliseconds and little memory whatever
# its bytes are. Everything else goes to a process with a deadline and a ceiling on memory: large images,
# other formats, and files with more structure than images have (a million text chunks, hundreds of
# scans, an EXIF block that names itself thousands of times).


PLAIN_MEMORY = 128 * 2**20
"""Bytes that decoding a sample's images may take in the trainer."""
PLAIN_BYTES = 16 * 2**20
"""Bytes that their files may have."""
PLAIN_COUNT = 64
"""How many they may be."""
MAX_SEGMENTS = 256
MAX_SCANS = 20
"""Scans of a progressive JPEG: each goes over the whole image; encoders write about ten."""
MAX_HEADER_CHUNKS = 4096
MAX_METADATA = 65536
"""Bytes of text, profiles or EXIF."""
MAX_TAGS = 256
# Bytes per pixel that decoding takes: planes, the coefficients of a progressive file, copies.
_BASELINE, _PROGRESSIVE, _OTHER = 6, 18, 24
_PLAIN_CHUNKS = frozenset(
    b"PLTE IDAT IEND tRNS gAMA cHRM sRGB pHYs tIME sBIT bKGD iCCP tEXt".split()
)


@dataclass(frozen=True, slots=True)
class Header:
    """What the first bytes of an image say."""

    width: int
    height: int
    plain: bool
    """Whether nothing about it is out of the ordinary, its size aside."""
    bytes_per_pixel: int = _OTHER

    @property
    def memory(self) -> int:
        """Bytes that decoding it takes, at most."""
        return self.width * self.height * self.bytes_per_pixel


def read_header(data: bytes) -> Header | None:
    """Return the header of a JPEG, PNG, WebP or BMP; None for other formats and for damaged ones.

    `data` is the whole file; of a part `plain` says nothing.
    """
    try:
        if data.startswith(b"\xff\xd8"):
            return _jpeg(data)
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            width, height = struct.unpack_from(">II", data, 16)
            return Header(width, height, _has_plain_chunks(data))
        if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
            return _webp(data)
        if data.startswith(b"BM"):
            return _bmp(data)
    except (struct.error, IndexError):  # it ends too early
        pass
    return None


def _jpeg(data: bytes) -> Header | None:
    at, exif, plain = 2, 0, True
    header = None
    for _ in range(MAX_SEGMENTS):
        mark, kind, length = struct.unpack_from(">BBH", data, at)
        if mark != 0xFF or length < 2:
            return None
        segment = data[at + 4 : at + 2 + length]
        if kind == 0xDA:  # the first scan begins
            return header
        if kind == 0xE1 and segment.startswith(b"Exif\0\0"):
            exif += length
            plain &= exif <= MAX_METADATA and _has_few_tags(segment[6:])
        elif kind == 0xE2 and segment.startswith(b"MPF\0"):
            plain &= _has_few_tags(segment[4:])
        elif kind in (0xC0, 0xC1, 0xC2):
            height, width = struct.unpack_from(">HH", segment, 1)
            plain &= data.count(b"\xff\xda") <= MAX_SCANS
            header = Header(width, height, plain, _PROGRESSIVE if kind == 0xC2 else _BASELINE)
        at += 2 + length
    return None


def _has_few_tags(directory: bytes) -> bool:
    """Return whether a TIFF directory is small: Pillow copies what each of its tags points to."""
    order = {b"II": "<", b"MM": ">"}.get(directory[:2])
    if order is None:
        return False
    (start,) = struct.unpack_from(f"{order}I", directory, 4)
    (count,) = struct.unpack_from(f"{order}H", directory, start)
    return bool(count <= MAX_TAGS)


def _has_plain_chunks(data: bytes) -> bool:
    """Return whether a PNG is made of few chunks, all of the usual kinds."""
    at, text = 33, 0
    for _ in range(MAX_HEADER_CHUNKS):
        if at + 8 > len(data):
            return False
        length, kind = struct.unpack_from(">I4s", data, at)
        text += length if kind in (b"tEXt", b"iCCP") else 0
        if kind not in _PLAIN_CHUNKS or text > MAX_METADATA:
            return False
        if kind == b"IEND":
            return True
        at += 12 + length
    return False


def _webp(data: bytes) -> Header | None:
    kind = data[12:16]
    if kind == b"VP8 ":
        width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
        return Header(width, height, True)
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return Header((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, True)
    if kind != b"VP8X":
        return None
    width, height = (1 + int.from_bytes(data[i : i + 3], "little") for i in (24, 27))
    return Header(width, height, not data[20] & 0b00001110)  # EXIF, XMP, animation


def _bmp(data: bytes) -> Header:
    """Read a bitmap; plain is what Pillow writes of RGB: uncompressed rows, all of them in the file."""
    start, info, width, height = struct.unpack_from("<IIii", data, 10)
    planes, bits, compression = struct.unpack_from("<HHI", data, 26)
    row = (width * bits + 31) // 32 * 4
    ordinary = (start, info, planes, bits, compression) == (54, 40, 1, 24, 0)
    whole = width > 0 < height and start + row * height <= len(data)
    return Header(abs(width), abs(height), ordinary and whole)


# --------------------------------------------------------------------------------------------------


MAX_PIXELS = 64 * 2**20
"""A larger image is refused from its header unless asked otherwise (as RGB it takes 192 MiB)."""

MAX_CHUNKS = 1000
"""Chunks of a PNG that hold neither pixels nor a frame; encoders write about ten. Pillow reads them one at a
time: a million take it 18 s."""
MAX_COMMENTS = 65536
"""Bytes of the header of a netpbm image, whose comments Pillow reads byte by byte."""

# Only plain decoders: others of Pillow's formats start programs (EPS) or are hardly ever images.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "JPEG2000", "AVIF", "PPM", "MPO")

# Everything that Pillow's parsers raise on damaged files (found by damaging files).
DAMAGE = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    EOFError,
    ArithmeticError,
    RuntimeError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
_ORIENTATION_TAG = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_JPEG = ("JPEG", "MPO")
_SPACES = {"RGB": "RGB", "L": "GRAY"}
_SIXTEEN_BIT = ("I;16", "I;16B", "I;16L", "I;16N")
_WHITE = (255, 255, 255, 255)
_PNG = b"\x89PNG\r\n\x1a\n"
_PIXELS = frozenset((b"IDAT", b"fdAT", b"fcTL"))
_COMMENT = re.compile(rb"#[^\r\n]*")


def load_image(media: Media, access: Access | None = None) -> Image.Image:
    """Return the image as upright 8-bit RGB, fully decoded, without metadata.

    Raises:
        MediaError: it cannot be opened (`open_media`), is damaged, too large, or no image; the
            message names the file and the reason.
    """
    with open_media(media, access or Access()) as stream:
        return decode_image(stream, media.name)


def decode_image(stream: BinaryIO, name: str, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Return the image of a stream as `load_image` does.

    Raises:
        MediaError: it is damaged, no image, or has more than `max_pixels`; the message names it.
    """
    image = open_image(stream, name, max_pixels)
    try:
        pixels = _decode_jpeg(stream, image) if image.format in _JPEG else image
        pixels.load()
        turn = _TURNS.get(_orientation(image))
        rgb = to_rgb(pixels if turn is None else pixels.transpose(turn))
    except DAMAGE as error:
        raise refusal(name, error) from error
    rgb.info = {}
    return rgb


def measure(stream: BinaryIO, name: str) -> tuple[int, int]:
    """Return (width, height) in pixels of the upright image, from the header alone.

    Raises:
        MediaError: as `decode_image`, as far as the header shows it.
    """
    image = open_image(stream, name)
    width, height = image.size
    # Pillow's TIFF reader already gives the upright size.
    if image.format != "TIFF" and _orientation(image) >= 5:
        return height, width
    return width, height


def open_image(stream: BinaryIO, name: str, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Return the image of a stream, its header read and nothing decoded.

    Raises:
        MediaError: it is no image, a checksum does not fit, or it has more chunks, comments or pixels
            than it may have; the message names it.
    """
    _check_structure(stream, name)
    Image.init()
    readable = [f for f in FORMATS if f in Image.OPEN]
    try:
        with warnings.catch_warnings():
            # Our own limit is lower.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(stream, formats=readable)
    except DAMAGE as error:
        raise refusal(name, error) from error
    width, height = image.size
    if width * height > max_pixels:
        raise MediaError(
            f"{name}: {width}x{height} pixels; data.max_image_pixels leaves {max_pixels} for it"
        )
    if width < 1 or height < 1:
        raise MediaError(f"{name}: has no pixels ({width}x{height})")
    return image


def _check_structure(stream: BinaryIO, name: str) -> None:
    """Look for what Pillow overlooks in an image that begins here, and go back to its beginning."""
    begin = stream.tell()
    start = stream.read(len(_PNG))
    if start == _PNG:
        _check_png(stream, name)
    elif start[:1] == b"P":
        head = start + stream.read(MAX_COMMENTS - len(start))
        # magic number, width, height, and what follows
        words = _COMMENT.sub(b"", head).split(maxsplit=3)
        if len(head) == MAX_COMMENTS and len(words) < 4:
            raise MediaError(f"{name}: has more than {MAX_COMMENTS} bytes of comments")
    stream.seek(begin)


def _check_png(stream: BinaryIO, name: str) -> None:
    others = 0
    while len(header := stream.read(8)) == 8:  # Pillow reports a file that is cut
        size, kind = struct.unpack(">I4s", header)
        others += kind not in _PIXELS or not size
        if others > MAX_CHUNKS:
            raise MediaError(f"{name}: has more than {MAX_CHUNKS} chunks beside its pixels")
        computed = struct.pack(">I", zlib.crc32(stream.read(size), zlib.crc32(kind)))
        if (stated := stream.read(4)) != computed and len(stated) == 4:
            raise MediaError(f"{name}: damaged: the checksum of its chunk {kind!r} does not fit")
        if kind == b"IEND":
            return


def _decode_jpeg(stream: BinaryIO, image: Image.Image) -> Image.Image:
    """Return the pixels of a JPEG; where libjpeg warns of damage, raise ValueError with its warning."""
    stream.seek(0)
    data = stream.read()
    height, width, *_ = simplejpeg.decode_jpeg_header(data)
    if (width, height) != image.size:  # two readers, two headers: neither is to be believed
        raise ValueError(f"its headers disagree: {image.size} and {(width, height)} pixels")
    pixels = simplejpeg.decode_jpeg(data, _SPACES.get(image.mode, "CMYK"))
    if image.mode not in _SPACES:  # decoded for its warnings; Pillow knows Adobe's inversion
        return image
    return Image.fromarray(pixels[:, :, 0] if image.mode == "L" else pixels)


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation; 1 (upright) if it is missing or unreadable, as viewers do."""
    try:
        value = image.getexif().get(_ORIENTATION_TAG, 1)
    except DAMAGE:
        return 1
    return value if isinstance(value, int) else 1


def to_rgb(image: Image.Image) -> Image.Image:
    """Return 8-bit RGB, transparency on white; raise ValueError for values without a defined white."""
    if image.mode in _SIXTEEN_BIT:
        values = np.asarray(image).astype(np.uint16)  # native byte order
        hidden = image.info.get("transparency")
        return _gray(
            values / 257 if hidden is None else np.where(values == hidden, 255.0, values / 257)
        )
    if image.mode == "I" and image.format == "PPM":  # Pillow scales its values to 16 bit
        return _gray(np.asarray(image) / 257)
    if image.mode == "F":
        values = np.asarray(image)
        if not (values.min() >= 0 and values.max() <= 1):  # also true of NaN
            raise ValueError(
                f"float values {values.min():g}..{values.max():g}; only 0..1 is defined"
            )
        return _gray(values * 255)
    if image.mode == "I":
        raise ValueError("32-bit integer values have no defined white")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, _WHITE), layer).convert("RGB")
    return image if type(image) is Image.Image and image.mode == "RGB" else image.convert("RGB")


def _gray(values: np.ndarray) -> Image.Image:
    return Image.fromarray(np.rint(values).astype(np.uint8)).convert("RGB")


def refusal(name: str, error: BaseException) -> MediaError:
    """Return a parser's complaint about a file as an error that names the file."""
    if isinstance(error, Image.UnidentifiedImageError):
        return MediaError(f"{name}: not an image we read ({', '.join(FORMATS)})")
    return MediaError(f"{name}: damaged or unsupported image: {error or type(error).__name__}")

"""XML files of strangers: no document type is accepted, so that no entity can be expanded."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.parsers import expat

from vlmrl.errors import UserError

__all__ = ["XmlParts", "attribute", "read_xml"]

_PIECE = 2**20


def read_xml(file: Path) -> Any:
    """Return the root element of an XML file.

    Raises:
        UserError: it cannot be read, is no XML, or declares a document type (the way of entity bombs).
    """
    try:
        data = file.read_bytes()
        checker = expat.ParserCreate()
        checker.StartDoctypeDeclHandler = _refuse
        checker.Parse(data, True)
        return ElementTree.fromstring(data)
    except (OSError, ValueError, LookupError, expat.ExpatError, ElementTree.ParseError) as error:
        raise UserError(f"{file.name}: cannot be read as XML: {error}") from error


class XmlParts:
    """Where the children of the root of an XML file stand, so that each can be read alone.

    `root` is the root's name, `places` maps a child's name to its first and last bytes. With `until`,
    what comes after the first child of such a name is not looked at. 16 bytes of memory a child.

    Raises:
        UserError: as for `read_xml`.
    """

    def __init__(self, file: Path, until: tuple[str, ...] = ()) -> None:
        self.root = ""
        self.places: dict[str, tuple[array[int], array[int]]] = {}
        self._file = file
        self._encoding = "utf-8"
        self._level = 0
        self._open: tuple[str, int] | None = None
        self._parser = expat.ParserCreate()
        self._parser.StartDoctypeDeclHandler = _refuse
        self._parser.XmlDeclHandler = self._declare
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._close
        self._parser.DefaultHandler = self._close
        try:
            with file.open("rb") as opened:
                while piece := opened.read(_PIECE):
                    self._parser.Parse(piece, False)
                    if until and {*until} & {*self.places}:
                        return
            self._parser.Parse(b"", True)
        except (OSError, ValueError, LookupError, expat.ExpatError) as error:
            raise UserError(f"{file.name}: cannot be read as XML: {error}") from error

    def read(self, name: str, index: int) -> Any:
        """Return a child of the root by its name and its number among those of that name."""
        starts, ends = self.places[name]
        with self._file.open("rb") as opened:
            opened.seek(starts[index])
            text = opened.read(ends[index] - starts[index])
        return ElementTree.fromstring(text.decode(self._encoding))

    def _declare(self, version: str, encoding: str | None, standalone: int) -> None:
        self._encoding = encoding or "utf-8"

    def _start(self, name: str, attributes: Any) -> None:
        self._close()
        if self._level == 0:
            self.root = name
        if self._level == 1:
            self.places.setdefault(name, (array("Q"), array("Q")))
            self.places[name][0].append(self._parser.CurrentByteIndex)
        self._level += 1

    def _end(self, name: str) -> None:
        self._close()
        self._level -= 1
        if self._level == 1:
            self._open = (name, self._parser.CurrentByteIndex)

    def _close(self, *_: Any) -> None:
        """Note the end of a child: where what follows it begins."""
        if self._open is not None:
            self.places[self._open[0]][1].append(self._parser.CurrentByteIndex)
            self._open = None


def _refuse(*_: Any) -> None:
    raise ValueError("a document type is declared, which no annotation needs")


def attribute(element: Any, name: str) -> float:
    """Return an attribute that is a number.

    Raises:
        UserError: it is missing or none; the message names it.
    """
    try:
        return float(element.get(name, ""))
    except ValueError as error:
        raise UserError(
            f"<{element.tag}>: key {name!r}: expected a number, got {element.get(name)!r:.60}"
        ) from error

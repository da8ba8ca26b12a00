"""XML files of strangers: no document type is accepted, so that no entity can be expanded."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.parsers import expat

from vlmrl.errors import UserError

__all__ = ["attribute", "read_xml"]


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

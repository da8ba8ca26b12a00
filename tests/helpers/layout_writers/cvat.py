"""CVAT for images 1.1."""

from __future__ import annotations

from pathlib import Path

from helpers.drawn import Written, boxes_truth, draw

BOX = '<box label="{}" occluded="0" xtl="{}.0" ytl="{}.0" xbr="{}.0" ybr="{}.0" z_order="0"/>'


def write(folder: Path) -> Written:
    drawn = draw(folder / "images")
    parts = ['<?xml version="1.0" encoding="utf-8"?><annotations><version>1.1</version>']
    parts.append("<meta><task><labels><label><name>disc</name></label>")
    parts.append("<label><name>square</name></label></labels></task></meta>")
    for number, image in enumerate(drawn):
        boxes = "".join(BOX.format(label, *box) for label, box in image.objects)
        size = f'width="{image.width}" height="{image.height}"'
        parts.append(f'<image id="{number}" name="{image.name}" {size}>{boxes}</image>')
    (folder / "annotations.xml").write_text("\n".join([*parts, "</annotations>"]))
    return Written({"path": str(folder)}, [boxes_truth(image) for image in drawn])


def spoil(folder: Path) -> str:
    file = folder / "annotations.xml"
    file.write_text(file.read_text().replace('xtl="10.0"', 'xtl="left"'))
    return r"annotations\.xml image b\.png: <box>: key 'xtl': expected a number, got 'left'"

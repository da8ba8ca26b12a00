"""Pascal VOC's folders."""

from __future__ import annotations

from pathlib import Path

from helpers.drawn import Written, boxes_truth, draw

OBJECT = (
    "<object><name>{}</name><difficult>0</difficult><bndbox><xmin>{}</xmin><ymin>{}</ymin>"
    "<xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"
)


def write(folder: Path) -> Written:
    drawn = draw(folder / "JPEGImages")
    for sub in ("Annotations", "ImageSets/Main"):
        (folder / sub).mkdir(parents=True)
    for image in drawn:
        objects = [OBJECT.format(n, a + 1, b + 1, c, d) for n, (a, b, c, d) in image.objects]
        size = f"<size><width>{image.width}</width><height>{image.height}</height></size>"
        text = f"<annotation><filename>{image.name}</filename>{size}{''.join(objects)}</annotation>"
        (folder / "Annotations" / image.name).with_suffix(".xml").write_text(text)
    names = "".join(f"{Path(image.name).stem}\n" for image in drawn)
    (folder / "ImageSets/Main/trainval.txt").write_text(names)
    return Written({"path": str(folder)}, [boxes_truth(image) for image in drawn])


def spoil(folder: Path) -> str:
    file = folder / "Annotations/b.xml"
    file.write_text(file.read_text().replace("<xmin>11</xmin>", "<xmin>left</xmin>"))
    return r"b\.xml: key 'xmin': expected a number, got 'left'"

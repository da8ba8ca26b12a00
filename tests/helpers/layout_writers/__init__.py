"""One module a layout: `write(folder)` writes the drawn images in it; `spoil(folder)` makes one row wrong.

`write` returns `Written`. `spoil` returns a pattern of the one line that the bad row must give: with
the file, the row and the key.
"""

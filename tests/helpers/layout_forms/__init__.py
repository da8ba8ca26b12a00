"""Writers of items in every published layout: the table of layouts and the conversions of example data."""

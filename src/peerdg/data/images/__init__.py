"""Image files become pixels: find, index, decode, and read many of them into one `Domain`."""

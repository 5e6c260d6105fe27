"""Decoded images on disk, so that only the first start of a data set pays for decoding it.

`domains` finds or makes an entry, `entry` is its file format, `folder` lists and clears them.
"""

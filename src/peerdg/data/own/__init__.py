"""A user's own images: folders, lists, and data that is already in Python.

`find` turns a path into a `Listing`, `objects` turns anything in memory into a `Domain`.
"""

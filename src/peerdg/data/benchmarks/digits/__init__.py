"""The Digits benchmark of the sDG papers: published files (`full`), and in small (`mini`)."""

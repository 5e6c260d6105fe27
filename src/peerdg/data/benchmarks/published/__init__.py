"""PACS, Office-Home, VLCS and Terra Incognita: folders of images as their authors publish them."""

"""Registries of images, asked over the Distribution API. Nothing of a layer is ever fetched."""

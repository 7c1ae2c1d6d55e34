"""One module a format; each exposes ``FORMATS``. See `hangdoctor.parsers.registry`."""

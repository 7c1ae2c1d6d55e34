"""The inside of a CPython interpreter, read from the memory of its process: threads, frames, lines, attributes."""

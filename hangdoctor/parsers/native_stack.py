"""Native and Python frames of one thread put together: C above Python above C, as they called each other."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hangdoctor.model import Frame

# The interpreter's own machinery: below the first of these a native stack repeats what the Python frames say.
_INTERPRETER = re.compile(
    r"_?PyEval_|_?PyObject_|_?PyFunction_|_PyVectorcall|method_vectorcall|PyRun_|Py_RunMain|pymain_"
)


def join_python(native: Sequence[Frame], python: Sequence[Frame]) -> tuple[Frame, ...]:
    """The innermost C frames, up to where the interpreter begins, on top of the Python frames.

    With only one of the two, that one. Frames that gdb itself already shows as Python stay where they are.
    """
    if not python:
        return tuple(native)
    if not native or any(not frame.is_native for frame in native):
        return tuple(native) or tuple(python)
    inner = []
    for frame in native:
        if _INTERPRETER.match(frame.function):
            break
        inner.append(frame)
    else:
        return (*native, *python)
    return (*inner, *python)

"""Communication settings over all ranks: what they share, where they differ, and what of it is suspicious.

Settings explain hangs; they never prove one. So everything here is a note, worded as what the setting does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hangdoctor.analysis.folding import fold_labels
from hangdoctor.knowledge.nccl import NcclKnowledge, load_nccl_knowledge
from hangdoctor.report import NcclEnv

NOT_SET = "(not set)"

COMPARED_VERSIONS = {"nccl": "NCCL", "torch": "PyTorch", "cuda": "CUDA", "driver": "driver"}
"""Libraries of which ranks must have loaded the same release."""

Environs = Mapping[str, Mapping[str, str]]


def read_nccl_env(
    environs: Environs,
    server: str | None = None,
    *,
    server_version: str | None = None,
    versions: Environs | None = None,
    knowledge: NcclKnowledge | None = None,
) -> NcclEnv:
    """The settings of the ranks whose environment could be read, by rank label.

    ``versions`` are the libraries each rank has really loaded (``nccl`` to ``2.28.9``). Ranks without a readable
    environment must not be passed as empty ones: they would differ in everything.
    """
    known = knowledge or load_nccl_knowledge()
    libraries = versions or {}
    common, differs = _compare(environs, known)
    notes = (
        *_disagreements(differs, known),
        *_duplicates(environs, known),
        *_other_libraries(libraries),
        *_against_defaults(environs, server, server_version, known),
        *_combinations(environs, libraries, known),
    )
    return NcclEnv(common=common, differs=differs, notes=tuple(dict.fromkeys(notes)))


def _compare(environs: Environs, known: NcclKnowledge) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    names = sorted({name for environ in environs.values() for name in environ if known.shows(name)})
    common: dict[str, str] = {}
    differs: dict[str, dict[str, str]] = {}
    for name in names:
        values = {label: environ.get(name, NOT_SET) for label, environ in environs.items()}
        if len(set(values.values())) == 1:
            common[name] = next(iter(values.values()))
        else:
            differs[name] = values
    return common, differs


def _disagreements(differs: Mapping[str, Mapping[str, str]], known: NcclKnowledge) -> Iterator[str]:
    for name, values in differs.items():
        if known.is_own(name):
            continue
        why = next((agreement.why for agreement in known.agreements if agreement.covers(name)), None)
        if why is not None:
            yield f"{name} differs ({_who_has_what(values)}): {why}"


def _who_has_what(values: Mapping[str, str]) -> str:
    by_value: dict[str, list[str]] = {}
    for label, value in values.items():
        by_value.setdefault(value, []).append(label)
    rarest_first = sorted(by_value.items(), key=lambda item: len(item[1]))
    return "; ".join(f"{value} on {fold_labels(labels)}" for value, labels in rarest_first)


def _duplicates(environs: Environs, known: NcclKnowledge) -> Iterator[str]:
    for name in known.distinct:
        owners: dict[str, list[str]] = {}
        for label, environ in environs.items():
            if name in environ:
                owners.setdefault(environ[name], []).append(label)
        for value, labels in owners.items():
            if 1 < len(labels) < len(environs):  # all the same: inherited from the launcher, not used
                yield f"{name}={value} on {fold_labels(labels)}: two processes believe to be the same rank"


def _other_libraries(libraries: Environs) -> Iterator[str]:
    for part, title in COMPARED_VERSIONS.items():
        loaded = {label: versions[part] for label, versions in libraries.items() if part in versions}
        if len(set(loaded.values())) > 1:
            yield f"ranks have loaded different {title} libraries ({_who_has_what(loaded)})"


def _against_defaults(
    environs: Environs, server: str | None, server_version: str | None, known: NcclKnowledge
) -> Iterator[str]:
    for default in known.defaults:
        if not default.applies(server, server_version):
            continue
        other = {
            label: environ[default.name]
            for label, environ in environs.items()
            if default.name in environ and not default.value.fullmatch(environ[default.name])
        }
        if other:
            yield f"{default.name} is {_who_has_what(other)}; {default.text}"


def _combinations(environs: Environs, libraries: Environs, known: NcclKnowledge) -> Iterator[str]:
    for combination in known.combinations:
        owners: dict[str, list[str]] = {}
        for label, environ in environs.items():
            if combination.holds(environ, libraries.get(label, {})):
                owners.setdefault(combination.settings(environ), []).append(label)
        for settings, labels in owners.items():
            where = "" if len(labels) == len(environs) else f" on {fold_labels(labels)}"
            yield f"{settings}{where}: {combination.text} ({combination.source})"

"""Writes the tables of `docs/models.md` from the cases that the tests run, and from what they found on a GPU.

In `server/`: `PYTHONPATH=.:tests:../kernels python -m support.model_table`.
"""

from pathlib import Path

from support.device_results import passed_on_gpu
from support.fallback_cases import FALLBACK_CASES
from support.family_cases import CASES
from text_generation_server.config.families import FAMILIES, WITH_MEDIA

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"
FALLBACK_BEGIN, FALLBACK_END = "<!-- fallback table: begin -->\n", "<!-- fallback table: end -->\n"


def table() -> str:
    """A row for each family."""
    rows = [
        "| family | `architectures` | compared with | variants | compared on |",
        "| --- | --- | --- | --- | --- |",
    ]
    for family in sorted({case.family for case in CASES.values()}, key=str.lower):
        cases = {name: case for name, case in CASES.items() if case.family == family}
        classes = sorted({case.class_name for case in cases.values()})
        known = sorted({name for case_name in cases for name in architectures(case_name)})
        columns = (family, _code(known), _code(classes), ", ".join(cases), devices("native", list(cases)))
        rows.append(f"| {' | '.join(columns)} |")
    return "\n".join(rows) + "\n"


def architectures(case_name: str) -> list[str]:
    """The names in `architectures` that are read as this case is."""
    case = CASES[case_name]
    name = case.architecture or case.class_name
    if name in WITH_MEDIA:
        return [name]
    return [each for each, family in FAMILIES.items() if family is FAMILIES[name]]


def page() -> str:
    """The page with current tables."""
    text = PAGE.read_text()
    for begin, rows, end in ((BEGIN, table(), END), (FALLBACK_BEGIN, fallback_table(), FALLBACK_END)):
        before, rest = text.split(begin)
        text = f"{before}{begin}{rows}{end}{rest.split(end)[1]}"
    return text


def fallback_table() -> str:
    """A row for each family that runs through its class."""
    rows = ["| family | class | compared on |", "| --- | --- | --- |"]
    for family in sorted({case.family for case in FALLBACK_CASES.values()}, key=str.lower):
        cases = {name: case for name, case in FALLBACK_CASES.items() if case.family == family}
        classes = sorted({case.architecture or case.class_name for case in cases.values()})
        rows.append(f"| {family} | {_code(classes)} | {devices('transformers', list(cases))} |")
    return "\n".join(rows) + "\n"


def devices(impl: str, names: list[str]) -> str:
    """Where these variants of a family gave what transformers gives: the suite runs all of them on a CPU."""
    device, passed = passed_on_gpu(impl)
    there = [name for name in names if name in passed]
    if not there:
        return "CPU"
    return f"CPU, {device}" if there == names else f"CPU; {device}: {', '.join(there)}"


def _code(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    PAGE.write_text(page())

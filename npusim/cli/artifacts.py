"""The files ``npusim run`` writes besides its report: checked before a run, written after it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npusim.cli.checks import returned
from npusim.cli.files import PLOTS, Write, check_file
from npusim.cli.options import add_options
from npusim.cli.parser import Parser
from npusim.dtypes import BF16
from npusim.errors import ArgumentError
from npusim.ops.card import Output
from npusim.results import Result
from npusim.written import replacing


@dataclass(frozen=True)
class Part:
    """The part of a timeline to show: some cores (None: those usual), and microseconds of it."""

    cores: tuple[str, ...] | None
    window: tuple[float, float] | None


@dataclass(frozen=True, kw_only=True)
class Writing:
    """What a writer is given; it returns what to add to the line that says what was written."""

    path: Path
    result: Result
    outputs: Sequence[Output[Any]]
    problem: Any
    framework: bool
    part: Part


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """One option that names a file: its suffixes (any if none), and how the file is written."""

    about: str
    suffixes: tuple[str, ...]
    needs: str
    write: Callable[[Writing], str]


def _output(job: Writing) -> str:
    arrays: dict[str, Any] = {}
    told = []
    for output in job.outputs:
        array = returned(job.result, output.name)
        if job.framework:
            array = output.unpack(job.problem, array)
        form = output.axes if job.framework or not output.layout else output.layout
        told.append(f"{output.name} {array.shape} {array.dtype.name}, {form}")
        if array.dtype == BF16.numpy:  # exact; NumPy's files know no bfloat16
            array = array.astype(np.float32)
            told[-1] += ", stored as float32"
        arrays[output.name] = array
    with replacing(job.path) as part, part.open("wb") as file:
        if _is_archive(job.path):
            np.savez(file, **arrays)  # old NumPy takes other words for names of arrays
        else:
            np.save(file, next(iter(arrays.values())), allow_pickle=False)
    return "; ".join(told)


def _trace(job: Writing) -> str:
    job.result.save_trace(job.path, cores=job.part.cores, window=job.part.window)
    return "to open it, drag it into https://ui.perfetto.dev"


def _plot(job: Writing) -> str:
    _draw(job, "plot_timeline", cores=job.part.cores, window=job.part.window)
    return "timeline of who worked and who waited"


def _roofline(job: Writing) -> str:
    _draw(job, "plot_roofline")
    return "roofline"


def _report(job: Writing) -> str:
    job.result.report(job.path)
    return "to read it, open it in a browser"


def _draw(job: Writing, plot: str, **options: Any) -> None:
    from npusim.results import plots  # noqa: PLC0415 - most runs draw nothing

    axes = getattr(plots, plot)(job.result, **options)
    plots.save_figure(axes, job.path)


#: Every such option by its name in the parsed arguments.
ARTIFACTS: Mapping[str, Artifact] = {
    "output": Artifact(
        about="the results by name as .npz, or the only one as .npy",
        suffixes=(".npy", ".npz"),
        needs="numbers",
        write=_output,
    ),
    "trace": Artifact(
        about="the timeline for ui.perfetto.dev; .json.gz compresses it",
        suffixes=(".json", ".json.gz"),
        needs="timeline",
        write=_trace,
    ),
    "plot": Artifact(
        about="a figure of the timeline, .png or .svg",
        suffixes=PLOTS,
        needs="timeline",
        write=_plot,
    ),
    "plot_roofline": Artifact(
        about="a figure of the roofline, .png or .svg",
        suffixes=PLOTS,
        needs="",
        write=_roofline,
    ),
    "report": Artifact(
        about="the whole report as one web page", suffixes=(".html",), needs="", write=_report
    ),
}


def add_arguments(parser: Parser) -> None:
    """Declare an option for every artifact."""
    group = parser.add_argument_group("files to write")
    for name, artifact in ARTIFACTS.items():
        group.add_argument(
            _option(name), type=Path, metavar="FILE", help=f"{artifact.about} (default: none)"
        )
    add_options(parser, "files of a run")


def part_of(arguments: argparse.Namespace, time_us: float) -> Part:
    """The part of a timeline of ``time_us`` that was asked for."""
    since, until, cores = arguments.since, arguments.until, arguments.shown_cores
    window = (since or 0.0, time_us if until is None else until)
    asked = since is not None or until is not None
    return Part(tuple(cores) or None, window if asked else None)


def check(wanted: Mapping[str, Path], arguments: argparse.Namespace) -> None:
    """Refuse, before anything is computed, files that cannot be written or need what is off.

    ``wanted`` has the paths of the files asked for by the names of ``ARTIFACTS``.
    """
    shows = {"trace", "plot"} & set(wanted)
    for option, value in (
        ("--from", arguments.since),
        ("--to", arguments.until),
        ("--core", arguments.shown_cores),
    ):
        if value not in (None, []) and not shows:
            raise ArgumentError(f"{option} says what --trace and --plot show; add one of them")
    taken: dict[Path, str] = {}
    for name, path in wanted.items():
        artifact, option = ARTIFACTS[name], _option(name)
        check_file(option, path, artifact.suffixes)
        if path.resolve() in taken:
            raise ArgumentError(
                f"{option} and {taken[path.resolve()]} both write {path}; give two names"
            )
        taken[path.resolve()] = option
        if artifact.needs == "numbers" and arguments.timing_only:
            raise ArgumentError(f"{option} needs numbers, which --timing-only leaves out; drop one")
        if artifact.needs == "timeline" and arguments.timeline is False:
            raise ArgumentError(f"{option} needs the timeline; drop --no-timeline")


def check_output(path: Path, outputs: Sequence[Output[Any]]) -> None:
    """Refuse a file for one array where the call returns several."""
    names = [output.name for output in outputs]
    if len(names) > 1 and not _is_archive(path):
        raise ArgumentError(
            f"--output {path}: this call returns {', '.join(names)}; name a file ending in .npz, "
            "which holds them all, or ask for one of them"
        )


def writers(
    wanted: Mapping[str, Path],
    result: Result,
    outputs: Sequence[Output[Any]],
    problem: Any,
    *,
    framework: bool,
    part: Part,
) -> dict[str, tuple[Path, Write]]:
    """What writes the files ``wanted``, by name, for ``write_files``.

    ``framework`` says whether arrays are written in the layout of frameworks, ``part`` what of the
    timeline is shown.
    """

    def writer(artifact: Artifact) -> Write:
        common = {"result": result, "outputs": outputs, "problem": problem, "part": part}
        return lambda path: artifact.write(Writing(path=path, framework=framework, **common))

    return {name: (path, writer(ARTIFACTS[name])) for name, path in wanted.items()}


def _is_archive(path: Path) -> bool:
    return path.name.lower().endswith(".npz")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")

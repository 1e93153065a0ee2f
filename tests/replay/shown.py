"""What is shown of results: texts, JSON, pages, charts, figures and files, and words of the CLI.

A case writes its files to a folder of its own and gives texts by kind. What depends on the version
of a library (``MADE_WITH``) is compared under that version only; what changes from run to run or
from release to release is taken out.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from matplotlib import pyplot
from rich.console import Console

import npusim
from npusim.base.records import replace
from npusim.cli.commands import COMMANDS
from npusim.cli.main import main
from npusim.ops import CARDS
from npusim.results.writers.log_text import render as log_text
from npusim.results.writers.plots import figure_bytes
from npusim.version import __version__
from npusim.workloads import load_workload
from tests import sampled
from tests.calls import Row, data
from tests.silicon.sample import product, write_profile

#: Texts by kind, such as "text", "json" or "page".
Shown = dict[str, str]

#: Libraries whose version the text of a kind depends on, by the first word of the kind.
MADE_WITH = {"charts": "bokeh", "figure": "matplotlib", "html": "pandas", "help": "python"}

#: Scripts as long as this are a library.
_LIBRARY = 100_000

_CHART = re.compile(r'(?<=<script type="application/json" class="bokeh">).*?(?=</script>)')


#: Cases whose forms have pictures and pages in other cases too: only `make replay` draws theirs.
_UNPICTURED = ("layer of a 910", "numbers", "fold", "dsp", "empty", "training", "partial")


def is_shown(case: str, kind: str) -> bool:
    """True for a kind of text that is made in this run of the tests."""
    drawn = kind.partition(" ")[0] in ("figure", "page", "charts")
    return sampled.ALL or not drawn or case not in _UNPICTURED


def made_with(kind: str) -> str:
    """The library and its version that the text of a kind depends on, "-" for none."""
    library = MADE_WITH.get(kind.partition(" ")[0], "")
    if library == "python":
        return f"python {sys.version_info.major}.{sys.version_info.minor}"
    return f"{library} {version(library)}" if library else "-"


def plain(text: str) -> str:
    """A text without what changes from run to run or from release to release."""
    return re.sub(r"\d+\.\d s\b", "SECONDS s", text.replace(__version__, "VERSION"))


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, allow_nan=False)


def _page(path: Path) -> Shown:
    """A page in two parts: what it says without pictures and libraries, and its charts."""
    text = path.read_text(encoding="utf-8")
    charts = "\n".join(_CHART.findall(text))
    said = re.sub(r'data:image/[^"]*', "PICTURE", _CHART.sub("CHART", text))
    for script in re.findall(r"<script>.*?</script>", said, re.DOTALL):
        said = said.replace(script, "LIBRARY") if len(script) > _LIBRARY else said
    return {"page": said, "charts": charts} if charts else {"page": said}


def _reported(result: Any, folder: Path) -> Shown:
    result.report(folder / "page.html")
    return _page(folder / "page.html")


def _figure(axes: Any) -> str:
    """A figure as SVG."""
    text = figure_bytes(axes, "svg").decode("utf-8")
    pyplot.close("all")
    return text


def _said(*words: str) -> str:
    """What a command prints, on stdout and then on stderr."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        contextlib.suppress(SystemExit),
    ):
        main(words)
    return f"{out.getvalue()}{err.getvalue()}"


def _files(folder: Path, **named: str) -> tuple[list[str], Callable[[], Shown]]:
    """Options that write files by kind, and what reads them afterwards."""
    paths = {option: folder / name for option, name in named.items()}

    def read() -> Shown:
        found: Shown = {}
        for option, path in paths.items():
            if path.suffix == ".html":
                found |= _page(path)
            else:
                kind = "figure" if path.suffix == ".svg" else "file"
                found[f"{kind} {option}"] = path.read_text(encoding="utf-8")
        return found

    return [part for name, path in paths.items() for part in (f"--{name}", str(path))], read


# ---------------------------------------------------------------- calls


CALLS = {name: Row(**row) for name, row in data("shown").items()}


@cache
def _call(name: str) -> Any:
    row = CALLS[name]
    return row(*row.devices)


def _of_call(name: str) -> Callable[[Path], Shown]:
    def shown(folder: Path) -> Shown:
        result = _call(name)
        texts = {
            "text": result.text(),
            "json": _json(result.to_json()),
            "repr": repr(result),
            "html of a notebook": result._repr_html_(),
        }
        pictured = is_shown(name, "figure")
        if pictured:
            texts["figure roofline"] = _figure(result.plot_roofline())
            texts["figure traffic"] = _figure(result.plot_traffic())
            texts |= _reported(result, folder)
        if all(run.timeline is not None for run in result.runs) and result.runs:
            result.save_trace(folder / "trace.json")
            texts["trace"] = (folder / "trace.json").read_text(encoding="utf-8")
            texts["table timeline"] = result.timeline.head(2000).to_csv()
            if pictured:
                window = (0.2 * result.time_us, 0.6 * result.time_us)
                texts["figure timeline"] = _figure(result.plot_timeline())
                texts["figure window"] = _figure(result.plot_timeline(window=window))
        return texts

    return shown


def _range(folder: Path) -> Shown:
    """A call whose range of time was asked for."""
    result = replace(_call("numbers"))
    assert result.time_range is not None
    return {"text": result.text(), "html of a notebook": result._repr_html_()}


def _explained(folder: Path) -> Shown:
    explanation = _call("layer").explain()
    console = Console(file=io.StringIO(), width=100, force_terminal=True, highlight=False)
    console.print(explanation)
    assert isinstance(console.file, io.StringIO)
    return {
        "text": explanation.text(),
        "json": _json(explanation.to_json()),
        "repr": repr(explanation),
        "html of a notebook": explanation._repr_html_(),
        "terminal": console.file.getvalue(),
    }


# ---------------------------------------------------------------- networks


@cache
def _network(batch: int = 1, **options: Any) -> Any:
    resnet18 = load_workload("resnet18")
    few = replace(resnet18, layers=(*resnet18.layers[:4], resnet18.layers[-1]))
    return npusim.network(few, device="ascend910b2", batch=batch, **options)


def _partial() -> Any:
    """A network with a layer that the device refuses."""
    unet = load_workload("unet_3d")
    few = replace(unet, layers=unet.layers[-2:] + load_workload("dcgan").layers[-1:])
    return npusim.network(few, device="ascend910", batch=1)


def _of_network(name: str, make: Callable[[], Any]) -> Callable[[Path], Shown]:
    def shown(folder: Path) -> Shown:
        result = make()
        result.write(folder / "layers.csv")
        texts = {
            "text": result.text(),
            "json": _json(result.to_json()),
            "repr": repr(result),
            "html of a notebook": result._repr_html_(),
            "file csv": (folder / "layers.csv").read_text(encoding="utf-8"),
            "table layers": result.layers.to_csv(),
            "table kernels": result.kernels.to_csv(),
        }
        if is_shown(name, "figure"):
            texts["figure"] = _figure(result.plot())
            texts |= _reported(result, folder)
        return texts

    return shown


def _log(folder: Path) -> Shown:
    """A summary of convolutions met in a trace, one of them refused."""
    usual: dict[str, Any] = {
        "layer": "stem.conv", "result": 0, "time_us": 12.5, "dtype": "fp32", "stride": (1, 1),
        "input": (2, 3, 8, 8), "weight": (4, 3, 3, 3), "error_grad_input": 1e-7,
        "error_grad_weight": None, "error_grad_bias": 0.25, "ok": False, "reason": "",
    }  # fmt: skip
    rows = [usual, usual | {"layer": "head.fc", "result": 1, "stride": (), "time_us": 7.5}]
    rows.append(usual | {"layer": "odd", "result": None, "reason": "groups: must be 1"})
    return {"text": log_text("ascend910b2", 32.5, rows, {"softmax": 3, "cumsum": 1})}


# ---------------------------------------------------------------- comparisons


def _of_comparison(compared: Any, name: str) -> Shown:
    """Texts of a comparison of calls or of networks, whose kinds end with ``name``."""
    return {
        f"text{name}": compared.text(),
        f"json{name}": _json(compared.to_json()),
        f"repr{name}": repr(compared),
        f"table{name}": compared.table.to_csv(),
        f"html of a notebook{name}": compared._repr_html_(),
    }


def _compared(folder: Path) -> Shown:
    a, b = _call("layer"), CALLS["layer"]("ascend910b2", tiling="library")
    texts: Shown = {}
    for name, other in (("", b), (" and itself", a), (" of a 910", _call("layer of a 910"))):
        compared = npusim.compare(a, other)
        texts |= _of_comparison(compared, name)
        texts[f"figure{name}"] = _figure(compared.plot())
    npusim.compare(a, b, labels=("auto", "library")).save_trace(folder / "both.json")
    texts["trace"] = (folder / "both.json").read_text(encoding="utf-8")
    return texts


def _networks_compared(folder: Path) -> Shown:
    texts: Shown = {}
    for name, b in (("", _network(2)), (" and itself", _network())):
        texts |= _of_comparison(npusim.compare_networks(_network(), b), name)
    return texts


# ---------------------------------------------------------------- studies

_PRODUCT: dict[str, Any] = {
    "operator": "matmul",
    "m": 512,
    "k": 512,
    "n": 512,
    "device": "ascend910b2",
}
_RATES = {"l2.read": ["2TB/s", "4TB/s"], "clock": ["1GHz", "1.8GHz"]}


def _sweep(folder: Path) -> Shown:
    options, read = _files(folder, csv="p.csv", plot="p.svg", report="p.html")
    vary = [part for n, v in _RATES.items() for part in ("--vary", f"{n}={','.join(v)}")]
    fixed = [f"--{name}={value}" for name, value in _PRODUCT.items() if name != "operator"]
    said = _said(
        "sweep", "matmul", *fixed, *vary, "--store", str(folder / "store"), "--jobs", "1", *options
    )
    many = {"groups": [6, 12, 18, 24], "l2.read": ["1TB/s", "2TB/s", "3TB/s", "4TB/s"]}
    result = npusim.sweep(**_PRODUCT, vary=many, store=None, jobs=1)
    failing = {"memories.L1.size": ["1KiB", "512KiB"], "tiling": ["auto", "library"]}
    failed = npusim.sweep(**_PRODUCT, vary=failing, store=None, jobs=1)
    return {
        "text": said,
        "repr": repr(result) + repr(failed),
        "html of a notebook": failed._repr_html_(),
        "table": failed.table.to_csv(),
        "figure heat": _figure(result.plot()),
        "figure line": _figure(result.plot(kind="line", x="l2.read")),
        "figure pareto": _figure(result.plot(kind="pareto", x="groups")),
        "page of failures": _reported(failed, folder)["page"],
        **read(),
    }


def _explore(folder: Path) -> Shown:
    names = {"csv": "p.csv", "plot": "p.svg", "report": "p.html", "tornado": "t.svg"}
    options, read = _files(folder, **names)
    vary = [part for n, v in _RATES.items() for part in ("--vary", f"{n}={','.join(v)}")]
    fixed = [f"--{name}={value}" for name, value in _PRODUCT.items() if name != "operator"]
    common = [*fixed, *vary, "--store", str(folder / "store"), "--jobs", "1"]
    goals = ("--goals", "time_us,energy_uj,buffer_bytes", "--subject-to", "time_us<=10")
    one = _said("explore", "matmul", *common, "--goals", "time_us", "--trials", "3")
    return {
        "text": _said("explore", "matmul", *common, *goals, *options),
        "text of one goal": one,
        **read(),
    }


def _tune(folder: Path) -> Shown:
    options, read = _files(folder, csv="t.csv", plot="t.svg")
    words = ("--m=64", "--k=96", "--n=80", "--device=ascend910b2", "--store=none", "--jobs=1")
    a, b = npusim.spec((64, 96), "fp16"), npusim.spec((96, 80), "fp16")
    tuned = npusim.tune(npusim.ops.matmul, a, b, device="ascend910b2", store=None, jobs=1)
    return {
        "text": _said("tune", "matmul", *words, *options),
        "json": _json(tuned.to_json()),
        "repr": repr(tuned),
        "html of a notebook": tuned._repr_html_(),
        **read(),
    }


# ---------------------------------------------------------------- measurements


def _validate(folder: Path) -> Shown:
    options, read = _files(folder, html="v.html", plot="v.svg")
    words = ("validate", "--family", "ASC-CV", "--jobs", "1")
    declined = ("validate", "--family", "CS-SOFTMAX", "--jobs", "1")
    return {
        "text": _said(*words, *options),
        "json": _said(*words, "--json"),
        "text of others": _said(*declined),
        **read(),
    }


def _fit(folder: Path) -> Shown:
    few = "constants:\n- {path: l2.read, devices: [ascend910b2], low: 3TB/s, high: 5.2TB/s}\n"
    (folder / "few.yaml").write_text(few, encoding="utf-8")
    kernels = (product(512, 1024, 768), product(1024, 512, 1024), product(768, 2048, 512))
    write_profile(folder / "p.csv", "ascend910b2", {"l2.read": "3.5TB/s"}, kernels)
    found = npusim.calibrate(
        folder / "p.csv", "ascend910b2", constants=folder / "few.yaml", rounds=0
    )
    options, read = _files(folder, html="c.html", plot="c.svg")
    words = ("fit", "--data", f"{folder / 'p.csv'}", "--device", "ascend910b2", "--rounds", "0",
             "--constants", f"{folder / 'few.yaml'}", "--jobs", "1")  # fmt: skip
    return {
        "text": found.text(),
        "repr": repr(found),
        "output": _said(*words, *options),
        "json": _said(*words, "--json"),
        **read(),
    }


# ---------------------------------------------------------------- words


def _lists(folder: Path) -> Shown:
    lists = (
        ("devices",), ("devices", "--json"), ("devices", "show", "ascend910b2"), ("ops",),
        ("ops", "--json"), ("workloads",), ("workloads", "resnet50"),
        ("workloads", "resnet50", "--json"), ("devices", "show", "nothing"),
    )  # fmt: skip
    return {"text " + " ".join(words): _said(*words) for words in lists}


def _help(folder: Path) -> Shown:
    """Help of every command and of every operator's own."""
    below = ("run", "explain", "tune")
    every = [(), *((name,) for name in COMMANDS)]
    every += [(name, operator) for name in below for operator in CARDS]
    return {"help " + " ".join(words): _said(*words, "--help") for words in every}


#: What is shown, by name.
CASES: dict[str, Callable[[Path], Shown]] = {
    **{name: _of_call(name) for name in CALLS},
    "range": _range,
    "explanation": _explained,
    "network": _of_network("network", _network),
    "training": _of_network("training", lambda: _network(2, passes="training")),
    "partial": _of_network("partial", _partial),
    "log": _log,
    "comparison": _compared,
    "networks": _networks_compared,
    "sweep": _sweep,
    "explore": _explore,
    "tune": _tune,
    "validate": _validate,
    "fit": _fit,
    "lists": _lists,
    "help": _help,
}


def shown(case: str, folder: Path) -> Shown:
    """All texts of a case; paths of the folder read FOLDER."""
    made = CASES[case](folder)
    return {kind: plain(text.replace(str(folder), "FOLDER")) for kind, text in made.items()}

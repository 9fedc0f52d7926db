"""The documentation site: what is generated is whole, its tutorials run, and it fetches nothing from elsewhere."""

import importlib
import json
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pyarrow.parquet as pq
import pytest
import typer

import fedweave
from fedweave.algorithms import ALGORITHMS, GROUPS
from fedweave.cli import app
from fedweave.core.ledger_columns import COLUMNS
from fedweave.experiment import config
from fedweave.experiment.config.plugins import REGISTRIES
from fedweave.metrics.selection import METRICS
from fedweave.reports import result_names
from tests import commands
from tests.refusals import check_facts

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs/tutorials").glob("*.py"))
QUICK = "bank"  # the one that the fast suite runs


def module(name: str) -> ModuleType:
    """A script of the site's build, as the build imports it."""
    sys.path.insert(0, str(ROOT / "docs/_site"))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("mkdocs", "griffe"):
            pytest.skip(f"needs the extra docs ({error})")
        raise
    finally:
        sys.path.pop(0)


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """The pages of the reference, which take seconds to write."""
    found: dict[str, str] = module("reference").pages() | module("algorithms").pages()
    return found


def said(page: str, name: str) -> str:
    """The section of a page under this heading."""
    return page.split(f"\n## {name}\n")[1].split("\n## ")[0]


def test_the_reference_has_every_column_of_the_ledger(pages: dict[str, str]) -> None:
    assert all(f"| `{column.name}` |" in pages["reference/ledger.md"] for column in COLUMNS)


@pytest.mark.parametrize("section", [*REGISTRIES, "part"])
def test_the_reference_has_every_plugin_with_every_key(pages: dict[str, str], section: str) -> None:
    for name, kind in config.registry(section).items():
        if section == "algorithm":
            under = pages[f"reference/algorithms/{name}.md"] + pages["reference/training-settings.md"]
        else:
            under = said(pages[f"reference/{section}.md"], name)
        missing = [key for key in config.parameters(section, kind) if f"`{key}`" not in under]
        assert (name, missing) == (name, [])


def test_a_setting_that_plugins_share_stands_once(pages: dict[str, str]) -> None:
    page = pages["reference/model.md"]
    assert len(re.findall(r"(?m)^\| `dropout` \| .* \| `0.5` \| share of a layer's outputs", page)) == 1
    assert "| `dropout` |" not in said(page, "gcn")
    assert re.search(r"\(#shared-settings\).* `dropout`", said(page, "gcn"))
    assert "| `hidden` |" in said(page, "gat")  # another default
    check_facts(pages["reference/python-models.md"], "[`GCN`](model.md#gcn)")
    assert "| `minimum` |" not in said(pages["reference/part.md"], "trained_prototypes")
    check_facts(said(pages["reference/part.md"], "trained_prototypes"), "(algorithms/fedtgp.md#settings)")


def test_the_reference_says_types_defaults_and_meanings(pages: dict[str, str]) -> None:
    check_facts(pages["reference/general.md"], "| `seed` | `int ≥ 0` | `0` |")
    row = "| `estimator` | `'ldp', 'oracle', 'none'` | `'ldp'` |"
    assert row in pages["reference/algorithms/fairgfl.md"]
    fedprox = pages["reference/algorithms/fedprox.md"]
    assert ("| `mu` |" in fedprox, "| `participation` |" in fedprox) == (True, False)
    check_facts(pages["reference/training-settings.md"], "| `participation` |")
    assert "(../training-settings.md)" in fedprox
    check_facts(said(pages["reference/engine.md"], "simulation"), "chunk")


def test_a_page_of_an_algorithm_says_paper_method_deviations_and_results(pages: dict[str, str]) -> None:
    page = pages["reference/algorithms/ditto.md"]
    heads = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    assert heads == [
        *("How it works", "Where it differs from the paper", "Try it", "Settings"),
        *("What leaves a member", "Results"),
    ]
    check_facts(page, "Ditto: Li et al. 2021")
    check_facts(page, "[`personal_model`](../part.md#personal_model)")


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_the_example_of_an_algorithm_is_read_and_its_paper_is_named(pages: dict[str, str], name: str) -> None:
    page = pages[f"reference/algorithms/{name}.md"]
    example = page.split("```toml\n")[1].split("```")[0]
    cut, model = ("vertical", "gcnii") if name in GROUPS["Parties with the same nodes"] else ("dirichlet", "gcn")
    around = {"data": {"name": "digits"}, "partition": {"name": cut}, "model": {"name": model}}
    resolved = config.resolve(around | tomllib.loads(example))
    assert resolved.algorithm.name == name
    if name == "fedbn":
        assert resolved.model.values["norm"] == "batch"
    assert page.split("**Source.** ")[1].partition("\n")[0].strip()
    check_facts(pages["reference/algorithm.md"], f"(algorithms/{name}.md)")


def test_the_index_of_classes_has_every_algorithm_with_its_own_settings(pages: dict[str, str]) -> None:
    """Against the names that the module exports."""
    page = pages["reference/python-algorithms.md"]
    registries = {"ALGORITHMS", "ALIASES", "GROUPS", "PARTS"}
    assert sorted(re.findall(r"- \[`(\w+)`\]", page)) == sorted({*fedweave.algorithms.__all__} - registries)
    check_facts(page, "[`FedProx`](algorithms/fedprox.md)`(model, mu=0.01, adaptive=False, …)`")


def test_every_command_is_documented(pages: dict[str, str]) -> None:
    page = pages["reference/commands.md"]

    def paths(command: typer.core.TyperCommand, words: str) -> list[str]:
        below = getattr(command, "commands", {}).items()
        return [words, *(path for name, one in below for path in paths(one, f"{words} {name}"))]

    for words in paths(typer.main.get_command(app), "fedweave")[1:]:
        assert f"`{words}`\n" in page, words
    assert len(re.findall(r"(?m)^- `--set section.key=value`: ", page)) == 1  # several commands share it


def test_settings_that_a_docstring_explains_together_have_one_meaning(pages: dict[str, str]) -> None:
    check_facts(said(pages["reference/part.md"], "foreign_ends"), "| `temperature` | `float` | `1.0` | as `margin` |")


def test_lines_that_name_parameters_become_a_list() -> None:
    assert module("docstrings").fields_as_lists("Open:\n- one\n  of them\n- two") == "Open:\n\n- one\n  of them\n- two"
    text = "What.\n\nlam:    λ, how\n        much.\nhops, fan_out: of egos.\n\nRaises:\n    ValueError: it is bad."
    assert module("docstrings").fields_as_lists(text).splitlines() == [
        *("What.", "", "", "- `lam`: λ, how", "    much.", "- `hops`, `fan_out`: of egos.", ""),
        *("Raises:", "    ValueError: it is bad."),
    ]


@pytest.mark.parametrize(
    ("page", "link", "there"),
    [
        ("index.md", "[own](docs/data-format.md#x)", "[own](data-format.md#x)"),
        ("index.md", "[how](ARCHITECTURE.md)", "[how](architecture.md)"),
        ("vertical.md", "[b](../benchmarks/README.md)", "[b](benchmarks.md)"),
        ("examples/credit.md", "[f](../../docs/f2gnn.md)", "[f](../f2gnn.md)"),
        ("first-steps.md", "[b](tutorials/bank.py)", "[b](tutorials/bank.md)"),
        ("index.md", "[b](docs/tutorials/bank.py)", "[b](tutorials/bank.md)"),
        ("contributing.md", "[Apache](LICENSE)", "Apache"),
        ("findings/glasu.md", "[2](../results/glasu-table2.md)", "[2](../results/glasu.md#glasu-table2)"),
        ("findings/glasu.md", "[2](../results/glasu-table2.csv)", "[2](../results/glasu-table2.csv)"),
        ("f2gnn.md", "[x](https://example.org/a)", "[x](https://example.org/a)"),
        ("f2gnn.md", "[x](nowhere/at-all.md)", "[x](nowhere/at-all.md)"),  # left for the build to refuse
    ],
)
def test_links_between_documents_lead_to_pages(page: str, link: str, there: str) -> None:
    assert module("hooks").rewrite_links(f"See {link}.", page) == f"See {there}."


def test_what_a_site_would_fetch_from_elsewhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "good.html").write_text(
        '<script src="a.js"></script><a href="https://example.org">x</a><img src="b.png">'
    )
    (tmp_path / "good.css").write_text("a { background: url(data:image/png;base64,x) } b { mask: url(c.svg) }")
    outside = module("outside").external_addresses
    assert [*outside(tmp_path)] == []
    (tmp_path / "bad.html").write_text(
        '<link rel="preconnect" href="https://fonts.example.org"><script src="//cdn.example.org/x.js"></script>'
        "<style>@import 'http://example.org/s.css'</style><p style=\"background: url(https://example.org/i.png)\">"
        '<pre class="mermaid">'
    )
    (tmp_path / "bad.css").write_text("@font-face { src: url('https://example.org/f.woff2') }")
    assert [found.split(":")[0] for found in outside(tmp_path)] == ["bad.css", *["bad.html"] * 5]


def test_figures_of_a_page_by_hand() -> None:
    """Words are all that is visible; sentences are in paragraphs and list items; a heading's link sign is none."""
    html = """<nav>Menu words</nav><article><h1>Two words<a class="headerlink">¶</a></h1>
        <p>One two three. Four <em>five</em>!<br>Six</p><ul><li>Seven</li></ul><pre>code here</pre>
        <table><tr><td>cell</td><td>9</td></tr></table><img src="a.png">
        <div class="picture"><svg><g><text>no word</text></g></svg></div></article><p>Footer</p>"""
    page = module("measure").read_page("page.html", html)
    assert (page.words, page.sentences(), page.code, page.pictures) == (13, [3, 2, 1, 1], 1, 2)
    long = module("measure").read_page("long.html", f"<article><p>{'word ' * 36}</p></article>")
    check_facts("\n".join(module("measure").summary([page, long])), "over 35 words 20.0%")


def test_pages_that_answer_queries_are_there_and_have_their_words() -> None:
    search, hooks = module("search"), module("hooks")
    for query, page in search.ANSWERS.items():
        text = (ROOT / hooks.ELSEWHERE.get(page, f"docs/{page}")).read_text().lower()
        assert any(word in text for word in query.lower().replace("@", " ").split()), (query, page)
        assert query in search.meta(page)["tags"]
        assert search.meta(page).get("search", {"boost": 1.0})["boost"] >= 1  # it weighs as much as any
    assert search.meta("results/fedego.md") == {"search": {"exclude": True}}
    assert 0 < search.meta("changelog.md")["search"]["boost"] < 1


def test_a_tutorial_is_cells_a_page_and_a_notebook(tmp_path: Path) -> None:
    tutorials = module("tutorials")
    path = tmp_path / "small.py"
    path.write_text("# %% [markdown]\n# # Title\n#\n# Words.\n\n# %%\na = 2\nprint('out')\n\n# %%\na + 1\n")
    found = [*tutorials.execute(path)]
    assert [(cell.code, cell.source, cell.output) for cell in found] == [
        (False, "# Title\n\nWords.", ""),
        (True, "a = 2\nprint('out')", "out\n"),
        (True, "a + 1", "3\n"),
    ]
    page = tutorials.markdown(found, "small.ipynb")
    assert page.startswith("# Title\n\n[This page as a notebook](small.ipynb)")
    document = json.loads(tutorials.notebook(found))
    assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
    assert [cell["cell_type"] for cell in document["cells"]] == ["markdown", "code", "code"]
    assert tutorials.read(tutorials.notebook(found)) == [
        tutorials.Cell(cell.code, cell.source, output=cell.output) for cell in found
    ]
    path.write_text("# %%\n1\n\n# %%\n\n1 / 0\n")
    with pytest.raises(ZeroDivisionError) as raised:
        [*tutorials.execute(path)]
    assert (str(raised.traceback[-1].path), raised.traceback[-1].lineno + 1) == (str(path), 6)
    path.write_text("import os\n# %%\n")
    with pytest.raises(ValueError, match="begins with"):
        tutorials.cells(path.read_text())


def test_every_table_of_a_paper_is_on_its_page_and_listed_but_not_in_the_navigation() -> None:
    results, pages = ROOT / "docs/results", module("papers").pages()
    stems = {path.stem for path in results.glob("*-*.md")}
    listed = re.findall(r"\]\(([\w-]+)\.md#([\w-]+)\)", pages["results/all.md"])
    assert sorted(stem for _, stem in listed) == sorted(stems)
    assert all(f" {{#{stem}}}\n" in pages[f"results/{paper}.md"] for paper, stem in listed)
    places = [
        pages["results/fedego.md"].index(f"{{#fedego-{name}}}")
        for name in ("table2-cora", "table10-cora", "figure4-cora")
    ]
    assert places == sorted(places)
    assert re.findall(r"results/[\w-]+\.md", (ROOT / "mkdocs.yml").read_text()) == ["results/all.md"]


def test_files_that_pages_of_results_name_are_there_and_all_are_named() -> None:
    results = ROOT / "docs/results"
    named = {*re.findall(r"results/([\w-]+\.csv)", "".join(path.read_text() for path in results.parent.rglob("*.md")))}
    for path in results.glob("*.md"):
        named |= {*re.findall(r"\(([\w-]+\.(?:csv|svg))\)", path.read_text())}
    assert named == {path.name for path in results.iterdir() if path.suffix in (".csv", ".svg")}


def test_a_note_of_several_tables_stands_once_above_them(tmp_path: Path) -> None:
    papers = module("papers")
    rest = "| row | paper |\n| --- | --- |\n| a | 1 |"
    for number in (1, 2):
        notes = f"Shared\nnote.\n\nNote of {number}."
        (tmp_path / f"one-table{number}.md").write_text(
            f"# One (A 2020), table {number}: Scores\n\n{notes}\n\n{rest}\n"
        )
    tables = [papers.read(path) for path in sorted(tmp_path.glob("*.md"))]
    blocks = papers.page("one", tables).split("\n\n")
    assert blocks[0] == "# One (A 2020): results"
    assert blocks[2:] == [
        *("## Notes on several tables", "- Shared note. (table 1; table 2)"),
        *("## Table 1: Scores {#one-table1}", "Note of 1.", rest),
        *("## Table 2: Scores {#one-table2}", "Note of 2.", f"{rest}\n"),
    ]


def test_there_is_a_tutorial_for_each_system_and_it_is_short() -> None:
    tutorials = module("tutorials")
    systems = {
        "bank": "F²GNN",
        "drugs": "FairGraphFL",
        "fraud": None,  # of a task, not of a system
        "hospitals": "GLASU",
        "laboratories": None,
        "marketplace": "FairGFL",
        "notebook": None,
        "shops": "FedEgo",
    }
    assert [path.stem for path in TUTORIALS] == [*systems]
    for path in TUTORIALS:
        found = tutorials.cells(path.read_text())
        system = systems[path.stem]
        assert system is None or f"({system})" in found[0].source.splitlines()[0]
        assert len([cell for cell in found if cell.code]) <= 10


def ran(path: Path) -> str:
    return "".join(cell.output for cell in module("tutorials").execute(path))


def numbers(pattern: str, out: str) -> list[list[float]]:
    """What stands in the groups of a pattern: a list for each, with an entry for each match."""
    return [list(map(float, group)) for group in zip(*(m.groups() for m in re.finditer(pattern, out)), strict=True)]


def test_no_result_stands_in_a_tutorials_prose() -> None:
    """Another processor or version gives others: results are printed by the code beside them; settings are quoted."""
    for path in TUTORIALS:
        prose = [cell.source for cell in module("tutorials").cells(path.read_text()) if not cell.code]
        assert not re.findall(r"\d\.\d|\d %", re.sub(r"`[^`]*`", "", "\n".join(prose))), path.name


def check_bank(out: str) -> None:
    """Both gaps are far above chance and fall with the penalty, and so does accuracy."""
    accuracy, sp, chance, eo = numbers(r"accuracy ([\d.]+), ΔSP ([\d.]+) \(chance ([\d.]+)\), ΔEO ([\d.]+)", out)
    plain, _, fair, between = range(4)
    assert min(sp[plain], eo[plain]) > 5 * chance[plain]
    assert sp[fair] < sp[between] < sp[plain]
    assert eo[fair] < eo[plain]
    assert accuracy[fair] < accuracy[plain]


def check_marketplace(out: str) -> None:
    """Shops without overlap gain, the others lose, and on average it is the shorter step that costs."""
    moved = numbers(r"losses: no overlap (.*), little (.*), much (.*), on average (.*)", out)
    for none, little, much in zip(*moved[:3], strict=True):
        assert none < 0 < min(little, much)
    shorter, normalised = moved[3]
    assert abs(normalised) < 0.02 < shorter
    check_facts(out, "300")


def check_hospitals(out: str) -> None:
    """Each model is better together than the best alone, and more exchanges cost more."""
    alone, together = (re.findall(rf"{how}, each clinic: (.*)", out)[0] for how in ("alone", "together"))
    assert min(*numbers(r": ([\d.]+)", together)) > max(*numbers(r": ([\d.]+)", alone))
    [[one, two]] = numbers(r"([\d.]+) MB sent", out)
    assert one < two


def check_fraud(out: str) -> None:
    """Together is better than alone, with what transfers carry than without, and begun from February than anew."""
    [[alone, narrow, wide, warm, cold]] = numbers(r"average precision ([\d.]+)", out)
    assert narrow < alone < wide
    assert cold < warm


def check_drugs(out: str) -> None:
    """Over four cuts the laboratory with wrong labels loses value on average."""
    [changes] = numbers(r"now \((.*)\); ", out)
    assert len(changes) == 4
    assert sum(changes) / 4 < -0.01


def check_laboratories(out: str) -> None:
    """Together molecules are ordered better than alone; intervals hold less than they were asked for."""
    errors, orders = numbers(r"(?m)^\w+ +RMSE ([\d.]+), order ([\d.]+)", out)
    (alone, fedavg, together), (alone_order, fedavg_order, together_order) = errors, orders
    assert together < fedavg < alone
    assert alone_order + 0.1 < min(fedavg_order, together_order)
    [[held]] = numbers(r"holds (\d+)% of test molecules", out)
    assert 50 < held < 90


def check_notebook(out: str) -> None:
    """Training goes on from round to round, and one seed is not a test."""
    [accuracy] = numbers(r"global/accuracy=([\d.]+)", out)
    assert accuracy == sorted(accuracy)
    assert accuracy[-1] > 0.8


def check_shops(out: str) -> None:
    """On all products FedEgo is far behind FedAvg and near being alone; λ is small."""
    [[alone, fedavg, fedego]] = numbers(r"all products ([\d.]+)", out)
    assert fedavg > fedego + 0.03
    assert abs(fedego - alone) < 0.05
    assert max(*numbers(r": ([\d.]+)", re.findall("lambda .*", out)[0])) < 0.2


def test_a_tutorial_runs() -> None:
    [path] = [path for path in TUTORIALS if path.stem == QUICK]
    check_bank(ran(path))


@pytest.mark.slow
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_all_tutorials_run_and_show_what_they_tell(path: Path) -> None:
    """What the prose concludes held with every seed that was tried; here with room for another processor."""
    globals()[f"check_{path.stem}"](ran(path))


def test_what_authors_of_algorithms_use_is_in_the_reference(pages: dict[str, str]) -> None:
    named = " ".join(text for page, text in pages.items() if "writing-" in page)
    names = "part.Part part.Context algorithm.Round federation.Federation edges.Edges model.apply"
    for name in names.split():
        assert f"{name}\n" in named + "\n", name
    python = {page.removesuffix(".md") for page in pages if re.match("reference/(python|writing)", page)}
    assert python == set(re.findall(r"reference/(?:python|writing)[\w-]*", (ROOT / "mkdocs.yml").read_text()))
    check_facts(pages["reference/python-metrics.md"], "classification")


def test_every_error_code_is_on_its_page_under_a_group_with_a_meaning(pages: dict[str, str]) -> None:
    """Against the codes that the source spells out, and those that tests expect."""
    codes = module("codes")
    page = pages["reference/errors.md"]
    sources = "".join(path.read_text() for path in (ROOT / "src/fedweave").rglob("*.py"))
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    spelled = {*re.findall(r'code="([a-z.-]+)"', sources)}
    expected = {*re.findall(r'(?:refusal\(\s*|\.code == )"([a-z.-]+)"', tests)}
    assert min(len(spelled), len(expected)) > 100
    assert {code for code in spelled | expected if f"`{code}`" not in page} == set()
    assert {code.partition(".")[0] for code in codes.codes()} == set(codes.CODES)
    assert {place.partition(": ")[2].partition("#")[0] for _, place in codes.CODES.values()} <= {
        *(path.name for path in (ROOT / "docs").glob("*.md")),
        *pages,
    }


def test_every_metric_and_every_key_of_a_summary_is_on_the_page(tmp_path: Path) -> None:
    """Of the registry, of names that the source spells out, and of what a run wrote."""
    page, names = module("results").page(), result_names
    assert {name for name in METRICS if f"| `{name}` |" not in page or not names.meaning(name)} == set()
    settings = "data.nodes=60 partition.clients=3 rounds=1 data.classes=2 evaluation.metric=average_precision"
    given = [f"--set={setting}" for setting in settings.split()]
    (tmp_path / "own.toml").write_text('[data]\nname = "synthetic"\n[partition]\n[evaluation]\n')
    commands.run("run", tmp_path / "own.toml", *given, "--out", tmp_path / "run", "-q")
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    rows = {*pq.read_table(tmp_path / "run/metrics.parquet")["metric"].to_pylist()}
    assert len(summary["metrics"]) > 40
    assert {name for name in summary["metrics"] if not (names.place(name) and names.meaning(name))} == set()
    assert {name for name in rows if not names.meaning(name)} == set()
    exact = "positives|scores|stopping|pooled|within|intervals"  # places whose names the source spells out
    sources = "".join(path.read_text() for path in (ROOT / "src/fedweave").rglob("*.py"))
    spelled = {*re.findall(rf'"((?:{exact})/[a-z_0-9]+)"', sources)}
    assert len(spelled) > 10
    assert {name for name in spelled if not names.meaning(name)} == set()
    source = (ROOT / "src/fedweave/experiment/runs/run.py").read_text()
    keys = {*re.findall(r'\{?"([a-z_]+)":', source.partition("def _summary(")[2].partition("\ndef ")[0])}
    assert keys | summary.keys() == names.KEYS.keys()
    assert all(f"| `{name}/…` |" in page for name in names.PLACES)


def test_places_are_measured_by_modules_that_are_there() -> None:
    for _, home in result_names.PLACES.values():
        assert (ROOT / "src/fedweave" / f"{home.replace('.', '/')}.py").exists(), home


def test_the_glossary_is_in_order_and_has_one_sentence_an_entry() -> None:
    lines = (ROOT / "docs/glossary.md").read_text().split("\n\n")[-1].splitlines()
    words = [re.match(r"- \*\*(.+?)\*\*: ", line) for line in lines]
    assert all(words)
    assert 40 <= len(lines) <= 80
    heads = [word[1].lower() for word in words if word]
    assert heads == sorted(heads)
    assert all(re.search(r"\.$", line) and line.count(". ") == 0 for line in lines)

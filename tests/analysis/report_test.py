"""The report of real runs: whole, damaged, side by side; figures, tables, the page."""

import html.parser
import importlib.util
import json
import re
import shutil

import keras
import matplotlib.image
import numpy as np
import pytest

import prunetrain as pt
from prunetrain import data, main, models
from prunetrain.analysis import page, plots, reading, report, sections
from prunetrain.analysis.sections import masks as mask_sections
from prunetrain.runs import files, results, workdir
from tests import tiny, toys

TITLES = [
    "Test accuracy against weights remaining",
    "Early-stop step against weights remaining",
    "Accuracy along training",
    "What pruning costs and training wins back",
    "Tickets against dense networks and controls",
    "Sparsity of each layer",
    "Effective sparsity and dead units",
    "Initial weights of the survivors",
    "Surviving input pixels",
    "Signs changed and distance travelled",
    "Overlap of tickets between replicates",
    "Table of rounds",
    "Time and arithmetic",
    "Settings, environment, files",
]


class Parsed(html.parser.HTMLParser):
    """What is in a page: tags with attributes, texts, and whether tags match."""

    VOID = ("meta", "img", "br", "link", "input")

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self._open = [], [], []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def named(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self):
        return " ".join(self.texts)


@pytest.fixture(autouse=True)
def known(registered):
    """The runs' dataset and model."""


@pytest.fixture(scope="module")
def written(finished, tmp_path_factory):
    """The report of the finished run: its folder, and the page parsed."""
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        tiny.register(patch)
        file = report.write([reading.Run(finished)], folder)
    return folder, Parsed(file.read_text())


@pytest.fixture(scope="module")
def whole(finished):
    """The sections of the finished run, by title."""
    with pytest.MonkeyPatch.context() as patch:
        tiny.register(patch)
        return of(finished)


def of(*paths, **options):
    """Sections by title."""
    runs = reading.open_runs(paths, **options)
    return {section.title: section for section in sections.of(runs)}


def picture(section, index=0):
    return section.pictures[index]


def cells(section):
    """The tables of a section, each a list of rows with its heading first."""
    return [
        [list(block.heading), *map(list, block.rows)]
        for block in flat(section.blocks)
        if isinstance(block, page.Table)
    ]


def flat(blocks):
    for block in blocks:
        yield block
        if isinstance(block, page.Folded):
            yield from flat(block.blocks)


def missing(section):
    return [block.text for block in section.blocks if isinstance(block, page.Missing)]


def evaluations(path):
    """metrics.jsonl as a list of dicts."""
    return [json.loads(x) for x in (path / "metrics.jsonl").read_text().splitlines()]


def series(axes):
    """The points of each line with bars, by its label."""
    return {x.get_label(): x[0].get_xydata() for x in axes.containers}


def labels(figure):
    """The texts of all legends of a figure."""
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    return [text.get_text() for x in legends if x for text in x.get_texts()]


def initial_kernels(path):
    """The kernels that round 0 began with, of each replicate."""
    kernels = []
    for replicate in range(2):
        model = tiny.network((4, 4, 1), 3)
        model.load_weights(
            path / f"checkpoints/replicate{replicate}-initial.weights.h5"
        )
        kernels.append([w.numpy() for w in model.weights if len(w.shape) == 2])
    return kernels


# The page


def test_sections_come_in_order(written):
    _, parsed = written
    numbered = [f"{n}. {title}" for n, title in enumerate(TITLES, start=1)]
    # In the list of contents, then as headings.
    assert [x for x in parsed.texts if x in numbered] == [*numbered, *numbered]
    links = [x["href"] for x in parsed.named("a")]
    ids = {attributes.get("id") for _, attributes in parsed.tags}
    assert links == [f"#section-{n}" for n in range(1, len(TITLES) + 1)]
    assert {link[1:] for link in links} <= ids


def test_the_page_asks_for_nothing_and_runs_nothing(written):
    folder, parsed = written
    assert not parsed.named("script")
    assert not parsed.named("link")
    for _, attributes in parsed.tags:
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "srcset", "data"):
            assert re.match("data:image/|#|$", attributes.get(name, ""))
    text = (folder / "report.html").read_text()
    without_data = re.sub(r'"data:[^"]*"', "", text)
    assert not re.search(r"https?:|//|@import|url\(", without_data)
    (policy,) = [x["content"] for x in parsed.named("meta") if "http-equiv" in x]
    assert policy.startswith("default-src 'none'")


def test_every_figure_has_a_text_for_those_who_do_not_see_it_and_a_caption(written):
    folder, parsed = written
    images = parsed.named("img")
    assert len(images) == len(list(folder.glob("*.png"))) == 7
    assert all(len(image["alt"]) > 20 for image in images)
    text = (folder / "report.html").read_text()
    assert len(re.findall(r"<img [^>]*><figcaption>[^<]{40,}", text)) == 7


def test_figures_are_also_png_files(written):
    folder, _ = written
    for file in folder.glob("*.png"):
        pixels = matplotlib.image.imread(file)
        assert len(np.unique(pixels)) > 2
    assert {file.suffix for file in folder.iterdir()} == {".png", ".html"}


def test_a_report_is_small_and_the_same_each_time(written, finished, tmp_path):
    folder, _ = written
    report.write([reading.Run(finished)], tmp_path)
    first, second = (x / "report.html" for x in (folder, tmp_path))
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_size < 1_000_000


def test_the_first_lines_say_what_was_run(written):
    _, parsed = written
    assert "prunetrain report: finished" in parsed.texts
    (line,) = [x for x in parsed.texts if x.startswith("net on noise")]
    assert "4 levels from 100 % to 54.4 %" in line
    assert "2 replicates" in line
    assert "reinit:2" in line


@pytest.mark.parametrize("name", ["<b>bold</b>", '"&amp;', "$x^{$_%", "_hidden", "表"])
def test_whatever_a_folder_is_called_stands_there_as_it_is(finished, tmp_path, name):
    path = tmp_path / name.replace("/", "_")
    shutil.copytree(finished, path)
    (path / "results.csv").unlink()
    other = shutil.copytree(finished, tmp_path / "other")
    file = report.write(reading.open_runs([finished, path, other]), tmp_path / "out")
    parsed = Parsed(file.read_text())
    assert not parsed.named("b")
    assert any(path.name in text for text in parsed.texts)
    curves = plots.curves(
        reading.open_runs([other, shutil.copytree(other, path / "x")])
    )
    assert all(not curve.label.startswith("_") for curve in curves)


def test_settings_are_escaped(copied):
    def change(content):
        return content.replace(b'"auto"', b'"<script>alert(1)</script>"')

    content = change((copied / "config.json").read_bytes())
    (copied / "config.json").write_bytes(content)
    files.record(copied, "config.json", files.digest([content]))
    file = report.write([reading.Run(copied)], copied / "report")
    parsed = Parsed(file.read_text())
    assert not parsed.named("script")
    assert any("<script>" in text for text in parsed.texts)


# Figures


def test_accuracy_is_drawn_at_early_stop_and_at_the_end(whole, finished):
    figure = picture(whole[TITLES[0]]).figure
    rows = results.read_rows(finished)
    for axes, column in zip(
        figure.axes, ("test_accuracy", "final_test_accuracy"), strict=True
    ):
        drawn = series(axes)
        assert list(drawn) == ["rewound ticket", "control: reinit"]
        for label, points in drawn.items():
            branches = ("ticket",) if "ticket" in label else ("reinit", "reinit_2")
            for round, (x, y) in enumerate(points, start="reinit" in label):
                found = [r for r in rows if r.round == round and r.branch in branches]
                assert len(found) == 2 * len(branches)
                assert x == pytest.approx(100 * (1 - found[0].sparsity))
                mean = 100 * np.mean([getattr(r, column) for r in found])
                assert y == pytest.approx(mean)
        assert axes.get_xlabel() == "weights remaining (%)"
    assert figure.axes[0].get_ylabel() == "test accuracy (%)"
    assert "dense (round 0)" in labels(figure)


def test_bars_reach_from_the_lowest_to_the_highest_training(whole, finished):
    axes = picture(whole[TITLES[0]]).figure.axes[0]
    bars = next(x for x in axes.containers if x.get_label() == "control: reinit")[2]
    rows = [r for r in results.read_rows(finished) if r.branch.startswith("reinit")]
    for round, ends in enumerate(bars[0].get_segments(), start=1):
        found = [100 * r.test_accuracy for r in rows if r.round == round]
        np.testing.assert_allclose(ends[:, 1], [min(found), max(found)])


def test_captions_say_what_is_averaged_and_what_the_bars_are(whole):
    found = whole
    for title in TITLES[:2]:
        caption = picture(found[title]).caption
        assert "(2 replicates, 4 trainings of reinit)" in caption
        assert "Bars reach from the lowest to the highest" in caption


def test_one_training_has_no_bars(copied):
    rows = [r for r in results.read_rows(copied) if r.replicate == 0]
    save(copied, [r for r in rows if r.branch == "ticket"])
    found = picture(of(copied)[TITLES[0]])
    assert "no means, no bars" in found.caption


def save(path, rows):
    """Rows in place of those of results.csv."""
    content = results.as_csv(rows).encode()
    files.record(path, "results.csv", files.digest([content]))
    (path / "results.csv").write_bytes(content)


def test_the_early_stop_step_is_drawn_in_steps(whole, finished):
    figure = picture(whole[TITLES[1]]).figure
    (axes,) = figure.axes
    rows = [r for r in results.read_rows(finished) if (r.branch, r.round) == TICKET_3]
    assert series(axes)["rewound ticket"][3, 1] == np.mean([r.best_step for r in rows])
    assert axes.get_ylabel() == "step of the lowest validation loss"


TICKET_3 = ("ticket", 3)


def test_training_shows_validation_where_no_test_was_logged(finished):
    found = picture(of(finished, levels=(100, 54))["Accuracy along training"])
    (axes,) = found.figure.axes
    assert axes.get_ylabel() == "validation accuracy (%)"
    assert "--test_every" in found.caption
    assert labels(found.figure) == ["100 %", "54.4 %", "54.4 %, reinit"]
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert lines["100 %"].get_xdata().tolist() == [0, 4, 8, 12]
    assert lines["54.4 %, reinit"].get_linestyle() == "--"
    logged = [
        line["accuracy"]
        for line in evaluations(finished)
        if (line["split"], line["round"], line["step"]) == ("validation", 0, 8)
    ]
    assert lines["100 %"].get_ydata()[2] == pytest.approx(100 * np.mean(logged))


def test_training_shows_the_test_where_it_was_logged(copied):
    where = {"replicate": 0, "branch": "ticket", "round": 0, "weights_remaining": 228}
    more = [
        {**where, "split": "test", "phase": phase, "step": step, "loss": 1.0}
        | {"accuracy": accuracy}
        for step, phase, accuracy in ((0, "training", 0.2), (6, "training", 0.6))
    ]
    with open(copied / "metrics.jsonl", "a") as stream:
        stream.writelines(json.dumps(line) + "\n" for line in more)
    found = picture(of(copied)["Accuracy along training"])
    (axes,) = found.figure.axes
    assert axes.get_ylabel() == "test accuracy (%)"
    assert "--test_every" not in found.caption
    dense = next(x for x in axes.get_lines() if x.get_label() == "100 %")
    # The best step is no place along training; the end is.
    assert dense.get_xdata().tolist() == [0, 6, 12]
    assert dense.get_ydata()[:2].tolist() == [20, 60]


def test_trainings_that_are_not_finished_count_in_no_figure(copied):
    # Their evaluations stay in metrics.jsonl.
    save(copied, [r for r in results.read_rows(copied) if r.replicate == 0])
    found = of(copied)
    lines = [x for x in evaluations(copied) if not x["replicate"]]
    dense, once = (
        100 * x["accuracy"]
        for x in lines
        if (x["branch"], x["split"], x["phase"]) == ("ticket", "validation", "end")
        and x["round"] < 2
    )
    along, again = (
        picture(found[title]).figure.axes[0]
        for title in ("Accuracy along training", TITLES[3])
    )
    (line,) = (x for x in along.get_lines() if x.get_label() == "100 %")
    assert line.get_ydata()[-1] == pytest.approx(dense)
    assert series(again)["trained again"][0, 1] == pytest.approx(once)


def test_accuracy_is_shown_before_pruning_after_it_and_after_training(whole, finished):
    section = whole["What pruning costs and training wins back"]
    figure = picture(section).figure
    assert labels(figure) == ["before pruning", "after pruning", "trained again"]
    lines = evaluations(finished)

    def mean(round, phase):
        wanted = ("ticket", round, "validation", phase)
        names = ("branch", "round", "split", "phase")
        found = [x["accuracy"] for x in lines if tuple(x[n] for n in names) == wanted]
        assert len(found) == 2
        return 100 * np.mean(found)

    drawn = series(figure.axes[0])
    for label, phase, later in (
        ("before pruning", "end", 0),
        ("after pruning", "pruned", 0),
        ("trained again", "end", 1),
    ):
        expected = [mean(round + later, phase) for round in range(3)]
        np.testing.assert_allclose(drawn[label][:, 1], expected)
    (heading, *rows) = cells(section)[0]
    assert heading[2:] == [
        "before pruning (%)",
        "after pruning (%)",
        "trained again (%)",
    ]
    assert [row[0] for row in rows] == ["0 → 1", "1 → 2", "2 → 3"]


def test_layers_are_told_in_counts(whole):
    section = whole["Sparsity of each layer"]
    (table,) = cells(section)
    assert table == [
        ["layer", "shape", "kept", "of", "pruned %"],
        ["net/hidden/kernel", "16×12", "98", "192", "48.96"],
        ["net/output/kernel", "12×3", "26", "36", "27.78"],
        ["all layers", "", "124", "228", "45.61"],
    ]
    axes = picture(section).figure.axes[0]
    shown = axes.get_images()[0].get_array()
    np.testing.assert_allclose(
        shown[:, 3], [100 * 98 / 192, 100 * 26 / 36, 100 * 124 / 228]
    )
    ticks = [text.get_text() for text in axes.get_yticklabels()]
    assert ticks == ["net/hidden/kernel", "net/output/kernel", "all layers"]


def test_a_total_is_of_counts_not_a_mean_of_percentages():
    layers = [reading.Layer("a", (1000,), 100, 1000), reading.Layer("b", (10,), 10, 10)]
    kept, total = mask_sections.totals(layers)
    assert (total - kept, total) == (900, 1010)
    assert mask_sections._fractions([layers])[-1] == pytest.approx(100 * 110 / 1010)
    assert mask_sections._counts([(kept, total)]) == ["110", "1,010", "89.11"]


def test_replicates_that_keep_different_numbers_are_told_from_lowest_to_highest():
    assert mask_sections._counts([(5, 10), (3, 10)]) == [
        "3 to 5",
        "10",
        "50.00 to 70.00",
    ]


def test_initial_weights_of_older_runs_are_a_line(copied):
    for file in copied.glob("checkpoints/*-initial.weights.h5"):
        file.unlink()
    section = of(copied)["Initial weights of the survivors"]
    assert not section.pictures
    (line,) = missing(section)
    assert "initial.weights.h5" in line


def test_initial_weights_are_those_of_the_survivors(copied):
    kernels = initial_kernels(copied)
    section = of(copied, levels=(100, 54))["Initial weights of the survivors"]
    figure = picture(section).figure
    assert [axes.get_title() for axes in figure.axes] == [
        "net/hidden/kernel",
        "net/output/kernel",
    ]
    assert labels(figure) == ["100 %", "54.4 %"]
    run = reading.Run(copied)
    survivors = np.concatenate([kernels[r][0][run.masks(r, 3)[0][1]] for r in range(2)])
    steps = figure.axes[0].patches[1].get_data()
    density, _ = np.histogram(survivors, steps.edges, density=True)
    np.testing.assert_allclose(steps.values, density)


def test_pixels_count_the_live_weights_of_each(finished):
    section = of(finished, levels=(54,))["Surviving input pixels"]
    axes, bar = picture(section).figure.axes
    run = reading.Run(finished)
    expected = np.mean([run.masks(r, 3)[0][1].sum(1) for r in range(2)], axis=0)
    shown = axes.get_images()[0].get_array()
    np.testing.assert_array_equal(shown, expected.reshape(4, 4))
    assert bar.get_ylabel() == "live weights per pixel"


def test_the_table_has_every_level_with_its_spread(whole, finished):
    (table,) = cells(whole["Table of rounds"])
    rows = results.read_rows(finished)
    assert [row[:3] for row in table[1:]] == [
        ["0", "ticket", "2"],
        *(
            [str(round), branch, count]
            for round in (1, 2, 3)
            for branch, count in (("ticket", "2"), ("reinit", "4"))
        ),
    ]
    tests = [100 * r.test_accuracy for r in rows if (r.branch, r.round) == TICKET_3]
    cell = table[-2][table[0].index("test %, early stop")].replace("\u00a0", " ")
    assert cell == (
        f"{np.mean(tests):.2f} ± {np.std(tests, ddof=1):.2f} "
        f"({min(tests):.2f} to {max(tests):.2f})"
    )


def test_operations_are_counted_dense_and_with_masks(whole, finished):
    seconds, operations = cells(whole["Time and arithmetic"])
    assert [row[2:] for row in operations[1:]] == [
        ["456", f"{2 * kept}", f"{100 * kept / 228:.2f}"]
        for kept in (228, 186, 152, 124)
    ]
    rows = results.read_rows(finished)
    total = sum(row.train_seconds for row in rows)
    assert seconds[-1][-1] == f"{total:,.1f}"


def test_operations_of_all_trainings_follow_from_their_steps(whole):
    texts = [x.text for x in whole["Time and arithmetic"].blocks[2:]]
    # 2 replicates of 1 + 3 × 3 trainings of 12 steps of 8 examples.
    assert "240 steps of 8 examples" in texts[0]
    assert f"{3 * 456 * 8 * 240:.3g} operations" in texts[0]


def test_settings_that_differ_are_shown_and_all_of_them_folded(whole):
    section = whole["Settings, environment, files"]
    differing, every, *_ = cells(section)
    assert ["train_steps", "12", "50000"] in differing
    assert not any(row[0] == "precision" for row in differing)
    assert ["precision", "float32", "float32"] in every


# Side by side


def test_runs_are_lines_of_one_figure(finished, copied):
    found = of(finished, copied)
    figure = picture(found[TITLES[0]]).figure
    assert list(series(figure.axes[0])) == [
        "rewound ticket (finished)",
        "control: reinit (finished)",
        "rewound ticket (run)",
        "control: reinit (run)",
    ]
    looks = {(x[0].get_color(), x[0].get_marker()) for x in figure.axes[0].containers}
    assert len(looks) == 4
    along = picture(found["Accuracy along training"]).figure
    assert [axes.get_title() for axes in along.axes] == ["finished", "run"]
    assert len(cells(found["Table of rounds"])) == 2
    heading = cells(found["Settings, environment, files"])[0][0]
    assert heading == ["setting", "finished", "run", "default"]


def test_figures_of_runs_with_like_names_are_files_of_their_own(finished, tmp_path):
    paths = [shutil.copytree(finished, tmp_path / name) for name in ("a b", "a-b")]
    pictures = [x.name for s in of(*paths).values() for x in s.pictures]
    assert len(set(pictures)) == len(pictures)
    assert "input-pixels-1-a-b" in pictures
    assert "initial-weights-2-a-b" in pictures


# What is missing


def test_every_section_is_there_for_a_folder_that_is_half_finished(copied):
    rows = results.read_rows(copied)
    save(copied, [r for r in rows if r.replicate == 0][:5])
    (copied / "environment.json").unlink()
    (copied / "tickets" / "replicate0-round02.npz").unlink()
    file = report.write([reading.Run(copied)], copied / "report")
    parsed = Parsed(file.read_text())
    assert "Missing or damaged:" in parsed.texts
    assert "tickets/replicate0-round02.npz is missing" in parsed.texts
    assert any("replicate 1 is unfinished: 10 train" in x for x in parsed.texts)
    assert [x["href"] for x in parsed.named("a")][-1] == f"#section-{len(TITLES)}"


@pytest.mark.parametrize(
    "gone",
    [
        ["results.csv"],
        ["metrics.jsonl"],
        ["config.json"],
        ["tickets"],
        ["checkpoints", "tickets", "results.csv"],
        ["results.csv", "metrics.jsonl", "tickets", "environment.json"],
    ],
    ids=" ".join,
)
def test_what_is_gone_is_a_line_and_the_rest_is_there(copied, gone):
    for name in gone:
        file = copied / name
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    report.write([reading.Run(copied)], copied / "report")
    found = of(copied)
    accuracy = "Test accuracy against weights remaining"
    assert bool(found[accuracy].pictures) == ("results.csv" not in gone)
    assert all(section.blocks for section in found.values())
    if "tickets" in gone:
        assert missing(found["Sparsity of each layer"])


def test_pruning_at_initialisation_says_why_there_is_no_accuracy_after_it(tmp_path):
    config = pt.Config(
        dataset="noise", model="net", prune_at="init", rounds=1, train_steps=4,
        eval_every=4, batch_size=8, validation_size=20, compile="graph",
    )  # fmt: skip
    pt.run(config, workdir=tmp_path / "run")
    (line,) = missing(of(tmp_path / "run")["What pruning costs and training wins back"])
    assert "prune_at=init" in line


def test_a_task_without_accuracy_shows_its_loss(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.random((90, 6), np.float32), rng.random((90, 1), np.float32)
    raw = data.Raw(x[:60], y[:60], x[60:], y[60:], None, "numbers")
    monkeypatch.setitem(data.DATASETS, "numbers", lambda data_dir: raw)
    monkeypatch.setitem(models.MODELS, "line", lambda *a: toys.mlp((6, 5, 1)))
    config = pt.Config(
        dataset="numbers", model="line", task="regression", rounds=2, train_steps=8,
        eval_every=4, batch_size=8, validation_size=20, compile="graph",
    )  # fmt: skip
    pt.run(config, workdir=tmp_path / "run")
    found = of(tmp_path / "run")
    figure = picture(found["Test loss against weights remaining"]).figure
    assert figure.axes[0].get_ylabel() == "test loss"
    along = picture(found["Loss along training"]).figure
    assert along.axes[0].get_ylabel() == "validation loss"
    assert "no images" in missing(found["Surviving input pixels"])[0]
    report.write([reading.Run(tmp_path / "run")], tmp_path / "out")


def test_convolutions_have_no_image_of_input_pixels(tmp_path, monkeypatch):
    def conv(input_shape, num_classes):
        layers = keras.layers
        stack = [layers.Conv2D(2, 3), layers.Flatten(), layers.Dense(num_classes)]
        return keras.Sequential([keras.Input(input_shape), *stack], name="conv")

    monkeypatch.setitem(models.MODELS, "conv", conv)
    config = pt.Config(
        dataset="noise", model="conv", rounds=1, train_steps=4, eval_every=4,
        batch_size=8, validation_size=20, compile="graph",
    )  # fmt: skip
    pt.run(config, workdir=tmp_path / "run")
    found = of(tmp_path / "run")
    (line,) = missing(found["Surviving input pixels"])
    assert "3×3×1×2" in line
    _, operations = cells(found["Time and arithmetic"])
    # 18 weights at 2 × 2 positions, 8 × 3 at one.
    assert operations[1][2] == str(2 * (18 * 4 + 24))


def test_losses_that_are_not_finite_are_left_out(copied):
    rows = [tiny.row(round=r, sparsity=0.2 * r, test_accuracy=0.5) for r in range(3)]
    bad = tiny.row(1, val_loss=float("nan"), test_accuracy=None, test_loss=float("inf"))
    save(copied, [*rows, bad])
    found = of(copied)
    (axes, _) = picture(found["Test loss against weights remaining"]).figure.axes
    assert np.isfinite(series(axes)["rewound ticket"]).all()
    report.write([reading.Run(copied)], copied / "report")


# The command


@pytest.fixture
def called(monkeypatch, capsys):
    """Runs a command line; returns exit code, output and messages."""
    monkeypatch.setattr(main, "_start_quietly", lambda: None)

    def run(*words):
        code = main.main(["prunetrain", "report", *map(str, words)])
        return code, *capsys.readouterr()

    return run


def test_the_command_writes_into_the_runs_folder_and_says_where(called, copied):
    code, out, err = called(copied)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == str(copied / "report" / "report.html")
    assert (copied / "report" / "report.html").exists()
    # The run can go on, and another report can be made.
    directory = workdir.WorkDirectory(copied, reading.Run(copied).settings)
    assert len(directory.rows) == 20
    assert called(copied)[0] == 0


def test_several_runs_are_reported_in_the_present_folder(
    called, finished, copied, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    code, out, _ = called(finished, copied)
    assert code == 0
    assert out.splitlines()[-1] == "report/report.html"
    assert not (copied / "report").exists()
    code, out, _ = called(finished, copied, f"--output={tmp_path / 'a' / 'b'}")
    assert out.splitlines()[-1] == str(tmp_path / "a" / "b" / "report.html")


def test_a_run_that_is_being_written_can_be_reported(called, copied):
    held = workdir.WorkDirectory(copied, reading.Run(copied).settings)
    assert called(copied)[0] == 0
    assert held.rows


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "workdir"),
        (["nowhere"], "nowhere is not the folder of a run"),
        (["RUN", "--levels=x"], "--levels"),
        (["RUN", "--levels=0"], "--levels"),
        (["RUN", "--levels=nan"], "--levels"),
        (["RUN", "--levels=101"], "--levels"),
        (["RUN", "--out=x"], "--out=x"),
        (["RUN", "RUN"], "twice"),
    ],
)
def test_what_is_wrong_is_one_line(called, finished, words, told):
    words = [str(finished) if word == "RUN" else word for word in words]
    code, out, err = called(*words)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert told in err


def test_without_matplotlib_the_way_to_it_is_told(called, finished, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    code, _, err = called(finished)
    assert code == 2
    assert "pip install 'prunetrain[report]'" in err


def test_an_output_that_cannot_be_written_is_told(called, finished, tmp_path):
    (tmp_path / "file").write_text("x")
    code, _, err = called(finished, f"--output={tmp_path / 'file'}")
    assert code == 1
    assert str(tmp_path / "file") in err


def test_a_failure_of_a_section_is_not_hidden(finished, tmp_path, monkeypatch):
    def broken(runs):
        """A section of its own."""
        raise ZeroDivisionError("of that")

    monkeypatch.setattr(sections, "SECTIONS", [broken])
    run = reading.Run(finished)
    text = report.write([run], tmp_path).read_text()
    told = "ZeroDivisionError: of that"
    assert text.count(told) == 2
    assert sum(told in problem for problem in run.problems) == 1


def test_help_is_the_modules_own(called, capsys):
    with pytest.raises(SystemExit) as ended:
        called("--help")
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "prunetrain report runs/a runs/b --output=compared" in text
    assert "--import_code" in text

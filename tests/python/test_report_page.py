# SPDX-License-Identifier: Apache-2.0
"""`tencache report` and `trace export` on a real run, and the page's parts on small ones."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from conftest import clean_environment, run_command
from test_report import STATS, gpu_with, stats_of_gpus
from test_story import check_perfetto

from tencache import _charts, _page, _perfetto, _story

# A model of 24 MiB with Adam, whose state is twice that, in 40 MiB.
PROGRAM = """
import os, time
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(6)])
optimizer = torch.optim.Adam(model.parameters())
data = torch.randn(64, 1024)
deadline = time.monotonic() + 100
step = 0
while step < 8 or not os.path.exists(os.environ["TENCACHE_RECORD"]):
    assert time.monotonic() < deadline
    step += 1
    optimizer.zero_grad()
    model(data).square().mean().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """The folder of a run that wrote run.json, run.trace and run.period."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "train.py").write_text(PROGRAM)
    done = run_command(
        [
            *(sys.executable, "-m", "tencache", "run", "--device-memory=40MiB"),
            *("--stats=run.json", "--trace=run.trace", "--record=run.period"),
            *("--", sys.executable, "train.py"),
        ],
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return folder


def run_tencache(folder, *arguments):
    done = run_command([sys.executable, "-m", "tencache", *arguments], cwd=folder)
    assert done.returncode == 0, done.stderr
    return done


class Page(HTMLParser):
    """A page's text by section, its links, and whether all that was opened was closed."""

    _WITHOUT_END = frozenset({"meta", "rect", "line", "polygon", "br"})

    def __init__(self, text):
        super().__init__()
        self.open, self.sections, self.fetched, self.drawings = [], {}, [], 0
        self._section = "top"
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag == "section":
            self._section = attributes["id"]
        self.drawings += tag == "svg"
        self.fetched += [
            value for name, value in attrs if name in ("src", "href", "data", "srcset")
        ]
        if tag not in self._WITHOUT_END:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in self._WITHOUT_END:
            return
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.sections[self._section] = self.sections.get(self._section, "") + data


@pytest.mark.any_torch
def test_report_of_a_run_shows_everything(finished_run):
    done = run_tencache(finished_run, "report", "run.json")
    assert done.stdout == "wrote run.html\n"
    text = (finished_run / "run.html").read_text()
    page = Page(text)
    assert page.fetched == [], "it must load nothing"
    assert "<script" not in text and "@import" not in text and "url(" not in text
    assert page.drawings >= 7
    stats = json.loads((finished_run / "run.json").read_text())
    assert stats["versions"]["torch"] in page.sections["top"]
    assert "train.py" in page.sections["top"]
    assert "computing alone (ideal)" in page.sections["steps"]
    assert "budget of DRAM" in page.sections["memory"]
    # A report of the cpu backend speaks of no GPU, and of no device but DRAM.
    told = " ".join(words for name, words in page.sections.items() if name != "all")
    assert "GPU" not in told and "device," not in told and "the device" not in told
    assert "disk written" in page.sections["traffic"]
    assert "evicted" in page.sections["moves"]
    assert re.search(r"\d\.weight", page.sections["stalls"] + page.sections["moves"])
    assert "exp_avg" in page.sections["stalls"]
    assert "of ideal" in page.sections["budgets"]
    assert "device_memory" in page.sections["all"] and "40MiB" in page.sections["all"]
    assert "is not known" not in text


@pytest.mark.any_torch
def test_report_says_what_is_missing_and_how_to_get_it(finished_run, tmp_path):
    stats = json.loads((finished_run / "run.json").read_text())
    del stats["files"], stats["history"], stats["options"]
    (tmp_path / "old.json").write_text(json.dumps(stats))
    run_tencache(tmp_path, "report", "old.json", "-o", "page.html")
    page = Page((tmp_path / "page.html").read_text())
    assert "--stats" in page.sections["memory"]
    assert "--trace FILE" in page.sections["moves"]
    assert "--record FILE" in page.sections["budgets"]
    # With the run's files given, the page has both the moves and the budgets.
    run_tencache(
        tmp_path,
        *("report", "old.json", "-o", "page.html"),
        *("--trace", str(finished_run / "run.trace")),
        *("--period", str(finished_run / "run.period")),
    )
    page = Page((tmp_path / "page.html").read_text())
    assert "is not known" not in page.sections["moves"] + page.sections["budgets"]


def copy_with_run_id(path, folder, run_id):
    """Copies the file with that id in its first line, or with none, as earlier builds wrote it."""
    first, *others = path.read_text().splitlines()
    header = {**json.loads(first), "run_id": run_id}
    if run_id is None:
        del header["run_id"]
    (folder / path.name).write_text("\n".join([json.dumps(header), *others]))


@pytest.mark.any_torch
def test_report_predicts_nothing_without_speeds(finished_run, tmp_path):
    """A run in which too little moved records no speed."""
    first, *others = (finished_run / "run.period").read_text().splitlines()
    header = {**json.loads(first), "write_bytes_per_s": 0.0}
    (tmp_path / "slow.period").write_text("\n".join([json.dumps(header), *others]))
    run_json = str(finished_run / "run.json")
    run_tencache(tmp_path, "report", run_json, "-o", "page.html", "--period", "slow.period")
    budgets = Page((tmp_path / "page.html").read_text()).sections["budgets"]
    assert "slow.period does not say how fast the tier below is" in budgets
    assert "tencache plan slow.period --disk" in budgets


@pytest.mark.any_torch
def test_report_leaves_out_what_another_run_wrote(finished_run, tmp_path):
    """A later run with the same --trace was once shown as the moves of the earlier one."""
    stats = json.loads((finished_run / "run.json").read_text())
    names = ("run.trace", "run.period")
    for name in names:
        header = json.loads((finished_run / name).read_text().split("\n", 1)[0])
        assert header["run_id"] == stats["run_id"]
        copy_with_run_id(finished_run / name, tmp_path, "0123456789abcdef")
    stats["files"] = {"trace": str(tmp_path / names[0]), "record": str(tmp_path / names[1])}
    (tmp_path / "run.json").write_text(json.dumps(stats))
    done = run_tencache(tmp_path, "report", "run.json")
    sections = Page((tmp_path / "run.html").read_text()).sections
    for name, keys, flag in (
        (names[0], ("moves", "stalls"), "--trace"),
        (names[1], ("budgets",), "--period"),
    ):
        assert f"{tmp_path / name} is of another run than run.json, so" in done.stderr
        assert f"of this run with {flag}" in done.stderr
        for key in keys:
            assert f"{tmp_path / name} is of another run" in sections[key]
            assert "is not known without" in sections[key]
    for name in names:
        copy_with_run_id(finished_run / name, tmp_path, None)
    done = run_tencache(tmp_path, "report", "run.json")
    assert "another run" not in done.stderr
    assert "is not known" not in (tmp_path / "run.html").read_text()


@pytest.mark.any_torch
@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes another user")
def test_report_goes_without_what_the_user_may_not_read():
    """A colleague's trace, in a home that nobody else may search, or written under a umask."""
    code = """
        import os, sys
        from tencache import _cli_look
        os.setuid(65534)
        stats = {"files": {"trace": sys.argv[1], "record": sys.argv[2]}}
        print([_cli_look._file_of(stats, name) for name in ("trace", "record")])
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        home = folder / "home"
        home.mkdir(mode=0o700)
        folder.chmod(0o755)
        files = [home / "run.trace", folder / "run.period"]
        for path in files:
            path.touch(mode=0o600)
        command = [sys.executable, "-c", textwrap.dedent(code), *map(str, files)]
        done = run_command(command, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[None, None]"
    assert f"{files[1]} may not be read by this user" in done.stderr


@pytest.mark.any_torch
def test_a_page_on_stdout_stands_alone(finished_run, tmp_path):
    done = run_tencache(tmp_path, "report", str(finished_run / "run.json"), "-o", "/dev/stdout")
    assert done.stdout.rstrip().endswith("</html>")


@pytest.mark.any_torch
def test_each_run_has_a_number_of_its_own(run_forked):
    code = "import tencache, torch; torch.ones(1 << 20); print(tencache.stats()['run_id'])"
    variables = {"TENCACHE": "1", "TENCACHE_DEVICE_MEMORY": "64MiB", "TENCACHE_QUIET": "1"}
    numbers = [run_forked(code, env=variables).stdout.strip() for _ in range(2)]
    assert all(re.fullmatch("[0-9a-f]{16}", number) for number in numbers), numbers
    assert numbers[0] != numbers[1]


@pytest.mark.any_torch
def test_perfetto_export_of_a_run_is_whole(finished_run):
    done = run_tencache(finished_run, "trace", "export", "--perfetto", "run.trace")
    assert "run.trace.perfetto.json" in done.stdout
    content = json.loads((finished_run / "run.trace.perfetto.json").read_text())
    by_kind = check_perfetto(content)
    assert by_kind["s"], "some fetches come late before anything is learned"
    names = {one["name"] for one in by_kind["X"]}
    assert any(name.startswith("aten::") for name in names)
    assert any(name.endswith(".weight") for name in names)
    assert len(by_kind["i"]) >= 6


def test_a_program_names_its_tensors(run_python, tmp_path):
    run_python(
        """
        import tencache, torch
        try:
            tencache.name_tensors({})
        except tencache.TencacheError as error:
            assert "enable()" in str(error)
        tencache.enable(device_memory="64MiB", trace="run.trace")
        tensor = torch.ones(1 << 20)
        tencache.name_tensors({"mine": tensor, "its part": tensor[1:], "small": torch.ones(1)})
        class Broken(torch.nn.Module):
            def __init__(self):
                pass
        broken = Broken()
        other = torch.ones(1 << 20)
        tencache.name_tensors([("other", other)])
        """
    )
    header = json.loads((tmp_path / "run.trace").read_text().splitlines()[0])
    assert list(header["names"].values()) == ["mine (+1)", "other"]


@pytest.mark.any_torch
def test_what_are_no_names_is_refused_before_anything_is_named(run_forked, tmp_path):
    run_forked(
        """
        import tencache, torch
        tencache.enable(device_memory="64MiB", trace="run.trace", quiet=True)
        tensor = torch.ones(1 << 20)
        model = torch.nn.Linear(2, 2)
        for named, words in (
            (model.parameters(), "item 0 is a Parameter and no pair"),
            (model, "Linear is neither a mapping nor pairs"),
            (torch.empty(1 << 40, device="meta"), "Tensor is neither a mapping nor pairs"),
            ([("mine", tensor), (7, tensor)], "item 1, 7, is of type int"),
            ({"mine": tensor, None: tensor}, "item 1, None, is of type NoneType"),
            ([("mine", tensor), "ab"], "item 1 is a str"),
            (["mine", tensor], "item 0 is a str"),
        ):
            try:
                tencache.name_tensors(named)
            except TypeError as error:
                assert words in str(error) and "named_parameters()" in str(error), error
            else:
                raise AssertionError(words)
        """
    )
    header = json.loads((tmp_path / "run.trace").read_text().splitlines()[0])
    assert header["names"] == {}


@pytest.mark.any_torch
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("report", "run.trace"), "holds no stats of tencache (it is a trace, for `tencache trace"),
        (("report", "run.period"), "holds no stats of tencache (it is a recorded period, for"),
        (("stats", "page.html"), "holds no stats of tencache (it is a page in HTML"),
        (("report", "empty.json"), "holds no stats of tencache (it lacks '"),
        (("report", "list.json"), "holds no stats of tencache (it is JSON of another kind)"),
        (("report", "text.json"), "holds no stats of tencache (it is not JSON). Give a file"),
        (("report", "run.json", "--trace", "run.json"), "is not from a trace: the file is a stats"),
        (("report", "run.json", "--period", "run.json"), "is no recorded period: it is a stats"),
        (("plan", "run.json"), "run.json is no recorded period: it is a stats file, for `tencache"),
        (("plan", "run.trace"), "is no recorded period: it is a trace, for `tencache trace`. Give"),
        (("plan", "perfetto.json"), "is no recorded period: it is a trace for Perfetto's viewer"),
        (("plan", "text.json"), "line 1: it is not JSON (Expecting value"),
        (("trace", "dump", "run.period"), "is not from a trace: the file is a recorded period"),
        (("report", "run.json", "-o", "gone/page.html"), "does not exist"),
        (("trace", "export", "run.trace"), "--perfetto"),
        (("trace", "export", "--perfetto", "run.json"), "is not from a trace"),
    ],
)
def test_what_cannot_be_done_is_one_message(finished_run, arguments, message):
    for name, text in (
        ("empty.json", '{"extents": 0}'),
        ("list.json", "[]"),
        ("text.json", "hello"),
        ("perfetto.json", _perfetto.to_json(_story.Story()).decode()),
        ("page.html", "<!doctype html>"),
    ):
        (finished_run / name).write_text(text)
    done = run_command([sys.executable, "-m", "tencache", *arguments], cwd=finished_run)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr and "JSONDecodeError" not in done.stderr


@pytest.mark.any_torch
@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "run.json", "-o", "./run.json"),
        ("report", "run.json", "-o", "run.trace"),
        ("report", "run.json", "-o", "run.period"),
        ("report", "page.html"),
        ("trace", "export", "--perfetto", "run.trace", "-o", "./run.trace"),
    ],
)
def test_what_is_read_is_not_replaced(finished_run, arguments):
    shutil.copy(finished_run / "run.json", finished_run / "page.html")
    inputs = [finished_run / name for name in ("run.json", "run.trace", "run.period", "page.html")]
    before = [path.read_bytes() for path in inputs]
    done = run_command([sys.executable, "-m", "tencache", *arguments], cwd=finished_run)
    assert [path.read_bytes() for path in inputs] == before
    assert done.returncode == 2
    assert "which this command reads. Name another file with --output" in done.stderr


def find_browser():
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    return next((path for path in map(shutil.which, names) if path), None)


@pytest.mark.any_torch
def test_a_browser_shows_the_page(finished_run, tmp_path):
    browser = find_browser()
    if browser is None:
        pytest.skip("no browser here: `apt-get install chromium-headless-shell`")
    run_tencache(finished_run, "report", "run.json", "-o", str(tmp_path / "page.html"))
    common = [
        *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1000,3200"),
        *(f"--user-data-dir={tmp_path / 'profile'}", "--proxy-server=127.0.0.1:9"),
        *("--enable-logging=stderr", "--v=0"),
    ]
    address = f"file://{quote(str(tmp_path / 'page.html'))}"
    shown = subprocess.run(
        [*common, "--dump-dom", address], capture_output=True, text=True, env=clean_environment()
    )
    assert "Stalls by op and by tensor" in shown.stdout
    assert "CONSOLE" not in shown.stderr, "a page without scripts has nothing to complain about"
    picture = tmp_path / "page.png"
    subprocess.run(
        [*common, f"--screenshot={picture}", address],
        capture_output=True,
        check=True,
        env=clean_environment(),
    )
    assert picture.stat().st_size > 50_000, "an empty page is smaller"


# ---- parts, without a run ----------------------------------------------------------------------

SMALL = {
    **copy.deepcopy(STATS),
    "versions": {"tencache": "0.1.0", "torch": "2.11.0", "python": "3.11.2"},
}


@pytest.mark.any_torch
def test_page_shows_texts_from_outside_as_texts():
    stats = {**SMALL, "program": "<script>alert(1)</script>"}
    text = _page.render(_page.Sources(path=_path("<b>.json"), stats=stats))
    assert "<script" not in text and "<b>" not in text
    Page(text)


def _path(name):
    return SimpleNamespace(name=name)


@pytest.mark.any_torch
def test_page_of_a_failed_run_begins_with_what_went_wrong():
    stats = {**SMALL, "over_budget": {"events": 2, "peak_bytes": 100 << 20}}
    page = Page(_page.render(_page.Sources(path=_path("run.json"), stats=stats)))
    assert "--device-memory 2148MiB would hold them" in page.sections["top"]


@pytest.mark.any_torch
@pytest.mark.parametrize(
    ("stall_free", "text"),
    [
        ((3 << 30, 5 << 29), "With --device-memory 3072MiB a learned step"),
        ((2 << 30, 2 << 30), "waits for at most 1%"),
        ((2 << 30, 0), None),
    ],
)
def test_page_of_gpus_names_the_budget_of_each(stall_free, text):
    gpus = [gpu_with(*gpu) for gpu in enumerate(stall_free)]
    stats = {**SMALL, **stats_of_gpus(*gpus), "versions": SMALL["versions"]}
    page = Page(_page.render(_page.Sources(path=_path("run.json"), stats=stats)))
    told = page.sections["budgets"]
    assert text in told if text else "a learned step" not in told and "1%" not in told


@pytest.mark.any_torch
def test_page_of_a_trace_without_ops_says_why():
    sources = _page.Sources(path=_path("run.json"), stats=SMALL, story=_story.Story())
    page = Page(_page.render(sources))
    assert "Give a smaller --device-memory" in page.sections["moves"]


@pytest.mark.any_torch
@pytest.mark.parametrize(
    ("backend", "peak", "waits"),
    [("cpu", "Peak in DRAM", False), ("cuda", "Peak on the device", True)],
)
def test_page_has_the_words_of_the_backend(backend, peak, waits):
    op = _story.Op(0, "aten::mm", 0, 20)
    story = _story.Story(ops=[op], waits=[_story.Wait(0, op, 1, 9, ())], end_ns=20)
    stats = {**SMALL, "backend": backend}
    stats.update(thread_wait_s=1.0, peak={**stats["peak"], "host": 0})
    page = Page(_page.render(_page.Sources(path=_path("run.json"), stats=stats, story=story)))
    assert peak in page.sections["top"]
    assert "in 1 wait." in page.sections["stalls"]
    assert ("ahead of the GPU" in page.sections["stalls"]) is waits


@pytest.mark.any_torch
def test_time_of_a_step_is_taken_over_windows():
    at_s = [0.5 * number for number in range(41)]
    # The program makes no step for five seconds, then one in each second.
    history = {"at_s": at_s, "steps": [max(0, int(now - 4)) for now in at_s]}
    points = _page._step_times(history)
    assert len(points) >= 5
    assert all(value == pytest.approx(1.0) for _, value in points)


@pytest.mark.any_torch
@pytest.mark.parametrize(
    ("spans", "shares"),
    [
        ([(0, 10)], [1, 1, 1, 1, 1]),
        ([(0, 2), (5, 6)], [1, 0, 0.5, 0, 0]),
        ([(0, 2), (0, 2)], [1, 0, 0, 0, 0]),
        ([(3, 3)], [0, 0.02, 0, 0, 0]),
        ([(-5, -1), (11, 12)], [0, 0, 0, 0, 0]),
        ([(9.9999999, 20)], [0, 0, 0, 0, 0.02]),
    ],
)
def test_spans_cover_stretches(spans, shares):
    assert _charts.covered(spans, 0, 10, 5) == pytest.approx(shares, abs=1e-6)


@pytest.mark.any_torch
def test_thinned_points_keep_ends_and_peaks():
    points = [(float(number), float(number == 777)) for number in range(5000)]
    thinned = _charts.thinned(points, 100)
    assert len(thinned) <= 100
    assert thinned[0] == points[0] and thinned[-1] == points[-1]
    assert (777.0, 1.0) in thinned


@pytest.mark.any_torch
@pytest.mark.parametrize("largest", [0, 1e-9, 0.3, 1, 7, 12345.6, 1e12])
def test_axes_hold_every_value(largest):
    line = _charts.Line("line", [(0, 0), (1, largest)], "c1")
    drawing = _charts.lines("title", [line], str, str)
    heights = [
        float(point.split(",")[1]) for point in re.search(r'points="([^"]*)"', drawing)[1].split()
    ]
    assert all(0 <= height <= 240 for height in heights)

"""The dashboard and the page on metrics name what a server really tells."""

from __future__ import annotations

import json
import re
from pathlib import Path

from server.front import Front, prompt

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "deploy/grafana.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
NAME = re.compile(r"(?:vllm:|octavo_|process_|http_)\w+")


class Counted:
    """The counters of a backend that counts attention's time."""

    def phase_seconds(self) -> dict[str, tuple[float, float]]:
        return {"attention": (1.0, 0.5), "merge": (0.0, 0.0)}


def exposition(monkeypatch) -> dict[str, set[str]]:
    """Return the labels of each sample, by its name, of a server that has done something."""
    front = Front()
    monkeypatch.setattr(front.core.backend, "counters", Counted, raising=False)
    front.add("r", prompt(1, 40), max_tokens=2)
    front.run()
    front.metrics.http.observe("/x", "GET", 200, 0.1, {"request": 0, "response": 1})
    found: dict[str, set[str]] = {}
    for key in front.samples():
        name, _, labels = key.partition("{")
        found.setdefault(name, {"model_name"} if name.startswith("vllm:") else set())
        found[name] |= set(re.findall(r"(\w+)=", labels))
    return found


def test_every_query_asks_for_what_is_told_by_labels_that_it_has(monkeypatch) -> None:
    found = exposition(monkeypatch)
    variables = [v["definition"] for v in DASHBOARD["templating"]["list"] if "definition" in v]
    assert len(QUERIES) > 30
    for query in [*QUERIES, *variables]:
        names = NAME.findall(query)
        assert names, query
        assert query.count("(") == query.count(")"), query
        assert query.count("{") == query.count("}"), query
        for name in names:
            assert name in found, f"{name} of {query}"
        for name, matchers in re.findall(r"([\w:]+)\{([^}]*)\}", query):
            asked = set(re.findall(r"(\w+)=", matchers))
            assert asked <= found[name] | {"instance"}, query  # instance is Prometheus' own
        for grouped in re.findall(r"by \(([^)]*)\)", query):
            labels = set(grouped.split(", "))
            assert all(labels <= found[name] for name in names), query


def test_rates_are_of_counters_and_quantiles_of_buckets() -> None:
    golden = (Path(__file__).with_name("metric_names.txt")).read_text().splitlines()
    kinds = dict(line.split()[:2] for line in golden)
    counters = {f"{name}_total" for name, kind in kinds.items() if kind == "counter"}
    for name, kind in kinds.items():
        if kind in ("histogram", "summary"):
            counters |= {f"{name}_sum", f"{name}_count"}
        if kind == "histogram":
            counters.add(f"{name}_bucket")
    counters.add("process_cpu_seconds_total")  # prometheus-client's own
    for query in QUERIES:
        rated = re.findall(r"rate\(([\w:]+)", query)
        assert set(rated) <= counters, query
        unrated = set(NAME.findall(query)) - set(rated)
        assert not unrated & counters, f"a running count is shown as it is: {query}"
        if "histogram_quantile" in query:
            quantile = (
                r"histogram_quantile\(0\.\d+, sum by \(le\) \(rate\([\w:]+_bucket\{.*\}\[.*\]"
            )
            assert re.fullmatch(quantile + r"\)\)\)", query), query


def test_literal_labels_have_values_that_are_told(monkeypatch) -> None:
    front = Front()
    monkeypatch.setattr(front.core.backend, "counters", Counted, raising=False)
    told = list(front.samples())
    for query in QUERIES:
        for name, matchers in re.findall(r"([\w:]+)\{([^}]*)\}", query):
            for label, value in re.findall(r'(\w+)="([^"$]+)"', matchers):
                assert any(
                    key.startswith(f"{name}{{") and f"{label}={value}" in key for key in told
                ), query


def test_grafana_finds_what_it_needs() -> None:
    """Its own names: a data source to choose, variables that are defined, a letter a query."""
    assert DASHBOARD["schemaVersion"] >= 36  # since when a data source is an object
    assert DASHBOARD["title"]
    assert DASHBOARD["uid"]
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    assert next(iter(variables)) == "datasource"  # the others ask it
    source = {"type": "prometheus", "uid": "${datasource}"}
    asked = [v for v in variables.values() if v["type"] == "query"] + PANELS
    asked += [target for panel in PANELS for target in panel["targets"]]
    assert [one["datasource"] for one in asked] == [source] * len(asked)
    for panel in PANELS:
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters) > 0
        assert panel["type"] in ("stat", "timeseries")
        assert panel["fieldConfig"]["defaults"]["unit"]
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD)))
    assert used <= {*variables, "__rate_interval"}
    assert set(variables) <= used


def test_legends_name_labels_of_their_query() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert re.search(rf"by \([^)]*\b{label}\b", target["expr"]), target


def test_panels_lie_side_by_side() -> None:
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not taken & cells, panel["title"]
        taken |= cells


def test_the_page_on_metrics_has_a_row_for_each_and_for_no_other() -> None:
    page = (ROOT / "docs/serving-metrics.md").read_text()
    rows = re.findall(r"^\| (`.*?) \|", page, flags=re.M)
    told = [name.partition("{")[0] for row in rows for name in re.findall(r"`([^`]+)`", row)]
    golden = (Path(__file__).with_name("metric_names.txt")).read_text().splitlines()
    expected = []
    for line in golden:
        name, kind = line.split()[:2]
        expected.append(f"{name}_total" if kind == "counter" else name)
    assert sorted(name for name in told if not name.startswith("process_")) == sorted(expected)
